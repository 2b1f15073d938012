"""Pure 16 bits beside PyTorch's half models, on files that both of its exporters make of `model.half()` and of the float32 model.

What 16 bits do to outputs and gradients is measured on each side against that side's own float32 with the same (rounded) weights.
"""
from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paths
import pytest
from evaluate import root_mean_square_error
from exported_networks import BATCH, NETWORKS, export, network, torch

import tileflow
from tileflow import optim
from tileflow.importers.onnx import wrap_model
from tileflow.kernels.elementwise.rounding import joined

Array = np.ndarray
TRUE = {"float16": "16-true", "bfloat16": "bf16-true"}
CODES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
NETS = ("BERT", "ViT", "ResNet", "ConvNeXt")
AT_EACH_CHANGE = {("BERT", "dynamo", "float16", "half"), ("ResNet", "torchscript", "bfloat16", "half"), ("ResNet", "torchscript", "float16", "true")}
ROWS = [pytest.param(*row, marks=() if row in AT_EACH_CHANGE else paths.exhaustive)
        for row in [(name, exporter, dtype, how) for name in NETS for exporter in ("torchscript", "dynamo") for dtype in TRUE
                    for how in ("half", "true")]]
WORSE = 1.5
"""Our error over PyTorch's, at most: an exported GELU rounds after each of its operators, PyTorch's own once (1.42 of its error at worst)."""


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def rounded(name: str, dtype: str) -> Any:
    """The network in float32, its weights as 16 bits have them."""
    return network(name).to(getattr(torch, dtype)).float()


@functools.cache
def rows_of(name: str, dtype: str) -> tuple[Array, Array]:
    """Inputs that 16 bits hold, and labels."""
    spec = NETWORKS[name]
    x, _ = spec.data(BATCH, (BATCH, 1))
    with torch.no_grad():
        shape = tuple(network(name)(torch.from_numpy(x)).shape)
    x, y = spec.data(BATCH, shape, seed=1)
    return x.astype(dtype).astype(np.float32) if x.dtype.kind == "f" else x, y


@functools.cache
def theirs(name: str, dtype: str, half: bool) -> tuple[Array, Array]:
    """PyTorch's outputs and gradients (flat); the loss is computed in float32."""
    x, y = rows_of(name, dtype)
    net, given = rounded(name, dtype).train(), torch.from_numpy(x)
    if half:
        net, given = net.to(getattr(torch, dtype)), given.to(getattr(torch, dtype)) if given.is_floating_point() else given
    out = net(given)
    torch.nn.functional.cross_entropy(out.float(), torch.from_numpy(y)).backward()
    grads = [p.grad.float().numpy().ravel() for p in net.parameters() if p.grad is not None]
    return out.detach().float().numpy(), np.concatenate(grads)


def model_of(name: str, exporter: str, dtype: str, how: str) -> Any:
    """A training model: of the float32 file, of it in 16 bits ("true"), or of the file that was exported in 16 bits ("half")."""
    proto = export(name, rounded(name, dtype), f"{exporter} training", dtype if how == "half" else "float32")
    options: dict[str, Any] = {} if how == "float32" else dict(master_weights="remainder")
    return tileflow.training_model(wrap_model(proto), optimizer=optim.SGD(lr=1.0), loss="cross_entropy", output_mode="all",
                                   precision=TRUE[dtype] if how == "true" else "32", **options)


@functools.cache
def ours(name: str, exporter: str, dtype: str, how: str) -> tuple[Array, dict[str, Array]]:
    """Our outputs and gradients: what one step of SGD takes off the weights, remainders included."""
    model, (x, y) = model_of(name, exporter, dtype, how), rows_of(name, dtype)
    model.compile(x, y)
    before = {s.name: model.source.session[s.name].astype(np.float64) for s in model.program.parts["update"].parameters}
    out, loss = model(x, y)
    assert np.asarray(loss).dtype == np.float32
    states = model.source.session.snapshot()

    def after(n: str) -> Array:
        return joined(states[n], states[f"{n}.remainder"]) if f"{n}.remainder" in states else states[n]
    return out.astype(np.float32), {n: w - after(n).astype(np.float64) for n, w in before.items()}


@pytest.mark.parametrize(("name", "exporter", "dtype", "how"), ROWS)
def test_outputs_and_gradients_err_as_pytorchs_half_models_do(name: str, exporter: str, dtype: str, how: str) -> None:
    (out, grads), (exact, exact_grads) = ours(name, exporter, dtype, how), ours(name, exporter, dtype, "float32")
    spacing = {"float16": 2.0 ** -10, "bfloat16": 2.0 ** -7}[dtype]
    their_out, their_grads = (root_mean_square_error(*pair) for pair in zip(theirs(name, dtype, True), theirs(name, dtype, False), strict=True))
    assert root_mean_square_error(out, exact) <= WORSE * max(their_out, spacing)
    shared = [n for n in exact_grads if n in grads]
    assert len(shared) > 0.7 * len(exact_grads), (list(grads), list(exact_grads))

    def flat(of: dict[str, Array]) -> Array:
        return np.concatenate([of[n].ravel() for n in shared])
    assert root_mean_square_error(flat(grads), flat(exact_grads)) <= WORSE * max(their_grads, spacing)


@pytest.mark.parametrize(("exporter", "dtype"), [paths.rare("torchscript", "float16"), ("dynamo", "float16"), paths.rare("dynamo", "bfloat16"),
                                                 paths.rare("torchscript", "bfloat16")])
@pytest.mark.parametrize("how", ["half", "true"])
def test_trained_files_keep_their_types(exporter: str, dtype: str, how: str, tmp_path: Path) -> None:
    """A float32 file stays float32 with the values of the 16-bit weights; a 16-bit file stays what it is."""
    name = "BERT"
    model, (x, y) = model_of(name, exporter, dtype, how), rows_of(name, dtype)
    model(x, y)
    model.save_onnx(tmp_path / "trained.onnx")
    proto = onnx.load(tmp_path / "trained.onnx")
    wanted = CODES[dtype] if how == "half" else onnx.TensorProto.FLOAT
    weights = model.state_dict()
    found = {t.name: t for t in proto.graph.initializer if t.name in weights}
    assert {t.data_type for t in found.values()} == {wanted}
    assert len(found) > 10
    for n, t in found.items():
        assert weights[n].dtype == dtype
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(t).astype(np.float32), weights[n].astype(np.float32), err_msg=n)
