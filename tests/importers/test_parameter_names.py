"""Parameters that a file calls otherwise than the exported network does: name patterns mean them by either name, and reports say the network's."""
from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from exported_files import by_pytorch, called, f4, signed
from onnx import ModelProto
from onnx_models import imported, node, port
from peers import needs

import tileflow
from tileflow import optim
from tileflow.importers.onnx import inspect_model, wrap_model
from tileflow.system.errors import DataError, OptionError


def two_layers() -> ModelProto:
    """As torch.export's optimiser leaves layers over three axes: their weights transposed, under numbers."""
    def layer(x: str, weight: str, name: str, product: str, y: str) -> list:
        call = f"linear(%{x}, %p_{name}_weight, %p_{name}_bias)"
        return [called(node("MatMul", [x, weight], [product], f"node_{product}"), name, call),
                called(node("Add", [product, f"{name}.bias"], [y], f"node_{y}"), name, call)]
    proto = by_pytorch([*layer("x", "val_1", "body", "val_2", "linear"), *layer("linear", "val_4", "head", "val_5", "y")],
                       [port("x", [2, 3, 4])], {"val_1": f4(4, 4), "body.bias": f4(4), "val_4": f4(4, 4), "head.bias": f4(4)})
    return signed(proto, ["body.weight", "body.bias", "head.weight", "head.bias"], {"val_1": ["body.weight"], "val_4": ["head.weight"]})


def trained(proto: ModelProto, **patterns: list[str]) -> list[str]:
    return [s.name for s in imported(proto, training=True, **patterns).graph.parameters if s.trainable]


@pytest.mark.parametrize(("frozen", "left"), [
    ("body.weight", ["body.bias", "val_4", "head.bias"]), ("val_1", ["body.bias", "val_4", "head.bias"]), ("body.*", ["val_4", "head.bias"]),
    ("val_*", ["body.bias", "head.bias"]), ("*.weight", ["body.bias", "head.bias"]), ("head.bias", ["val_1", "body.bias", "val_4"])])
def test_either_name_freezes(frozen: str, left: list[str]) -> None:
    assert trained(two_layers(), freeze=[frozen]) == left


@pytest.mark.parametrize("pattern", ["body.weigh", "body", "val_2", "weight", "p_body_weight", "BODY.weight"])
@pytest.mark.parametrize("option", ["freeze", "trainable"])
def test_a_name_that_is_nothings_is_refused(option: str, pattern: str) -> None:
    sentence = f"the pattern '{pattern}' matches no weight; the weights are body.weight, body.bias, head.weight, head.bias."
    with pytest.raises(OptionError, match=sentence.replace(".", r"\.")):
        trained(two_layers(), **{option: [pattern]})


@pytest.mark.parametrize("name", ["head.weight", "val_4"])
def test_either_name_is_all_that_is_trained(name: str) -> None:
    assert trained(two_layers(), freeze=["*"], trainable=[name]) == ["val_4"]


def test_a_signature_that_is_not_the_names_own_gives_none() -> None:
    """Other writers may put anything there."""
    proto = two_layers()
    proto.graph.metadata_props[0].value = "p_body_weight: PARAMETER target='head.bias'\np_body_bias: PARAMETER target='elsewhere'"
    assert trained(proto, freeze=["head.bias"]) == ["val_1", "body.bias", "val_4"]
    with pytest.raises(OptionError, match=r"the weights are val_1, body\.bias, val_4, head\.bias"):
        trained(proto, freeze=["elsewhere"])


def test_the_report_says_the_networks_names() -> None:
    found = inspect_model(wrap_model(two_layers()), training=True, freeze=["body.weight"]).training
    assert found is not None
    assert [(row.state, row.name) for row in found.rows] == [
        ("trained", "body.bias"), ("trained", "head.weight (val_4)"), ("trained", "head.bias"), ("frozen", "body.weight (val_1)")]


def twins() -> ModelProto:
    """The layers' weights are equal, and in one tensor or in two."""
    proto = two_layers()
    proto.graph.initializer[2].raw_data = proto.graph.initializer[0].raw_data
    return proto


