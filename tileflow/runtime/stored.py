"""The program of an executable as a model runs it: found by what the model is, made an engine, and refused by the name
of what differs."""
from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..custom.names import differing
from ..executable.engine import Engine
from ..memory.types import TensorType
from ..options.registries import LOSSES
from ..state import Session
from .executable import keeps, kept_engine, make_engine
from .host import Host, Progress

if TYPE_CHECKING:
    from .. import compiler
    from ..program.program import Program
    from .executable_file import Opened

Description = Mapping[str, Any]
"""All that shapes what a model compiles for a call, in JSON's types: model (the class), options, types, anchored,
loss, structure (of the optimizer)."""


class Stored:
    """A program that need not be compiled from a graph.

    loss: the name of the output that is the loss. anchors, once: as `executable_file.Header` has them.
    """

    def __init__(self, opened: Opened) -> None:
        self.opened, header = opened, opened.header
        self.loss, self.anchors, self.fingerprint = header.loss_output, header.anchors, header.fingerprint
        self.once = frozenset(header.once)

    @property
    def description(self) -> Description:
        """Of the model that it was exported from."""
        header = self.opened.header
        return {"model": header.model, "options": compiled_options(self.opened.options),
                "anchored": list(header.anchored),
                "types": [[dtype, list(shape)] for dtype, shape in header.types], "loss": header.loss,
                "structure": header.structure,
                "form": header.form["arguments"] if isinstance(header.form, dict) and "names" in header.form else None}

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Of a call's arrays."""
        return tuple(TensorType(dtype, shape) for dtype, shape in self.opened.header.types)

    def differs(self, wanted: Description) -> str | None:
        """How a model's description differs, as the end of a sentence; None where it does not."""
        own = self.description
        if own["model"] != wanted["model"]:
            return f"is of a {own['model']}, and this is a {wanted['model']}"
        for name, value in own["options"].items():
            if (other := wanted["options"][name]) != value:
                return f"was compiled with {name} = {value!r}, and this model has {other!r}"
        if wanted["loss"] not in (own["loss"], self.opened.header.fitted):
            return f"was compiled with the loss {_shown(own['loss'])}, and this model has {_shown(wanted['loss'])}"
        if own["structure"] != wanted["structure"]:
            return (f"was compiled with the optimizer {_shown(own['structure'])}, "
                    "and this model's has other settings that are compiled in")
        if own["anchored"] != wanted["anchored"]:
            return f"keeps the values {own['anchored']}, and this model {wanted['anchored']}"
        if own["form"] != wanted["form"]:
            return "was compiled for arguments that are nested otherwise, or for other constants"
        if own["types"] != wanted["types"]:
            given = ", ".join(f"{dtype}{shape}" for dtype, shape in wanted["types"])
            return f"takes {self.takes}, and this call has {given}"
        return None

    @property
    def takes(self) -> str:
        """The arrays of a call, in a sentence."""
        header = self.opened.header
        return ", ".join(f"{t.name} {dtype}{list(shape)}"
                         for t, (dtype, shape) in zip(header.inputs, header.types, strict=True))

    def lacks(self, states: Mapping[str, np.ndarray]) -> str | None:
        """Which weight or buffer of the program is not among some states, as the end of a sentence; None where all
        are."""
        for s in self.opened.header.states:
            if s.kind in ("parameter", "buffer") and s.role != "replica":
                found = states.get(s.name)
                if found is None or found.shape != s.shape:
                    other = "none of that name" if found is None else f"one of {found.dtype}{list(found.shape)}"
                    return f"has the {s.kind} {s.name}, {s.dtype}{list(s.shape)}, and this model has {other}"
        return None

    def program(self) -> Program:
        """The Program."""
        return self.opened.program()

    def compilation(self) -> compiler.Compilation:
        """The Program, of which nothing is known of how it came about."""
        from ..compiler import Compilation
        return Compilation(self.program())

    def engine(self, session: Session, initial: Mapping[str, np.ndarray], host: Host, final: frozenset[str],
               progress: Progress | None) -> Engine:
        """What runs it: from an Image that an earlier start has kept, or lowered now.

        Raises:
            ModelError: the file's program is another than its header says.
        """
        digest = self.opened.digest
        found = kept_engine(digest, session, initial, host, final)
        if found is None:
            kept = digest if keeps(host) else None
            found = make_engine(self.program(), session, initial, host, final=final, progress=progress, digest=kept)
        image, header, options = found.image, self.opened.header, self.opened.options
        calls = options.device_iterations * options.gradient_accumulation * options.replication_factor
        told = [*image.inputs], [t.name for t in image.outputs], image.training, image.micro_batches, [*image.states]
        wanted = [*header.inputs], [*header.outputs], header.model == "TrainingModel", calls, [*header.states]
        if told != wanted:
            raise self.opened.refused("its header says other inputs, outputs or states than its program has")
        if others := ", ".join(differing(header.codes or ())):
            warnings.warn(f"Executable {self.opened.path} was compiled with other code of {others} than is declared "
                          "now: it may compute other numbers, and gradients that were derived are of the code before. "
                          "Export the model again with compile_and_export.", stacklevel=2)
        return found


def compiled_options(options: Any) -> dict[str, Any]:
    """The options that shape a program and are told nowhere else in a description, as plain values."""
    values = options.to_dict()
    return {d.name: values[d.name]
            for d in options.declared().values() if d.is_compiled and d.name not in _TOLD and d.group != "optimizer"}


def told_options(options: Any) -> dict[str, Any]:
    """The options that calls look at, as an executable says them."""
    return {name: told for name, told in options.told().items() if (d := options.declared()[name]).is_compiled
            or d.live}


_TOLD = ("micro_batch_size", "dims", LOSSES.option, *LOSSES.own, "anchored_tensors")
"""The types, the loss and the anchors say what these come to; so does the optimizer, which is a group."""


def _shown(data: Any) -> str:
    """What a sentence calls a loss or an optimizer."""
    if not isinstance(data, Mapping):
        return "none"
    fields = data.get("fields")
    return str(fields.get("name", data.get("class")) if isinstance(fields, Mapping) else data.get("class"))
