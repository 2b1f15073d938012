"""Runs over several IPUs drawn by a seed: a network, its strategy and stages, batching, precision, what is kept where.

    drawn = draw(137)
    drawn.options()             # with the strategy; drawn.options(whole=True): on one IPU, with all else the same
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tileflow import nn

Rng = np.random.Generator
LIVENESS = ("always_live", "off_chip_after_fwd", "off_chip_after_fwd_no_overlap", "off_chip_after_each_phase")
CLASSES = 5


class Images(nn.Module):
    """Convolutions, running statistics, random numbers; a block for each of four stages."""

    layers = ("second", "norm", "hidden", "last")

    def __init__(self) -> None:
        self.first, self.second, self.norm = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)
        self.hidden, self.drop, self.last = nn.Linear(8 * 2 * 2, 16), nn.Dropout(0.3), nn.Linear(16, CLASSES)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("a"):
            x = self.first(x).relu()
        with nn.Block("b"):
            x = nn.functional.max_pool2d(self.norm(self.second(x)).relu(), 2)
        with nn.Block("c"):
            x = self.drop(self.hidden(x.flatten(1)).relu())
        with nn.Block("d"):
            return self.last(x)

    @staticmethod
    def rows(rng: Rng, count: int) -> np.ndarray:
        return rng.standard_normal((count, 1, 8, 8)).astype(np.float32)


class Tokens(nn.Module):
    """Attention over embeddings, and what skips a stage."""

    layers = ("one", "two", "last")

    def __init__(self) -> None:
        self.embed = nn.Embedding(12, 8)
        self.one, self.two = (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True) for _ in range(2))
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, tokens: nn.Tensor) -> nn.Tensor:
        with nn.Block("a"):
            first = self.embed(tokens)
        with nn.Block("b"):
            x = self.one(first)
        with nn.Block("c"):
            x = self.two(x)
        with nn.Block("d"):
            return self.last(self.norm(x + first).mean(1))

    @staticmethod
    def rows(rng: Rng, count: int) -> np.ndarray:
        return rng.integers(0, 12, (count, 6))


class Remembering(Images):
    """Buffers that stages write and read: each for itself, a later one what an earlier one wrote, and written only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.start, self.late = nn.Buffer(np.zeros((), np.int64)), nn.Buffer(np.zeros((1, 8, 8))), nn.Buffer(np.zeros(16))
        self.given, self.back, self.ended = nn.Buffer(np.zeros(())), nn.Buffer(np.zeros(())), nn.Buffer(np.zeros((2, CLASSES)))

    def before(self, x: nn.Tensor) -> nn.Tensor:
        """What enters the first layer."""
        return x - self.start

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        with nn.Block("a"):
            self.seen += 1
            entering = self.before(x)
            self.start.lerp_(x.mean(0), 0.5)
            x = self.first(entering).relu()
            given = x.mean()
        with nn.Block("b"):
            x = nn.functional.max_pool2d(self.norm(self.second(x)).relu(), 2)
        with nn.Block("c"):
            x = self.drop(self.hidden(x.flatten(1)).relu()) * (1 + self.late)
            self.late.lerp_(x.mean(0), 0.25)
        with nn.Block("d"):
            y = self.last(x) + self.given
            self.given.copy_(given)
            self.back.copy_(y.mean())
            self.ended[0] = self.ended[1]
            self.ended[1] = y[0]
            return y + self.ended.mean(0)


class LookingBack(Remembering):
    """The first stage reads what the last one wrote."""

    def before(self, x: nn.Tensor) -> nn.Tensor:
        return x - self.start * (1 + self.back)


NETWORKS: tuple[type[Images] | type[Tokens], ...] = (Images, Tokens)
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adamw"}, {"optimizer": "lamb"},
    {"optimizer": "sgd", "momentum": 0.9, "use_combined_accum": True}, {"optimizer": "rmsprop", "momentum": 0.5},
    {"optimizer": "adam", "max_grad_norm": 0.5}, {"optimizer": "adamw", "accum_type": "float16"})


