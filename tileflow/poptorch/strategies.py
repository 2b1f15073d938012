"""Stages, phases and execution strategies under the reference's names: objects that change by their own calls, and
become options."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ..options.reference.enums import AutoStage, Liveness, word
from ..strategy import stages as own
from .errors import InvalidOption, of_options
from .spelling import both_spellings

BlockId = str
"""What blocks are named by."""


class Stage:
    """Blocks that run one after the other on one IPU: `Stage("B1", "B2").ipu(0)`. Without an IPU it is on the one of
    its number."""

    def __init__(self, *block_ids: BlockId) -> None:
        self._blocks, self._ipu = block_ids, -1
        with of_options():
            own.Stage(*block_ids)

    @property
    def blocks(self) -> list[BlockId]:
        """The names of its blocks."""
        return list(self._blocks)

    def ipu(self, ipu: int) -> Stage:
        """Put it on that IPU; returns the stage."""
        with of_options():
            own.Stage(*self._blocks).ipu(ipu)
        self._ipu = ipu
        return self

    def made(self) -> own.Stage:
        """What tileflow calls it."""
        return own.Stage(*self._blocks) if self._ipu < 0 else own.Stage(*self._blocks).ipu(self._ipu)

    def __repr__(self) -> str:
        return f"Stage({', '.join(map(repr, self._blocks))})" + ("" if self._ipu < 0 else f".ipu({self._ipu})")


class Phase:
    """Stages of one phase, or the names of the blocks of its only stage: `Phase(Stage("A"), Stage("B")).ipus(0, 2)`."""

    def __init__(self, *arg: BlockId | Stage) -> None:
        if any(isinstance(a, str) for a in arg):
            if not all(isinstance(a, str) for a in arg):
                raise InvalidOption("A Phase takes stages, or names of blocks, which are one stage, but not both.")
            self.stages = [Stage(*(a for a in arg if isinstance(a, str)))]
        else:
            self.stages = [a for a in arg if isinstance(a, Stage)]
            if len(self.stages) < len(arg) or not arg:
                raise InvalidOption("A Phase takes stages, or names of blocks.")

    def stage(self, idx: int) -> Stage:
        """A stage by its number in the phase."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> Phase:
        """Put its stages on these IPUs, one each; returns the phase."""
        if len(ipus) != len(self.stages):
            raise InvalidOption(f"Phase contains {len(self.stages)} stages but you provided {len(ipus)} ipus")
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)
        return self

    def made(self) -> own.Phase:
        """What tileflow calls it."""
        return own.Phase(*(s.made() for s in self.stages))

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"


@both_spellings
class ExecutionStrategy:
    """Base of the strategies."""

    def stages(self) -> list[Stage]:
        """All stages that it was given."""
        raise NotImplementedError

    def stage(self, block_id: BlockId) -> Stage:
        """The stage that a block is in, to put it on an IPU: `strategy.stage("B1").ipu(0)`."""
        for stage in self.stages():
            if block_id in stage.blocks:
                return stage
        raise InvalidOption(f"Unknown block {block_id}; the strategy's blocks are "
                            f"{', '.join(b for s in self.stages() for b in s.blocks) or 'none'}.")

    def to_options(self) -> dict[str, Any]:
        """Keywords for `tileflow.Options`."""
        raise NotImplementedError

    def backendOptions(self) -> dict[str, Any]:
        """As `to_options`."""
        return self.to_options()


class PipelinedExecution(ExecutionStrategy):
    """Stages run as a pipeline, each with another micro-batch: stages, names of blocks (a stage each), or an AutoStage.

        opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("B1").ipu(0), poptorch.Stage("B2").ipu(1)))
    """

    _made: type[own.PipelinedExecution] = own.PipelinedExecution

    def __init__(self, *args: AutoStage | BlockId | Stage) -> None:
        self._auto = args[0] if len(args) == 1 and isinstance(args[0], AutoStage) else None
        given = [] if self._auto is not None else list(args)
        if not all(isinstance(a, (str, Stage)) for a in given):
            raise InvalidOption(f"{type(self).__name__} takes stages, names of blocks, or an AutoStage.")
        self._stages = [Stage(a) if isinstance(a, str) else a for a in given if isinstance(a, (str, Stage))]
        with of_options():
            self.to_options()

    def stages(self) -> list[Stage]:
        return self._stages

    def to_options(self) -> dict[str, Any]:
        if self._auto is not None:
            return self._made(own.AutoStage(word(self._auto))).to_options()
        return self._made(*(s.made() for s in self._stages)).to_options()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._stages)) if self._auto is None else self._auto})"


class ShardedExecution(PipelinedExecution):
    """Stages, given as for `PipelinedExecution`, each on its IPU and one after the other."""

    _made = own.ShardedExecution


@both_spellings
class _Phased(ExecutionStrategy):
    """Phases: each a Phase, a list of stages or of names of blocks, or a name."""

    _made: type[own.SerialPhasedExecution] | type[own.ParallelPhasedExecution]

    def __init__(self, *phases: Phase | Sequence[Stage] | Sequence[BlockId] | BlockId) -> None:
        if (len(phases) == 1 and isinstance(phases[0], (list, tuple))
                and any(isinstance(p, (list, tuple, Phase)) for p in phases[0])):
            phases = tuple(phases[0])
        if not phases:
            raise InvalidOption("There is currently no AutoStage for PhasedExecution, please explicitly specify the "
                                "phases")
        self._phases = [p if isinstance(p, Phase) else Phase(*((p,) if isinstance(p, (str, Stage)) else p))
                        for p in phases]
        self._liveness = Liveness.AlwaysLive
        self._separate = False
        with of_options():
            own.parsed(tuple(str(p.made()) for p in self._phases))

    def stages(self) -> list[Stage]:
        return [s for p in self._phases for s in p.stages]

    def phase(self, phase: int) -> Phase:
        """A phase by its number, to put its stages on IPUs: `strategy.phase(0).ipus(0, 2)`."""
        if isinstance(phase, bool) or not isinstance(phase, int) or not 0 <= phase < len(self._phases):
            raise InvalidOption(f"There is no phase {phase!r}; phases are numbered from 0 to {len(self._phases) - 1}.")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Give the last phase's backward pass a phase of its own."""
        if not isinstance(use, bool):
            raise InvalidOption(f"useSeparateBackwardPhase takes True or False, not {use!r}.")
        self._separate = use
        return self

    def to_options(self) -> dict[str, Any]:
        liveness: Any = word(self._liveness)
        return self._made(*(p.made() for p in self._phases), liveness=liveness,
                          separate_backward=self._separate).to_options()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._phases))})"


@both_spellings
class SerialPhasedExecution(_Phased):
    """Phases one after the other on one group of IPUs: stages of a phase each have one."""

    _made = own.SerialPhasedExecution

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """When tensors that later phases read leave the chip."""
        if not isinstance(liveness, Liveness):
            raise InvalidOption(f"setTensorsLiveness needs a poptorch.Liveness, not {liveness!r}.")
        self._liveness = liveness
        return self


@both_spellings
class ParallelPhasedExecution(_Phased):
    """Phases on two groups of IPUs in turn, even phases on even IPUs and odd ones on odd."""

    _made = own.ParallelPhasedExecution

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Tensors that later phases read leave the chip after the forward pass."""
        if not isinstance(off_chip, bool):
            raise InvalidOption(f"sendTensorsOffChipAfterFwd takes True or False, not {off_chip!r}.")
        self._liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self
