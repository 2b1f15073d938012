"""What Python runs: encoders whose keys or values are texts, and maps."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper

from tileflow.memory import budget
from tileflow.system.errors import DataError, ModelError

from ...functions import stands_for
from ...hosted import Attributes, Datum, hosted
from ...tensors import tensor_array
from .attributes import DOMAIN
from .encoders import NAN_IS_A_KEY

KINDS = {"int64": np.int64, "int64s": np.int64, "float": np.float32, "floats": np.float32, "string": object, "strings": object}


def _array(values: Any, dtype: Any) -> np.ndarray:
    array = np.empty(len(values), dtype)
    array[:] = values
    return array


def _encoding(attrs: Attributes, side: str) -> np.ndarray:
    """The keys or the values of a LabelEncoder."""
    tensor = attrs.get(f"{side}_tensor")
    if isinstance(tensor, TensorProto):
        if tensor.data_type == TensorProto.STRING:
            return _array([text.decode("utf-8", "replace") for text in tensor.string_data], object)
        return tensor_array(tensor, (), attrs.title).reshape(-1)
    found = [(kind, attrs[f"{side}_{kind}"]) for kind in ("strings", "int64s", "floats") if attrs.get(f"{side}_{kind}")]
    if len(found) != 1:
        raise ModelError(f"{attrs.title} must have {side} of one type; export the model again")
    return _array(found[0][1], KINDS[found[0][0]])


@hosted("LabelEncoder", domain=DOMAIN)
def label_encoder(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Values by keys; NaN is a key like others from version 4 on."""
    keys, values = _encoding(attrs, "keys"), _encoding(attrs, "values")
    if len(keys) != len(values):
        raise ModelError(f"{attrs.title} has {len(keys)} keys and {len(values)} values; export the model again")
    tensor = attrs.get("default_tensor")
    if isinstance(tensor, TensorProto):
        default = tensor.string_data[0].decode("utf-8", "replace") if tensor.data_type == TensorProto.STRING else tensor_array(tensor, (),
                                                                                                                              attrs.title).item()
    elif values.dtype == object:
        default = attrs.get("default_string", "_Unused")
    else:
        default = attrs.get("default_int64", -1) if values.dtype.kind in "iu" else attrs.get("default_float", -0.0)
    known = {key: value for key, value in reversed(list(zip(keys.tolist(), values.tolist(), strict=True))) if key == key}
    nan = (value for key, value in zip(keys.tolist(), values.tolist(), strict=True) if key != key and attrs.opset >= NAN_IS_A_KEY)
    missing = next(nan, default)
    return [_array([missing if key != key else known.get(key, default) for key in x.reshape(-1).tolist()], values.dtype).reshape(x.shape)]


