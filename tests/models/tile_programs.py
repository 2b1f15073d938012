"""A tile program made by hand for tests of reports: the fields that reports read, with figures that are easy to check."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.graph import Builder, Graph, Origin, TensorType
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import CHIPS
from tileflow.tiles.hardware.io import HostIO
from tileflow.tiles.machine import Transfer
from tileflow.tiles.plans.plan import OpPlan, Phases, TileOptions, TileStep
from tileflow.tiles.system.energy import consumption
from tileflow.tiles.system.sharding import Shares

CATEGORIES = {"weights": 5000, "optimizer": 4000, "buffers": 100, "constants": 50, "code": 9000, "activations": 60000, "temporaries": 30000,
              "exchange": 8000}


def program(layers: int = 3) -> Program:
    """A chain of matmul and relu per layer."""
    graph = Graph("micro")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (16, 64)))
    for i in range(layers):
        w = b.constant(np.zeros((64, 64), np.float32))
        with b.at(Origin((f"layer{i}/fc",))):
            x = b.MatMul(x, w)
        with b.at(Origin((f"layer{i}/act",))):
            x = b.Relu(x)
    graph.outputs.append(x)
    return Program.of(graph, Batching(16, 4), training=True)


def handmade(layers: int = 3, tiles: int = 1472, scale: float = 1.0, chip: str = "gc200") -> Any:
    """Every step costs 1000 * (index + 1) cycles in all phases together; tile t's memory falls with t; `scale` stretches the memory."""
    made = program(layers)
    machine = CHIPS[chip].variant(name=chip, tiles=tiles)
    parts = ["prologue", *["micro"] * (2 * layers - 2), "update"]
    steps = []
    for i, (node, part) in enumerate(zip(made.micro.nodes, parts, strict=True)):
        types = [v.type for v in node.operands], [v.type for v in node.outputs]
        k = i + 1
        phases = Phases(compute=600 * k, exchange=200 * k, sync=100 * k, transform=60 * k, reduce=40 * k)
        plan = OpPlan({"m": 4, "n": 8, "k": 2}, "amp" if i % 2 == 0 else "map", phases, temp_bytes=int(scale * 1000 * k),
                      serial={"n": 2} if i == 2 else {}, tiles=64, flops=1e6, bound_bytes=10_000, fits=i != 4, limit="compute")
        steps.append(TileStep(i, part, node, node.op.work(*types), plan, phases, 4 if part == "micro" else 1, int(scale * 2000 * k)))
    fall = np.linspace(1.0, 0.5, tiles) * scale
    categories = {name: (size * fall).astype(np.int64) for name, size in CATEGORIES.items()}
    peak = np.sum(list(categories.values()), axis=0)
    always = sum(categories[c] for c in ("weights", "optimizer", "buffers", "constants", "code"))
    cycles = sum(s.phases.total * s.repeats for s in steps)
    total = Phases()
    for s in steps:
        total = total + s.phases.times(s.repeats)
    seconds = cycles / machine.clock_hz
    streams = [Transfer("x", True, 4096, 171, 4), Transfer("relu.2", False, 4096, 171, 4)]
    found = SimpleNamespace(
        transfers=streams, host_cycles=8 * 171, streaming_cycles=0, off_chip={}, facts={},
        shares=Shares(), gather_cycles=0, io=HostIO(0, 8 * 171, (1.0, 1.0)),
        ipus=[], links=None, away=None, measured=None, idle_tiles=0, whole=machine,
        tried=[], collectives=[], rearranged=[0] * len(steps), samples_per_update=made.rows_per_period,
        memory_schedule=SimpleNamespace(of={}, storages=[]), peak_step=np.full(tiles, -1),
        program=made, chip=machine, options=TileOptions(per_op={"layer0*": 0.1}, serialized={"layer1*": ("output_channels", 2)}), steps=steps,
        always_live=always, peak=peak, categories=categories, phases=total, cycles_per_update=cycles, seconds_per_update=seconds,
        samples_per_second=64 / seconds, tflops=1.25, peak_fraction=0.02, worst_tile=0, fits=bool(peak.max() <= machine.bytes_per_tile),
        infeasible=["layer2/fc/MatMul: no plan within 10,000 bytes."], liveness=np.array([int(always[0]) + s.live_bytes for s in steps]))
    found.samples_per_second_per_mm2 = found.samples_per_second_per_cost = None
    found.energy = consumption(found, ipus=1)
    return found
