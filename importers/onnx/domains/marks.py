"""tileflow: the mark that the bridge from PyTorch puts behind a tensor of which a module asks something, by a number of
the bridge's own table."""
from __future__ import annotations

from collections.abc import Sequence

from tileflow.graph import Value

from ..declared import declare
from ..site import Site
from ..versions import form

DOMAIN, MARK = "tileflow", "Asked"
declare(DOMAIN, MARK, "X:V -> Y:V", number=int)


@form(MARK, domain=DOMAIN)
def asked(site: Site) -> Sequence[Value]:
    """A node of its own, under the name of its output: what is asked is of that one, or of what made it."""
    return site.finish("Identity", site.value(0))
