"""Staging: how a program is to be cut over IPUs, as data: which strategy, which IPU each stage is on, what is computed again."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Strategy = Literal["none", "pipelined", "sharded", "serial_phased", "parallel_phased"]
SEVERAL: tuple[Strategy, ...] = ("pipelined", "sharded", "serial_phased", "parallel_phased")
"""Those that take several IPUs, or several phases."""
PHASED: tuple[Strategy, ...] = ("serial_phased", "parallel_phased")
PipelineSchedule = Literal["grouped", "1f1b"]
Liveness = Literal["always_live", "off_chip_after_fwd", "off_chip_after_fwd_no_overlap", "off_chip_after_each_phase"]


@dataclass(frozen=True)
class Staging:
    """What the marks on a program's nodes (`Hints.stage`) mean.

    ipus: of each stage of the forward pass, in their order. recompute: the forward stages but the last run again for the backward pass, from
    what enters them. pipeline_schedule: the order of a pipeline's runs (`strategy.pipelined`). liveness: of phases (`strategy.phased`).
    separate_backward: the last stage's backward pass is a place of its own. phases: the phase that each stage is in; () without phases.
    automatic: stages were found, not given.
    """

    strategy: Strategy
    ipus: tuple[int, ...]
    recompute: bool = False
    liveness: Liveness = "always_live"
    separate_backward: bool = False
    phases: tuple[int, ...] = ()
    pipeline_schedule: PipelineSchedule = "grouped"
    automatic: bool = False

    @property
    def forward(self) -> int:
        """Stages of the forward pass, F."""
        return len(self.ipus)

    def places(self, training: bool) -> int:
        """Places in the order of the stages, P: F; with a backward pass 2F - 1, whose first stage is the forward pass's last, or 2F where that is a
        stage of its own."""
        return self.forward if not training else 2 * self.forward - (not self.separate_backward)

    def backward(self, stage: int) -> int:
        """The place of the backward pass of a stage."""
        return self.places(True) - 1 - stage

    def ipu(self, place: int) -> int:
        """The IPU of a place: a backward stage is on that of its forward stage."""
        return self.ipus[place if place < self.forward else self.backward(place)]
