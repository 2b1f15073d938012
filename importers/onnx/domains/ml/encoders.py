"""Preparation of features: scaling, imputing, encoding, choosing."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from tileflow.graph import Value
from tileflow.system.errors import ModelError, ShapeError

from ...site import Site
from ...versions import form
from .attributes import DOMAIN, numbers, one_of
from .forest import EQ, LEAF, Listed, tables

EXACT = 1 << 53
"""Whole numbers under this are exact in float64, in which keys are compared."""
CATEGORIES = 1 << 12
"""Of a OneHotEncoder."""
NAN_IS_A_KEY = 4


def _as_float(site: Site) -> Value:
    x, to = site.value(0), site.float_dtype("float32")
    return x if x.dtype == to else site.emit("Cast", x, to=to)


@form("Binarizer", domain=DOMAIN)
def binarizer(site: Site) -> Sequence[Value]:
    """1 where x > threshold, else 0."""
    x, threshold = site.value(0), float(site.attrs.get("threshold", 0.0))
    wide = x if x.type.is_float else site.emit("Cast", x, to="float64")
    return (site.emit("Cast", site.emit("Greater", wide, site.builder.scalar(threshold, wide)), to=x.dtype),)


@form("Scaler", domain=DOMAIN)
def scaler(site: Site) -> Sequence[Value]:
    """(x - offset) * scale, of each feature or all."""
    wide = site.type(0).dtype in ("float64", "int64", "int32") and not site.scope.changes_floats
    x = site.emit("Cast", site.value(0), to="float64") if wide and site.type(0).dtype != "float64" else site.value(0)
    for op, name in (("Sub", "offset"), ("Mul", "scale")):
        given = numbers(site, name)
        if given.size not in (0, 1, x.shape[-1] if x.shape else 1):
            raise ModelError(f"{site.title} has {given.size} numbers as its {name} for an input of {x.type}; export the model again")
        if given.size:
            x = site.emit(op, x, site.builder.constant(given.astype(x.type.numpy)))
    to = site.float_dtype("float32")
    return (x if x.dtype == to else site.emit("Cast", x, to=to),)


@form("Normalizer", domain=DOMAIN)
def normalizer(site: Site) -> Sequence[Value]:
    """Rows divided by their largest element, the sum of magnitudes, or the root of the sum of squares; rows of zeros stay."""
    x, how = _as_float(site), one_of(site, "norm", ("MAX", "L1", "L2"), "MAX")
    b, last = site.builder, {"axes": (x.type.rank - 1,), "keepdims": 1}
    if how == "MAX":
        norm = site.emit("ReduceMax", x, **last)
    elif how == "L1":
        norm = site.emit("ReduceSum", site.emit("Abs", x), **last)
    else:
        norm = site.emit("Sqrt", site.emit("ReduceSum", site.emit("Mul", x, x), **last))
    nothing = site.emit("Equal", norm, b.scalar(0.0, norm))
    return (site.emit("Div", x, site.emit("Where", nothing, b.scalar(1.0, norm), norm)),)


@form("Imputer", domain=DOMAIN)
def imputer(site: Site) -> Sequence[Value]:
    """What equals the replaced value (NaN equals itself here) becomes the imputed one, of each feature or all."""
    x, b = site.value(0), site.builder
    kind = ("float", "floats") if x.type.is_float else ("int64", "int64s")
    imputed = np.asarray(site.attrs.get(f"imputed_value_{kind[1]}") or [], x.type.numpy)
    if imputed.size not in (1, x.shape[-1] if x.shape else 1):
        raise ModelError(f"{site.title} has {imputed.size} imputed values for an input of {x.type}; export the model again")
    replaced = site.attrs.get(f"replaced_value_{kind[0]}", 0)
    known = np.asarray(replaced, np.float32 if x.type.is_float else np.int64)
    if np.isnan(known):
        hit = site.emit("IsNaN", x)
    elif not x.type.is_float and known.astype(x.type.numpy) != known:
        return (x,)
    else:
        hit = site.emit("Equal", x, b.constant(known.astype(x.type.numpy)))
    return (site.emit("Where", hit, b.constant(imputed), x),)


@form("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(site: Site) -> Sequence[Value]:
    """Elements of the last axis, by their places."""
    x, y = site.value(0), site.value(1)
    known, count = site.known(1), int(np.prod(y.shape))
    if known is not None and known.size and not (known.min() >= 0 and known.max() < x.shape[-1]):
        raise ShapeError(f"{site.title} takes element {known.max()} of the {x.shape[-1]} in the last axis of {x.type}")
    flat = site.emit("Reshape", y, shape=(count,), allowzero=1)
    taken = site.emit("Gather", x, flat, axis=x.type.rank - 1)
    return (site.emit("Reshape", taken, shape=(1, count), allowzero=1) if x.type.rank == 1 else taken,)


@form("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(site: Site) -> Sequence[Value]:
    """Inputs [rows, n], of which the first `inputdimensions` columns count, next to each other as float32; what is shorter gets zeros."""
    widths = [int(n) for n in site.attrs.get("inputdimensions") or []]
    parts, to = [], site.float_dtype("float32")
    if len(widths) != len(site.inputs):
        raise ModelError(f"{site.title} has {len(widths)} inputdimensions for {len(site.inputs)} inputs; export the model again")
    for i, width in enumerate(widths):
        x = site.value(i)
        x = site.emit("Reshape", x, shape=(1, *x.shape), allowzero=1) if x.type.rank == 1 else x
        if x.type.rank != 2 or width < 0:
            raise ShapeError(f"{site.title}: its input {i} is {x.type}; it must have two dimensions, rows and features")
        if x.shape[1] > width:
            x = site.emit("Slice", x, starts=(0,), ends=(width,), axes=(1,), steps=(1,))
        x = x if x.dtype == to else site.emit("Cast", x, to=to)
        parts.append(x if x.shape[1] == width else site.emit("Pad", x, pads=(0, 0, 0, width - x.shape[1])))
    return (parts[0] if len(parts) == 1 else site.emit("Concat", *parts, axis=1),)


# ---- keys and categories -------------------------------------------------------------------------------------------------

def places_of(site: Site, x: Value, keys: np.ndarray) -> Value:
    """The place of each element of x among the keys, int64 of x's shape; for none of them the number of keys. NaN is found, too."""
    whole = keys[~np.isnan(keys)] if keys.dtype.kind == "f" else keys
    if keys.dtype.kind in "iu" and keys.size and max(abs(int(keys.min())), abs(int(keys.max()))) >= EXACT:
        raise site.unsupported(f"keys of {EXACT} and more")
    wide = np.unique(whole.astype(np.float64))
    where = {float(key): i for i, key in reversed(list(enumerate(keys.tolist())))}
    nan = np.flatnonzero(np.isnan(keys.astype(np.float64)))
    n = len(wide)
    flat = site.emit("Reshape", site.emit("Cast", x, to="float64") if x.dtype != "float64" else x, shape=(int(np.prod(x.shape)), 1), allowzero=1)
    found = _search(site, wide, np.array([where[float(k)] for k in wide] or [0], np.float64)[:n], float(len(keys)), float(nan[0]) if len(nan) else
                    float(len(keys)))
    place = site.emit("Trees", flat, *map(site.builder.constant, found), missing=1, depth=max(1, n.bit_length()))
    return site.emit("Reshape", site.emit("Cast", place, to="int64"), shape=x.shape, allowzero=1)


