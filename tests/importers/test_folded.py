"""Batch normalisation that an exporter folded away is named: in files as tools write them, and in train's output."""
from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx_models import mnist_cnn, model_of, node, port
from peers import needs
from said import Said

import tileflow
from tileflow.importers.onnx import folded_norms, load_model, wrap_model

RNG = np.random.default_rng(0)


def convolutions(names: list[tuple[str, str, str]], bias: bool = True, norm: bool = False) -> ModelProto:
    """Convolutions of 2 channels one after the other, by the names of their weights, biases and results."""
    nodes, weights, last = [], {}, "x"
    for weight, shift, result in names:
        nodes.append(node("Conv", [last, weight, shift] if bias else [last, weight], [result]))
        weights |= {weight: RNG.standard_normal((2, 2, 1, 1)).astype(np.float32), shift: np.zeros(2, np.float32)}
        nodes.append(node("Relu", [result], [result + "r"]))
        last = result + "r"
    if norm:
        nodes.append(node("LRN", [last], ["normal"], size=1))
        last = "normal"
    return model_of([*nodes, node("Flatten", [last], ["f"]), node("Gemm", ["f", "fc.weight"], ["y"])], [port("x", ["N", 2, 1, 1])], ["y"],
                    {**weights, "fc.weight": RNG.standard_normal((2, 3)).astype(np.float32)})


def sentence(proto: ModelProto) -> str | None:
    return folded_norms(wrap_model(proto))


PLAIN = [(f"layer{i}.weight", f"layer{i}.bias", f"c{i}") for i in range(9)]


@pytest.mark.parametrize("names", [
    ("onnx::Conv_26", "onnx::Conv_27", "/conv1/Conv_output_0"), ("545", "546", "547"),
    ("ConvBnFusion_W_conv1.weight", "ConvBnFusion_BN_B_bn1.bias", "c"),
    ("model/conv2d/Conv2D_weights_fused_bn", "model/conv2d/Conv2D_bias_fused_bn", "c"),
    ("w", "b", "model/batch_normalization/FusedBatchNormV3:0"), ("w", "b", "/bn1/BatchNormalization_output_0")], ids=lambda n: n[0])
def test_traces_of_tools(names: tuple[str, str, str]) -> None:
    found = sentence(convolutions([names]))
    assert found is not None
    assert found.startswith(f"Batch normalisation was folded into the weights of 'Conv({names[2]})': what is trained is another network")


def test_a_deep_network_without_any_normalisation_is_a_doubt() -> None:
    found = sentence(convolutions(PLAIN))
    assert found is not None
    assert found.startswith("All 9 convolutions have a bias and there is no normalisation in the file: if the network has batch")


@pytest.mark.parametrize("proto", [convolutions(PLAIN[:7]), convolutions(PLAIN, bias=False), convolutions(PLAIN, norm=True), mnist_cnn(),
                                   convolutions([("onnx::Conv_26", "conv1.bias", "c")])])
def test_other_networks_raise_no_doubt(proto: ModelProto) -> None:
    assert sentence(proto) is None


def test_names_that_are_numbers_throughout_say_nothing() -> None:
    proto = model_of([node("Conv", ["x", "1", "2"], ["3"])], [port("x", ["N", 2, 1, 1])], ["3"],
                     {"1": np.ones((2, 2, 1, 1), np.float32), "2": np.ones(2, np.float32)})
    assert sentence(proto) is None


def test_train_says_it(tmp_path: Path) -> None:
    said = Said()
    proto = convolutions([("onnx::Conv_26", "onnx::Conv_27", "c")])
    data = RNG.standard_normal((32, 2, 1, 1)).astype(np.float32), RNG.integers(0, 3, 32)
    tileflow.train(wrap_model(proto), data=data, micro_batch_size=8, out=str(tmp_path), callbacks=[said])
    assert [s for s in said.sentences if s.startswith("Batch normalisation was folded into the weights of 'Conv(c)'")]


# ---- as PyTorch's exporters and ONNX Runtime write it

def exported(path: Path, train: bool, **options: Any) -> Path:
    """A small network with batch normalisation, from PyTorch."""
    torch = needs("torch")
    if options.get("dynamo"):
        needs("onnxscript")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.Linear(16, 3)).train(train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(net, (torch.randn(2, 3, 4, 4),), str(path), **options)
        finally:
            logging.disable(logging.NOTSET)
    return path


def older(train: bool) -> dict[str, Any]:
    torch = needs("torch")
    mode = torch.onnx.TrainingMode
    return {"dynamo": False, "training": mode.TRAINING if train else mode.EVAL, "do_constant_folding": not train}


NEWER = {"dynamo": True, "external_data": False, "verbose": False}


def test_files_of_the_older_exporter(tmp_path: Path) -> None:
    assert folded_norms(load_model(exported(tmp_path / "train.onnx", True, **older(True)))) is None
    found = folded_norms(load_model(exported(tmp_path / "eval.onnx", False, **older(False))))
    assert found is not None
    assert found.startswith("Batch normalisation was folded into the weights of '/0/Conv'")
    assert found.endswith("(torch.onnx.export with training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False).")


@pytest.mark.parametrize("train", [False, True])
def test_files_of_the_newer_exporter(tmp_path: Path, train: bool) -> None:
    """Its optimiser folds batch normalisation even of a network in training mode."""
    found = folded_norms(load_model(exported(tmp_path / "folded.onnx", train, **NEWER)))
    assert found is not None
    assert found.endswith("(torch.onnx.export with optimize=False).")
    assert folded_norms(load_model(exported(tmp_path / "whole.onnx", train, **NEWER, optimize=False))) is None


def test_files_that_onnxruntime_optimised(tmp_path: Path) -> None:
    ort = needs("onnxruntime")
    path = exported(tmp_path / "eval.onnx", False, **NEWER, optimize=False)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert folded_norms(load_model(tmp_path / "optimised.onnx")) is not None
