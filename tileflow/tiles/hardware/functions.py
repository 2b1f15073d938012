"""Cycles of the scalar functions that element-wise operators are made of, by name and element type: what one worker takes for a vector of 8 bytes.

The numbers are PopLibs' (public source, github.com/graphcore/poplibs, lib/popops/popopsCycleEstimators.hpp: tables unaryOpPerfInfo and
binaryOpPerfInfo; the loops around them in popopsCycleEstimators.cpp). A function of floats has two: `inside`, its instructions on what is in
registers, for use among others; `alone`, the listed cycles of a vertex that does nothing else, loads, stores and loop included. An entry that
lists no vertex slower than its loads and stores has no `alone`. Arithmetic and memory pipelines issue together, so an operator takes the
larger of the sum of its functions' cycles and one for each operand.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .chip import ITEMSIZE, device_dtype

Count = tuple[str, str, int]
"""A function, the element type that it computes in, and how often it is applied for one element."""


@dataclass(frozen=True)
class Cycles:
    """Of a vector of 2 float32 or 4 float16; `alone` as (float32, float16), 0 where the operands' loads and stores are as slow."""

    float32: float
    float16: float
    alone: tuple[float, float] = (0, 0)


_SINGLE = Cycles(1, 1)
_ASIN = Cycles(2 * 106, 4 * 106)                        # {102, false}: an element, and 4 of loop each
_EXP = Cycles(6, 4)                                     # EXPONENT: two f32exp, two f16v2exp
_LOG, _ROOT = Cycles(12, 4), Cycles(10, 23)             # LOGARITHM, SQRT
_COMPARED = Cycles(1, 1, (7, 9))                        # GREATER_THAN {14, 4 elements}, {9, 4}: bytes of bools are stored


def _sum(*parts: Cycles) -> Cycles:
    return Cycles(sum(p.float32 for p in parts), sum(p.float16 for p in parts))


_ADDED = Cycles(1, 1)                                   # a vector in a reduction: getCyclesEstimateForStridedReduce (popops/reduction)
_PAIR = Cycles(3, 3)                                    # of two tensors: 1, and 2 of loads and store; getScaledArithmeticSupervisor… is no quicker
_ROW = Cycles(2, 2)                                     # with one number a row: 1, and 1 of loop; BroadcastVectorOuterCycleEstimate
_COLUMN = Cycles(4, 1)                                  # with a number a channel: vectorInnerAddCoreCycles_float 2 an element, …_half_multiple_of_8 2
                                                        # for 8, vectorInnerMulCoreCycles_half_multiple_of_4_pipeline 1 for 4
_COLUMN_IN_PLACE = Cycles(4, 2)                         # vectorInnerMulCoreCycles_half_multiple_of_4 2 for 4

_SCALED = _sum(_COLUMN, _COLUMN)                        # poplin::normalise: times gamma, and beta in place
_BY_CHANNEL = _sum(_COLUMN, _COLUMN_IN_PLACE)           # poplin::normWhiten: less the mean, times 1 / deviation in place
_BY_GROUP = _sum(_ROW, _ROW)                            # of groups and layers: a number a row of the group
_MOMENTS = _sum(_ADDED, _ADDED)                         # poplin::normStatistics: mean and power
_SUMS = _sum(_PAIR, _MOMENTS)                           # poplin::normParamGradients: gradient times normal, and the sums of both
STEPS: dict[str, Cycles] = {
    "batch norm": _sum(_MOMENTS, _BY_CHANNEL, _SCALED), "group norm": _sum(_MOMENTS, _BY_GROUP, _SCALED),
    "scale and shift": _SCALED,                         # popnn::bn::batchNormalise with what is known before: one factor and one term
    # x is made normal again, sums for gamma and beta, times gamma; poplin::normStatisticsGradients: sums, normal times the one, the other added,
    # both added, times 1 / deviation
    "batch norm grad": _sum(_BY_CHANNEL, _SUMS, _COLUMN, _SUMS, _COLUMN, _COLUMN, _PAIR, _COLUMN_IN_PLACE),
    "group norm grad": _sum(_BY_GROUP, _SUMS, _COLUMN, _SUMS, _ROW, _ROW, _PAIR, _ROW),
    "rms norm": _sum(_ADDED, _ROW, _COLUMN),            # no library has it: of the same vertices
    "rms norm grad": _sum(_ROW, _PAIR, _ADDED, _COLUMN, _PAIR, _ADDED, _ROW, _PAIR, _ROW),
    # popnn/NonLinearity.cpp, softmaxImpl: less the largest, exponents, times 1 / sum; softmaxInputGradientImpl: times the gradient, the sum of that,
    # y times it, one less the other
    "softmax": _sum(_ADDED, _ROW, _EXP, _ADDED, _ROW), "softmax grad": _sum(_PAIR, _ADDED, _ROW, _PAIR),
    "log softmax grad": _sum(_EXP, _ADDED, _ROW, _PAIR),
    "cross entropy": _sum(_ADDED, _ROW, _EXP, _ADDED), "cross entropy grad": _sum(_ADDED, _ROW, _EXP, _ADDED, _ROW, _ROW),
}
"""What operators take that a library does by several vertices, each of which goes over the whole tensor: by the quickest of the vertices."""

_INVERSE_HYPERBOLIC = _sum(_LOG, _ROOT, *[_SINGLE] * 3)  # log(x + sqrt(x x + 1)): no table has them

