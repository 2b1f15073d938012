"""Layers, functions and losses against PyTorch's of the same name and arguments: values and gradients, in float64, by the operators' references."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from onnx.reference import ReferenceEvaluator
from our_layers import OurLayers
from peers import needs

from tileflow import nn
from tileflow.graph import Graph, State, TensorType, Value, type_of, verify
from tileflow.importers.onnx import FileForm, graph_model, import_graph, wrap_model
from tileflow.nn import functional as F
from tileflow.nn.layers.activation import Activation
from tileflow.nn.trace import Trace, recording
from tileflow.passes.autograd import gradients

torch = needs("torch")
TF = torch.nn.functional
rng = np.random.default_rng(11)


def recorded(function: Callable[..., Any], arrays: Sequence[np.ndarray], net: nn.Module | None = None, training: bool = False
             ) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The outputs of a function of tensors, and the gradients of their weighted sum by each array and parameter of floats."""
    graph = Graph("test")
    trace = Trace(graph, training, "float64")
    feeds = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    inputs = [nn.Tensor(trace, trace.builder.input(name, type_of(a))) for name, a in feeds.items()]
    wanted = [t.value for t in inputs if t.value.type.is_float]
    for name, p in net.named_parameters() if net is not None else ():
        kind = "float64" if p.data.dtype.kind == "f" else p.data.dtype.name
        value = Value(trace.builder.name(name), TensorType(kind, p.data.shape))
        state = State(name, "buffer" if isinstance(p, nn.Buffer) else "parameter", value, trainable=p.trainable)
        trace.states[id(p)] = state
        graph.states.append(state)
        feeds[value.name] = p.data.astype(kind)
        if not isinstance(p, nn.Buffer):
            wanted.append(value)
    with recording(trace):
        made = function(*inputs)
    made = list(made) if isinstance(made, (tuple, list)) else [made]
    total = sum(((y.double() * weights(y.shape)).sum() for y in made if y.value.type.is_float), start=trace_zero(trace))
    grads = gradients(graph, total.value, wanted) if wanted and total.value.producer is not None else []
    graph.outputs = [*(y.value for y in made), *grads]
    verify(graph)
    found = evaluate(graph, feeds)
    return [found[y.value.name] for y in made], [found[g.name] for g in grads]


def trace_zero(trace: Trace) -> nn.Tensor:
    return nn.Tensor(trace, trace.builder.constant(np.zeros(())))


def weights(shape: tuple[int, ...]) -> np.ndarray:
    """Fixed numbers, so that every output element counts differently."""
    return np.cos(np.arange(int(np.prod(shape)), dtype=float) + 1).reshape(shape)


def theirs(function: Callable[..., Any], arrays: Sequence[np.ndarray], parameters: Sequence[Any] = ()) -> tuple[list[np.ndarray], list[np.ndarray]]:
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in map(np.asarray, arrays)]
    made = function(*tensors)
    made = list(made) if isinstance(made, (tuple, list)) else [made]
    wanted = [t for t in tensors if t.requires_grad] + list(parameters)
    total = sum((y * torch.tensor(weights(tuple(y.shape)))).sum() for y in made if y.is_floating_point())
    grads: Sequence[Any] = []
    if wanted and torch.is_tensor(total) and total.requires_grad:
        grads = torch.autograd.grad(total, wanted, allow_unused=True)
    return ([y.detach().numpy() for y in made], [np.zeros(tuple(w.shape)) if g is None else g.numpy() for g, w in zip(grads, wanted, strict=False)])


ROUNDED = ("celu", "hardsigmoid")
"""PyTorch computes their gradients with constants in float32."""


def agree(ours: tuple[list[np.ndarray], list[np.ndarray]], other: tuple[list[np.ndarray], list[np.ndarray]], name: str = "") -> None:
    for what, a, b in (("values", ours[0], other[0]), ("gradients", ours[1], other[1])):
        assert len(a) == len(b), what
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert x.shape == y.shape, f"{what} {i}"
            assert (x.dtype.kind == "f") == (y.dtype.kind == "f"), f"{what} {i}: {x.dtype} and {y.dtype}"
            np.testing.assert_allclose(x, y, rtol=1e-7 if name.lower() in ROUNDED else 1e-9, atol=1e-10, err_msg=f"{what} {i}")


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def positive(*shape: int) -> np.ndarray:
    return rng.uniform(0.1, 0.9, shape)


def whole(high: int, *shape: int) -> np.ndarray:
    return rng.integers(0, high, shape)


def signs(*shape: int) -> np.ndarray:
    return rng.choice([-1.0, 1.0], shape)


X = normal(3, 4)
IMAGE, LINE, BOX = normal(2, 4, 6, 8), normal(2, 4, 9), normal(1, 2, 4, 5, 6)

# ---- functions: (name, how it is called on a namespace of functions, arrays)