def test_ties_by_either_name() -> None:
    assert trained(twins()) == ["val_1", "body.bias", "val_4", "head.bias"]
    for tie in (["*.weight"], ["val_*"]):
        assert trained(twins(), tie=tie) == ["val_1", "body.bias", "head.bias"]
    with pytest.raises(OptionError, match=r"the weights are body\.weight, body\.bias, head\.weight, head\.bias"):
        trained(two_layers(), tie=["*.weight"])


@pytest.mark.parametrize("name", ["table.weight", "val_9"])
def test_a_tie_is_undone_by_either_name(name: str) -> None:
    nodes = [called(node("MatMul", [x, "val_9"], [y], f"node_{y}"), module, f"linear(%{x}, %p_table_weight)")
             for x, y, module in (("x", "a", "one"), ("a", "y", "two"))]
    proto = by_pytorch(nodes, [port("x", [2, 3, 4])], {"val_9": f4(4, 4)})
    signed(proto, ["table.weight"], {"val_9": ["table.weight"]})
    assert trained(proto) == ["val_9"]
    assert len(trained(proto, untie=[name])) == 2


def test_parameters_that_a_tensor_holds_together_have_no_name_of_one() -> None:
    """A layer of a recurrent network in both directions."""
    arguments = [f"p_rnn_weight_{kind}_l0{way}" for way in ("", "_reverse") for kind in ("ih", "hh")]
    layer = called(node("RNN", ["x", "val_1", "val_2"], ["y"], "node_rnn", hidden_size=3, direction="bidirectional"), "rnn",
                   f"rnn_tanh(%x, [{', '.join('%' + a for a in arguments)}], False)")
    proto = by_pytorch([layer], [port("x", [4, 2, 5])], {"val_1": f4(2, 3, 5), "val_2": f4(2, 3, 3)})
    signed(proto, [f"rnn.weight_{kind}_l0{way}" for way in ("", "_reverse") for kind in ("ih", "hh")], {})
    assert trained(proto, freeze=["val_1"]) == ["val_2"]
    with pytest.raises(OptionError, match="matches no weight"):
        trained(proto, freeze=["rnn.weight_ih_l0"])


# ---- what trains

def update(proto: ModelProto, optimizer: Any = None, **options: Any) -> dict[str, np.ndarray]:
    """The weights after an update, from the same rows."""
    rng = np.random.default_rng(0)
    model = tileflow.training_model(wrap_model(proto), loss="mse", optimizer=optimizer or optim.SGD(lr=0.1, weight_decay=0.5), **options)
    model(*(rng.standard_normal((2, 3, 4)).astype(np.float32) for _ in range(2)))
    return {s.name: model.source.session[s.name].copy() for graph in model.program.graphs for s in graph.states if s.kind == "parameter"}


@pytest.mark.parametrize("options", [
    lambda name: {"frozen": [name]}, lambda name: {"trainable": [name]},
    lambda name: {"optimizer": optim.SGD(lr=0.1, weight_decay=0.5, no_decay=[name])},
    lambda name: {"optimizer": optim.SGD(lr=0.1, groups=[{"params": name, "lr": 0.7}])},
    lambda name: {"precision": "16-true", "keep_float32": [name]}], ids=["frozen", "trainable", "no_decay", "groups", "keep_float32"])
def test_options_mean_a_weight_by_either_name(options: Callable[[str], dict[str, Any]]) -> None:
    proto = two_layers()
    plain = update(proto, **{k: v for k, v in options("val_4").items() if k == "precision"})
    one, other = update(proto, **options("head.weight")), update(proto, **options("val_4"))
    assert all(one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in plain)
    assert any(one[name].dtype != plain[name].dtype or not np.array_equal(one[name], plain[name]) for name in plain), "it has an effect"
    with pytest.raises(OptionError):
        update(proto, **options("head.nothing"))


def test_gradients_by_either_name() -> None:
    model = wrap_model(two_layers())
    x = f4(2, 3, 4)
    one, other = (tileflow.gradient_model(model, wrt=[name])(x) for name in ("head.weight", "val_4"))
    np.testing.assert_array_equal(one["val_4"], other["val_4"])
    with pytest.raises(DataError, match="is no input and no parameter"):
        tileflow.gradient_model(model, wrt=["head.nothing"])(x)


