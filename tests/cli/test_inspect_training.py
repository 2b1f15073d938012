"""`tileflow inspect --training`: what will be trained and why, ties, training mode, doubts, and the exit code."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from exported_files import f4, ones, scales, two_layers, zeros
from onnx import ModelProto
from onnx_models import model_of, node, port

from tileflow import cli
from tileflow.importers.onnx import inspect_model, wrap_model


def report(proto: ModelProto, **patterns: list[str]) -> list[tuple[str, str, str, str]]:
    """(state, name, why, readers) of every tensor."""
    found = inspect_model(wrap_model(proto), training=True, **patterns).training
    assert found is not None
    return [(row.state, row.name, row.why, " ".join(row.readers)) for row in found.rows]


def network() -> ModelProto:
    """A normalisation, dropout, a mask and an unused weight."""
    return model_of([
        node("Conv", ["x", "conv.weight"], ["c"], "conv"),
        node("BatchNormalization", ["c", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["n"], "bn"), node("Dropout", ["n"], ["d"], "drop"),
        node("Mul", ["d", "mask"], ["m"], "masked"), node("Mul", ["m", "half"], ["y"], "halved"), node("Add", ["y", "dead"], ["nobody"], "dead")],
        [port("x", ["N", 2, 4, 4])], [port("y", ["N", 3, 4, 4])],
        {"conv.weight": f4(3, 2, 1, 1), "bn.scale": ones(3), "bn.bias": zeros(3), "bn.mean": zeros(3), "bn.var": ones(3),
         "mask": np.eye(4, dtype=np.float32), "half": np.float32(0.5), "dead": f4(3, 4, 4)})


def test_every_tensor_and_why() -> None:
    assert report(network(), freeze=["conv.*"]) == [
        ("trained", "bn.scale", "the scale of BatchNormalization", "BatchNormalization node 'bn'"),
        ("trained", "bn.bias", "the bias of BatchNormalization", "BatchNormalization node 'bn'"),
        ("frozen", "conv.weight", "the weight of Conv", "Conv node 'conv'"),
        ("buffer", "bn.mean", "running statistics of BatchNormalization", "BatchNormalization node 'bn'"),
        ("buffer", "bn.var", "running statistics of BatchNormalization", "BatchNormalization node 'bn'"),
        ("unused", "dead", "known when the model is imported, or needed by no result (nothing tells it from a constant)", "Add node 'dead'"),
        ("constant", "mask", "a mask by its elements", "Mul node 'masked'"),
        ("constant", "half", "one number in Mul", "Mul node 'halved'")]


def test_metadata_give_the_reasons() -> None:
    assert [(name, why) for _, name, why, _ in report(scales())] == [
        ("gamma1", "PyTorch's parameter block.gamma1, in mul"), ("block.gamma2", "PyTorch's parameter, in mul"),
        ("block.shift", "PyTorch's buffer or constant in add"), ("gamma1.constant", "no parameter of scaled_dot_product_attention"),
        ("val_2", "no parameter of scaled_dot_product_attention")]


def test_a_model_that_cannot_be_imported_is_reported_as_far_as_it_goes() -> None:
    proto = network()
    proto.graph.node.append(node("Tokenize", ["y"], ["z"], "words", domain="com.example"))
    proto.opset_import.add(domain="com.example", version=1)
    proto.graph.output[0].name = "z"
    assert [row[:2] for row in report(proto, freeze=["bn.*"])][:3] == [("trained", "conv.weight"), ("trained", "dead"), ("frozen", "bn.scale")]


def shown(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str]:
    code = cli.main(["inspect", str(path), *words])
    return code, capsys.readouterr().out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    code, text = shown(capsys, tmp_path / "m.onnx", "--training")
    assert code == 0
    assert "Tensors and their elements: 3 trained (12), 2 buffer (6), 1 unused (48), 2 constant (17)" in text
    assert "  trained   conv.weight  float32[3, 2, 1, 1]  the weight of Conv; read by Conv node 'conv'\n" in text
    assert "  constant  1 more, single numbers and results of the exporter (--verbose lists them)\n" in text
    assert "In training mode\n  BatchNormalization in bn\n  Dropout in drop\n" in text
    assert ("In doubt\n  The batch normalisation trains by the batch's statistics: "
            "the file has it for inference, and nothing in it tells") in text
    assert "  constant  half " in shown(capsys, tmp_path / "m.onnx", "--training", "--verbose")[1]
    assert "Tensors" not in shown(capsys, tmp_path / "m.onnx")[1]


def test_ties_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(two_layers(), tmp_path / "m.onnx")
    code, text = shown(capsys, tmp_path / "m.onnx", "--training")
    assert code == 0
    assert "  2 parameters stored in one tensor with others, because their first values are equal, and trained on their own: b.bias, " in text
    assert "Note:" not in text, "nothing is said twice"
    assert "4 trained" in text
    assert "3 trained" in shown(capsys, tmp_path / "m.onnx", "--training", "--tie", "*.bias")[1]


@pytest.mark.parametrize(("nodes", "output", "sentence"), [
    ([node("MatMul", ["x", "w"], ["h"]), node("Tokenize", ["h"], ["y"], "words", domain="com.example")], "float32", "Unsupported (1)"),
    ([node("MatMul", ["x", "w"], ["h"]), node("ArgMax", ["h"], ["y"], keepdims=1)], "int64", "It cannot be trained like this: its first output"),
    ([node("Relu", ["x"], ["y"])], "float32", "depends on no parameter that is trained"),
])
def test_what_cannot_be_trained_ends_with_2(nodes: list[onnx.NodeProto], output: str, sentence: str, tmp_path: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    proto = model_of(nodes, [port("x", [4, 4])], [port("y", None, output)], {"w": f4(4, 4)}, domains=["com.example"])
    onnx.save(proto, tmp_path / "m.onnx")
    code, text = shown(capsys, tmp_path / "m.onnx", "--training")
    assert (code, sentence in text) == (2, True), text
    assert shown(capsys, tmp_path / "m.onnx")[0] == 0, "without --training it only looks"
