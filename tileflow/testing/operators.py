"""Looking for what is wrong with an operator: its kernel beside its reference, memory, threads, gradients."""

from __future__ import annotations

import faulthandler
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import compiler
from ..custom.forms import CompiledOperator
from ..graph import OPS, Builder, Graph, Op, TensorType, Value, type_of
from ..graph.backward import backward
from ..graph.composite import declares
from ..graph.region import computed, evaluated
from ..graph.sample import SMOOTH, Sample, sample
from ..kernels.machine.status import RAISED
from ..program.batching import Batching
from ..runtime.executable import make_engine
from ..runtime.host import Host
from ..state import Session
from ..system.errors import OptionError, TileflowError, UnsupportedError
from ..system.text import one_line
from .calls import KernelFailed, run_kernel

Array = np.ndarray
Given = Sequence[Array | None]
ODD = ((), (1,), (7,), (17,), (3, 5), (1, 9), (2, 3, 5), (5, 1, 7, 3), (0,), (3, 0))
"""Shapes that are tried where nobody names any."""
THREADS = (1, 2, 3, 5)
ALLOWED = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""How far a float may be from the reference's, in parts of the largest element."""
MOST = 400
"""Elements of an input of which the gradient is compared, one by one, with differences."""


class OperatorFault(TileflowError, AssertionError):
    """Something is wrong with an operator; the sentence names all that was found."""


@dataclass
class Checked:
    """What was looked at.

    samples: the operands' types of each. gradients: how many gradients were compared with differences. faults:
    sentences.
    """

    operator: str
    samples: list[str] = field(default_factory=list)
    gradients: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = f"{len(self.faults)} faults" if self.faults else "nothing is wrong"
        return f"{self.operator}: {len(self.samples)} samples, {self.gradients} gradients; {found}"


def check_operator(
    op: Any, *samples: Any, seed: int = 0, tolerance: float | None = None, gradient: bool = True
) -> Checked:
    """Look for what is wrong with an operator: of one's own, or one of tileflow's.

        tileflow.testing.check_operator(LeakyRelu(alpha=0.1))                        # on odd shapes, one input
        tileflow.testing.check_operator(Cube(), ((3, 5), (3, 5)))                    # two inputs of float32
        tileflow.testing.check_operator("Gather", (("float32", (7, 3)), np.array([6, 0, 2])))

    On each sample: `infer` says what `forward` gives; the kernel gives what the reference does (`reference`, if the
    class has one; else NumPy's form of an expression, the parts of a composition, a compiled function as Python runs
    it); two runs, garbage in the memory of the outputs, 1, 2, 3 and 5 threads and ranges cut in their order or against
    it change no bit; nothing is written beside outputs, into inputs, or left unwritten; compiled code is run with
    checks of every index, then against pages that nobody may touch (on Linux, in a copy of the process); gradients are
    those of central differences, in float64 where the operator takes it, and of kernels what they are of references.

    Args:
        op: an operator with its attributes, or the name of one (then with the attributes of its own samples).
        samples: operands of each: shapes, (element type, shape), (element type, shape, low, high), arrays, or None. By
            default the operator's own samples, or the same odd shape for each input.
        seed: of the elements. tolerance: of outputs, in parts of their largest element. gradient: compare gradients.

    Raises:
        OperatorFault: something is wrong. OptionError: there is no such operator, or it takes none of the shapes tried.
    """
    found = Checked(_shown(op))
    for one, given in _cases(op, samples, seed):
        types = [None if a is None else type_of(a) for a in given]
        found.samples.append(", ".join("absent" if t is None else str(t) for t in types))
        _Check(one, given, found, tolerance).run(gradient)
    if not found.samples:
        raise OptionError(
            f"{found.operator} takes none of the shapes tried; give it operands: check_operator(op, ((3, 5), (5, 7)))."
        )
    if found.faults:
        listed = "; ".join(dict.fromkeys(found.faults))
        raise OperatorFault(f"{found.operator}: {listed}.")
    return found


def _shown(op: Any) -> str:
    if isinstance(op, Op):
        return str(op)
    name = op if isinstance(op, str) else getattr(op, "name", None)
    if name not in OPS:
        raise OptionError(
            f"check_operator takes an operator, such as LeakyRelu(alpha=0.1), or a name of one, not "
            f"{one_line(repr(op), 80)}."
        )
    return str(name)


