"""CPU seconds from an ONNX file to a ready plan, in a process that has imported a small file before: goals are 5 s for BERT-Base and 3 s for
DenseNet-121, as PyTorch exports them (left out where PyTorch or transformers are missing), and 15 s for a chain of 20,000 nodes."""
from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tileflow import compiler
from tileflow.importers.onnx import import_graph, load_model
from tileflow.lower.plan import make_plan
from tileflow.program.batching import Batching

from .models import initial_weights, tutorial_cnn

CHAIN = 20_000


@dataclass
class Importing:
    """CPU seconds to read and check a file, to import it, and to plan it for this host: medians of `runs`; note: why there is none."""

    case: str
    nodes: int
    goal: float
    read: float = 0.0
    imported: float = 0.0
    planned: float = 0.0
    runs: int = 0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": self.read + self.imported + self.planned}

    def to_text(self) -> str:
        if self.note:
            return f"{self.case:<24} {self.note}"
        total = self.read + self.imported + self.planned
        return (f"{self.case:<24} {self.nodes:>7,} nodes {total:6.2f} CPU s (reading {self.read:.2f}, import {self.imported:.2f}, plan "
                f"{self.planned:.2f}), goal {self.goal:g} s: {'met' if total <= self.goal else 'missed'}")


def chain(path: Path) -> None:
    """Additions and rectifiers in turns."""
    names = ["x", *(f"v{i}" for i in range(CHAIN - 1)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) if i % 2 else helper.make_node("Add", [a, "w"], [b])
             for i, (a, b) in enumerate(itertools.pairwise(names))]
    graph = helper.make_graph(nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
                              [numpy_helper.from_array(np.array([-1, 0, 1], np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def bert_base(path: Path) -> None:
    """transformers' BertModel by its default configuration, random weights. Raises ImportError where it is missing."""
    import torch
    from transformers import BertConfig, BertModel

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig()
            config._attn_implementation = "eager"
            self.bert = BertModel(config)

        def forward(self, ids: Any, mask: Any) -> Any:
            found = self.bert(input_ids=ids, attention_mask=mask, return_dict=True)
            return found.last_hidden_state, found.pooler_output
    tokens = torch.ones(1, 16, dtype=torch.int64)
    _export(Named(), (tokens, tokens), path)


def densenet121(path: Path) -> None:
    """DenseNet-121 in PyTorch, random weights. Raises ImportError where that is missing."""
    import torch
    from torch import nn

    def step(inputs: int, outputs: int, kernel: int) -> list[Any]:
        return [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)]

    class Dense(nn.Module):
        def __init__(self, inputs: int, count: int, growth: int = 32) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(*step(inputs + i * growth, 4 * growth, 1), *step(4 * growth, growth, 3)) for i in range(count))

        def forward(self, x: Any) -> Any:
            found = [x]
            for layer in self.layers:
                found.append(layer(torch.cat(found, 1)))
            return torch.cat(found, 1)
    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for i, count in enumerate((6, 12, 24, 16)):
        layers.append(Dense(width, count))
        width += 32 * count
        if i < 3:
            layers += [*step(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    network = nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))
    _export(network, (torch.zeros(1, 3, 224, 224),), path)


def _export(module: Any, inputs: tuple[Any, ...], path: Path) -> None:
    import warnings

    import torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), inputs, str(path), opset_version=17, dynamo=False, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE)


def once(path: Path) -> tuple[float, float, float]:
    """CPU seconds to read, import and plan a file."""
    began = time.process_time()
    model = load_model(path)
    read = time.process_time()
    graph = import_graph(model, batch=1).graph
    imported = time.process_time()
    make_plan(compiler.inference(graph, Batching(1)).program, 1)
    return read - began, imported - read, time.process_time() - imported


CASES: tuple[tuple[str, Callable[[Path], None], float], ...] = (
    ("BERT-Base", bert_base, 5.0), ("DenseNet-121", densenet121, 3.0), (f"chain of {CHAIN:,}", chain, 15.0))


def run(threads: int | None = None, runs: int = 9) -> Iterator[Importing]:
    """All cases; importing uses one thread."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        onnx.save(tutorial_cnn(initial_weights(0)), path)
        once(path)
        for name, write, goal in CASES:
            try:
                write(path)
            except ImportError as missing:
                yield Importing(name, 0, goal, note=f"left out: {missing}")
                continue
            times = [once(path) for _ in range(max(1, min(3, runs)))]
            read, imported, planned = (statistics.median(column) for column in zip(*times, strict=True))
            yield Importing(name, len(onnx.load(path).graph.node), goal, read, imported, planned, len(times))
