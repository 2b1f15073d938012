"""tileflow: what the bridge from PyTorch writes that no other domain has. The mark that it puts behind a tensor of
which a module asks something, by a number of the bridge's own table; operators that neither ONNX nor PyTorch's
exporters have; functions that Python calls."""

from __future__ import annotations

from collections.abc import Sequence

from tileflow.graph import Value
from tileflow.ops.ctc import CTCBeamSearchDecoder, CTCLoss
from tileflow.ops.hosted import FUNCTIONS
from tileflow.ops.printing import PrintTensor

from ..declared import declare
from ..site import Site
from ..versions import form

DOMAIN, MARK, PRINT, CALL = "tileflow", "Asked", PrintTensor.name, "HostFunction"
PLAIN = (PrintTensor, CTCLoss, CTCBeamSearchDecoder)
"""Operators of tileflow's that are written as they are."""
declare(DOMAIN, MARK, "X:V -> Y:V", number=int)
for plain in PLAIN:
    declare(DOMAIN, plain.name, "X*:V -> Y*:V", **plain().attributes())
declare(DOMAIN, CALL, "X*:V -> Y*:V", token=str)


@form(MARK, domain=DOMAIN)
def asked(site: Site) -> Sequence[Value]:
    """A node of its own, under the name of its output: what is asked is of that one, or of what made it."""
    return site.finish("Identity", site.value(0))


@form(*(plain.name for plain in PLAIN), domain=DOMAIN)
def as_written(site: Site) -> Sequence[Value]:
    return site.finish(site.op_type, *(site.value(i) for i in range(len(site.inputs))), **site.attrs)


@form(CALL, domain=DOMAIN)
def called(site: Site) -> Sequence[Value]:
    """A function of the process that wrote the file, which alone knows the token."""
    found = FUNCTIONS.get(site.attrs["token"])
    if found is None:
        raise site.unsupported("it calls a function of the process that wrote it, which is another one, or gone")
    return site.builder.emit(found, *(site.value(i) for i in range(len(site.inputs))), names=tuple(site.outputs))