def _cases(op: Any, samples: Sequence[Any], seed: int) -> Iterator[tuple[Op, list[Array | None]]]:
    """Operators and operands to be tried."""
    rng = np.random.default_rng(seed)
    kind = type(op) if isinstance(op, Op) else OPS[_shown(op)]
    if samples:
        one = op if isinstance(op, Op) else kind()
        for operands in samples:
            yield one, _arrays(sample(*(operands if isinstance(operands, tuple | list) else (operands,))), rng)
    elif isinstance(op, Op):
        yield from ((op, arrays) for arrays in _odd(op, rng))
    elif declares_samples(kind):
        yield from ((kind(**s.attributes), _arrays(s, rng)) for s in kind.samples())
    else:
        yield from ((kind(), arrays) for arrays in _odd(kind(), rng))


def declares_samples(kind: type[Op]) -> bool:
    """Whether an operator has examples of itself."""
    return kind.samples.__func__ is not Op.samples.__func__  # type: ignore[attr-defined]


def _odd(op: Op, rng: np.random.Generator) -> Iterator[list[Array | None]]:
    """The same odd shape for each input, of the fewest that the operator takes."""
    for count in range(1, 5):
        taken = []
        for shape in ODD:
            try:
                op.infer(*[TensorType("float32", shape)] * count)
            except Exception:  # what a user's infer() does with shapes that it does not expect
                continue
            taken.append(shape)
        if taken:
            yield from (_arrays(sample(*[("float32", shape, -2.0, 2.0)] * count), rng) for shape in taken)
            return


def _arrays(given: Sample, rng: np.random.Generator) -> list[Array | None]:
    found: list[Array | None] = []
    for operand in given.operands:
        if operand is None or operand.array is not None:
            found.append(None if operand is None else operand.array)
            continue
        t, (low, high) = operand.type, (operand.low, operand.high)
        if not t.is_float:
            found.append(rng.integers(int(low), int(high), t.shape).astype(t.numpy))
            continue
        drawn = rng.uniform(low, high, t.shape)
        if (low, high) != SMOOTH:  # not where many functions have a corner
            drawn = np.where(np.abs(drawn) < 0.05, 0.05 + np.abs(drawn), drawn)
        found.append(drawn.astype(t.numpy))
    return found


