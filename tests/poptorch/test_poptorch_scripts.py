"""Every script of the reference's user guide, read where it is, with its import replaced: what it computes at its end
is right."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import declared
import numpy as np
import poptorch_scripts as scripts
import pytest
from declared import taken_back  # noqa: F401
from peers import needs

import tileflow
from tileflow import custom

torch = needs("torch")
needs("onnxscript")
pytestmark = pytest.mark.exhaustive


def ran(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    return scripts.run(scripts.source(name), tmp_path, monkeypatch, *arguments)


def test_every_file_is_told():
    """Each script that is there is run below."""
    where = scripts.folder()
    if where is None or not (where / "included").is_dir():
        pytest.skip(scripts.MISSING)
    assert {p.name for p in (where / "included").glob("*.py")} == set(scripts.SCRIPTS)
    tested = {name.removeprefix("test_") for name in globals()}
    assert {name.removesuffix(".py").lower() for name in scripts.SCRIPTS} <= {t.lower() for t in tested}


def test_api(tmp_path, monkeypatch):
    """A loss of one's own, attributes of optimizers, files of options, states of optimizers that are saved and read."""
    where = scripts.folder()
    if where is None:
        pytest.skip(scripts.MISSING)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "poptorch.conf").write_bytes((where / "included" / "poptorch.conf").read_bytes())
    names = ran("api.py", tmp_path, monkeypatch)
    assert abs(names["model_with_loss"].model.bias.item() - 1) < 1e-4
    assert names["opts"].replication_factor == 1
    assert names["opts"].toDict()["strategy"] == "sharded"
    saved = names["checkpoint"]["optimizer_state_dict"]["ipu_state"]
    assert saved
    assert names["new_optimizer"].state_dict()["ipu_state"].keys() == saved.keys()
    assert names["optimizer"].variable_attrs.isConstant("lr"), "for it was not given"


def test_autocast(tmp_path, monkeypatch):
    names = ran("autocast.py", tmp_path, monkeypatch)
    model, x = names["model"], torch.randn(1, 1, 16, 16)
    with pytest.warns(UserWarning, match="are one operator here"):
        found = names["poptorch"].model(x)
    error = float((found - model(x)).detach().abs().max())
    assert 0 < error < 2e-2, "convolutions compute in float16"


def test_buffers(tmp_path, monkeypatch):
    names = ran("buffers.py", tmp_path, monkeypatch)
    assert names["model"].i.tolist() == [2.0]
    assert names["printed"].split() == ["tensor([1.])", "tensor([2.])"]


def test_custom_ops_test(tmp_path, monkeypatch):
    """Cube and LeakyRelu, in inference and in training from both sides. (Whether a hundred updates suffice depends on
    the initial weights, in PyTorch itself, too; with these they do.)"""
    declared.cube()
    declared.leaky_relu()
    names = ran("custom_ops_test.py", tmp_path, monkeypatch)
    for name in ("inference", "training", "training_both_sides", "inference_with_an_attribute"):
        torch.manual_seed(0)
        names[f"test_{name}"]()


def test_custom_ops_attributes_test(tmp_path, monkeypatch):
    """Attributes of all kinds, their order, one that is wrong, and those that are refused."""
    declare_with_attributes()
    names = ran("custom_ops_attributes_test.py", tmp_path, monkeypatch)
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    assert len(tests) == 18
    for name, test in tests.items():
        given = {"test_string_attribute": "mean", "test_many_attributes": 3, "test_many_attributes_one_wrong": 3}
        test(*([given[name]] if name in given else []))