FUNCTIONS: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]] = [
    *((name, lambda f, x, name=name: getattr(f, name)(x), (2 * X,)) for name in (
        "relu", "relu6", "hardtanh", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "hardswish", "hardsigmoid",
        "logsigmoid", "tanhshrink", "hardshrink", "softshrink")),
    ("hardtanh", lambda f, x: f.hardtanh(x, min_val=-0.5, max_val=0.2), (X,)), ("elu", lambda f, x: f.elu(x, alpha=0.7), (X,)),
    ("leaky_relu", lambda f, x: f.leaky_relu(x, negative_slope=0.3), (X,)), ("celu", lambda f, x: f.celu(x, alpha=0.7), (X,)),
    ("gelu", lambda f, x: f.gelu(x, approximate="tanh"), (X,)), ("softplus", lambda f, x: f.softplus(x, beta=3.0, threshold=2.0), (X,)),
    ("hardshrink", lambda f, x: f.hardshrink(x, lambd=0.2), (X,)), ("softshrink", lambda f, x: f.softshrink(x, lambd=0.2), (X,)),
    ("threshold", lambda f, x: f.threshold(x, 0.3, -2.0), (X,)), ("softmax", lambda f, x: f.softmax(x, dim=0), (X,)),
    ("softmin", lambda f, x: f.softmin(x, dim=1), (X,)), ("log_softmax", lambda f, x: f.log_softmax(x, dim=0), (X,)),
    ("glu", lambda f, x: f.glu(x, dim=1), (X,)), ("prelu", lambda f, x, w: f.prelu(x, w), (normal(2, 4, 3), normal(4))),
    ("prelu", lambda f, x, w: f.prelu(x, w), (X, normal(1))),
    ("linear", lambda f, *a: f.linear(*a), (X, normal(5, 4), normal(5))), ("linear", lambda f, *a: f.linear(*a), (normal(2, 3, 4), normal(5, 4))),
    ("bilinear", lambda f, *a: f.bilinear(*a), (normal(2, 3), normal(2, 4), normal(5, 3, 4), normal(5))),
    ("embedding", lambda f, i, w: f.embedding(i, w), (whole(5, 2, 3), normal(5, 4))),
    ("embedding", lambda f, i, w: f.embedding(i, w, padding_idx=1), (np.array([[0, 1], [4, 1]]), normal(5, 4))),
    ("one_hot", lambda f, i: f.one_hot(i, num_classes=5), (whole(5, 2, 3),)),
    ("conv1d", lambda f, *a: f.conv1d(*a, stride=2, padding=1), (LINE, normal(6, 4, 3), normal(6))),
    ("conv1d", lambda f, *a: f.conv1d(*a, padding="same", dilation=2), (LINE, normal(6, 4, 4))),
    ("conv2d", lambda f, *a: f.conv2d(*a, padding=(1, 2), groups=2), (IMAGE, normal(6, 2, 3, 2), normal(6))),
    ("conv2d", lambda f, *a: f.conv2d(*a, padding="same"), (IMAGE, normal(3, 4, 2, 3))),
    ("conv3d", lambda f, *a: f.conv3d(*a, dilation=(1, 2, 1)), (BOX, normal(3, 2, 2, 2, 3), normal(3))),
    ("conv_transpose1d", lambda f, *a: f.conv_transpose1d(*a, stride=3, padding=1, output_padding=2), (LINE, normal(4, 3, 3), normal(3))),
    ("conv_transpose2d", lambda f, *a: f.conv_transpose2d(*a, stride=2, groups=2, dilation=(1, 2)), (IMAGE, normal(4, 3, 2, 3), normal(6))),
    ("conv_transpose3d", lambda f, *a: f.conv_transpose3d(*a), (BOX, normal(2, 3, 2, 1, 2))),
    ("max_pool1d", lambda f, x: f.max_pool1d(x, 3, stride=2, padding=1), (LINE,)),
    ("max_pool2d", lambda f, x: f.max_pool2d(x, (3, 2), dilation=(1, 2), ceil_mode=True), (IMAGE,)),
    ("avg_pool1d", lambda f, x: f.avg_pool1d(x, 4, stride=3, padding=2), (LINE,)),
    ("avg_pool2d", lambda f, x: f.avg_pool2d(x, 3, padding=1, count_include_pad=False, ceil_mode=True), (IMAGE,)),
    ("avg_pool2d", lambda f, x: f.avg_pool2d(x, 3, padding=1, ceil_mode=True), (IMAGE,)),
    ("max_unpool1d", lambda f, x: f.max_unpool1d(*f.max_pool1d(x, 2, return_indices=True), 2), (LINE,)),
    ("max_unpool2d", lambda f, x: f.max_unpool2d(*f.max_pool2d(x, 2, return_indices=True), 2, output_size=(6, 8)), (IMAGE,)),
    ("max_unpool3d", lambda f, x: f.max_unpool3d(*f.max_pool3d(x, 2, return_indices=True), 2, output_size=BOX.shape[2:]), (BOX,)),
    *(("grid_sample", lambda f, x, g, m=m, p=p, a=a: f.grid_sample(x, g, m, p, a), (IMAGE, 1.3 * np.tanh(normal(2, 3, 2, 2))))
      for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection") for a in (False, True)
      if (m, p) != ("bicubic", "border")),
    ("grid_sample", lambda f, x, g: f.grid_sample(x, g, align_corners=True), (BOX, 1.2 * np.tanh(normal(BOX.shape[0], 2, 1, 3, 3)))),
    *(("affine_grid", lambda f, t, a=a: f.affine_grid(t, (2, 1, 3, 4), align_corners=a), (normal(2, 2, 3),)) for a in (False, True)),
    ("affine_grid", lambda f, t: f.affine_grid(t, (2, 1, 3, 4, 2), align_corners=False), (normal(2, 3, 4),)),
    ("adaptive_avg_pool1d", lambda f, x: f.adaptive_avg_pool1d(x, 4), (LINE,)),
    ("adaptive_avg_pool2d", lambda f, x: f.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    ("adaptive_avg_pool2d", lambda f, x: f.adaptive_avg_pool2d(x, (3, 4)), (IMAGE,)),
    ("adaptive_avg_pool2d", lambda f, x: f.adaptive_avg_pool2d(x, (None, 5)), (IMAGE,)),
    ("adaptive_avg_pool3d", lambda f, x: f.adaptive_avg_pool3d(x, (3, 2, 4)), (BOX,)),
    ("adaptive_max_pool1d", lambda f, x: f.adaptive_max_pool1d(x, 4), (LINE,)),
    ("adaptive_max_pool2d", lambda f, x: f.adaptive_max_pool2d(x, (4, 3)), (IMAGE,)),
    ("adaptive_max_pool3d", lambda f, x: f.adaptive_max_pool3d(x, 2), (BOX,)),
    ("max_pool3d", lambda f, x: f.max_pool3d(x, 2, stride=1, padding=1), (BOX,)), ("avg_pool3d", lambda f, x: f.avg_pool3d(x,
     (2, 3, 2), padding=1), (BOX,)),
    *((f"lp_pool{i}d", lambda f, x, i=i: getattr(f, f"lp_pool{i}d")(x, 2.0, 3, stride=2, ceil_mode=i == 2), (x,)) for i, x in ((1, LINE),
     (2, IMAGE), (3, BOX))),
    ("unfold", lambda f, x: f.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=2), (IMAGE,)),
    ("fold", lambda f, x: f.fold(x, (6, 8), (3, 2), padding=1, stride=(2, 1)), (normal(2, 12, 27),)),
    ("channel_shuffle", lambda f, x: f.channel_shuffle(x, 2), (IMAGE,)),
    *(("local_response_norm", lambda f, x, n=n: f.local_response_norm(x, n, alpha=0.5, k=2.0), (IMAGE,)) for n in (1, 2, 3)),
    *(("grid_sample", lambda f, x, g, how=how: f.grid_sample(x, g, **how), (IMAGE, rng.uniform(-1.2, 1.2, (2, 3, 5, 2)))) for how in (
        dict(align_corners=False), dict(align_corners=True, padding_mode="border"),
        dict(mode="bicubic", padding_mode="reflection", align_corners=True))),
    ("affine_grid", lambda f, t: f.affine_grid(t, (2, 1, 4, 3), align_corners=False), (normal(2, 2, 3),)),
    *(("embedding_bag", lambda f, i, w, how=how: f.embedding_bag(i, w, **how), (np.array([[0, 1, 1], [4, 1, 2], [1, 1, 1]]), normal(5, 4)))
     for how in (
        dict(mode="sum"), dict(), dict(mode="max"), dict(mode="sum", padding_idx=1),
        dict(mode="mean", padding_idx=1), dict(mode="max", padding_idx=1))),
    ("embedding_bag", lambda f, i, w, s: f.embedding_bag(i, w, mode="sum", per_sample_weights=s), (whole(5, 2, 3), normal(5, 4), normal(2, 3))),
    ("alpha_dropout", lambda f, x: f.alpha_dropout(x, 0.5, training=False), (X,)),
    ("layer_norm", lambda f, *a: f.layer_norm(a[0], (3, 4), *a[1:]), (normal(2, 3, 4), normal(3, 4), normal(3, 4))),
    ("layer_norm", lambda f, x: f.layer_norm(x, (4,), eps=1e-3), (X,)), ("rms_norm", lambda f, x, w: f.rms_norm(x, (4,), w), (X, normal(4))),
    ("group_norm", lambda f, *a: f.group_norm(a[0], 2, *a[1:]), (IMAGE, normal(4), normal(4))),
    ("instance_norm", lambda f, x, w, b: f.instance_norm(x, weight=w, bias=b), (IMAGE, normal(4), normal(4))),
    ("normalize", lambda f, x: f.normalize(x, dim=0), (X,)), ("normalize", lambda f, x: f.normalize(x, p=1, dim=-1), (X,)),
    ("normalize", lambda f, x: f.normalize(x, dim=1), (np.concatenate([X, np.zeros((1, 4))]),)),
    ("cosine_similarity", lambda f, *a: f.cosine_similarity(*a, dim=1), (X, normal(3, 4))),
    ("pairwise_distance", lambda f, *a: f.pairwise_distance(*a), (X, normal(3, 4))),
    ("dropout", lambda f, x: f.dropout(x, 0.5, training=False), (X,)),
    *(("pad", lambda f, x, mode=mode: f.pad(x, (1, 2, 2, 0), mode=mode), (IMAGE,)) for mode in ("constant", "reflect", "replicate", "circular")),
    ("pad", lambda f, x: f.pad(x, (-1, 2), value=1.5), (X,)),
    *(("interpolate", lambda f, x, how=how: f.interpolate(x, **how), (IMAGE,)) for how in (
        dict(scale_factor=2), dict(size=(4, 11)), dict(size=(4, 11), mode="nearest-exact"), dict(scale_factor=1.7, mode="bilinear"),
        dict(size=(9, 5), mode="bilinear", align_corners=True), dict(size=(11, 10), mode="bicubic"), dict(size=(4, 3), mode="area"))),
    ("interpolate", lambda f, x: f.interpolate(x, scale_factor=3, mode="linear"), (LINE,)),
    ("pixel_shuffle", lambda f, x: f.pixel_shuffle(x, 2), (IMAGE,)), ("pixel_unshuffle", lambda f, x: f.pixel_unshuffle(x, 2), (IMAGE,)),
    ("scaled_dot_product_attention", lambda f, *a: f.scaled_dot_product_attention(*a, is_causal=True), (normal(2, 3, 5, 4), *normal(2, 2, 3, 5, 4))),
    ("scaled_dot_product_attention", lambda f, *a: f.scaled_dot_product_attention(*a), (normal(2, 5, 4), *normal(2, 2, 6, 4), normal(2, 5, 6))),
    ("scaled_dot_product_attention", lambda f, *a: f.scaled_dot_product_attention(*a, scale=0.3),
     (normal(2, 5, 4), *normal(2, 2, 6, 4), whole(2, 5, 6) + np.eye(5, 6) > 0)),
    ("scaled_dot_product_attention", lambda f, *a: f.scaled_dot_product_attention(*a, enable_gqa=True), (normal(2, 4, 5, 4), *normal(2, 2, 2, 6, 4))),
]