def _search(site: Site, keys: np.ndarray, votes: np.ndarray, other: float, nan: float) -> list[np.ndarray]:
    """A tree that finds sorted keys: as many equalities, reached by halving."""
    n = len(keys)
    modes, values, children, leaf = [], [], [], []             # type: list, list, list, list

    def node(mode: int, value: float, vote: float = 0.0) -> int:
        modes.append(mode)
        values.append(value)
        children.append([len(modes) - 1] * 2)
        leaf.append(vote)
        return len(modes) - 1

    def half(low: int, high: int) -> int:
        if high - low == 1:
            at = node(EQ, keys[low])
            children[at] = [node(LEAF, 0, votes[low]), node(LEAF, 0, other)]
            return at
        middle = (low + high) // 2
        at = node(0, keys[middle - 1])
        children[at] = [half(low, middle), half(middle, high)]
        return at

    root = node(0, np.nan)                                     # nothing is below NaN: only what is missing goes to the first child
    children[root] = [node(LEAF, 0, nan), half(0, n) if n else node(LEAF, 0, other)]
    all_modes = np.array(modes)
    leaves = np.flatnonzero(all_modes == LEAF)
    listed = Listed(all_modes, np.zeros(len(modes), np.int64), np.array(values, np.float64), np.array(children), np.arange(len(modes)) == root,
                    np.array([root]), leaves, np.zeros(len(leaves), np.int64), np.array(leaf)[leaves])
    return [*tables(listed, "float64", site.title)[0], np.zeros(1)]


