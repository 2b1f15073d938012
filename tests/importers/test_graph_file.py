"""Networks of layers as ONNX files: every operator's samples through ONNX and back, and whole networks in ONNX Runtime and in training again."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate, run_reference
from onnx.reference import ReferenceEvaluator
from peers import needs
from samples import UNLIKE, Array, Case, cases

import tileflow
from tileflow import nn
from tileflow.graph import Builder, Graph
from tileflow.importers.onnx import FileForm, graph_model, import_graph, load_model, wrap_model
from tileflow.system.errors import DataError, ModelError, OptionError, UnsupportedError

NOT_WRITTEN = {"Dropout-0": "a Dropout that drops", "Dropout-2": "a Dropout that drops", "BatchNormalization-1": "by the batch's own statistics"}
"""Samples that are part of training, and how they are refused."""


def of_onnx() -> list[Case]:
    return [case for case in cases() if case.op.onnx]


def alone(case: Case) -> Graph:
    """A graph of one operator, with the outputs that ONNX has."""
    graph = Graph("alone")
    b = Builder(graph)
    made = b.emit(case.op, *[None if t is None else b.input(f"x{i}", t) for i, t in enumerate(case.types)])
    schema = onnx.defs.get_schema(case.op.name)
    graph.outputs = list(made[:schema.max_output])
    return graph


def evaluated(case: Case, model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Any]:
    """By ONNX's evaluator, which lacks older versions of some operators."""
    try:
        return list(ReferenceEvaluator(model).run(None, feeds))
    except RuntimeError as error:
        if "No implementation for operator" not in str(error):
            raise
        return list(ReferenceEvaluator(graph_model(alone(case),
                                                   FileForm(onnx.defs.onnx_opset_version(), None))).run(None, feeds))


