"""Texts: arrays of objects, each element a `str`. What only moves elements is as ONNX's own reference has it."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tileflow.memory import budget
from tileflow.system.errors import DataError, ShapeError, TypeMismatchError, UnsupportedError
from tileflow.system.text import one_line

from ..tensors import DTYPES, dtype_name
from .registry import Attributes, Datum, hosted

ODD_CASES = ("tr", "az", "lt")
"""Languages in which upper and lower case are not Unicode's."""
SHOWN = 80
MOVES = ("Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
         "Unsqueeze", "Where", "ScatterElements", "ScatterND", "Pad", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Trilu")
"""Operators that take texts because they look at none."""


@hosted("StringConcat")
def string_concat(attrs: Attributes, x: np.ndarray, y: np.ndarray) -> list[Datum]:
    return [np.asarray(texts(x) + texts(y), object)]


def texts(x: np.ndarray) -> np.ndarray:
    """An array of `str`, whatever NumPy calls it."""
    if x.dtype.kind not in "OU":
        raise TypeMismatchError(f"texts are wanted, and there is {x.dtype}")
    return x.astype(object)


@hosted("StringSplit")
def string_split(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """The parts of each text along a new last axis, filled up with '', and their numbers; without a delimiter runs of white space part."""
    most = attrs.get("maxsplit")
    parts = [text.split(attrs.get("delimiter") or None, -1 if most is None else most) for text in texts(x).reshape(-1)]
    longest = max(map(len, parts), default=0)
    budget.require(8 * len(parts) * longest, f"What {attrs.title} splits texts into", "give it fewer or shorter texts")
    result = np.full((len(parts), longest), "", object)
    for row, found in zip(result, parts, strict=True):
        row[:len(found)] = found
    return [result.reshape(*x.shape, longest), np.array([len(found) for found in parts], np.int64).reshape(x.shape)]


@hosted("StringNormalizer")
def string_normalizer(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Without the stop words, then in upper or lower case (Unicode's); at least one text, '' where all were stop words."""
    change, locale = attrs.get("case_change_action", "NONE"), attrs.get("locale", "")
    cases: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    if change not in cases:
        raise UnsupportedError(f"{attrs.title} has the case_change_action {change!r}; there are {', '.join(cases)}")
    if change != "NONE" and locale.lower().startswith(ODD_CASES):
        raise UnsupportedError(f"{attrs.title} has the locale {locale!r}; tileflow changes case as Unicode does, not as that language does")
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ShapeError(f"{attrs.title} takes texts of shape [C] or [1, C], and has {list(x.shape)}")
    fold = cases["NONE" if attrs.get("is_case_sensitive", 0) else "LOWER"]
    stops = {fold(word) for word in attrs.get("stopwords", ())}
    kept = [cases[change](text) for text in texts(x).reshape(-1) if fold(text) not in stops]
    result = np.array(kept or [""], object)
    return [result.reshape(1, -1) if x.ndim == 2 else result]


@hosted("Equal", others=True)
def equal(attrs: Attributes, x: np.ndarray, y: np.ndarray) -> list[Datum]:
    return [np.asarray(texts(x) == texts(y), np.bool_)]


@hosted("Cast", others=True)
def cast_from_text(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Texts as numbers."""
    return [cast(attrs, x, attrs["to"])]


@hosted("CastLike", others=True)
def cast_like_text(attrs: Attributes, x: np.ndarray, like: np.ndarray) -> list[Datum]:
    to = onnx.TensorProto.STRING if like.dtype.kind in "OU" else onnx.helper.np_dtype_to_tensor_dtype(like.dtype)
    return [cast(attrs, x, to)]


def cast(attrs: Attributes, x: np.ndarray, to: int) -> np.ndarray:
    """Numbers as the shortest texts that read as them again, and texts as numbers: plain, scientific, and inf, nan in any case."""
    if to == onnx.TensorProto.STRING:
        return x.astype(object) if x.dtype.kind in "OU" else np.array([_text(n) for n in x.reshape(-1)], object).reshape(x.shape)
    if to not in DTYPES:
        raise UnsupportedError(f"{attrs.title} casts to {dtype_name(to)}, which tileflow does not have")
    target = np.dtype(DTYPES[to])
    if x.dtype.kind not in "OU":
        return x.astype(target)
    kind = "f" if target.kind not in "iub" else target.kind
    return np.array([_number(attrs, text, kind) for text in texts(x).reshape(-1)]).astype(target).reshape(x.shape)


def _text(number: Any) -> str:
    return str(number.astype(np.float32) if number.dtype.itemsize < 4 and number.dtype.kind not in "iub" else number)


def _number(attrs: Attributes, text: str, kind: str) -> float:
    try:
        return float(text) if kind == "f" else int(text)
    except ValueError:
        what = "a number" if kind == "f" else "an integer"
        raise DataError(f"{attrs.title} reads {one_line(repr(text), SHOWN)} as {what}, which it is not") from None


@hosted("Shape", others=True)
def shape(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    return [np.array(x.shape[slice(attrs.get("start", 0), attrs.get("end"))], np.int64)]


@hosted("Size", others=True)
def size(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    return [np.array(x.size, np.int64)]


def _moved(name: str) -> None:
    @hosted(name, others=True)
    def move(attrs: Attributes, *operands: Datum) -> list[Datum]:
        _check_growth(name, attrs, operands)
        from onnx.reference.ops._op_list import load_op
        given = ["" if x is None else f"x{i}" for i, x in enumerate(operands)]
        node = onnx.helper.make_node(name, given, [f"y{i}" for i in range(len(attrs.outputs))], **attrs)
        run = load_op("", name, attrs.opset)(node, {"log": _unheard, "opsets": {"": attrs.opset}, "verbose": 0, "new_ops": None})
        return list(run.run(*operands))


def _unheard(*words: object) -> None:
    """Nobody asked the reference to tell what it does."""


def _check_growth(name: str, attrs: Attributes, operands: tuple[Datum, ...]) -> None:
    """What two of them may make much of little."""
    if name not in ("Expand", "Tile"):
        return
    x, sizes = operands[0], [max(int(n), 1) for n in operands[1].reshape(-1)]
    budget.require(8 * x.size * math.prod(sizes), f"What {attrs.title} gives", "choose smaller sizes")


for _name in MOVES:
    _moved(_name)
