"""Public names as they are at run time, for the site's reference, which is read from the sources: what a package calls
as one of its files is called, and what has no docstring of its own."""
from __future__ import annotations

import importlib
import inspect
from typing import Any

from griffe import Alias, Docstring, Extension, Module


class Public(Extension):
    """Griffe's reading of tileflow, completed from the modules that say what of them is public and that need no
    framework."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        if pkg.path == "tileflow":
            for name in ("nn", "nn.functional", "optim.schedules"):
                complete(pkg[name])


def complete(module: Module) -> None:
    live = importlib.import_module(module.path)
    for name in live.__all__:
        found, member = getattr(live, name), module.members[name]
        if member.is_module and not inspect.ismodule(found):
            member = module.members[name] = Alias(name, member.members[name], parent=module)
        if not member.has_docstring and (told := inspect.getdoc(found)):
            member.docstring = Docstring(told, parent=member)