FLOATS: dict[str, Cycles] = {
    "add": _SINGLE, "sub": _SINGLE, "mul": _SINGLE,     # ADD, SUBTRACT, MULTIPLY: 1, and 2 of loads and store
    "div": Cycles(10, 21), "sqrt": _ROOT,               # DIVIDE
    "neg": _SINGLE,                                     # NEGATE: 2, load and store included
    "abs": Cycles(1, 1, (5, 5)),                        # ABSOLUTE in place {1, vector}, and 4 of loop
    "sign": Cycles(5, 5, (9, 9)),                       # SIGNUM
    "maximum": Cycles(1, 2), "minimum": Cycles(1, 2),   # MAXIMUM, RELU: 3 and 4, loads and store included
    "floor": Cycles(2, 2, (6, 6)), "ceil": Cycles(2, 2, (6, 6)), "round": Cycles(2, 2, (6, 6)),     # FLOOR, CEIL, ROUND, and 4 of loop
    "exp": _EXP, "log": _LOG,
    "expm1": Cycles(8, 5, (16, 9)), "log1p": Cycles(18, 18, (22, 22)),      # EXPONENT_MINUS_ONE, LOGARITHM_ONE_PLUS
    "tanh": Cycles(12, 4), "sigmoid": Cycles(12, 6),    # TANH, SIGMOID
    "erf": Cycles(82, 52), "gelu": Cycles(44, 64),      # ERF {41, 1 element}, {13, 1}; GELU_ERF {22, 1}, {16, 1}
    "sin": Cycles(4608, 100), "cos": Cycles(4608, 100), "tan": Cycles(10200, 22800),     # SIN, COS {2300}, {25, 1}; TAN {5100, 1}, {5700, 1}
    "asin": _ASIN, "acos": _sum(_ASIN, _SINGLE), "atan": Cycles(272, 578),  # ASIN; pi/2 - asin; ATAN2
    "sinh": _sum(_EXP, _EXP, *[_SINGLE] * 2), "cosh": _sum(_EXP, _EXP, *[_SINGLE] * 2),          # of exp(x) and exp(-x)
    "asinh": _INVERSE_HYPERBOLIC, "acosh": _INVERSE_HYPERBOLIC, "atanh": _sum(_LOG, Cycles(10, 21), *[_SINGLE] * 3),
    "pow": Cycles(624, 1300), "fmod": Cycles(133, 300),  # POWER {312, 1}, {325, 1}; REMAINDER {133, 2}, {300, 4}
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), _COMPARED), "isnan": Cycles(1, 1, (7, 7)),        # IS_NAN 3, and 4 of loop
    "where": Cycles(2, 2),                              # two masks
    "walk": Cycles(2 * 8, 4 * 8),                       # a node of a tree: our estimate (feature's number, feature and threshold loaded, compared,
                                                        # the result moved, the child's place loaded, a step, a branch), an element after the other
    **STEPS,
}
"""Functions of floats. What is not here is arithmetic: a cycle a vector and operation."""

POWERS = {1.0: ("mul",), 2.0: ("mul",), 3.0: ("mul", "mul"), 0.5: ("sqrt",), -0.5: ("sqrt", "div"), -1.0: ("div",)}
"""Exponents that are known before a program runs, and what is done then in place of a power (popops/ElementWiseInternal.cpp, optimiseBinary; 3 is
ours: the square times x)."""

INTEGERS: dict[str, float] = {"div": 271, "fmod": 286, "pow": 26, "sqrt": 104}
"""Cycles an element, beyond loads, store and loop, of functions of integers; others one. There are no vectors of them (DIVIDE INT 277,
REMAINDER 292, POWER 32, SQRT 110)."""
BOOLEAN = 1.25
"""Cycles an element of an operator of bools, stored as bytes (LOGICAL_AND {5, 4 elements})."""
INTEGER_LOOP = 6
"""Cycles an element of loads, store and loop (ADD INT {7, 1 element})."""


def raised(counts: tuple[Count, ...], exponent: float) -> tuple[Count, ...]:
    """The functions of a power whose exponent is known."""
    if [name for name, dtype, n in counts if n == 1 and is_float(dtype)] != ["pow"] or len(counts) != 1 or exponent not in POWERS:
        return counts
    (_, dtype, _), names = counts[0], POWERS[exponent]
    return tuple((name, dtype, names.count(name)) for name in sorted(set(names)))


@functools.lru_cache(4096)
def vector_cycles(counts: Sequence[Count], flops: float, itemsize: int, operands: int) -> float:
    """Cycles of one worker for as many elements as 8 bytes of `itemsize` hold.

    Args:
        counts: the functions; empty: `flops` operations of arithmetic, a cycle a vector each.
        operands: tensors read and written, each a load or a store.
    """
    if not counts:
        return max(math.ceil(flops), operands)
    elements = 8 / itemsize
    if len(counts) == 1 and counts[0][2] == 1 and is_float(counts[0][1]) and counts[0][0] in FLOATS:
        name, dtype, _ = counts[0]
        size = ITEMSIZE[device_dtype(dtype)]
        return max(_float_cycles(name, dtype) * elements, FLOATS[name].alone[size < 4] * elements * size / 8, operands)
    total = sum(n * (_float_cycles(name, dtype) if is_float(dtype) else INTEGERS.get(name, 1.0)) * elements
                for name, dtype, n in counts if dtype != "bool")
    bools = sum(n for _, dtype, n in counts if dtype == "bool")
    if not total:
        return max(BOOLEAN * bools * elements, operands)
    alone = all(not is_float(dtype) for _, dtype, _ in counts)
    return max(total + bools + (INTEGER_LOOP * elements if alone else 0), operands)        # among others, bools are masks in registers


def is_float(dtype: str) -> bool:
    """Whether tiles compute with it as a float."""
    return "float" in device_dtype(dtype)


def _float_cycles(name: str, dtype: str) -> float:
    """Cycles an element within others."""
    found = FLOATS.get(name, _SINGLE)
    return found.float16 / 4 if ITEMSIZE[device_dtype(dtype)] < 4 else found.float32 / 2
