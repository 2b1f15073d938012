"""From a compiled model to an executable's file."""
from __future__ import annotations

import os
from typing import Any

from ..custom.names import comparable
from ..executable.engine import Engine
from ..program.file import parts_of
from ..program.program import Program
from ..state import Session
from ..state.session import LASTING
from ..system.version import VERSION
from . import executable_file
from .executable_file import Header, KeptFile
from .onnx_source import OnnxSource
from .source import Source


def export(path: str | os.PathLike[str], source: Source, program: Program, engine: Engine, whole: bool,
           **more: Any) -> None:
    """Write what a model runs, with its session's states and the ONNX file that it came from if it is `whole`.

    Args:
        more: the fields of a Header that the model knows.

    Raises:
        UnsupportedError: the program holds what a file cannot; the sentence names it.
        CheckpointError: the file cannot be written; one that stood there is as it was.
    """
    parts = parts_of(program)
    kept, file = None, None
    if whole and isinstance(source, OnnxSource):
        from ..importers.onnx.export import whole_bytes
        file = whole_bytes(source.unresolved)
        kept = KeptFile(tuple((port.name, port.dtype) for port in source.inputs), source.plain)
    names = tuple(s.name for s in engine.image.states if s.kind in LASTING) if whole else ()
    own = {node.op.name for graph in program.parts.values() for node in graph.walk() if node.op.code is not None}

    def write(session: Session) -> None:
        header = Header(version=VERSION, whole=whole, inputs=engine.image.inputs,
                        outputs=tuple(v.name for v in engine.outputs),
                        states=engine.image.states, stored=names, file=kept, trainable=session.trainable,
                        codes=comparable(sorted(own)) or None,
                        assigned=tuple(session.assigned.items()), updates=session.updates,
                        micro_batches=session.micro_batches, **more)
        executable_file.write(path, header, parts, {name: session[name] for name in names}, file)
    source.session.turn.hold(write, source.session)


def where_of(source: Any) -> str:
    """What messages call what a model was made of."""
    made = next((getattr(source, name) for name in ("net", "module") if hasattr(source, name)), None)
    if made is not None:
        return f"the network {type(made).__name__}"
    if isinstance(source, OnnxSource):
        model = source.unresolved
        return model.where if model.path is None else str(model.path.name)
    return str(source.opened.header.where)