P = positive(3, 4)
P /= P.sum(1, keepdims=True)
LABELS = np.array([2, -100, 0, 3, 1])
LOSSES: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]] = [
    *((name, lambda f, *a, name=name, r=r: getattr(f, name)(*a, reduction=r), (X, normal(3, 4))) for r in ("mean", "sum", "none")
      for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")),
    ("smooth_l1_loss", lambda f, *a: f.smooth_l1_loss(*a, beta=0.3), (X, normal(3, 4))),
    ("huber_loss", lambda f, *a: f.huber_loss(*a, delta=0.3), (X, normal(3, 4))),
    *(("cross_entropy", lambda f, *a, o=o, r=r: f.cross_entropy(*a, reduction=r, **o), (normal(5, 4), LABELS)) for r in ("mean", "sum", "none")
      for o in ({}, {"label_smoothing": 0.1})),
    ("cross_entropy", lambda f, *a: f.cross_entropy(*a, ignore_index=1, label_smoothing=0.2), (normal(2, 4, 3), whole(4, 2, 3))),
    ("cross_entropy", lambda f, *a: f.cross_entropy(a[0], a[1], weight=a[2].detach(), label_smoothing=0.2), (normal(5, 4), LABELS, positive(4))),
    ("cross_entropy", lambda f, *a: f.cross_entropy(a[0], a[1], weight=a[2].detach()), (normal(5, 4), LABELS, positive(4))),
    ("cross_entropy", lambda f, *a: f.cross_entropy(*a, label_smoothing=0.1), (normal(3, 4), P)),
    ("cross_entropy", lambda f, *a: f.cross_entropy(*a), (normal(4), np.array(2))),
    ("nll_loss", lambda f, *a: f.nll_loss(*a), (normal(5, 4), LABELS)),
    ("nll_loss", lambda f, *a: f.nll_loss(*a, reduction="sum"), (normal(2, 4, 3), whole(4, 2, 3))),
    ("binary_cross_entropy", lambda f, *a: f.binary_cross_entropy(*a), (positive(3, 4), positive(3, 4))),
    ("binary_cross_entropy", lambda f, x, t, w: f.binary_cross_entropy(x, t, weight=w.detach(), reduction="sum"), (positive(3, 4), P, positive(3,
         4))),
    ("bce_logits", lambda f, *a: f.binary_cross_entropy_with_logits(*a), (X, P)),
    ("bce_logits", lambda f, x, t, w, q: f.binary_cross_entropy_with_logits(x, t, weight=w.detach(), pos_weight=q.detach()), (X, P, positive(4),
         positive(4))),
    *(("kl_div", lambda f, *a, o=o: f.kl_div(*a, **o), (np.log(P), P[::-1].copy()))
      for o in ({"reduction": "batchmean"}, {"reduction": "sum"}, {"reduction": "none"})),
    ("kl_div", lambda f, *a: f.kl_div(*a, reduction="batchmean", log_target=True), (np.log(P), np.log(P[::-1]))),
    ("poisson_nll_loss", lambda f, x, t: f.poisson_nll_loss(x, t.detach(), full=True), (X, np.arange(12.0).reshape(3, 4) / 3)),
    ("poisson_nll_loss", lambda f, x, t: f.poisson_nll_loss(x, t.detach(), log_input=False), (positive(3, 4), np.arange(12.0).reshape(3, 4) / 3)),
    ("gaussian_nll_loss", lambda f, *a: f.gaussian_nll_loss(*a, full=True), (X, normal(3, 4), np.concatenate([np.zeros((1, 4)), positive(2, 4)]))),
    ("soft_margin_loss", lambda f, x, t: f.soft_margin_loss(x, t.detach()), (X, signs(3, 4))),
    ("multilabel_soft_margin_loss", lambda f, x, t: f.multilabel_soft_margin_loss(x, t.detach()), (X, (signs(3, 4) > 0).astype(float))),
    ("hinge_embedding_loss", lambda f, x, t: f.hinge_embedding_loss(x, t.detach(), margin=0.7), (X, signs(3, 4))),
    ("margin_ranking_loss", lambda f, *a: f.margin_ranking_loss(a[0], a[1], a[2].detach(), margin=0.2), (normal(6), normal(6), signs(6))),
    ("cosine_embedding_loss", lambda f, *a: f.cosine_embedding_loss(a[0], a[1], a[2].detach(), margin=0.1), (X, normal(3, 4), signs(3))),
    ("triplet_margin_loss", lambda f, *a: f.triplet_margin_loss(*a), (X, normal(3, 4), normal(3, 4))),
    ("triplet_margin_with_distance_loss", lambda f, *a: f.triplet_margin_with_distance_loss(*a, margin=2.0, swap=True), (
        X, normal(3, 4), normal(3, 4))),
    *(("multi_margin_loss", lambda f, x, t, p=p: f.multi_margin_loss(x, t, p=p, margin=1.5), (normal(5, 4), whole(4, 5))) for p in (1, 2)),
    ("multi_margin_loss", lambda f, x, t, w: f.multi_margin_loss(x, t, weight=w.detach(), p=2, reduction="none"),
     (normal(5, 4), whole(4, 5), positive(4))),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", [*FUNCTIONS, *LOSSES], ids=lambda c: c[0])
def test_functions_are_pytorchs(case: tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]) -> None:
    name, call, arrays = case
    agree(recorded(lambda *x: call(F, *x), arrays), theirs(lambda *x: call(TF, *x), arrays), name)


# ---- layers: (how it is made in a namespace of layers, arrays)

LAYERS: list[tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = [
    *((lambda n, name=name: getattr(n, name)(), (2 * X,)) for name in (
        "ReLU", "ReLU6", "Hardtanh", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Softplus", "Softsign", "Hardswish", "Hardsigmoid",
        "Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink", "Hardshrink", "Softshrink", "PReLU", "Identity", "GLU")),
    (lambda n: n.Threshold(0.1, 2.0), (X,)), (lambda n: n.Softmax(dim=0), (X,)), (lambda n: n.Softmin(dim=1), (X,)),
    (lambda n: n.LogSoftmax(dim=0), (X,)),
    (lambda n: n.PReLU(4), (normal(2, 4, 3),)), (lambda n: n.LeakyReLU(negative_slope=0.4), (X,)),
    (lambda n: n.Linear(4, 5), (X,)), (lambda n: n.Bilinear(4, 3, 5), (X, normal(3, 3))),
    (lambda n: n.Embedding(5, 3, padding_idx=2), (whole(5, 4, 3),)),
    (lambda n: n.Conv1d(4, 6, 3, padding="same"), (LINE,)),
    (lambda n: n.Conv2d(4, 6, (3, 2), stride=2, padding=1, padding_mode="circular"), (IMAGE,)),
    (lambda n: n.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="reflect", bias=False), (IMAGE,)), (lambda n: n.Conv3d(2, 3, 2, groups=1), (BOX,)),
    (lambda n: n.ConvTranspose1d(4, 3, 3, stride=2, output_padding=1), (LINE,)), (lambda n: n.ConvTranspose2d(4, 6, 3, 2, 1, groups=2), (IMAGE,)),
    (lambda n: n.ConvTranspose3d(2, 3, 2), (BOX,)), (lambda n: n.BatchNorm1d(4), (LINE,)), (lambda n: n.BatchNorm2d(4), (IMAGE,)),
    (lambda n: n.BatchNorm3d(2), (BOX,)), (lambda n: n.LayerNorm((6, 8)), (IMAGE,)), (lambda n: n.LayerNorm(4, elementwise_affine=False), (X,)),
    (lambda n: n.LayerNorm(4, bias=False), (X,)), (lambda n: n.RMSNorm(4, eps=1e-4), (X,)), (lambda n: n.GroupNorm(2, 4), (IMAGE,)),
    (lambda n: n.GroupNorm(4, 4, affine=False), (LINE,)), (lambda n: n.InstanceNorm1d(4), (LINE,)),
    (lambda n: n.InstanceNorm2d(4, affine=True), (IMAGE,)),
    (lambda n: n.InstanceNorm3d(2), (BOX,)), (lambda n: n.MaxPool1d(3, 2, 1), (LINE,)), (lambda n: n.MaxPool2d(2, dilation=2), (IMAGE,)),
    (lambda n: n.AvgPool1d(3), (LINE,)), (lambda n: n.AvgPool2d(3, 2, 1, count_include_pad=False), (IMAGE,)),
    *((lambda n, name=name: getattr(n, name)(3), (x,)) for name, x in (("AdaptiveAvgPool1d", LINE), ("AdaptiveAvgPool2d", IMAGE), (
        "AdaptiveAvgPool3d", BOX), ("AdaptiveMaxPool1d", LINE), ("AdaptiveMaxPool2d", IMAGE), ("AdaptiveMaxPool3d", BOX))),
    (lambda n: n.AdaptiveAvgPool2d(1), (IMAGE,)), (lambda n: n.Flatten(), (IMAGE,)), (lambda n: n.Flatten(0, 1), (IMAGE,)),
    (lambda n: n.Unflatten(1, (2, 2)), (IMAGE,)), (lambda n: n.Upsample(scale_factor=2, mode="bilinear"), (IMAGE,)),
    (lambda n: n.PixelShuffle(2), (IMAGE,)),
    (lambda n: n.PixelUnshuffle(2), (IMAGE,)), (lambda n: n.ConstantPad1d(2, 0.5), (LINE,)), (lambda n: n.ConstantPad2d((1, 2, 0, 1), 0.5), (IMAGE,)),
    *((lambda n, name=name: getattr(n, name)(1), (x,)) for name, x in (("ZeroPad1d", LINE), ("ZeroPad2d", IMAGE), ("ReflectionPad1d", LINE), (
        "ReflectionPad2d", IMAGE), ("ReplicationPad1d", LINE), ("ReplicationPad2d", IMAGE))),
    (lambda n: n.CosineSimilarity(), (X, normal(3, 4))), (lambda n: n.PairwiseDistance(p=1), (X, normal(3, 4))),
    (lambda n: n.Dropout(0.4).eval(), (X,)),
    (lambda n: n.Sequential(n.Linear(4, 3), n.ReLU(), n.Linear(3, 2)), (X,)), (lambda n: n.Dropout2d(0.4).eval(), (IMAGE,)),
    (lambda n: n.MSELoss(), (X, normal(3, 4))), (lambda n: n.L1Loss(reduction="sum"), (X, normal(3, 4))),
    (lambda n: n.SmoothL1Loss(beta=0.5), (X, normal(3, 4))),
    (lambda n: n.HuberLoss(delta=0.5), (X, normal(3, 4))), (lambda n: n.CrossEntropyLoss(label_smoothing=0.1), (normal(5, 4), LABELS)),
    (lambda n: n.NLLLoss(reduction="none"), (normal(5, 4), LABELS)), (lambda n: n.BCELoss(), (P, P)), (lambda n: n.BCEWithLogitsLoss(), (X, P)),
    (lambda n: n.KLDivLoss(reduction="batchmean"), (np.log(P), P[::-1].copy())), (lambda n: n.PoissonNLLLoss(), (X, P)),
    *((lambda n, name=name: getattr(n, name)(1), (BOX,)) for name in ("ZeroPad3d", "ReflectionPad3d", "ReplicationPad3d", "CircularPad3d")),
    (lambda n: n.CircularPad1d(2), (LINE,)), (lambda n: n.CircularPad2d((1, 2, 0, 1)), (IMAGE,)), (lambda n: n.ConstantPad3d(1, 0.5), (BOX,)),
    (lambda n: n.MaxPool3d(2), (BOX,)), (lambda n: n.AvgPool3d(2, 1, 1), (BOX,)), (lambda n: n.LPPool1d(2, 3), (LINE,)),
    (lambda n: n.LPPool2d(3, 2, 1), (positive(1, 2, 4, 5),)), (lambda n: n.LPPool3d(2, 2), (BOX,)), (lambda n: n.Unfold(2, padding=1), (IMAGE,)),
    (lambda n: n.Fold((4, 5), 2), (normal(2, 8, 12),)), (lambda n: n.ChannelShuffle(2), (IMAGE,)), (lambda n: n.LocalResponseNorm(3), (IMAGE,)),
    (lambda n: n.EmbeddingBag(5, 3, mode="sum", padding_idx=2), (whole(5, 4, 3),)), (lambda n: n.Softmax2d(), (IMAGE,)),
    (lambda n: n.UpsamplingNearest2d(scale_factor=2), (IMAGE,)), (lambda n: n.UpsamplingBilinear2d(size=(7, 9)), (IMAGE,)),
    (lambda n: n.AlphaDropout(0.4).eval(), (X,)), (lambda n: n.FeatureAlphaDropout(0.4).eval(), (IMAGE,)),
    (lambda n: n.MultiMarginLoss(p=2), (normal(5, 4), whole(4, 5))), (lambda n: n.TripletMarginWithDistanceLoss(swap=True),
     (X, normal(3, 4), normal(3, 4))),
    *((lambda n, how=how: n.TransformerEncoderLayer(8, 2, 12, 0.0, **how), (normal(5, 3, 8),)) for how in (
        {}, dict(norm_first=True, activation="gelu"), dict(bias=False))),
    (lambda n: n.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), (
        normal(3, 5, 8), np.triu(np.ones((5, 5), bool), 1), np.arange(5) >= np.array([[5], [4], [3]]))),
    (lambda n: n.TransformerDecoderLayer(8, 2, 12, 0.0), (normal(5, 3, 8), normal(4, 3, 8), np.triu(np.full((5, 5), -9.0), 1), normal(6, 5, 4))),
    (lambda n: n.TransformerEncoder(n.TransformerEncoderLayer(8, 2, 12, 0.0), 2, n.LayerNorm(8)), (normal(5, 3, 8),)),
    (lambda n: n.TransformerDecoder(n.TransformerDecoderLayer(8, 2, 12, 0.0, norm_first=True), 2), (normal(5, 3, 8), normal(4, 3, 8))),
    (lambda n: n.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True), (normal(3, 5, 8), normal(3, 4, 8))),
    (lambda n: n.GaussianNLLLoss(), (X, normal(3, 4), positive(3, 4))), (lambda n: n.TripletMarginLoss(p=2), (X, normal(3, 4), normal(3, 4))),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("index", range(len(LAYERS)))