@dataclass(frozen=True)
class Drawn:
    """A run. `several`: the options of the strategy alone; `common`: what counts with one IPU as well; `tiles`: of the tile machine."""

    network: type[Images] | type[Tokens]
    common: dict[str, Any]
    several: dict[str, Any]
    tiles: dict[str, Any]
    rows: int

    def options(self, whole: bool = False) -> dict[str, Any]:
        return self.common if whole else {**self.common, **self.several}

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a call, with their labels."""
        rng = np.random.default_rng(self.rows)
        return self.network.rows(rng, self.rows), rng.integers(0, CLASSES, self.rows)


def draw(seed: int, network: type[Images] | None = None) -> Drawn:
    """What the seed names, or names of one network; all of it can be run."""
    rng = np.random.default_rng([seed, 13])
    network, optimizer = network or NETWORKS[rng.integers(len(NETWORKS))], OPTIMIZERS[rng.integers(len(OPTIMIZERS))]
    several, stages = _several(rng, network)
    least = 1 if several["strategy"] != "pipelined" else stages if several.get("pipeline_schedule") == "1f1b" else 2 * stages - 1
    iterations = int(rng.integers(1, 4))
    replicas = int(rng.choice([1, 1, 2, 3, 4]))
    common: dict[str, Any] = {
        "micro_batch_size": int(rng.integers(1, 4)), "gradient_accumulation": least + int(rng.integers(0, 4)), "device_iterations": iterations,
        "replication_factor": replicas, "output_mode": str(rng.choice(["all", "final", "sum"])), "seed": int(rng.integers(100)),
        "accumulation_reduction": str(rng.choice(["mean", "sum"])), "threads": int(rng.choice([1, 2, 5])),
        "precision": str(rng.choice(["32", "32", "32", "bf16-mixed", "16-mixed", "16-true"])), "learning_rate": 0.01, **optimizer}
    if rng.random() < 0.2:
        common |= {"output_mode": "every_n", "output_return_period": iterations}
    if rng.random() < 0.3:
        common["gradient_checkpointing"] = (str(rng.choice(network.layers)),)
    running = "accum_type" in optimizer
    if running:
        common["accumulation_reduction"] = "mean"
    if replicas > 1:
        common |= _replicated(rng, replicas, network, running or "max_grad_norm" in optimizer)
    rows = common["micro_batch_size"] * common["gradient_accumulation"] * iterations * replicas // common.get("input_group_size", 1)
    return Drawn(network, common, several, _kept(rng, several["strategy"], replicas, "replica_grouping" in common), rows)


def _several(rng: Rng, network: type[Images] | type[Tokens]) -> tuple[dict[str, Any], int]:
    """Strategy and stages, and how many of these there are."""
    strategy = str(rng.choice(["pipelined", "pipelined", "sharded", "serial_phased", "parallel_phased"]))
    found: dict[str, Any] = {"strategy": strategy, "auto_round_num_ipus": True}
    how = str(rng.choice(["splits", "blocks", "automatic", "back"] if strategy != "parallel_phased" else ["splits", "blocks"]))
    if how == "splits":
        chosen = sorted(rng.choice(len(network.layers), int(rng.integers(1, len(network.layers) + 1)), replace=False))
        found["pipeline_splits"], stages = tuple(network.layers[i] for i in chosen), len(chosen) + 1
    elif how == "automatic":
        stages = int(rng.integers(2, 5))
        found["auto_pipeline"] = stages
        stages += 1                                                    # the end may return to IPU 0 as a stage of its own
    elif how == "blocks":
        cut = sorted(rng.choice([1, 2, 3], int(rng.integers(1, 4)), replace=False))
        groups = ["+".join("abcd"[i:j]) for i, j in zip([0, *cut], [*cut, 4], strict=True)]
        found["stages"], stages = tuple(f"{g}@{i}" for i, g in enumerate(groups)), len(groups)
    else:
        found["stages"], stages = ("a@0", "b+c@1", "d@0"), 3
    if strategy == "pipelined":
        found |= {"pipeline_schedule": str(rng.choice(["grouped", "1f1b"])), "pipeline_recompute": bool(rng.random() < 0.5)}
    if "phased" in strategy:
        found |= {"tensors_liveness": str(rng.choice(LIVENESS[:2] if strategy == "parallel_phased" else LIVENESS)),
                  "separate_backward_phase": bool(rng.random() < 0.5)}
    return found, stages


def _replicated(rng: Rng, replicas: int, network: type[Images] | type[Tokens], together: bool) -> dict[str, Any]:
    """What replicas share. together: the optimizer wants all micro-batches of all replicas, so that they share every weight."""
    found: dict[str, Any] = {}
    if issubclass(network, Images):
        found["broadcast_buffers"] = bool(rng.random() < 0.5) and not issubclass(network, Remembering)
    factors = [k for k in range(2, replicas + 1) if replicas % k == 0]
    if rng.random() < 0.4:
        found |= {"input_group_size": int(rng.choice(factors)), "input_group_type": str(rng.choice(["consecutive", "orthogonal"]))}
    if rng.random() < 0.4 and not together:
        kind = str(rng.choice(["consecutive", "orthogonal", "no_grouping"]))
        size = "" if kind == "no_grouping" else f":{rng.choice(factors)}"
        found["replica_grouping"] = {str(rng.choice(["*", "last.*", f"{network.layers[0]}.*"])): f"{kind}{size}"}
    return found


def _kept(rng: Rng, strategy: str, replicas: int, grouped: bool) -> dict[str, Any]:
    """Where the tile machine keeps what, and what replicas share out."""
    found: dict[str, Any] = {"recompute": bool(rng.random() < 0.3), "joint_plans": bool(rng.random() < 0.7)}
    for group in ("activations", "weights", "optimizer", "accumulators"):
        if rng.random() < 0.4:
            found[f"{group}_off_chip"] = bool(rng.random() < 0.7)
    if replicas > 1 and not grouped and rng.random() < 0.5:
        found |= {"optimizer_sharded": True, "weights_sharded": bool(rng.random() < 0.5), "min_elements_sharded": 16}
    away = [g for g in ("activations", "weights", "optimizer", "accumulators") if found.get(f"{g}_off_chip")]
    if rng.random() < 0.4:
        found["num_io_tiles"] = 32
        if away:
            found["io_tiles_for"] = {str(g): str(rng.choice(["load", "store", "both"])) for g in away}
        if strategy != "pipelined" and rng.random() < 0.5:
            found["overlap_inputs"] = {"*": str(rng.choice(["accumulation_loop", "device_iteration_loop"]))}
    return found
