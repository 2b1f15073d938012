"""The declaration of an operator: one class says everything about it. See CONTRIBUTING for how to add one."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, dataclass_transform

import numpy as np

from ..memory.types import TensorType
from .sample import Sample
from .work import Work

if TYPE_CHECKING:
    from ..kernels.isa.cpu import Cpu
    from ..kernels.machine.call import Call
    from ..kernels.machine.host import HostCall
    from .builder import Builder
    from .graph import Graph, Value

Types = Sequence["TensorType | None"]
TRAINED = ("table", "weight", "scale", "slope", "bias")
"""Roles of operands that a file stores in order to train them."""
STATISTIC, START, MOVED, DATA = "statistic", "start", "moved", "data"
"""Roles of other operands: see `Op.roles`."""
OPS: dict[str, type[Op]] = {}
"""Every operator by name; the operator files register themselves when imported."""


def plain_domain(domain: str) -> str:
    """A domain of operators by one name: "" of ONNX's own, which has two."""
    return "" if domain == "ai.onnx" else domain


def qualified(domain: str, name: str) -> str:
    """What the registry calls an operator of a domain: ONNX's own by their names."""
    domain = plain_domain(domain)
    return f"{domain}::{name}" if domain else name


class HasGraph(Protocol):
    """A region, as an operator's declaration knows it."""

    @property
    def graph(self) -> Graph: ...