def test_layers_are_pytorchs(index: int) -> None:
    """Names and shapes of parameters, values, and gradients by inputs and parameters."""
    make, arrays = LAYERS[index]
    other, net = make(torch.nn).double(), make(OurLayers())
    known = other.state_dict()
    for name, p in net.named_parameters():
        assert p.shape == tuple(known[name].shape), name
        p.data = rng.uniform(0.5, 1.5, p.shape) if "var" in name else rng.standard_normal(p.shape)
        known[name] = torch.from_numpy(p.data.astype(np.float64))
    other.load_state_dict(known)
    parameters = dict(other.named_parameters())
    names = [n for n, p in net.named_parameters() if not isinstance(p, nn.Buffer)]
    assert set(names) == set(parameters)
    training = "Norm" in type(net).__name__
    agree(recorded(net, arrays, net, training=training), theirs(other, arrays, [parameters[n] for n in names]), type(net).__name__)


UNEVALUATED = {"ConvTranspose2d": "ONNX's evaluator does not take groups of several channels"}


@pytest.mark.parametrize("index", range(len(LAYERS)))
def test_layers_are_written_as_onnx(index: int) -> None:
    """In the form for inference, by ONNX's checker with shape inference and its evaluator; read back, the same parameters."""
    make, arrays = LAYERS[index]
    net = make(OurLayers())
    given = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in map(np.asarray, arrays)]
    graph = nn.record(net, [(f"x{i}", type_of(a)) for i, a in enumerate(given)], training=False, dtype="float32")
    model = graph_model(graph, FileForm(batch=None))
    for tensor in model.graph.initializer:
        tensor.raw_data = dict(net.named_parameters())[tensor.name].data.tobytes()
    onnx.checker.check_model(model, full_check=True)
    feeds = {f"x{i}": a for i, a in enumerate(given)}
    again = import_graph(wrap_model(model), training=None)
    values = evaluate(again.graph, {v.name: feeds[v.name] for v in again.graph.inputs} | again.weights)
    wanted = evaluate(graph, feeds | {n: p.data for n, p in net.named_parameters()})
    for mine, direct in zip(again.graph.outputs, graph.outputs, strict=True):
        np.testing.assert_allclose(values[mine.name], wanted[direct.name], rtol=1e-5, atol=1e-5)
    found = ReferenceEvaluator(model).run(None, {v.name: feeds[v.name] for v in model.graph.input}) if type(net).__name__ not in UNEVALUATED else []
    for theirs_, direct in zip(found, graph.outputs, strict=False):
        np.testing.assert_allclose(np.asarray(theirs_), wanted[direct.name], rtol=1e-4, atol=1e-5)
    read = {v for node in graph.nodes for v in node.operands}
    assert {s.name for s in again.graph.states} == {s.name for s in graph.states if s.input in read}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_transformers_begin_with_pytorchs_distributions() -> None:
    nn.manual_seed(0)
    torch.manual_seed(0)
    for make in (lambda n: n.TransformerEncoderLayer(64, 4, 128), lambda n: n.Transformer(64, 4, 1, 1, 128)):
        other = {name: p.detach().numpy() for name, p in make(torch.nn).named_parameters()}
        for name, p in make(nn).named_parameters():
            rel = 0.05 + 3 / np.sqrt(p.data.size)
            assert p.data.std() == pytest.approx(other[name].std(), rel=rel), name
            assert np.abs(p.data).max() == pytest.approx(np.abs(other[name]).max(), rel=rel), name


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = rng.standard_normal((400, 500))
    for function in (F.alpha_dropout, F.feature_alpha_dropout):
        y, = recorded(lambda t, function=function: function(t, 0.3, training=True), [x])[0]
        assert 0.28 < np.unique(y.round(9), return_counts=True)[1].max() / y.size < 0.32          # what is dropped is one number
        assert (y.mean(), y.var()) == pytest.approx((0, 1), abs=0.02)