@form("LabelEncoder", domain=DOMAIN)
def label_encoder(site: Site) -> Sequence[Value]:
    """Values by keys, both numbers; texts are the host's. NaN is a key like others from version 4 on; before, nothing equals it."""
    keys, values = (_entries(site, side) for side in ("keys", "values"))
    if len(keys) != len(values):
        raise ModelError(f"{site.title} has {len(keys)} keys and {len(values)} values; export the model again")
    default = _default(site, values.dtype)
    x = site.value(0)
    if keys.dtype.kind != x.type.numpy.kind:
        raise ModelError(f"{site.title} has keys of {keys.dtype} for an input of {x.type}; export the model again")
    if site.opset < NAN_IS_A_KEY:
        values, keys = values[keys == keys], keys[keys == keys]
    place = places_of(site, x, keys)
    table = np.append(values, default).astype(values.dtype)
    return (site.emit("Gather", site.builder.constant(site.scope.converted(table)), place, axis=0),)


def _entries(site: Site, side: str) -> np.ndarray:
    if isinstance(site.attrs.get(f"{side}_tensor"), TensorProto):
        return np.asarray(site.tensor(site.attrs[f"{side}_tensor"])).reshape(-1)
    for end, dtype in (("int64s", np.int64), ("floats", np.float32)):
        if site.attrs.get(f"{side}_{end}"):
            return np.asarray(site.attrs[f"{side}_{end}"], dtype)
    raise site.unsupported(f"{side} that are texts, or missing")


def _default(site: Site, dtype: np.dtype) -> Any:
    if isinstance(site.attrs.get("default_tensor"), TensorProto):
        return np.asarray(site.tensor(site.attrs["default_tensor"])).reshape(-1)[0]
    return site.attrs.get("default_int64", -1) if dtype.kind in "iu" else site.attrs.get("default_float", -0.0)


@form("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(site: Site) -> Sequence[Value]:
    """A dimension more: 1 at the place of each element's category. Where zeros=0, an element of no category stops the run."""
    cats = np.asarray(site.attrs.get("cats_int64s") or [], np.int64)
    if not cats.size:
        raise site.unsupported("categories that are texts, or missing")
    if cats.size > CATEGORIES:
        raise site.unsupported(f"more than {CATEGORIES} categories")
    x = site.value(0)
    if x.type.is_float:
        x = site.emit("Cast", x, to="int64")
    rows = np.eye(cats.size + 1, cats.size, dtype=site.float_dtype("float32"))[:cats.size + (1 if site.attrs.get("zeros", 1) else 0)]
    return (site.emit("Gather", site.builder.constant(rows), places_of(site, x, cats), axis=0),)
