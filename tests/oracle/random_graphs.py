"""Random graphs of registered operators, made from their samples: each takes values that are there, in shapes that its declared work allows.

    recipe = random_recipe(np.random.default_rng(7), steps=6)
    graph, feeds = recipe.build("float32")
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from evaluate import run_reference
from samples import Array, Case, cases, drawn

from tileflow.graph import Builder, Graph, Op, TensorType, Value, type_of
from tileflow.graph.composite import declares
from tileflow.system.errors import TileflowError

LARGEST = 2048
"""Elements of a value."""
RANGE = 30.0
"""Values stay below this magnitude: what is larger says little about what comes after it."""
TRIES = 60
Types = list[TensorType | None]
APART = ("Map", "IdentityLoss", "RecurrenceGrad", "RoiAlign", "RoiAlignGrad", "MaxRoiPool", "MaxRoiPoolGrad", "OneHot",
         "PrintTensor", "CTCLoss", "CTCLossGrad", "CTCBeamSearchDecoder")
"""Operators that graphs do without: some take what others wrote down for them, or places and numbers of images as
floats; one says all that it is given."""


@dataclass
class Recipe:
    """Operands by number, and the operators that make more of them: (operator, numbers of its operands, or None where one is absent)."""

    fed: list[Array] = field(default_factory=list)
    steps: list[tuple[Op, list[int | None], int]] = field(default_factory=list)

    def build(self, floats: str = "float32", smooth: bool = False) -> tuple[Graph, dict[str, Array]]:
        """The graph with floats of this type, whose outputs are all values that nothing reads (`smooth`: and that have gradients), and its feeds."""
        graph = Graph("random")
        b = Builder(graph)
        values: dict[int, Value] = {}
        feeds: dict[str, Array] = {}
        for i, array in enumerate(self.fed):
            array = array.astype(floats) if array.dtype.name in ("float32", "float64") else array
            values[i] = b.input(f"x{i}", type_of(array))
            feeds[f"x{i}"] = array
        for op, operands, first in self.steps:
            for k, v in enumerate(b.emit(op, *[None if i is None else values[i] for i in operands])):
                values[first + k] = v
        read = {i for _, operands, _ in self.steps for i in operands}
        if smooth:
            read |= {first + k for op, _, first in self.steps for k in range(MOST_OUTPUTS) if _statistic(op, k)}
        graph.outputs = [v for i, v in values.items() if i not in read and v.producer is not None]
        return graph, feeds


MADE, MOST_OUTPUTS = 1 << 20, 8
"""Numbers of made values start here, so many for each operator; those of fed ones at 0."""


@functools.cache
def usable(smooth: bool) -> tuple[Case, ...]:
    """The cases that a graph may use; `smooth`: that have gradients, and no steps."""
    found = []
    for case in cases():
        op, types = case.op, case.types
        if op.random or op.name in APART or op.stops_gradient:
            continue
        if len({t.dtype for t in [*types, *op.infer(*types)] if t is not None and t.is_float}) > 1 or not _of_any_width(op, types):
            continue
        if smooth and (op.no_gradient or not all(t.is_float for t in op.infer(*types)) or op.name.endswith("Grad")):
            continue
        if smooth and any(o is not None and o.array is not None and o.array.dtype.kind == "f" for o in case.operands):
            continue                                               # whole numbers, where others of the graph have their kinks
        found.append(case)
    return tuple(found)


def _of_any_width(op: Op, types: Types) -> bool:
    """Floats may be float32 and float64: an operator may be made for one type."""
    try:
        for dtype in ("float32", "float64"):
            outputs = op.infer(*[t.with_dtype(dtype) if t is not None and t.is_float else t for t in types])
            if any(t.is_float and t.dtype != dtype for t in outputs):
                return False
    except (TileflowError, AssertionError):
        return False
    return True


def random_recipe(rng: np.random.Generator, steps: int, smooth: bool = False) -> Recipe:
    """A recipe of so many operators, whose values are finite and of ordinary size."""
    recipe, pool = Recipe(), usable(smooth)
    names = sorted({c.op.name for c in pool})
    known: dict[int, Array] = {}
    made = MADE
    for _ in range(steps):
        for _ in range(TRIES):
            name = names[rng.integers(len(names))]                 # first the operator, so that many samples do not make it frequent
            choice = [c for c in pool if c.op.name == name]
            step = _step(rng, choice[rng.integers(len(choice))], known)
            if step is not None:
                op, operands, results = step
                numbers: list[int | None] = []
                for o in operands:
                    if isinstance(o, np.ndarray):
                        known[len(recipe.fed)] = o
                        numbers.append(len(recipe.fed))
                        recipe.fed.append(o)
                    else:
                        numbers.append(o)
                recipe.steps.append((op, numbers, made))
                known.update({made + k: a for k, a in enumerate(results) if not (smooth and _statistic(op, k))})
                made += MOST_OUTPUTS
                break
    return recipe


def _step(rng: np.random.Generator, case: Case, known: dict[int, Array]) -> tuple[Op, list[Array | int | None], tuple[Array, ...]] | None:
    """The operator over values that are there and new ones, and its results; None where it does not fit."""
    places: dict[int, int] = {}
    types = case.types
    newest = list(known)[-4:] if rng.random() < 0.7 else list(known)
    if known:
        fitting = [(k, i) for k, o in enumerate(case.operands) for i in newest if o is not None and o.array is None and _fits(known[i], o.type)]
        if not fitting:
            return None
        k, i = fitting[rng.integers(len(fitting))]
        adapted = _adapted(case, k, type_of(known[i]))
        if adapted is None:
            return None
        types, places[k] = adapted, i
    operands: list[Array | int | None] = []
    for k, (o, t) in enumerate(zip(case.operands, types, strict=True)):
        same = [] if t is None else [i for i, a in known.items() if type_of(a) == t and t.is_float]
        if k in places:
            operands.append(places[k])
        elif o is None or t is None:
            operands.append(None)
        elif same and rng.random() < 0.5:
            operands.append(same[rng.integers(len(same))])
        else:
            operands.append(drawn(type(o)(t, o.low, o.high, o.array), rng))
    arrays = [known[o] if isinstance(o, int) else o for o in operands]
    if any(a is not None and t is not None and a.shape != t.shape for a, t in zip(arrays, types, strict=True)):      # one that a sample gives whole
        return None
    try:
        with np.errstate(all="ignore"):
            results = run_reference(case.op, *arrays)
    except (TileflowError, IndexError, ValueError):                # an index that this axis does not have
        return None
    ordinary = all(a.size and a.size <= LARGEST and (a.dtype.kind != "f" or (np.isfinite(a).all() and np.abs(a).max() < RANGE)) for a in results)
    return (case.op, operands, results) if ordinary else None


def _statistic(op: Op, k: int) -> bool:
    """Output k is something found out on the way, which has no gradient."""
    return k > 0 and op.name != "Split"


def _fits(a: Array, t: TensorType) -> bool:
    return a.dtype == t.numpy and a.ndim == t.rank and a.ndim > 0


def _adapted(case: Case, k: int, given: TensorType) -> Types | None:
    """The operands' types where operand k has another shape: axes of the work that it names have its sizes everywhere."""
    types = case.types
    types[k] = given
    try:
        if declares(case.op, "work") and case.op.alias is None:
            work = case.op.work(case.types, case.op.infer(*case.types))
            dims = work.inputs[k].dims if k < len(work.inputs) and work.inputs[k] is not None else ()      # type: ignore[union-attr]
            sizes = {d: n for d, n in zip(dims, given.shape, strict=False) if isinstance(d, str)}
            for i, (t, o) in enumerate(zip(types, work.inputs, strict=False)):
                if i != k and t is not None and o is not None:
                    types[i] = t.with_shape(tuple(sizes.get(d, n) if isinstance(d, str) else n for d, n in zip(o.dims, t.shape, strict=True)))
        outputs = case.op.infer(*types)
    except (TileflowError, AssertionError, IndexError, ValueError, TypeError):
        return None
    return types if all(0 < t.size <= LARGEST for t in outputs) and math.prod(given.shape) <= LARGEST else None


def sum_of(b: Builder, outputs: list[Value], weights: Callable[[Value], Array]) -> Value:
    """The sum of all floating outputs, each element times its weight."""
    parts = [b.ReduceSum(b.Mul(v, b.constant(weights(v), "weight")), keepdims=0) for v in outputs if v.type.is_float]
    return parts[0] if len(parts) == 1 else b.Sum(*parts)          # type: ignore[no-any-return]
