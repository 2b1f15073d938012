"""Constants that the engine's types do not hold: texts."""
from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tileflow.system.errors import UnsupportedError

from ..tensors import dtype_name, text_array
from .registry import Attributes, Datum, hosted


@hosted("Constant")
def constant(attrs: Attributes) -> list[Datum]:
    if "value_string" in attrs:
        return [np.array(attrs["value_string"], object)]
    if "value_strings" in attrs:
        return [np.array(attrs["value_strings"], object)]
    tensor = attrs.get("value")
    if isinstance(tensor, TensorProto) and tensor.data_type == TensorProto.STRING:
        return [text_array(tensor)]
    what = dtype_name(tensor.data_type) if isinstance(tensor, TensorProto) else ", ".join(attrs) or "nothing"
    raise UnsupportedError(f"{attrs.title} holds {what}, which tileflow does not have")
