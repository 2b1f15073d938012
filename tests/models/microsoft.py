"""Models of one node of com.microsoft, for the tests of these operators, and what ONNX Runtime makes of them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto
from onnx_models import model_of, node, port
from peers import onnx_runtime

DOMAIN = "com.microsoft"


def f4(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def whole(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Integers over the whole range of a type."""
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def fused(op: str, feeds: Mapping[str, np.ndarray | None], outputs: int | Sequence[str] = 1, weights: Sequence[str] = (),
          **attributes: object) -> ModelProto:
    """A model of one node, whose operands are inputs, or initializers if they are among `weights`; None: an operand is absent. outputs: how many,
    or their types."""
    given = {n: a for n, a in feeds.items() if a is not None}
    types = ["float32"] * outputs if isinstance(outputs, int) else list(outputs)
    return model_of([node(op, [n if a is not None else "" for n, a in feeds.items()], [f"y{i}" for i in range(len(types))], "it", domain=DOMAIN,
                          **attributes)],
                    [port(n, a.shape, a.dtype.name) for n, a in given.items() if n not in weights],
                    [port(f"y{i}", None, t) for i, t in enumerate(types)], {n: given[n] for n in weights}, domains=[DOMAIN])


def by_runtime(proto: ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnx_runtime(proto.SerializeToString())
    return list(session.run(None, dict(feeds)))