class _Check:
    """One operator on one sample."""

    def __init__(self, op: Op, given: list[Array | None], report: Checked, tolerance: float | None) -> None:
        self.op, self.given, self.report, self.tolerance = op, given, report, tolerance
        self.types = [None if a is None else type_of(a) for a in given]
        self.where = report.samples[-1]

    def fault(self, what: str) -> None:
        self.report.faults.append(f"{what} (at {self.where})")

    def run(self, gradient: bool) -> None:
        try:
            outputs = self.op.infer(*self.types)
        except TileflowError as error:
            self.fault(f"infer() refuses the sample: {error}")
            return
        if not self._index(outputs):
            return
        wanted = self._tried(
            "the reference", lambda: _computed(self.op, [None if a is None else a.copy() for a in self.given])
        )
        if wanted is None or not self._typed(outputs, wanted) or not self._memory(wanted) or not self._pages(outputs):
            return
        self._engine(wanted)
        if gradient:
            self._gradient()

    def _tried(self, what: str, work: Callable[[], Any], passing: tuple[type[Exception], ...] = ()) -> Any:
        """What work gives; a fault and None where it raises something else than `passing`."""
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return work()
        except KernelFailed as error:
            raised = "its compiled code raised an exception" if error.status == RAISED else str(error)
            self.fault(f"{what}: {raised}")
        except passing:
            raise
        except Exception as error:  # whatever a user's function does
            self.fault(f"{what}: {type(error).__name__}: {one_line(error, 200)}")
        return None

    def _typed(self, outputs: Sequence[TensorType], wanted: Sequence[Array]) -> bool:
        """`infer` and `forward` agree."""
        found = [type_of(a) for a in wanted]
        if found != list(outputs):
            self.fault(
                f"infer() says {', '.join(map(str, outputs))}, and the reference gives {', '.join(map(str, found))}"
            )
        return found == list(outputs)

    def _near(self, found: Array, wanted: Array, tolerance: float | None = None) -> bool:
        if found.dtype.kind in "iub" and found.dtype.name not in ALLOWED:
            return bool(np.array_equal(found, wanted))
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        finite = np.isfinite(b)
        allowed = (tolerance or self.tolerance or ALLOWED.get(found.dtype.name, 0.0)) * max(
            1e-3, float(np.max(np.abs(b[finite]), initial=0.0))
        )
        return bool(np.all(np.abs(a - b)[finite] <= allowed)) and bool(
            np.array_equal(a[~finite], b[~finite], equal_nan=True)
        )

    def _compare(self, what: str, found: Sequence[Array], wanted: Sequence[Array]) -> bool:
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if not self._near(a, b):
                far = np.unravel_index(
                    int(np.argmax(np.nan_to_num(np.abs(a.astype(np.float64) - b.astype(np.float64)), nan=np.inf))),
                    b.shape,
                )
                self.fault(
                    f"output {i} of {what} is {a[far]!s} where the reference has {b[far]!s}, at {[int(k) for k in far]}"
                )
                return False
        return True

    # ---- memory

    def _index(self, outputs: Sequence[TensorType]) -> bool:
        """Compiled code with checks of every index, before it is run without."""
        if not isinstance(self.op, CompiledOperator) or not all(t.size for t in outputs):
            return True
        op = self.op
        return (
            self._tried(
                "with every index checked",
                lambda: run_kernel(op, *self.given, calls=[op.leaf_call(self.types, outputs, boundscheck=True)]),
            )
            is not None
        )

    def _memory(self, wanted: Sequence[Array]) -> bool:
        """The kernel between guard bytes, over garbage, with ranges cut for several workers; or the parts of an
        operator that has none."""
        if not declares(self.op, "kernel") or self.op.regions or self.op.random:
            return True
        found = self._tried("the kernel", lambda: run_kernel(self.op, *self.given))
        if found is None or not self._compare("the kernel", found, wanted):
            return False
        for garbage, workers, what in (
            (0x5A, 1, "what was in the memory of its outputs before"),
            (0xA6, 1, "the run: twice the same is not the same"),
            *((None, n, f"where {n} threads cut its range") for n in THREADS[1:]),
        ):
            again = self._tried(
                "the kernel", lambda n=workers, g=garbage: run_kernel(self.op, *self.given, workers=n, garbage=g)
            )
            if again is None:
                return False
            if any(a.tobytes() != b.tobytes() for a, b in zip(found, again, strict=True)):
                self.fault(f"the result depends on {what}")
                return False
        return True

    def _pages(self, outputs: Sequence[TensorType]) -> bool:
        """Compiled code against pages that nobody may touch, in a copy of the process."""
        if (
            not isinstance(self.op, CompiledOperator)
            or not all(t.size for t in outputs)
            or not sys.platform.startswith("linux")
        ):
            return True
        self.op.leaf_call(self.types, outputs).leaf.compile()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries hold nothing that the copy needs
            child = os.fork()
        if child == 0:
            status = 1
            try:
                faulthandler.disable()
                run_kernel(self.op, *self.given, paged=True)
                status = 0
            except AssertionError:
                status = 2
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        if ended:
            self.fault(
                "it reads or writes beside its arrays"
                if os.WIFSIGNALED(ended) or os.waitstatus_to_exitcode(ended) == 2
                else "it fails where its arrays lie against the ends of pages"
            )
        return not ended

    # ---- the whole way

    def _engine(self, wanted: Sequence[Array]) -> None:
        """A program of this operator alone, compiled and run, for several numbers of threads."""
        first: list[Array] | None = None
        for threads in THREADS if not self.op.random else THREADS[:1]:
            found = self._tried(f"a program on {threads} threads", lambda n=threads: _run(self.op, self.given, n))
            if found is None:
                return
            if first is None:
                first = found
                if not self.op.random and not self._compare("a program", found, wanted):
                    return
            elif any(a.tobytes() != b.tobytes() for a, b in zip(first, found, strict=True)):
                self.fault(f"a program on {threads} threads gives other bits than on one")
                return

    # ---- gradients

    def _gradient(self) -> None:
        """Gradients beside differences: in float64 if the operator takes that; and by kernels beside those by
        references."""
        floats = [i for i, t in enumerate(self.types) if t is not None and t.is_float]
        if not floats or self.op.stops_gradient or self.op.random:
            return
        wide = self._widened()
        for several in (True, False):  # some operators have gradients of their first output only
            try:
                graph = self._tried(
                    "its gradient", lambda n=several: _gradient_graph(self.op, wide, n), (UnsupportedError,)
                )
                break
            except UnsupportedError:
                if not several and not self.op.no_gradient:
                    self.fault("its gradient() gives none for an input of floats, and no_gradient does not say why")
        else:
            return
        if graph is None or not any(s is not None for s in graph[1]):
            return
        made, seeds, results = graph
        made.outputs = [v for v in results if v is not None]
        found = self._tried("its gradient", lambda: evaluated(made, [a for a in wide if a is not None]))
        if found is None:
            return
        by_input = dict(zip([i for i, v in enumerate(results) if v is not None], found, strict=True))
        for i, gradient in by_input.items():
            x = wide[i]
            assert x is not None
            if not x.size or x.size > MOST:
                continue
            expected = self._tried("differences of forward()", lambda i=i: _differences(self.op, wide, seeds, i))
            if expected is None:
                return
            self.report.gradients += 1
            if not self._near(gradient, expected, 1e-5 if x.dtype == np.float64 else 2e-2):
                far = np.unravel_index(int(np.argmax(np.abs(gradient.astype(np.float64) - expected))), x.shape)
                self.fault(
                    f"the gradient of input {i} is {gradient[far]:.6g} where differences of forward() give "
                    f"{expected[far]:.6g}, at {[int(k) for k in far]}"
                )
                return
        self._gradient_kernels(several)

    def _gradient_kernels(self, several: bool) -> None:
        """The gradients as they are computed, in the sample's own types."""
        made, _, results = _gradient_graph(self.op, self.given, several)
        made.outputs = list(dict.fromkeys(v for v in results if v is not None))
        arrays = [a for a in self.given if a is not None]
        wanted = evaluated(made, arrays)
        for threads in (1, 3):
            found = self._tried(
                "a program of its gradient",
                lambda n=threads: _run_graph(_gradient_graph(self.op, self.given, several)[::2], arrays, n),
            )
            if found is None:
                return
            for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
                if not self._near(a, b, 10 * ALLOWED.get(a.dtype.name, 0.0)):
                    self.fault(f"gradient {i} of a program on {threads} threads is not that of the references")
                    return

    def _widened(self) -> list[Array | None]:
        """The operands in float64, if the operator takes those."""
        wide = [
            a.astype(np.float64) if t is not None and a is not None and t.is_float else a
            for a, t in zip(self.given, self.types, strict=True)
        ]
        try:
            self.op.infer(*[None if a is None else type_of(a) for a in wide])
            _computed(self.op, wide)
        except Exception:
            return self.given
        return wide


