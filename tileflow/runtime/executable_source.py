"""What a model of an executable comes from: the ONNX file that is in it, or nothing but its program. Either way the
session has the states that the file holds."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from ..memory.types import TensorType
from ..options.options import Options
from ..precision.types import Precision
from ..state import Session, fitting
from ..system.errors import DataError, UnsupportedError
from ..system.nested import Form
from .data import Dataset
from .executable_file import Opened
from .forms import Nesting, arranged, nesting_of
from .host import Host, Progress
from .model_file import Input, ModelFile
from .onnx_source import OnnxSource
from .source import Flat, Signature
from .stored import Stored

if TYPE_CHECKING:
    from ..importers.onnx import OnnxModel


def session_of(opened: Opened) -> Session:
    """A session with the states of an executable, all as they were when it was written.

    Raises:
        ModelError: they are damaged, or no states that a session can have.
        OutOfMemoryError: there is no room for them.
    """
    header, made = opened.header, Session()
    made.declare(header.states)
    opened.read_into(made.__getitem__)
    made.version, made.updates, made.micro_batches = 1, header.updates, header.micro_batches
    made.assigned.update(header.assigned)
    made.trainable = header.trainable
    return made


def source_of(opened: Opened, options: Options) -> OnnxSource | ProgramSource:
    """The source of models of an executable with weights."""
    made: OnnxSource | ProgramSource
    if opened.header.file is None:
        made = ProgramSource(opened, options, session_of(opened))
    else:
        made = OnnxSource(StoredFile(opened), options, session_of(opened))
    made.stored = (Stored(opened),)
    return made


class StoredFile(ModelFile):
    """The ONNX file in an executable, which was valid when that was written: parsed when somebody needs a graph of
    it."""

    def __init__(self, opened: Opened) -> None:
        assert opened.header.file is not None
        self._opened, self.path, self.known = opened, opened.path, True
        self.inputs = tuple(Input(*each) for each in opened.header.file.inputs)
        self.plain = opened.header.file.plain
        self.digest = hashlib.sha256(repr(opened.header.digests).encode()).hexdigest()

    @cached_property
    def model(self) -> OnnxModel:
        from ..importers.onnx.load import parse_model
        return parse_model(self._opened.model_bytes(), self.path)

    @property
    def described(self) -> OnnxModel:
        """The model: an executable says no more of it than its inputs."""
        return self.model

    def contents(self) -> None:
        """What is kept of earlier starts is found by the executable's program."""

    @property
    def digests(self) -> None:
        """As `contents`."""


class ProgramSource(Flat):
    """One program, and no graph to compile another from: a network of layers or a module was where it was exported."""

    has_graph: ClassVar[bool] = False

    def __init__(self, opened: Opened, options: Options, session: Session) -> None:
        self.opened, self.options, self.session = opened, options, session
        self.precision = Precision.of(options)
        self.stored: tuple[Stored, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the file and a session of its own."""
        return _again, (self.opened, self.options.clone(), self.session, self.stored)

    def with_options(self, options: Options) -> ProgramSource:
        return ProgramSource(self.opened, options, self.session)

    @property
    def _own(self) -> dict[str, TensorType]:
        """The model's inputs for a micro-batch, by name."""
        header = self.opened.header
        return {t.name: TensorType(t.dtype, t.shape) for t in header.inputs[:header.own]}

    @property
    def input_count(self) -> int | None:
        """None: how many arguments it takes is a matter of how they are nested."""
        return self.opened.header.own if self._nesting.form is None else None

    @cached_property
    def _nesting(self) -> Nesting:
        """How its calls are nested."""
        return nesting_of(self.opened)

    @property
    def parameters(self) -> list[str]:
        """What `forward` called its arguments, or the names of the inputs."""
        return self._nesting.parameters or list(self._own)

    def arranged(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Form | None, Sequence[Any]]:
        """As the network that was exported took them."""
        wanted = self._nesting.form
        if wanted is None:
            return super().arranged(args, named)
        form, arrays = arranged(args, named, self.parameters)
        if form is None or form.data() != wanted.data():
            why = wanted.differs(form) if form is not None else (
                "its arguments are nested or have constants among them, and these are arrays one after the other")
            raise DataError(f"The executable {self.opened.path} has one program: {why}.")
        return form, arrays

    def _absent(self) -> NoReturn:
        raise UnsupportedError(
            f"The executable {self.opened.path} holds one program, of {self.opened.header.where}, which takes "
            f"{Stored(self.opened).takes} in "
            f"{'training' if self.opened.header.model == 'TrainingModel' else 'inference'} calls, and no model to "
            "compile others from: give it those, load an executable of what you need (model.load_executable), or "
            "compile the model itself.")

    def graph(self, inputs: Sequence[TensorType], training: bool) -> NoReturn:
        self._absent()

    def pieces(self, host: Host, progress: Progress | None = None) -> None:
        """It is one program."""

    def signature(self, inputs: Sequence[TensorType], training: bool) -> Signature:
        header = self.opened.header
        if list(inputs) != list(self._own.values()) or training != (header.model == "TrainingModel"):
            self._absent()
        outputs = self.opened.program().outputs
        return Signature.of(self._own,
                            [v for v in outputs[:len(outputs) - len(header.anchors)] if v.name != header.loss_output])

    def input_dtype(self, index: int, given: np.ndarray) -> str:
        types = self.opened.header.inputs
        return types[index].dtype if index < len(types) else given.dtype.name

    def input_types(self, data: Dataset | None = None) -> dict[str, TensorType]:
        """Those that the program was compiled for."""
        return self._own

    def names_for(self, data: Dataset) -> list[str]:
        return list(self._own)

    def attach(self) -> None:
        """There are no objects to show it."""

    def parameter_names(self) -> Mapping[int, str]:
        """There are no objects for the parameters."""
        return {}

    def state_dict(self, training: bool) -> dict[str, np.ndarray]:
        """Copies of the parameters and buffers by name, all after the same whole update."""
        return self.session.snapshot("parameter", "buffer")

    def load_state_dict(self, tensors: Mapping[str, Any], training: bool, strict: bool) -> None:
        """Overwrite parameters and buffers (DataError where they do not fit: then none is)."""
        self.session.put(fitting({name: self.session[name] for name in self.session.names("parameter", "buffer")},
                                 tensors, strict))


def _again(opened: Opened, options: Options, session: Session, stored: tuple[Stored, ...]) -> ProgramSource:
    """A source out of a pickle, or copied."""
    made = ProgramSource(opened, options, session)
    made.stored = stored
    return made
