"""Mixed precision beside PyTorch's autocast, on files of both of its exporters: the same operators in 16 bits, and errors of the same size.

What rounding does to outputs and gradients is measured on each side against that side's own float32, so that neither's order of sums counts.
"""
from __future__ import annotations

import functools

import golden_casts
import numpy as np
import paths
import pytest
from evaluate import root_mean_square_error
from exported_networks import BATCH, NETWORKS, export, network, torch

import tileflow
from tileflow import optim
from tileflow.importers.onnx import wrap_model

LOW = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
NETS = [name for name in NETWORKS if not NETWORKS[name].normalised and not NETWORKS[name].draws and name != "DeBERTa"] + ["ResNet"]
"""Without what draws random numbers, and what PyTorch refuses under autocast: a mask filled with float32's least number."""
AT_EACH_CHANGE = {("BERT", "dynamo", "16-mixed")}
ROWS = [pytest.param(*row, marks=() if row in AT_EACH_CHANGE else paths.exhaustive)
        for row in [(name, exporter, precision) for name in NETS for exporter in ("torchscript", "dynamo") for precision in LOW
                    if not NETWORKS[name].dear or (exporter, precision) == ("dynamo", "bf16-mixed")]]
"""What is dear to export goes one way only."""
WORSE = 1.3
"""Our error over PyTorch's, at most, beside half a unit: it rounds at other places (softmax and normalisation of layers are float32 here)."""
SCALE = 128.0
"""Of the loss: at the one that runs begin with the first update of some would be skipped, as with PyTorch's GradScaler."""
SPACING = {"16-mixed": 2.0 ** -10, "bf16-mixed": 2.0 ** -7}


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@functools.cache
def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    spec = NETWORKS[name]
    x, _ = spec.data(BATCH, (BATCH, 1))
    with torch.no_grad():
        shape = tuple(network(name)(torch.from_numpy(x)).shape)
    x, y = spec.data(BATCH, shape, seed=1)
    return x, y.astype(np.float32) if y.dtype == np.float64 else y


@functools.cache
def theirs(name: str, precision: str) -> tuple[np.ndarray, np.ndarray, dict[str, set[str]]]:
    """PyTorch's outputs and gradients (flat), and by its layers' classes the types that they give."""
    spec, (x, y) = NETWORKS[name], rows_of(name)
    net = network(name).train()
    given: dict[str, set[str]] = {}
    for module in net.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda m, _, out: given.setdefault(type(m).__name__, set()).add(str(getattr(out, "dtype", None))))
    measure = torch.nn.functional.cross_entropy if spec.loss == "cross_entropy" else torch.nn.functional.mse_loss
    with torch.autocast("cpu", dtype=LOW.get(precision, torch.bfloat16), enabled=precision in LOW):
        out = net(torch.from_numpy(x))
        loss = measure(out, torch.from_numpy(y))
    loss.backward()
    grads = [p.grad.numpy().ravel() for p in net.parameters() if p.grad is not None]
    return out.detach().float().numpy(), np.concatenate(grads), given


@functools.cache
def ours(name: str, exporter: str, precision: str) -> tuple[np.ndarray, np.ndarray, dict[str, set[str]]]:
    """Our outputs and gradients, and by operators the types that they give in the forward pass."""
    spec, (x, y) = NETWORKS[name], rows_of(name)
    model = tileflow.training_model(wrap_model(export(name, network(name), f"{exporter} training")), optimizer=optim.SGD(lr=1.0), loss=spec.loss,
                                    precision=precision, output_mode="all", loss_scaling=SCALE, automatic_loss_scaling="off")
    model.compile(x, y)
    trained = [s.name for s in model.program.parts["update"].parameters]
    session = model.source.session
    before = {n: session[n].copy() for n in trained}
    out, _ = model(x, y)
    given: dict[str, set[str]] = {}
    for node in model.program.micro.nodes:
        if node.origin.role == "forward":
            given.setdefault(node.op.name, set()).add(node.outputs[0].dtype)
    return out, np.concatenate([(before[n] - session[n]).ravel() for n in trained]), given


@pytest.mark.parametrize(("name", "exporter", "precision"), ROWS)
def test_outputs_and_gradients_err_as_pytorchs_do(name: str, exporter: str, precision: str) -> None:
    exact, mixed = ours(name, exporter, "32"), ours(name, exporter, precision)
    their_exact, their_mixed = theirs(name, "32"), theirs(name, precision)
    np.testing.assert_allclose(exact[0], their_exact[0], rtol=2e-3, atol=2e-3 * np.abs(their_exact[0]).max())
    for what, i in (("outputs", 0), ("gradients", 1)):
        own, peer = root_mean_square_error(mixed[i], exact[i]), root_mean_square_error(their_mixed[i], their_exact[i])
        print(f"{what}: ours {own:.2e}, PyTorch's {peer:.2e}")
        assert own > 0, "something was rounded"
        assert own < WORSE * peer + SPACING[precision] / 2, (what, own, peer)


@pytest.mark.parametrize("case", golden_casts.EXPORTED)
def test_golden_lists_of_exported_files(case: str) -> None:
    found = golden_casts.casts(golden_casts.CASES[case]())
    golden = (golden_casts.FOLDER / f"{case}.txt").read_text(encoding="utf-8")
    assert found == golden, "python tests/oracle/golden_casts.py --write"


@pytest.mark.parametrize(("name", "exporter", "precision"), ROWS)
def test_products_are_where_pytorch_has_them(name: str, exporter: str, precision: str) -> None:
    low = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}[precision]
    given, peer = ours(name, exporter, precision)[2], theirs(name, precision)[2]
    for layer, operators in {"Linear": ("Gemm", "MatMul", "FusedMatMul"), "Conv2d": ("Conv",)}.items():
        if layer in peer:
            assert peer[layer] == {f"torch.{low}"}
            assert set().union(*(given.get(operator, set()) for operator in operators)) == {low}
    assert given.get("BatchNormalization", {low}) == {low}
    for operator in ("Softmax", "LayerNormalization", "ReduceMean"):
        assert given.get(operator, set()) <= {"float32"}