def test_activations_take_what_their_functions_take() -> None:
    """A layer's arguments are its function's, with the same defaults where both have one; its formula is the
    function's."""
    layers = [c for c in vars(nn).values() if isinstance(c, type) and issubclass(c, Activation) and c is not nn.PReLU]
    assert len(layers) > 20
    for layer in layers:
        told, taken = inspect.signature(layer).parameters, inspect.signature(layer._function).parameters
        assert [name for name in told if name != "inplace"] == [*taken][1:], layer
        both = [name for name in [*taken][1:] if taken[name].default is not inspect.Parameter.empty]
        assert [told[name].default for name in both] == [taken[name].default for name in both], layer
        assert layer.__doc__ == layer._function.__doc__

    class Mine(nn.GELU):
        """Somebody's own."""

    assert Mine("tanh").approximate == "tanh"
    assert Mine.__doc__ == "Somebody's own."


def test_lists_and_dicts_of_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.rows, self.named = nn.ParameterList([np.ones(2, np.float32), nn.Parameter(np.zeros(2, np.float32))]), nn.ParameterDict()
            self.named["scale"] = np.full(2, 3, np.float32)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return (x * self.rows[0] + self.rows[1]) * self.named["scale"]

    net = Net()
    assert [(n, p.shape) for n, p in net.named_parameters()] == [("rows.0", (2,)), ("rows.1", (2,)), ("named.scale", (2,))]
    assert (len(net.rows), len(net.rows[1:]), list(net.named), "scale" in net.named) == (2, 1, ["scale"], True)
    np.testing.assert_array_equal(recorded(net, [np.ones((1, 2))], net)[0][0], np.full((1, 2), 3.0))


