"""Trained files of models that draw random numbers, and the rehearsal: what can fail when a trained file is written fails before the first epoch."""
from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from onnx_models import model_of, node, port
from peers import needs
from said import Said

import tileflow
from tileflow import nn, optim
from tileflow.importers.onnx import load_model, wrap_model
from tileflow.optim import schedules
from tileflow.options.options import Options
from tileflow.runtime.onnx_source import OnnxSource
from tileflow.runtime.trained_file import rehearse
from tileflow.system.errors import CheckpointError, ModelError, OptionError, TileflowError

RNG = np.random.default_rng(0)
ROWS, FEATURES, HIDDEN = 12, 6, 4
X = RNG.random((ROWS, FEATURES)).astype(np.float32)
SAME = 1e-4


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: (0.3 * RNG.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def vae() -> ModelProto:
    """x -> mean and logarithm of the variance -> a normal number of these -> x again; all three are outputs, the one that is drawn first."""
    nodes = [node("MatMul", ["x", "m"], ["mean"]), node("MatMul", ["x", "v"], ["logarithm"]), node("RandomNormalLike", ["mean"], ["e"], "draw"),
             node("Exp", ["logarithm"], ["variance"]), node("Mul", ["e", "variance"], ["noise"]), node("Add", ["mean", "noise"], ["z"]),
             node("MatMul", ["z", "d"], ["y"])]
    return model_of(nodes, [port("x", ["N", FEATURES])],
                    [port("y", ["N", FEATURES]), port("mean", ["N", HIDDEN]), port("logarithm", ["N", HIDDEN])],
                    weights(m=(FEATURES, HIDDEN), v=(FEATURES, HIDDEN), d=(HIDDEN, FEATURES)))


def noisy(op_type: str, **attributes: Any) -> ModelProto:
    """x -> hidden, and what is drawn of it, -> y."""
    nodes = [node("MatMul", ["x", "a"], ["h"]), node("Sigmoid", ["h"], ["p"]), node(op_type, ["p"], ["drawn"], "draw", **attributes),
             node("Cast", ["drawn"], ["some"], to=TensorProto.FLOAT), node("ReduceMean", ["some"], ["one"], axes=[1], keepdims=1),
             node("Mul", ["h", "one"], ["kept"]), node("MatMul", ["kept", "b"], ["y"])]
    return model_of(nodes, [port("x", ["N", FEATURES])], [port("y", ["N", FEATURES])], weights(a=(FEATURES, HIDDEN), b=(HIDDEN, FEATURES)))


def fixed(op_type: str, **attributes: Any) -> ModelProto:
    """Noise of a constant shape, the same for all rows."""
    nodes = [node(op_type, [], ["drawn"], "draw", shape=[1, FEATURES], **attributes), node("Add", ["x", "drawn"], ["h"]),
             node("Dropout", ["h"], ["dropped"]), node(op_type, [], ["more"], shape=[1, FEATURES], **attributes),
             node("Add", ["dropped", "more"], ["sum"]), node("MatMul", ["sum", "w"], ["y"])]
    return model_of(nodes, [port("x", ["N", FEATURES])], [port("y", ["N", FEATURES])], weights(w=(FEATURES, FEATURES)))


MODELS = {
    "VAE": vae, "uniform noise": lambda: noisy("RandomUniformLike", low=-1.0, high=2.0), "normal noise": lambda: noisy("RandomNormalLike"),
    "Bernoulli": lambda: noisy("Bernoulli"), "Multinomial": lambda: noisy("Multinomial", sample_size=3),
    "a seed of its own": lambda: noisy("RandomNormalLike", seed=3.0),
    "uniform, a shape": lambda: fixed("RandomUniform"), "normal, a shape": lambda: fixed("RandomNormal", mean=0.3, scale=2.0)}


def run(model: Any, folder: Path, **options: Any) -> Any:
    return tileflow.train(model, data=(X, X), **{"micro_batch_size": 4, "epochs": 2, "loss": "mse", "out": str(folder)} | options)


# ---- models that draw

@pytest.mark.parametrize("options", [{}, *(pytest.param(o, marks=pytest.mark.exhaustive) for o in (
    {"precision": "float64"}, {"keep_training_mode": True}, {"threads": 1}, {"threads": 3}, {"gradient_accumulation": 3}))], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_draws_gets_its_file(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    result = run(wrap_model(MODELS[name]()), tmp_path, **options)
    written = load_model(tmp_path / "model.onnx")
    assert {t: written.array(t).tobytes() for t in result.weights} == {t: a.astype(np.float32).tobytes() for t, a in result.weights.items()}
    for trained_on in (result.save_onnx(tmp_path / "again.onnx"), result.model.save_onnx(tmp_path / "model too.onnx")):
        assert trained_on.exists()
    run(tmp_path / "model.onnx", tmp_path / "second")                    # it trains again


def test_what_is_drawn_is_as_in_the_model_and_the_rest_is_the_same_elsewhere(tmp_path: Path) -> None:
    """Our two readings draw the same numbers; where ONNX Runtime reads the file, what depends on no draw is compared."""
    ort = needs("onnxruntime")
    model = wrap_model(vae())
    run(model, tmp_path)
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    y, *others = session.run(None, {"x": X})
    mine = tileflow.inference_model(tmp_path / "model.onnx")(X)
    assert np.abs(y - mine[0]).max() > SAME
    for found, wanted in zip(others, mine[1:], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=SAME, atol=SAME)


def test_other_draws_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest file that must not be kept: its noise has another scale."""
    def louder(proto: ModelProto) -> None:
        drawn, = (n for n in proto.graph.node if n.name == "draw")
        drawn.attribute.add(name="scale", type=1, f=1.5)                 # FLOAT
    monkeypatch.setattr("tileflow.importers.onnx.export.to_inference", louder)
    with pytest.raises(ModelError, match=r"was not written: read again, it does not compute what the engine does for the output 'y'"):
        run(wrap_model(vae()), tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    monkeypatch.setattr("tileflow.api.training.rehearsed", lambda *arguments: None)
    with pytest.raises(ModelError, match=r"was not written: read again, it does not compute what the engine does for the output 'y'"):
        run(wrap_model(vae()), tmp_path)
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("how", ["torchscript training", *(pytest.param(how, marks=pytest.mark.exhaustive) for how in (
    "torchscript evaluation", "dynamo training", "dynamo evaluation"))])
@pytest.mark.parametrize("kind", ["VAE", "noise"])
def test_pytorch_exports(kind: str, how: str, tmp_path: Path) -> None:
    torch, ort = needs("torch"), needs("onnxruntime")
    from exported_networks import quiet
    exporter, mode = how.split()

    class Vae(torch.nn.Module):                                          # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = torch.nn.Linear(FEATURES, 2 * HIDDEN), torch.nn.Linear(HIDDEN, FEATURES)

        def forward(self, x: Any) -> Any:
            mean, logarithm = self.encoder(x).chunk(2, 1)
            return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * logarithm)), mean, logarithm

    class Noise(torch.nn.Module):                                        # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm, self.two = torch.nn.Linear(FEATURES, HIDDEN), torch.nn.BatchNorm1d(HIDDEN), torch.nn.Linear(HIDDEN, FEATURES)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            h = self.drop(torch.relu(self.norm(self.one(x))))
            return self.two(h + 0.1 * torch.rand_like(h)), h

    torch.manual_seed(1)
    net, file, example = {"VAE": Vae, "noise": Noise}[kind]().train(mode == "training"), io.BytesIO(), torch.from_numpy(X[:4])
    modes = torch.onnx.TrainingMode
    with quiet():
        if exporter == "torchscript":
            torch.onnx.export(net, (example,), file, dynamo=False, training=modes.TRAINING if mode == "training" else modes.EVAL,
                              do_constant_folding=mode != "training")
        else:
            needs("onnxscript")
            torch.onnx.export(net, (example,), file, dynamo=True, external_data=False, verbose=False, optimize=mode != "training")
    model = wrap_model(ModelProto.FromString(file.getvalue()))
    assert any(n.op_type.startswith("Random") for n in model.nodes)
    result = run(model, tmp_path)
    assert (tmp_path / "model.onnx").exists()
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: X[:4]})
    for a, b in zip(found[1:], tileflow.inference_model(model)(X[:4])[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=SAME, atol=SAME)
    assert len(result.epochs) == 2


# ---- networks of layers

class Drawing(nn.Module):
    """Layers with what they draw between them, after a dropout, whose stream a file does not have."""

    def __init__(self, kind: str) -> None:
        nn.manual_seed(2)
        self.one, self.drop, self.two, self.kind = nn.Linear(FEATURES, HIDDEN), nn.Dropout(0.5), nn.Linear(HIDDEN, FEATURES), kind

    def forward(self, x: nn.Tensor) -> nn.Tensor:                        # type: ignore[override]
        h = self.drop(self.one(x)).sigmoid()
        if self.kind == "Bernoulli":
            return self.two(h * h.apply("Bernoulli", stream=x.trace.stream()))
        noise = [nn.Tensor(x.trace, getattr(x.trace.builder, self.kind)(shape=h.shape, stream=x.trace.stream())) for _ in range(2)]
        return self.two(h * noise[0] + noise[1])


@pytest.mark.parametrize("batch", ["batch", None])
@pytest.mark.parametrize("kind", ["Bernoulli", "RandomUniform", "RandomNormal"])
def test_networks_of_layers(kind: str, batch: str | None, tmp_path: Path) -> None:
    net = Drawing(kind)
    result = run(net, tmp_path)
    path = result.save_onnx(tmp_path / "saved.onnx", batch=batch)
    tileflow.save_onnx(net, tmp_path / "directly.onnx", X[:4], batch=batch)
    dims = load_model(path).inputs[0].dims
    assert dims is not None
    assert dims[0] == (batch or 4)
    rows = X if batch else X[:4]
    assert tileflow.inference_model(path)(rows).shape == rows.shape
    ort = needs("onnxruntime")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.run(None, {session.get_inputs()[0].name: rows})[0].shape == rows.shape


# ---- before the first epoch

def plain() -> ModelProto:
    return model_of([node("MatMul", ["x", "w"], ["y"])], [port("x", ["N", FEATURES])], [port("y", ["N", FEATURES])], weights(w=(FEATURES, FEATURES)))


class Epochs(Said):
    """Counts the epochs that began."""

    begun = 0
    transient = ("begun",)

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        self.begun += 1


def invalid(proto: ModelProto) -> None:
    proto.graph.node[0].op_type = "Relu"


def wrong(proto: ModelProto) -> None:
    proto.graph.node.add(op_type="Neg", input=["first"], output=["y"])
    proto.graph.node[0].output[0] = "first"


@pytest.mark.parametrize(("case", "error", "words"), [
    ("a folder in its place", CheckpointError, r"The model cannot be written to .*model\.onnx \(Is a directory\)"),
    ("no form that is valid", ModelError, "is not valid ONNX"),
    ("it computes something else", ModelError, "it does not compute what the engine does for the output 'y'"),
    ("a disk that is too small", CheckpointError, r"The trained model takes 144 bytes, and the disk of .* has 1 left"),
    ("a metric that nobody measures", OptionError, r"looks at the metric 'f1', which this run does not measure; it measures loss\."),
    ("a metric of test data only", OptionError, r"looks at the metric 'r2', which this run does not measure; it measures loss\.")])
def test_what_fails_at_the_end_fails_before_the_first_epoch(case: str, error: type[TileflowError], words: str, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    if case.startswith("a folder"):
        (tmp_path / "model.onnx").mkdir()
    elif case.startswith("a disk"):
        monkeypatch.setattr("tileflow.system.files.shutil.disk_usage",
                            lambda folder: type("Usage", (), {"total": 100, "free": 1}))
    elif case.startswith("a metric"):
        options["optimizer"] = optim.AdamW(lr=schedules.plateau(0.1, metric="f1" if "nobody" in case else "r2"))
    else:
        monkeypatch.setattr("tileflow.importers.onnx.export.to_inference", invalid if "valid" in case else wrong)
    said = Epochs()
    with pytest.raises(error, match=words):
        run(wrap_model(plain()), tmp_path, callbacks=[said], **options)
    assert said.begun == 0


def test_a_folder_that_takes_the_file_is_trained_in(tmp_path: Path) -> None:
    said = Epochs()
    run(wrap_model(plain()), tmp_path, callbacks=[said], optimizer=optim.AdamW(lr=schedules.plateau(0.1, metric="r2")),
        test_data=None, validation_split=0.5, metrics="r2")
    assert said.begun == 2
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("name", ["VAE", "Multinomial", "normal, a shape"])
@pytest.mark.parametrize("alike", [True, False], ids=["one graph", "two graphs"])
def test_the_rehearsal_compiles_nothing(name: str, alike: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the two graphs are not one, as with an Identity more: their references compute both, with the same draws."""
    def none(*arguments: Any, **more: Any) -> None:
        raise AssertionError("compiled")

    def longer(proto: ModelProto) -> None:
        last = proto.graph.node[-1]
        last.output[0] = "last"
        proto.graph.node.add(op_type="Mul", input=["last", "unit"], output=["y"])
        proto.graph.initializer.add(name="unit", data_type=TensorProto.FLOAT, dims=[], raw_data=np.float32(1).tobytes())
    if not alike:
        monkeypatch.setattr("tileflow.importers.onnx.export.to_inference", longer)
    monkeypatch.setattr("tileflow.runtime.trained_file.make_engine", none)
    options = Options()
    options.micro_batch_size = 4
    rehearse(OnnxSource(wrap_model(MODELS[name]()), options), tmp_path / "model.onnx", options, [X[:4]])
    assert not list(tmp_path.iterdir())