def alike(found: list[Any], wanted: tuple[Array, ...]) -> None:
    for a, want in zip(found, wanted, strict=False):
        a = np.asarray(a)
        assert a.dtype == want.dtype
        rtol = 2e-2 if want.dtype.itemsize == 2 and want.dtype.kind not in "iu" else 1e-5
        wide = (a.astype(np.float64), want.astype(np.float64)) if want.dtype.kind not in "biu" else (a, want)
        np.testing.assert_allclose(*wide, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("case", of_onnx(), ids=lambda c: c.name)
def test_every_operator_goes_through_onnx_and_back(case: Case) -> None:
    """Graph, ONNX, its checker with shape inference, ONNX's evaluator, and tileflow's importer: the same values. An attribute that is written
    wrongly, or not at all, shows here; an operator that ONNX says otherwise needs a form in `importers/onnx/emit.py`."""
    if case.name in NOT_WRITTEN:
        with pytest.raises(UnsupportedError, match=NOT_WRITTEN[case.name]):
            graph_model(alone(case), FileForm(batch=None))
        return
    model = graph_model(alone(case), FileForm(batch=None))
    onnx.checker.check_model(model, full_check=True)
    arrays = case.arrays()
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    with np.errstate(all="ignore"):
        wanted = run_reference(case.op, *arrays)[:len(model.graph.output)]
        again = import_graph(wrap_model(model), training=None)
        values = evaluate(again.graph, feeds)
        alike([values[v.name] for v in again.graph.outputs], wanted)
        if case.name not in UNLIKE:
            alike(evaluated(case, model, feeds), wanted)


@pytest.mark.parametrize("name", ["ConvTranspose-2", "MaxPool-1", "MaxRoiPool-0"])
def test_where_the_evaluator_is_wrong_onnx_runtime_is_right(name: str) -> None:
    runtime = needs("onnxruntime")
    case = next(c for c in of_onnx() if c.name == name)
    session = runtime.InferenceSession(graph_model(alone(case), FileForm(batch=None)).SerializeToString())
    arrays = case.arrays()
    alike(session.run(None, {f"x{i}": a for i, a in enumerate(arrays) if a is not None}), run_reference(case.op, *arrays))


def test_older_opsets_say_it_their_way() -> None:
    """Reductions have their axes as an attribute until opset 18, ReduceSum until 13."""
    case = next(c for c in of_onnx() if c.name == "ReduceMean-0")
    for opset, inputs in ((13, 1), (17, 1), (18, 2)):
        model = graph_model(alone(case), FileForm(opset, None))
        onnx.checker.check_model(model, full_check=True)
        node = next(n for n in model.graph.node if n.op_type == "ReduceMean")
        assert (len(node.input), model.opset_import[0].version) == (inputs, opset)
        alike(ReferenceEvaluator(model).run(None, {"x0": case.arrays()[0]}), run_reference(case.op, *case.arrays()))


# ---- networks

class Block(nn.Module):
    """Tied weights, a parameter of one number, a buffer, integer and float inputs, a causal mask, two outputs."""

    def __init__(self) -> None:
        self.token, self.place = nn.Embedding(11, 16), nn.Parameter(np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32))
        self.norm, self.attend = nn.LayerNorm(16), nn.MultiheadAttention(16, 4)
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
        self.scale = nn.Parameter(np.ones(1, np.float32))
        self.register_buffer("offset", np.linspace(0, 1, 16, dtype=np.float32))

    def forward(self, ids: nn.Tensor, weight: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        x = self.token(ids) + self.place[:ids.shape[1]]
        x = x + self.attend(self.norm(x), is_causal=True)
        x = x + self.feed(x) * self.scale + self.offset
        return x @ self.token.weight.t(), x.mean(1) * weight.unsqueeze(-1)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        self.conv, self.norm, self.pool = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(2)
        self.fc = nn.Linear(4 * 16, 3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.fc(self.pool(self.norm(self.conv(x)).relu()).flatten())


def block_arrays(rows: int) -> dict[str, Array]:
    draw = np.random.default_rng(rows)
    return {"ids": draw.integers(0, 11, (rows, 6)), "weight": draw.random(rows, np.float32)}


def test_a_transformer_runs_in_onnx_runtime_with_any_batch_and_trains_again(tmp_path: Path) -> None:
    runtime = needs("onnxruntime")
    nn.manual_seed(1)
    net = Block()
    path = tileflow.save_onnx(net, tmp_path / "net.onnx", block_arrays(3))
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = runtime.InferenceSession(path)
    assert [i.shape for i in session.get_inputs()] == [["batch", 6], ["batch"]]
    assert [o.name for o in session.get_outputs()] == ["output_0", "output_1"]
    feeds = block_arrays(5)
    for found, wanted in zip(session.run(None, feeds), tileflow.inference_model(net)(*feeds.values()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    state = net.state_dict()
    again = tileflow.training_model(tileflow.load(path), loss="cross_entropy", class_axis=-1, optimizer=tileflow.optim.SGD(lr=0.1))
    direct = tileflow.training_model(net, loss="cross_entropy", class_axis=-1, optimizer=tileflow.optim.SGD(lr=0.1))
    again.load_state_dict(state)
    assert again.state_dict().keys() == state.keys()
    for model in (again, direct):
        model.compile(*feeds.values(), feeds["ids"])
    assert {s.name for s in again.program.states.values() if s.kind == "parameter"} == {n for n in state if n != "offset"}
    np.testing.assert_allclose(tileflow.inference_model(again.source.model)(*feeds.values())[0],
                               tileflow.inference_model(net)(*feeds.values())[0], rtol=1e-5, atol=1e-6)


def test_a_trained_network_is_written_by_its_run_and_by_its_models(tmp_path: Path) -> None:
    """In the form for inference: running statistics, and what was done to the data."""
    draw = np.random.default_rng(0)
    x, y = draw.random((32, 1, 8, 8), np.float32), draw.integers(0, 3, 32)
    net = Convolutional()
    result = tileflow.train(net, data=(x, y), epochs=1, micro_batch_size=8, out=tmp_path / "run", scale=2.0)
    path = result.save_onnx(tmp_path / "net.onnx", input_names=["image"], output_names="scores", opset=17)
    loaded = load_model(path)
    assert ([p.name for p in loaded.inputs], [p.name for p in loaded.outputs], loaded.opset[""]) == (["image"], ["scores"], 17)
    assert "training_mode" not in str(loaded.proto)
    wanted = tileflow.inference_model(net)(2 * x)
    np.testing.assert_allclose(ReferenceEvaluator(loaded.proto).run(None, {"image": 2 * x})[0], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tileflow.infer(path, data=x)["scores"], wanted, rtol=1e-4, atol=1e-5)          # it knows the scale
    same = result.model.save_onnx(tmp_path / "same.onnx")
    assert {t.name: t.raw_data for t in load_model(same).proto.graph.initializer} == {t.name: t.raw_data for t in loaded.proto.graph.initializer}
    with pytest.raises(ModelError, match="form for inference only"):
        result.save_onnx(tmp_path / "no.onnx", keep_training_mode=True)


def test_weights_of_16_bits_and_casts_are_written_as_they_are(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
            self.a.half()

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.b(self.a(x.half()).relu().float())

    x = np.random.default_rng(0).random((5, 4), np.float32)
    net = Mixed()
    loaded = load_model(tileflow.save_onnx(net, tmp_path / "mixed.onnx", x))
    assert {t.name: t.data_type for t in loaded.proto.graph.initializer} == {"a.weight": 10, "a.bias": 10, "b.weight": 1, "b.bias": 1}
    wanted = tileflow.inference_model(net)(x)
    np.testing.assert_allclose(ReferenceEvaluator(loaded.proto).run(None, {"x": x})[0], wanted, rtol=1e-2, atol=1e-3)


def test_what_depends_on_the_batch_in_other_ways() -> None:
    """Targets of Expand are computed from the input's shape, ends of Slice are the end; a constant of that size is refused by name."""
    class Expanded(nn.Module):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            ones = nn.tensor(np.ones((1, 2), np.float32)).expand(x.shape[0], 2)
            return nn.cat([x[:x.shape[0]], ones], 1).reshape(x.shape[0], 5, 1)

    class Fixed(nn.Module):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return x + np.arange(x.shape[0], dtype=np.float32)[:, None]

    def made(net: nn.Module, rows: int) -> Graph:
        from tileflow.graph import TensorType
        return nn.record(net, [("x", TensorType("float32", (rows, 3)))], training=False, dtype="float32")

    model = graph_model(made(Expanded(), 2), FileForm(), made(Expanded(), 3))
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).random((7, 3), np.float32)
    found, = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(found[..., 0], np.concatenate([x, np.ones((7, 2), np.float32)], 1))
    with pytest.raises(UnsupportedError, match=r"symbolic batch, as the constant .* depends on it; give batch=None"):
        graph_model(made(Fixed(), 2), FileForm(), made(Fixed(), 3))
    assert [d.dim_value for d in graph_model(made(Fixed(), 2),
                                             FileForm(batch=None)).graph.input[0].type.tensor_type.shape.dim] == [2, 3]


def test_what_cannot_be_written_is_said_and_leaves_the_old_file(tmp_path: Path) -> None:
    x = np.ones((2, 4), np.float32)
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    for change, error, message in (
            ({"opset": 19}, UnsupportedError, r"Sequential: .*opset 19: Gelu \(1\): ONNX has Gelu from opset 20 on"),
            ({"opset": 5}, OptionError, "opset must be a whole number from 13"), ({"batch": "a b"}, OptionError, "name of a dimension"),
            ({"input_names": ["a", "b"]}, OptionError, "input_names must be 1 names"), ({"output_names": "0.weight"}, OptionError, "is there twice")):
        with pytest.raises(error, match=message):
            tileflow.save_onnx(net, path, x, **change)
    with pytest.raises(DataError, match="not known yet: call the model"):
        tileflow.inference_model(net).save_onnx(path)
    with pytest.raises(ModelError, match="save_onnx writes networks of layers"):
        tileflow.save_onnx("digits_cnn.onnx", path, x)
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