class Op:
    """Base of all operators. Subclasses are frozen dataclasses (`@op(name)`) whose fields are the logical attributes.

    Static operands that ONNX passes as inputs (Reshape's shape, ReduceSum's axes) are attributes here: the importer
    binds them. An absent optional input is None in every `inputs` and `types` sequence.
    """

    name: ClassVar[str]
    alias: ClassVar[int | None] = None
    """Output 0 is a view of this input: same elements in the same order, another shape."""
    stays: ClassVar[bool] = False
    """Of constants it is computed once beforehand, but not in the compiler: who runs the program may want its operands."""
    random: ClassVar[bool] = False
    """Draws random numbers, so two equal nodes are not one."""
    position: ClassVar[int | None] = None
    """Of elementwise operators whose expression draws random numbers: where element 0 is counted among all that draw."""
    halves: ClassVar[bool] = False
    """The kernels read and write 16-bit floats themselves; for others the host computes in float32 and rounds once."""
    onnx: ClassVar[bool] = True
    """An ONNX operator of the same name with the same attribute names exists in the default domain."""
    roles: ClassVar[tuple[str, ...]] = ()
    """What the operands are for, in order, should a file store them: one of TRAINED, STATISTIC (running statistics, which the operator's
    own training keeps), START (what a sequence's state begins with: mostly zeros that an exporter made), MOVED (what the output is for) or DATA,
    an operand among others, as are those that are not named here."""
    no_gradient: ClassVar[str] = ""
    """Why some float input has no gradient, as a user is told it; empty where all have one."""
    no_file: ClassVar[str] = ""
    """Why no file of a Program holds it, as a user is told it; empty where its attributes are data."""
    code: ClassVar[Callable[[], str | None] | None] = None
    """Of an operator of a user's: gives a digest of its code as it is now; None: nothing may be kept that was made of
    it. Ours have sources."""
    replaces: ClassVar[bool] = False
    """Of an operator of a user's: it takes the place of one that tileflow takes apart itself."""
    stops_gradient: ClassVar[bool] = False
    """Counts as a constant for whoever differentiates."""

    @property
    def regions(self) -> Sequence[HasGraph]:
        """The graphs inside of the operator (`region.Regional`), in order; most have none."""
        return ()

    @classmethod
    def samples(cls) -> list[Sample]:
        """Examples of the operator, one or more for each way it computes: the tests of the registry are made from them."""
        raise NotImplementedError

    def infer(self, *types: TensorType | None) -> tuple[TensorType, ...]:
        """Types of the inputs to types of all outputs. Raises ShapeError or TypeMismatchError with the values named."""
        raise NotImplementedError

    def require(self, inputs: Types, constants: Sequence[np.ndarray | None]) -> None:
        """Raise ShapeError where operands are not what the kernel takes them for without looking: tables of places,
        which whoever makes the node computes. Asked of nodes that come from elsewhere, as in a file.

        Args:
            constants: the elements of operands that are known; None: they are not.
        """

    def reference(self, *inputs: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """The slow NumPy twin: arrays in, a tuple of arrays out. Tests compare kernels with it. By default the expansion's."""
        return Op.by_parts(self, inputs)

    by_parts: ClassVar[Callable[[Op, Sequence[np.ndarray | None]], tuple[np.ndarray, ...]]]
    """The outputs by the references of the parts; `composite`, which is made of operators, sets it."""

    def expand(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        """The same outputs from other operators, as nodes through `b`; None: there is no such form, or not with these attributes.

        An operator declares `kernel` or `expand`. The host expands where there is no kernel, autograd differentiates the expansion where there is
        no `vjp`, the tile machine partitions it where there is no `work`; expansions may hold composites again.
        """
        return None

    def vjp(self, b: Builder, grads: Sequence[Value | None], inputs: Sequence[Value | None],
            outputs: Sequence[Value]) -> Sequence[Value | None]:
        """Gradients of the inputs from gradients of the outputs (None = zero), as nodes through `b`; None = no gradient."""
        return [None] * len(inputs)

    def differentiable(self, inputs: Types, needed: Sequence[bool]) -> Op | None:
        """The operator that differentiation puts in place of this one before it asks for its `vjp`: its first outputs are the same, its further ones
        are what the vjp reads. None: it stays as it is.

        Args:
            needed: of which inputs the gradients are wanted.
        """
        return None

    def work(self, inputs: Types, outputs: Sequence[TensorType]) -> Work:
        """What the operator does, as data."""
        raise NotImplementedError

    def kernel(self, inputs: Types, outputs: Sequence[TensorType], cpu: Cpu) -> list[Call]:
        """The leaf calls that compute all outputs, in order."""
        raise NotImplementedError

    def host(self, inputs: Types, outputs: Sequence[TensorType]) -> HostCall | None:
        """What Python does after the leaf calls; None, as a rule: nothing."""
        return None

    def expression(self, inputs: Types, outputs: Sequence[TensorType]) -> Any | None:
        """For elementwise operators the scalar expression (kernels.elementwise.Expr) over `inputs`; else None. Fusion asks this."""
        return None

    def part(self, box: Mapping[str, tuple[int, int]], inputs: Types, outputs: Sequence[TensorType]) -> Op:
        """The operator that computes a part of this one from slices of its operands.

        Args:
            box: the range of each axis of `work` that the part covers.
            inputs, outputs: the types of the whole operands.

        Returns self unless an attribute holds a size or a place.
        """
        return self

    def joined(self, starts: Sequence[int], made: Sequence[tuple[np.ndarray, ...]]) -> list[tuple[np.ndarray, ...]]:
        """The outputs, put together from those that parts of a staged axis gave, in order (`graph.work.Staged`): one
        tuple where outputs lack the axis, else what becomes of each part.

        Args:
            starts: where each part begins along the axis.
        """
        raise NotImplementedError

    def partials(self, b: Builder, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        """The same outputs from simpler operators, as nodes through `b` that keep the rank of input 0 and the order of its axes.

        Tiles run them where a split of a reduce axis gives partials that do not just combine. None: there is no such form.
        """
        return None

    def serialized(self, mode: str, factor: int, keep_precision: bool = False) -> Op | None:
        """The operator that does the same in `factor` pieces one after the other, with less temporary memory; None: there is none.

        Args:
            mode: what is cut: "input_channels" (rows), "reducing_dim" (the sums) or "output_channels" (columns).
            keep_precision: sums of pieces are float32 even where the operands are float16.
        """
        return None

    def trimmed(self, read: Sequence[bool]) -> Op | None:
        """The operator without its last outputs, where nobody reads them (`read` tells of each whether somebody does); None: it makes all."""
        return None

    def attributes(self) -> dict[str, Any]:
        """The logical attributes by name."""
        assert dataclasses.is_dataclass(self)
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def __str__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)      # type: ignore[arg-type]
                 if getattr(self, f.name) != f.default}
        return self.name + (f"({', '.join(f'{k}={v}' for k, v in shown.items())})" if shown else "")


T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def op(name: str, onnx: bool = True) -> Callable[[type[T]], type[T]]:
    """Class decorator: freeze the attributes and register the operator under `name`.

    `onnx=False` marks an operator ONNX does not have (gradients, losses of our own).
    """
    def register(cls: type[T]) -> type[T]:
        declared: Any = dataclasses.dataclass(frozen=True, repr=False)(cls)
        declared.name, declared.onnx = name, onnx
        assert name not in OPS, f"operator {name} is declared twice"
        OPS[name] = declared
        return declared      # type: ignore[no-any-return]
    return register
