"""Optimizers alone: a real training model whose gradients are the numbers that it is fed.

    weights, gradients = drawn(), recorded(50)
    found = fed(optim.AdamW(lr=0.01), weights, gradients)          # name -> weight after the updates
    found.session["dense.weight.exp_avg"]                          # and whatever else outlives a call

The loss is the sum of x * w over all weights w, each with an x of its own: its gradient is x itself, bit for bit.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (teaches NumPy the name bfloat16)
import numpy as np
import onnx
from onnx import TensorProto, helper

import tileflow
from tileflow import optim
from tileflow.importers.onnx import wrap_model

Array = np.ndarray
SHAPES: dict[str, tuple[int, ...]] = {"dense.weight": (7, 9), "dense.bias": (9,), "norm.weight": (5,), "gain": (1,)}
"""A matrix, biases, a norm's scale and a weight of one element: names that groups are made of, sizes that fill no vector."""


def line(weights: Mapping[str, Array]) -> onnx.ModelProto:
    """The sum of x * w over all weights, in float32 for those of 16 bits; inputs [rows, *shape], called x_<name>."""
    nodes, sums, inputs = [], [], []
    wide = TensorProto.DOUBLE if any(w.dtype == np.float64 for w in weights.values()) else TensorProto.FLOAT
    for name, w in weights.items():
        kind = helper.np_dtype_to_tensor_dtype(w.dtype)
        inputs.append(helper.make_tensor_value_info(f"x_{name}", kind, ["n", *w.shape]))
        read = {n: n for n in (name, f"x_{name}")}
        if kind != wide:
            read = {n: f"wide_{n}" for n in read}
            nodes += [helper.make_node("Cast", [n], [m], to=wide) for n, m in read.items()]
        nodes += [helper.make_node("Mul", [read[f"x_{name}"], read[name]], [f"p_{name}"]),
                  helper.make_node("ReduceSum", [f"p_{name}"], [f"s_{name}"], keepdims=0)]
        sums.append(f"s_{name}")
    nodes.append(helper.make_node("Sum", sums, ["y"]))
    stored = [helper.make_tensor(n, helper.np_dtype_to_tensor_dtype(w.dtype), w.shape, w.tobytes(), raw=True) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "line", inputs, [helper.make_tensor_value_info("y", wide, [])], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def drawn(dtype: str = "float32", shapes: Mapping[str, tuple[int, ...]] = SHAPES, seed: int = 0) -> dict[str, Array]:
    """Weights."""
    draw = np.random.default_rng(seed)
    return {name: draw.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def recorded(updates: int, weights: Mapping[str, Array], micro_batches: int = 1, scale: float = 1.0, seed: int = 1) -> dict[str, Array]:
    """Gradients [updates * micro_batches, *shape] by name: they fall, turn their sign, and differ in size from element to element."""
    draw = np.random.default_rng(seed)
    n, found = updates * micro_batches, {}
    for name, w in weights.items():
        sizes = scale * np.exp(draw.standard_normal(w.shape))
        drift = 0.6 * np.sin(np.arange(n) / 9)[(...,) + (None,) * w.ndim]
        found[name] = (sizes * (drift + draw.standard_normal((n, *w.shape)))).astype(w.dtype)
    return found


class Fed(dict[str, Array]):
    """The weights by name; `model` made them, and `session` has whatever else it keeps."""

    def __init__(self, model: Any) -> None:
        self.model, self.session = model, model.source.session
        super().__init__({n: self.session[n].copy() for n in self.session.names("parameter")})

    def bits(self, *kinds: str) -> dict[str, bytes]:
        """All that a checkpoint would hold."""
        return {n: a.tobytes() for n, a in self.session.snapshot(*kinds).items()}


def trainer(optimizer: optim.Optimizer, weights: Mapping[str, Array], **options: Any) -> Any:
    """A model of these weights; a call takes micro-batches of one row, the gradients."""
    chosen = {"precision": "float64"} if any(w.dtype == np.float64 for w in weights.values()) else {}
    return tileflow.training_model(wrap_model(line(weights)), optimizer=optimizer, loss="identity", micro_batch_size=1,
                                   **{"trainable": tuple(weights)} | chosen | options)


def feed(model: Any, gradients: Mapping[str, Array]) -> None:
    """Whole calls over the gradients."""
    rows = model.options.gradient_accumulation * model.options.device_iterations
    count = len(next(iter(gradients.values())))
    assert count % rows == 0, f"{count} gradients do not fill calls of {rows}"
    for start in range(0, count, rows):
        model(*[g[start:start + rows] for g in gradients.values()])


def fed(optimizer: optim.Optimizer, weights: Mapping[str, Array], gradients: Mapping[str, Array], updates_per_call: int = 10, **options: Any) -> Fed:
    """The weights after the updates."""
    model = trainer(optimizer, weights, device_iterations=updates_per_call, **options)
    feed(model, gradients)
    return Fed(model)


def pytorch(make: Callable[..., Any], weights: Mapping[str, Array], gradients: Mapping[str, Array], micro_batches: int = 1, *,
            clip: float | None = None, each: Callable[[Any, int], None] | None = None,
            groups: Sequence[tuple[Callable[[str], bool], dict[str, Any]]] = (), dtype: str = "float64", **options: Any) -> dict[str, Array]:
    """The same by an optimizer of PyTorch's, over the mean of the micro-batches.

    Args:
        clip: torch.nn.utils.clip_grad_norm_ to this norm.
        each: called with the optimizer and the update's index before each update (schedules).
        groups: whose names fit, with their own options; all others have `options` alone.
    """
    from peers import needs
    torch = needs("torch")
    parameters = {n: torch.nn.Parameter(torch.from_numpy(w.astype(dtype))) for n, w in weights.items()}
    taken: list[dict[str, Any]] = []
    left = dict(parameters)
    for fits, own in groups:
        members = [left.pop(n) for n in list(left) if fits(n)]
        taken.append({"params": members, **own})
    optimizer = make([*taken, {"params": list(left.values())}] if left else taken, **options)
    count = len(next(iter(gradients.values())))
    for update in range(count // micro_batches):
        at = slice(update * micro_batches, (update + 1) * micro_batches)
        for n, p in parameters.items():
            p.grad = torch.from_numpy(gradients[n][at].astype(dtype).mean(0))
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(parameters.values()), clip)
        if each is not None:
            each(optimizer, update)
        optimizer.step()
    return {n: p.detach().numpy() for n, p in parameters.items()}


def agree(ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float = 1e-5) -> None:
    """max |difference| <= tolerance * max |weight|, tensor by tensor."""
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        assert np.isfinite(wanted).all(), f"{name}: the reference is not finite"
        difference = np.abs(ours[name].astype(np.float64) - wanted).max()
        assert difference <= tolerance * np.abs(wanted).max(), f"{name}: {difference:.3g} > {tolerance:g} * {np.abs(wanted).max():.3g}"