@hosted("OneHotEncoder", domain=DOMAIN, others=True)
def one_hot_encoder(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """A dimension more: 1 at the place of each text's category."""
    places = {text: i for i, text in enumerate(attrs.get("cats_strings") or [])}
    budget.require(4 * x.size * len(places), f"What {attrs.title} gives", "give it fewer rows")
    y = np.zeros((x.size, len(places)), np.float32)
    for row, text in zip(y, x.reshape(-1).tolist(), strict=True):
        if text in places:
            row[places[text]] = 1
        elif not attrs.get("zeros", 1):
            raise DataError(f"{attrs.title} knows no category {text!r}"[:300])
    return [y.reshape(*x.shape, len(places))]


@hosted("CategoryMapper", domain=DOMAIN)
def category_mapper(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Texts to their numbers, or numbers to their texts."""
    texts, numbers = attrs.get("cats_strings") or [], attrs.get("cats_int64s") or []
    if len(texts) != len(numbers):
        raise ModelError(f"{attrs.title} has {len(texts)} cats_strings and {len(numbers)} cats_int64s; export the model again")
    from_text = x.dtype == object
    known: dict[Any, Any] = dict(zip(texts, numbers, strict=True) if from_text else zip(numbers, texts, strict=True))
    default = attrs.get("default_int64", -1) if from_text else attrs.get("default_string", "_Unused")
    return [_array([known.get(item, default) for item in x.reshape(-1).tolist()], np.int64 if from_text else object).reshape(x.shape)]


@hosted("ArrayFeatureExtractor", domain=DOMAIN, others=True)
def array_feature_extractor(attrs: Attributes, x: np.ndarray, y: np.ndarray) -> list[Datum]:
    """Texts of the last axis, by their places."""
    taken = x[..., y.reshape(-1)]
    return [taken.reshape(1, -1) if x.ndim == 1 else taken]


@hosted("ZipMap", domain=DOMAIN)
def zip_map(attrs: Attributes, x: np.ndarray) -> list[Datum]:
    """Rows as maps from class labels to scores."""
    labels = attrs.get("classlabels_strings") or attrs.get("classlabels_int64s") or []
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.ndim != 2 or rows.shape[1] != len(labels):
        raise ModelError(f"{attrs.title} has {len(labels)} class labels for scores of the shape {list(x.shape)}; export the model again")
    return [[dict(zip(labels, row, strict=True)) for row in rows.tolist()]]


@hosted("DictVectorizer", domain=DOMAIN)
def dict_vectorizer(attrs: Attributes, x: Mapping[Any, Any]) -> list[Datum]:
    """The values of a map (or of several, row by row) in the order of the vocabulary; 0 or "" for keys that are not there."""
    keys = attrs.get("string_vocabulary") or attrs.get("int64_vocabulary") or []
    rows = x if isinstance(x, list) else [x]
    some = next((value for row in rows for value in row.values()), 0.0)
    dtype, nothing = (object, "") if isinstance(some, str) else (np.int64 if isinstance(some, int) else np.asarray(some).dtype, 0)
    if isinstance(some, float):
        dtype = np.dtype(np.float32)
    return [_array([row.get(key, nothing) for row in rows for key in keys], dtype).reshape(len(rows), len(keys))]


@hosted("CastMap", domain=DOMAIN)
def cast_map(attrs: Attributes, x: Mapping[int, Any]) -> list[Datum]:
    """The values of a map in the order of their keys, or at the places that the keys are; as float32, int64 or texts."""
    dtype: Any = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}[attrs.get("cast_to", "TO_FLOAT")]
    to = {np.float32: float, np.int64: int, object: str}[dtype]
    if attrs.get("map_form", "DENSE") == "DENSE":
        return [_array([to(x[key]) for key in sorted(x)], dtype).reshape(1, -1)]
    width = attrs.get("max_map", 1)
    budget.require(8 * max(width, 0), f"What {attrs.title} gives", "export it with fewer columns")
    row = _array(["" if dtype is object else 0] * max(width, 0), dtype)
    for key, value in x.items():
        if 0 <= key < width:
            row[key] = to(value)
    return [row.reshape(1, -1)]


@stands_for("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier", domain=DOMAIN)
def numbered(node: NodeProto) -> FunctionProto | None:
    """A classifier whose labels are texts as one that numbers its classes, and texts by those numbers."""
    labels = [a for a in node.attribute if a.name == "classlabels_strings" and a.strings]
    if not labels:
        return None
    numbers = "classlabels_int64s" if node.op_type == "TreeEnsembleClassifier" else "classlabels_ints"
    places = list(range(len(labels[0].strings)))
    inner = NodeProto(op_type=node.op_type, domain=DOMAIN, name=node.name, input=["x"], output=["place", "scores"])
    inner.attribute.extend(a for a in node.attribute if a.name not in ("classlabels_strings", numbers))
    inner.attribute.append(helper.make_attribute(numbers, places))
    texts = helper.make_node("LabelEncoder", ["place"], ["label"], domain=DOMAIN, keys_int64s=places,
                             values_strings=[text.decode("utf-8", "replace") for text in labels[0].strings])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 3)]
    return helper.make_function(DOMAIN, node.op_type, ["x"], ["label", "scores"], [inner, texts], opsets)
