"""Work that memory bounds: elementwise functions, softmax, layer norm, moves of data; batch norm."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tileflow.graph import Builder, Value
from tileflow.graph.op import OPS

from .base import Problem, beside_largest, numbers, some

SAMPLED = 100_000
"""Elements of the result that are checked against float64, about."""
EPSILON = 1e-5

_erf = np.vectorize(math.erf, otypes=[np.float64])
EXACT: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "tanh": np.tanh, "erf": _erf, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), "add": lambda x, y: x + y}
OPERATORS = {"exp": "Exp", "tanh": "Tanh", "erf": "Erf", "sigmoid": "Sigmoid", "relu": "Relu", "gelu": "Gelu", "add": "Add"}


class Pointwise(Problem):
    """`function` of an operand of `shape`."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.function, self.size = shape["function"], tuple(shape["shape"])
        self.name = f"{self.function} {'x'.join(map(str, self.size))}" + (f" by {shape['perm']}" if "perm" in shape else "")
        if self.function == "embedding":
            self.name = f"embedding {shape['rows']} of {'x'.join(map(str, self.size))}"

    def arrays(self) -> dict[str, np.ndarray]:
        x = {"x": numbers("x", self.size, scale=2.0)}
        match self.function:
            case "add":
                return x | {"y": numbers("y", self.size)}
            case "layernorm":
                return x | {"scale": numbers("scale", self.size[-1:]), "shift": numbers("shift", self.size[-1:])}
            case "embedding":
                return x | {"rows": np.random.default_rng(0).integers(0, self.size[0], self.shape["rows"])}
        return x

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        x = v["x"]
        match self.function:
            case "softmax":
                return [b.Softmax(x)]
            case "log_softmax":
                return [b.LogSoftmax(x)]
            case "layernorm":
                return [b.emit(OPS["LayerNormalization"](epsilon=EPSILON), x, v["scale"], v["shift"])[0]]
            case "transpose":
                return [b.Transpose(x, perm=tuple(self.shape["perm"]))]
            case "embedding":
                return [b.Gather(x, v["rows"])]
            case "argmax":
                return [b.ArgMax(x, axis=-1, keepdims=0)]
        return [getattr(b, OPERATORS[self.function])(*v.values())]

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        x, ops = t["x"], torch.ops.aten
        out = torch.empty_like(x)
        match self.function:
            case "softmax":
                return lambda: ops._softmax.out(x, -1, False, out=out)
            case "log_softmax":
                return lambda: ops._log_softmax.out(x, -1, False, out=out)
            case "layernorm":
                return lambda: torch.native_layer_norm(x, self.size[-1:], t["scale"], t["shift"], EPSILON)[0]
            case "transpose":
                turned = x.permute(self.shape["perm"])
                moved = torch.empty(turned.shape)
                return lambda: moved.copy_(turned)
            case "embedding":
                looked_up = torch.empty(len(t["rows"]), self.size[1])
                return lambda: torch.index_select(x, 0, t["rows"], out=looked_up)
            case "argmax":
                return lambda: torch.argmax(x, -1)
            case "gelu":
                return lambda: ops.gelu.out(x, out=out)
            case "relu":
                return lambda: ops.relu.out(x, out=out)
            case "add":
                return lambda: torch.add(x, t["y"], out=out)
        function = getattr(torch, self.function)
        return lambda: function(x, out=out)

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        x, got = arrays["x"], outputs[0]
        if self.function == "transpose":
            return beside_largest(got, x.transpose(self.shape["perm"]).astype(np.float64))
        if self.function == "embedding":
            return beside_largest(got, x[arrays["rows"]].astype(np.float64))
        if self.function == "argmax":
            return float(np.mean(got != x.argmax(-1)))
        if self.function in EXACT:
            at = some(x.size, SAMPLED)
            operands = [a.reshape(-1)[at].astype(np.float64) for a in arrays.values()]
            return beside_largest(got.reshape(-1)[at], EXACT[self.function](*operands))
        rows = some(len(x), max(1, SAMPLED // self.size[-1]))
        wide, got = x[rows].astype(np.float64), got[rows]
        if self.function == "layernorm":
            centred = wide - wide.mean(-1, keepdims=True)
            normal = centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + EPSILON)
            return beside_largest(got, normal * arrays["scale"].astype(np.float64) + arrays["shift"].astype(np.float64))
        shifted = wide - wide.max(-1, keepdims=True)
        total = np.exp(shifted).sum(-1, keepdims=True)
        return beside_largest(got, np.exp(shifted) / total if self.function == "softmax" else shifted - np.log(total))

    def nbytes(self) -> float:
        if self.function == "embedding":
            return 8.0 * self.shape["rows"] * self.size[1]
        return 4.0 * math.prod(self.size) * (3 if self.function == "add" else 2)


class BatchNorm(Problem):
    """Batch normalisation in training with its running statistics, or its gradient."""

    MOMENTUM = 0.1

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.which, self.size = shape["pass"], tuple(shape["shape"])
        self.name = f"batchnorm {self.which} {'x'.join(map(str, self.size))}"

    def arrays(self) -> dict[str, np.ndarray]:
        channels = self.size[1:2]
        made = {"x": numbers("x", self.size) + np.float32(0.5), "scale": numbers("scale", channels)}
        if self.which == "forward":
            return made | {"shift": numbers("shift", channels), "mean": numbers("mean", channels), "var": numbers("var", channels) ** 2}
        x = made["x"].astype(np.float64)
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        return made | {"g": numbers("g", self.size), "mean": mean.astype(np.float32), "inverse": (1 / np.sqrt(var + EPSILON)).astype(np.float32)}

    def build(self, b: Builder, v: Mapping[str, Value]) -> list[Value]:
        if self.which == "backward":
            return list(b.BatchNormalizationGrad(v["g"], v["x"], v["scale"], v["mean"], v["inverse"]))
        y, mean, var, _ = b.BatchNormalization(v["x"], v["scale"], v["shift"], None, None, epsilon=EPSILON, training_mode=1)
        count = math.prod(self.size) // self.size[1]
        var = b.Mul(var, b.scalar(count / (count - 1), var))
        return [y, *(b.Add(b.Mul(v[old], b.scalar(1 - self.MOMENTUM, new)), b.Mul(new, b.scalar(self.MOMENTUM, new)))
                     for old, new in (("mean", mean), ("var", var)))]

    def peer(self, torch: Any, t: Mapping[str, Any]) -> Callable[[], Any]:
        if self.which == "forward":
            mean, var = t["mean"].clone(), t["var"].clone()
            return lambda: torch.native_batch_norm(t["x"], t["scale"], t["shift"], mean, var, True, self.MOMENTUM, EPSILON)[0]
        backward = torch.ops.aten.native_batch_norm_backward
        return lambda: backward(t["g"], t["x"], t["scale"], None, None, t["mean"], t["inverse"], True, EPSILON, [True] * 3)

    def deviation(self, arrays: Mapping[str, np.ndarray], outputs: list[np.ndarray]) -> float:
        """Of the first result, in some channels."""
        at = some(self.size[1], 8)

        def each(a: np.ndarray) -> np.ndarray:
            return a[at].astype(np.float64)[None, :, None, None]
        x = arrays["x"][:, at].astype(np.float64)
        centred = x - x.mean((0, 2, 3), keepdims=True)
        inverse = 1 / np.sqrt((centred ** 2).mean((0, 2, 3), keepdims=True) + EPSILON)
        if self.which == "forward":
            return beside_largest(outputs[0][:, at], centred * inverse * each(arrays["scale"]) + each(arrays["shift"]))
        g, normal = arrays["g"][:, at].astype(np.float64), centred * inverse
        rest = g - g.mean((0, 2, 3), keepdims=True) - normal * (g * normal).mean((0, 2, 3), keepdims=True)
        return beside_largest(outputs[0][:, at], rest * inverse * each(arrays["scale"]))

    def nbytes(self) -> float:
        """Every image once; the statistics need a pass of their own that may come from a cache."""
        return 4.0 * math.prod(self.size) * (2 if self.which == "forward" else 3)