def test_an_exporters_file() -> None:
    torch = needs("torch")
    needs("onnxscript")
    from exported_networks import quiet
    nn, file = torch.nn, io.BytesIO()
    net = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
    with quiet():
        torch.onnx.export(net, (torch.zeros(2, 3, 4),), file, dynamo=True, external_data=False, verbose=False)
    proto = onnx.load_from_string(file.getvalue())
    names = {s.called or s.name: s.name for s in imported(proto, training=True).graph.parameters}
    assert list(sorted(names)) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert names["0.weight"].startswith("val_")
    assert trained(proto, freeze=["0.weight"]) == trained(proto, freeze=[names["0.weight"]])
    assert names["0.weight"] not in trained(proto, freeze=["0.*"])


# ---- tied parameters, which have several names


def tied(*others: str) -> ModelProto:
    """A table that is its own head's weight, by which name torch.export calls it; it is read in the module `table`."""
    nodes = [called(node("Gather", ["head.weight", "x"], ["rows"], "node_rows"), "table", "embedding(%p_head_weight, %x)"),
             called(node("MatMul", ["rows", "val_1"], ["body"], "node_body"), "body", "linear(%rows, %p_body_weight)"),
             called(node("Transpose", ["head.weight"], ["turned"], "node_turned", perm=[1, 0]), "head", "linear(%body, %p_head_weight)"),
             called(node("MatMul", ["body", "turned"], ["y"], "node_y"), "head", "linear(%body, %p_head_weight)")]
    proto = by_pytorch(nodes, [port("x", [2, 3], "int64")], {"head.weight": f4(7, 4), "val_1": f4(4, 4)})
    return signed(proto, [*others, "table.weight", "body.weight", "head.weight"], {"val_1": ["body.weight"]})


@pytest.mark.parametrize("name", ["head.weight", "table.weight", "shared.weight", "shared.*", "tab*"])
def test_any_name_of_a_tied_parameter_means_it(name: str) -> None:
    assert trained(tied("shared.weight"), freeze=[name]) == ["val_1"]
    assert trained(tied("shared.weight"), freeze=["*"], trainable=[name]) == ["head.weight"]


@pytest.mark.parametrize("name", ["shared.weight", "other.bias", "table", "body.table.weight"])
def test_names_that_are_not_of_the_tied_parameter(name: str) -> None:
    with pytest.raises(OptionError, match=r"matches no weight; the weights are head\.weight, body\.weight\."):
        trained(tied("other.bias"), freeze=[name])


@pytest.mark.parametrize("options", [
    lambda name: {"frozen": [name]}, lambda name: {"optimizer": optim.SGD(lr=0.1, groups=[{"params": name, "lr": 0.7}])},
    lambda name: {"precision": "16-true", "keep_float32": [name]}], ids=["frozen", "groups", "keep_float32"])
def test_options_mean_a_tied_weight_by_any_name(options: Callable[[str], dict[str, Any]]) -> None:
    proto = tied("shared.weight")

    def update(name: str) -> dict[str, np.ndarray]:
        model = tileflow.training_model(wrap_model(proto), loss="mse", **options(name))
        model(np.arange(6).reshape(2, 3), np.ones((2, 3, 7), np.float32))
        return {k: model.source.session[k].copy() for k in ("head.weight", "val_1")}
    one = update("head.weight")
    for name in ("table.weight", "shared.weight"):
        other = update(name)
        assert all(one[k].dtype == other[k].dtype and np.array_equal(one[k], other[k]) for k in one)
    other = update("val_1")
    assert any(one[k].dtype != other[k].dtype or not np.array_equal(one[k], other[k]) for k in one), "it has an effect"


def test_tile_reports_say_the_networks_names(tmp_path: Any) -> None:
    tileflow.compile(wrap_model(two_layers()), training=True, machine="gc200", loss="mse", report=str(tmp_path))
    text = (tmp_path / "report.json").read_text()
    assert not re.findall('"val_[14][^"]*"', text)
    assert {f'"{name}.weight{what}"' for name in ("body", "head") for what in ("", ".exp_avg")} <= set(re.findall('"[^"]*"', text))
