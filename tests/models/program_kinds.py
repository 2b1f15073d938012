"""Programs of every kind, compiled and not run: what is trained how, in which types, on how many replicas and IPUs.

python tests/models/program_kinds.py          # their digests, by name, as JSON
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from random_strategies import CLASSES, Images, LookingBack, Remembering, Tokens, draw
from samples import Case, cases
from test_random_graphs import recipe

import tileflow
from tileflow import compiler, nn
from tileflow.graph import Builder, Graph
from tileflow.options.registries import OPTIMIZERS
from tileflow.passes.autograd import gradients
from tileflow.program.batching import Batching
from tileflow.program.program import Program

ROWS = 2
X, LABELS = Images.rows(np.random.default_rng(0), 8 * ROWS), np.zeros(8 * ROWS, np.int64)


class Recurrent(nn.Module):
    """Layers that go over sequences."""

    def __init__(self) -> None:
        self.lstm, self.gru, self.rnn, self.last = nn.LSTM(64, 5), nn.GRU(5, 3), nn.RNN(3, 3), nn.Linear(3, CLASSES)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x, _ = self.lstm(x.flatten(2).transpose(0, 1))
        x, _ = self.gru(x)
        return self.last(self.rnn(x)[0].mean(0))


def trained(network: type[nn.Module] = Images, **options: Any) -> Program:
    """A step of training; `options` as for `training_model`."""
    model = tileflow.training_model(network(), **{"micro_batch_size": ROWS, **options})
    per_update = options.get("gradient_accumulation", 1) * options.get("replication_factor", 1)
    count = ROWS * per_update * options.get("device_iterations", 1)
    x = np.zeros((count, 6), np.int64) if network is Tokens else X[:count]
    return model.program_for(x, LABELS[:count])


def ran(network: type[nn.Module] = Images, **options: Any) -> Program:
    """A step of inference."""
    x = np.zeros((8, 6), np.int64) if network is Tokens else X[:8]
    return tileflow.inference_model(
        network(), micro_batch_size=ROWS, **{"device_iterations": 4, **options}
    ).program_for(x)


def drawn(seed: int) -> Program:
    """A drawn strategy."""
    what = draw(seed)
    return tileflow.training_model(what.network(), **what.options()).program_for(*what.data())


def sampled(case: Case) -> Program:
    """An operator's sample; operands that it gives whole are constants."""
    graph = Graph(case.name)
    b = Builder(graph)
    operands = [
        None if o is None else b.input(f"x{i}", o.type) if o.array is None else b.constant(o.array)
        for i, o in enumerate(case.operands)
    ]
    graph.outputs = list(b.emit(case.op, *operands))
    return Program.of(graph, Batching(1))


def of_graph(seed: int, gradient: bool = False) -> Program:
    """A random graph, and its gradients."""
    graph, _ = recipe(seed, gradient).build(smooth=gradient)
    if gradient:
        b = Builder(graph)
        floats = [v for v in graph.outputs if v.type.is_float]
        loss = b.ReduceSum(floats[0], keepdims=0)
        found = gradients(graph, loss, [v for v in graph.inputs if v.type.is_float])
        graph.outputs = [b.Identity(v) for v in (*graph.outputs, *found)]
    return compiler.inference(graph, Batching(1)).program


def with_regions(name: str) -> Program:
    """A sample of a branch or a loop with its gradients, which have regions of their own."""
    case = next(c for c in cases() if c.name == name)
    graph = Graph(name)
    b = Builder(graph)
    operands = [None if o is None else b.input(f"x{i}", o.type) for i, o in enumerate(case.operands)]
    y = b.emit(case.op, *operands)[0]
    wanted = [v for v in operands if v is not None and v.type.is_float]
    found = gradients(graph, b.ReduceSum(y, keepdims=0), wanted)
    graph.outputs = [y, *(b.Identity(g) for g in found)]
    return compiler.inference(graph, Batching(1)).program


def kinds() -> Mapping[str, Callable[[], Program]]:
    """Functions that compile programs, by name."""
    several = {"gradient_accumulation": 4, "strategy": "pipelined", "pipeline_splits": ("second",)}
    found: dict[str, dict[str, Any]] = {name: {"optimizer": name} for name in OPTIMIZERS}
    found |= {
        f"{precision}": {"precision": precision}
        for precision in ("64", "16-mixed", "bf16-mixed", "16-true", "bf16-true")
    }
    found |= {
        "norms": {"optimizer": "adamw", "max_grad_norm": 0.5, "weight_decay": 0.01, "gradient_accumulation": 2},
        "accumulated": {"gradient_accumulation": 4, "device_iterations": 2},
        "tokens": {"network": Tokens},
        "replicas": {"replication_factor": 2, "broadcast_buffers": False},
        "grouped": {"replication_factor": 4, "replica_grouping": {"last.*": "consecutive:2"}},
        "dynamic scale": {"precision": "16-mixed", "automatic_loss_scaling": "dynamic"},
        "histogram": {"precision": "16-true", "automatic_loss_scaling": "histogram"},
        "stochastic": {"precision": "bf16-true", "stochastic_rounding": True},
        "remainders": {"precision": "bf16-true", "master_weights": "remainder"},
        "recomputed": {"gradient_checkpointing": ("second", "norm")},
        "remembering": {"network": Remembering},
        "looking back": {"network": LookingBack},
        "recurrent": {"network": Recurrent},
        "pipelined": several,
        "sharded": {**several, "strategy": "sharded"},
        "1f1b": {**several, "pipeline_schedule": "1f1b"},
        "serial phased": {**several, "strategy": "serial_phased"},
    }
    made: dict[str, Callable[[], Program]] = {
        name: functools.partial(trained, **options) for name, options in found.items()
    }
    made |= {f"inference {n.__name__}": functools.partial(ran, n) for n in (Images, Tokens, Recurrent, Remembering)}
    made |= {"inference of replicas": functools.partial(ran, replication_factor=2, device_iterations=2)}
    made |= {f"strategy {seed}": functools.partial(drawn, seed) for seed in range(6)}
    made |= {f"graph {seed}": functools.partial(of_graph, seed) for seed in range(20)}
    made |= {f"gradients {seed}": functools.partial(of_graph, seed, True) for seed in range(20)}
    return made | {name: functools.partial(with_regions, name) for name in ("If-0", "Loop-0", "Loop-1", "Loop-3")}


if __name__ == "__main__":
    import warnings

    from tileflow.program import file

    warnings.simplefilter("ignore")
    print(json.dumps({name: file.digest(make()) for name, make in kinds().items()}))