def test_every_layer_and_function_is_compared() -> None:
    """But for those that have tests of their own, or are another's other name."""
    elsewhere = {"MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",                # two operands, of which one are places: compared as functions
                 "Module", "ModuleDict", "ModuleList", "Criterion", "MultiheadAttention", "GlobalAvgPool",
                 "BatchNorm", "InstanceNorm", "Dropout1d", "Dropout3d", "SoftMarginLoss", "MultiLabelSoftMarginLoss", "HingeEmbeddingLoss",
                 "MarginRankingLoss", "CosineEmbeddingLoss", "ParameterList", "ParameterDict",
                 "RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"}             # test_recurrent_torch
    layers = {type(make(OurLayers())).__name__ for make, _ in LAYERS}
    assert {n for n in nn.__all__ if isinstance(layer := getattr(nn, n), type) and issubclass(layer, nn.Module)} - layers == elsewhere
    from test_nn_ordering import ORDERING
    functions = {name for name, _, _ in [*FUNCTIONS, *LOSSES, *ORDERING]} | {"binary_cross_entropy_with_logits"}
    own = {"sigmoid", "tanh", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "feature_alpha_dropout",
           "identity_loss", "ctc_loss", "ctc_beam_search_decoder"}
    assert set(F.__all__) - functions == own