def _node(op: Op, given: Given) -> tuple[Graph, list[Value | None], tuple[Value, ...]]:
    graph = Graph(op.name)
    b = Builder(graph)
    inputs = [None if a is None else b.input(f"x{i}", type_of(a)) for i, a in enumerate(given)]
    return graph, inputs, b.emit(op, *inputs)


def _computed(op: Op, given: Given) -> list[Array]:
    """The outputs by the reference, as the host would round them; its own types and shapes are what they are."""
    if op.halves or not any(a is not None and type_of(a).is_half for a in given):
        return [np.asarray(a) for a in op.reference(*given)]
    graph, _, _ = _node(op, given)
    return computed(graph.nodes[0], given)


def _run(op: Op, given: Given, threads: int) -> list[Array]:
    graph, _, outputs = _node(op, given)
    return _run_graph((graph, list(outputs)), [a for a in given if a is not None], threads)


def _run_graph(made: Any, arrays: Sequence[Array], threads: int) -> list[Array]:
    """A graph with these results by its program."""
    graph, results = made
    graph.outputs = list(dict.fromkeys(v for v in results if v is not None))
    program = compiler.inference(graph, Batching(1)).program
    engine = make_engine(program, Session(), {}, Host(threads), kept=False)
    found = engine.call([np.ascontiguousarray(a).reshape(a.shape) for a in arrays])
    return [np.array(a[0]).reshape(v.shape) for a, v in zip(found, graph.outputs, strict=True)]


def _gradient_graph(op: Op, given: Given, several: bool = True) -> tuple[Graph, list[Array | None], list[Value | None]]:
    """The operator and its gradients for random gradients of its outputs (of several, or the first alone), which are
    constants."""
    graph, inputs, outputs = _node(op, given)
    rng = np.random.default_rng(1)
    seeds = [
        rng.uniform(0.5, 1.5, v.shape).astype(v.type.numpy) if v.type.is_float and (several or i == 0) else None
        for i, v in enumerate(outputs)
    ]
    weighed = {v: s for v, s in zip(outputs, seeds, strict=True) if s is not None}
    sources = [v for v in inputs if v is not None and v.type.is_float]
    _, found = backward(
        graph, list(weighed), sources, lambda b: {v: b.constant(s, "gradient") for v, s in weighed.items()}
    )
    return graph, seeds, [None if v is None else found.get(v) for v in inputs]


def _differences(op: Op, given: Given, seeds: Sequence[Array | None], i: int) -> Array:
    """Central differences of the outputs, weighed by the seeds, for each element of input i."""
    x = np.array(given[i])
    step = 1e-6 if x.dtype == np.float64 else 1e-2

    def loss() -> float:
        made = _computed(op, [x if k == i else a for k, a in enumerate(given)])
        return sum(
            float(np.sum(np.asarray(a, np.longdouble) * s)) for a, s in zip(made, seeds, strict=True) if s is not None
        )

    found = np.empty(x.shape)
    for at in np.ndindex(x.shape):
        value = x[at]
        x[at] = value + step
        high, above = x[at], loss()
        x[at] = value - step
        low, below = x[at], loss()
        x[at] = value
        found[at] = (above - below) / float(high - low)
    return found
