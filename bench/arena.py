"""How much memory a training step's activations and gradients take in 16 bits, over what they take in float32: planned bytes, nothing is run."""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .kinds.network import Network, planned

SHAPES: tuple[dict[str, Any], ...] = ({"network": "bert-mini", "batch": 32, "sequence": 128}, {"network": "resnet18", "batch": 16},
                                      {"network": "mnist", "batch": 40})
PRECISIONS = ("16-mixed", "bf16-mixed", "16-true", "bf16-true")
SHARE = 0.6
"""Of float32's bytes, at most, is what a step in pure 16 bits is to take."""


@dataclass
class Arena:
    """One network in one precision: bytes of the micro-step's arena there and in float32."""

    case: str
    nbytes: int
    of_float32: int
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share}

    @property
    def share(self) -> float:
        return self.nbytes / self.of_float32

    def to_text(self) -> str:
        if self.note:
            return f"{self.case:<60} {self.note}"
        return f"{self.case:<60} {self.nbytes:>14,} of {self.of_float32:>14,} bytes: {self.share:.2f}"


def run(threads: int | None, runs: int) -> list[Arena]:
    """All networks and precisions."""
    from tileflow.system.errors import TileflowError
    found = []
    for shape in SHAPES:
        wide = planned(Network({**shape, "pass": "training"}), threads or 1).micro.arena_bytes
        for precision in PRECISIONS:
            problem = Network({**shape, "pass": "training", "precision": precision})
            try:
                found.append(Arena(f"arena of {problem.name}", planned(problem, threads or 1).micro.arena_bytes, wide))
            except TileflowError as error:
                found.append(Arena(f"arena of {problem.name}", 0, wide, f"not supported yet: {error}"))
    return found