def declare_with_attributes() -> None:
    """The operators of the reference's tests of attributes."""
    def of_parts(name: str, annotations: dict[str, Any], forward: Any) -> None:
        tileflow.operator("test.poptorch", name)(type(name, (), {"__annotations__": annotations,
                                                                 "forward": custom.composition(forward)}))

    def number(b: Any, x: Any, values: Any) -> Any:
        return b.constant(np.array(values, x.type.numpy))

    def reduced(b: Any, x: Any, how: str) -> Any:
        return (b.ReduceMean if how == "mean" else b.ReduceSum)(x, axes=(0,), keepdims=0)
    for kind, called in ((float, "Float"), (int, "Int")):
        of_parts(f"AddScalar{called}", {"scalar": kind}, lambda self, b, x: b.Add(x, number(b, x, self.scalar)))
        of_parts(f"AddScalarVec{called}", {"vec": list[kind]}, lambda self, b, x: b.Add(x, number(b, x, self.vec)))
    of_parts("AddVecScalarMulFloat", {"vec": list[float], "scalar": float},
             lambda self, b, x: b.Mul(b.Add(x, number(b, x, self.vec)), number(b, x, self.scalar)))
    of_parts("ReduceOp", {"reduction": str}, lambda self, b, x: reduced(b, x, self.reduction))
    of_parts("ThreeReduceOp", {"reductions": list[str]},
             lambda self, b, *x: tuple(reduced(b, v, how) for v, how in zip(x, self.reductions, strict=True)))
    right = {"float_one": 1.0, "float_minus_two": -2.0, "int_zero": 0, "int_minus_five": -5,
             "floats_one_two_three": (1.0, 2.0, 3.0),
             "floats_minus_one_two_three": (-1.0, -2.0, -3.0), "ints_one_two_three": (1, 2, 3),
             "ints_minus_one_two_three": (-1, -2, -3),
             "a_string": "string with quotes and slash \" ' \\ end", "strs": ("\x01", "\x02", "\x03")}
    kinds = {name: tuple[type(value[0]), ...] if isinstance(value, tuple) else type(value)
             for name, value in right.items()}
    tileflow.operator("test.poptorch", "ManyAttributeOp")(type("ManyAttributeOp", (), {
        "__annotations__": kinds, "infer": lambda self, x: x,
        "forward": custom.python(lambda self, x: np.full_like(x, self.attributes() == right))}))


def test_debugging(tmp_path, monkeypatch):
    """The gradient and the update that it asks for are those of PyTorch."""
    names = ran("debugging.py", tmp_path, monkeypatch)
    model = names["Model"]()
    model.load_state_dict(names["before"])
    model(names["input"], names["label"]).backward()
    torch.testing.assert_close(names["grad"], model.fc2.bias.grad)
    torch.testing.assert_close(names["update"], model.fc2.weight.detach() - 0.01 * model.fc2.weight.grad)
    assert names["tensor_names"]


def test_device_iterations(tmp_path, monkeypatch):
    """Iterations, replicas, accumulation: the model that all of it trained tells the classes apart."""
    names = ran("device_iterations.py", tmp_path, monkeypatch)
    data = names["ExampleDataset"]([3, 2], 500)
    scores = names["model"](torch.stack(data._all_data)).argmax(1)
    assert (scores == torch.tensor(data._all_labels)).float().mean() > 0.95


def test_error_handling(tmp_path, monkeypatch):
    """Every kind of error reaches its handler; the script asserts which."""
    printed = ran("error_handling.py", tmp_path, monkeypatch)["printed"]
    assert "Unrecoverable error: machine needs to be taken offline" in printed
    assert "from component poplar_link_error, location:   [0] _throwTestError" in printed


def test_inferenceModel(tmp_path, monkeypatch):
    scripts.stand_in_for_torchvision(monkeypatch)
    names = ran("inferenceModel.py", tmp_path, monkeypatch)
    assert torch.equal(names["top_five_classes"][1], names["native_top_five_classes"][1])
    assert (names["out"].dtype, tuple(names["out"].shape)) == (torch.float16, (10,))


@pytest.mark.parametrize("strategy", ["plain", "pipelined", "phased"])
def test_mnist(strategy, tmp_path, monkeypatch):
    scripts.stand_in_for_torchvision(monkeypatch)
    torch.manual_seed(0)
    names = ran("mnist.py", tmp_path, monkeypatch, "--epochs", "2", "--strategy", strategy)
    accuracy = float(names["printed"].rpartition("Accuracy on test set: ")[2].rstrip("%\n"))
    assert accuracy > 75                                    # it puts a softmax before the loss, and learns slowly


def test_phased_execution(tmp_path, monkeypatch):
    """Phases on four IPUs compute what PyTorch does."""
    names = ran("phased_execution.py", tmp_path, monkeypatch)
    model, x, y = names["poptorch_model"].model, names["input"], names["target"]
    wanted, loss = model(x, y)
    found, found_loss = names["poptorch_model"](x, y)
    torch.testing.assert_close(found, wanted.detach())
    torch.testing.assert_close(found_loss, loss.detach())


def test_pipeline_simple(tmp_path, monkeypatch):
    """Four IPUs, by modules, by scopes and by functions: what PyTorch computes."""
    scripts.stand_in_for_transformers(monkeypatch)
    names = ran("pipeline_simple.py", tmp_path, monkeypatch)
    encoding = {name: torch.tensor(rows) for name, rows in names["encoding"].items()}
    wanted = names["inference_model"].model(encoding["input_ids"], encoding["attention_mask"],
                                            encoding["token_type_ids"])
    for found, native in zip((names["start_scores"], names["end_scores"]), wanted, strict=True):
        torch.testing.assert_close(found, native.detach(), rtol=1e-4, atol=1e-5)
    x = torch.rand(4, 5)
    torch.testing.assert_close(names["poptorch_model"](x), names["model"](x).detach())


def test_poptorch_training_simple(tmp_path, monkeypatch):
    """A training loop with an optimizer that is replaced; the script asserts where the bias ends."""
    printed = ran("poptorch_training_simple.py", tmp_path, monkeypatch)["printed"]
    biases = [float(line.partition("(")[2].partition(",")[0])
              for line in printed.splitlines() if line.startswith("tensor(")]
    assert len(biases) == 2
    assert abs(biases[0] - biases[1]) < 0.02, "as the loop in PyTorch beside it"


def test_replica_grouped_weights(tmp_path, monkeypatch):
    """Columns in four groups and rows in two are one product on one machine."""
    names = ran("replica_grouped_weights.py", tmp_path, monkeypatch)
    x, whole, losses = names["prob_X"], names["prob_W_init"].astype(np.float64), []
    for _ in range(names["prob_steps"]):
        z = x @ whole
        losses.append(np.square(z).mean())
        whole = whole - 0.01 * (x.T @ (2 * z) / z.size)
    np.testing.assert_allclose(names["pt_losses"], losses, atol=1e-6)
    np.testing.assert_allclose(names["pt_W_final"], whole, atol=1e-6)


def test_sumAnchorReturnType(tmp_path, monkeypatch):
    """A mean over fifty micro-batches of five rows is a whole number of rows."""
    names = ran("sumAnchorReturnType.py", tmp_path, monkeypatch)
    right = float(names["accuracy"]) * 250
    assert abs(right - round(right)) < 1e-3
    assert 0 < right < 250
    assert len(names["printed"].splitlines()) == len(names["training_data"]) == 8


def test_trainingModel(tmp_path, monkeypatch):
    """The script asserts that both compute the same; a wrapper for inference sees what training and the user change."""
    names = ran("trainingModel.py", tmp_path, monkeypatch)
    torch.testing.assert_close(names["native_out"], names["poptorch_out"], rtol=1e-4, atol=1e-4)
    names["model"].eval()
    torch.testing.assert_close(names["poptorch_inf"](names["ones"]), names["model"](names["ones"]).detach())


def test_precompilation(tmp_path, monkeypatch):
    """All four ways: export and load, with options changed, the program alone, and a pair that shares weights again."""
    names = ran("precompilation.py", tmp_path, monkeypatch)
    training, validation = names["training_model"], names["validation_model"]
    assert training.model is validation.model
    assert {p.name for p in tmp_path.glob("*.poptorch")} == {"training.poptorch", "validation.poptorch"}
    assert list(training.state_dict()) == ["fc.weight", "fc.bias"]
