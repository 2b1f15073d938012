"""What a user says of stages: Stage, Phase, AutoStage, and a strategy for each kind of execution, which become options.

    options = tileflow.Options(**PipelinedExecution(Stage("embedding", "layer0").ipu(0), Stage("layer1", "head").ipu(1)).to_options())
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Self, TypeVar

from ..program.staging import PHASED, Liveness, Strategy
from ..system.errors import OptionError
from .rules import check_liveness, require_parity

S = TypeVar("S")
JOIN, AT, BESIDE = "+", "@", "|"
"""In a word of the option `stages`: between the blocks of a stage, before its IPU, and between the stages of one phase."""


class AutoStage(Enum):
    """How blocks become stages where no stages are given: one for each IPU, or one for each block."""

    SAME_AS_IPU = "same_as_ipu"
    AUTO_INCREMENT = "auto_increment"


@dataclass(frozen=True)
class Stage:
    """Blocks that run one after the other on one IPU: `Stage("a", "b").ipu(1)`. Without an IPU it is on the one of its number."""

    blocks: tuple[str, ...]
    ipu_id: int | None = None

    def __init__(self, *block_ids: str, _ipu: int | None = None) -> None:
        for name in block_ids:
            if not isinstance(name, str):
                raise OptionError(f"A Stage takes names of blocks, as text, not {name!r}.")
            if not name or any(c in name for c in (JOIN, AT, BESIDE, ",")):
                raise OptionError(f"The name of a block in a Stage must not be empty nor hold {JOIN}, {AT}, {BESIDE} or a comma: {name!r}.")
        if not block_ids:
            raise OptionError("A Stage needs at least one block.")
        object.__setattr__(self, "blocks", tuple(block_ids))
        object.__setattr__(self, "ipu_id", _ipu)

    def ipu(self, ipu_id: int) -> Stage:
        """The same stage on that IPU."""
        if isinstance(ipu_id, bool) or not isinstance(ipu_id, int) or ipu_id < 0:
            raise OptionError(f"An IPU is a number from 0 on, not {ipu_id!r}.")
        return Stage(*self.blocks, _ipu=ipu_id)

    def __str__(self) -> str:
        return JOIN.join(self.blocks) + ("" if self.ipu_id is None else f"{AT}{self.ipu_id}")

    @classmethod
    def parse(cls, word: str) -> Stage:
        """The stage that a word of the option `stages` says: `a+b@1`."""
        blocks, at, ipu = word.partition(AT)
        if at and not (ipu.isascii() and ipu.isdigit()):
            raise OptionError(f"Option stages: {word!r} must end in {AT} and the number of an IPU, such as {blocks or 'block'}{AT}1.")
        stage = cls(*blocks.split(JOIN))
        return stage.ipu(int(ipu)) if at else stage


def parsed(words: tuple[str, ...]) -> tuple[tuple[Stage, ...], tuple[int, ...]]:
    """Stages from the option's words, and the word that each is in: its phase, where there are phases.

    Raises:
        OptionError: a block is in two of them.
    """
    every = [(Stage.parse(part), i) for i, word in enumerate(words) for part in word.split(BESIDE)]
    seen: set[str] = set()
    for stage, _ in every:
        for name in stage.blocks:
            if name in seen:
                raise OptionError(f"{name} associated with more than one stage.")
            seen.add(name)
    return tuple(stage for stage, _ in every), tuple(i for _, i in every)


def default_ipus(strategy: str, phases: Sequence[int]) -> list[int]:
    """The IPUs of stages of which nothing says it: one each; in phases those of a group, which phases in turn have even and odd ones of."""
    if strategy not in PHASED:
        return list(range(len(phases)))
    place = [list(phases[:i]).count(p) for i, p in enumerate(phases)]
    return place if strategy == "serial_phased" else [2 * k + p % 2 for k, p in zip(place, phases, strict=True)]


@dataclass(frozen=True)
class Phase:
    """Stages of one phase, or the names of the blocks of its only stage: `Phase("a", "b")`, `Phase(Stage("a"), Stage("b")).ipus(0, 1)`."""

    stages: tuple[Stage, ...]

    def __init__(self, *given: Stage | str) -> None:
        names = [g for g in given if isinstance(g, str)]
        if names and len(names) != len(given):
            raise OptionError("A Phase takes stages, or names of blocks, which are one stage, but not both.")
        stages = (Stage(*names),) if names else given
        if not stages or not all(isinstance(s, Stage) for s in stages):
            raise OptionError("A Phase takes stages, or names of blocks.")
        object.__setattr__(self, "stages", tuple(stages))

    def ipus(self, *ipu_ids: int) -> Phase:
        """The same phase with its stages on these IPUs."""
        if len(ipu_ids) != len(self.stages):
            raise OptionError(f"Phase contains {len(self.stages)} stages but you provided {len(ipu_ids)} ipus")
        return Phase(*(s.ipu(i) for s, i in zip(self.stages, ipu_ids, strict=True)))

    def __str__(self) -> str:
        return BESIDE.join(map(str, self.stages))


@dataclass(frozen=True)
class ChosenPhase(Generic[S]):
    """A phase of a strategy, which `ipus` changes."""

    put: Callable[[int, tuple[int, ...]], S]
    number: int

    def ipus(self, *ipu_ids: int) -> S:
        """Put the stages of this phase on these IPUs; returns the strategy."""
        return self.put(self.number, ipu_ids)


@dataclass(frozen=True)
class PipelinedExecution:
    """Stages run as a pipeline, each with another micro-batch: stages, names of blocks (a stage each), or an AutoStage.

        options = tileflow.Options(**PipelinedExecution("encoder", "head").to_options())

    Raises:
        OptionError: something else is given, or a block is in two stages.
    """

    stages: tuple[Stage, ...]
    auto: AutoStage = AutoStage.SAME_AS_IPU
    strategy: Strategy = field(default="pipelined", init=False)

    def __init__(self, *given: Stage | str | AutoStage) -> None:
        autos = [g for g in given if isinstance(g, AutoStage)]
        if autos and len(given) > 1:
            raise OptionError("An AutoStage stands alone: it says how blocks become stages where no stages are given.")
        stages = tuple(Stage(g) if isinstance(g, str) else g for g in given if not isinstance(g, AutoStage))
        if not all(isinstance(s, Stage) for s in stages):
            raise OptionError(f"{type(self).__name__} takes stages, names of blocks, or an AutoStage.")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "auto", autos[0] if autos else AutoStage.SAME_AS_IPU)
        parsed(tuple(map(str, stages)))

    def to_options(self) -> dict[str, Any]:
        """Keywords for `tileflow.Options`."""
        found: dict[str, Any] = {"strategy": self.strategy, "stages": tuple(map(str, self.stages))}
        return found if self.stages else {"strategy": self.strategy, "auto_stage": self.auto.value}


@dataclass(frozen=True, init=False)
class ShardedExecution(PipelinedExecution):
    """Stages, given as for `PipelinedExecution`, each on its IPU and one after the other: no two IPUs compute at
    once."""

    strategy: Strategy = field(default="sharded", init=False)


@dataclass
class _Phased:
    """Phases: each a Phase, a Stage, the name of a block, or a list of stages or of names, as `Phase` takes them; or all of them in one list."""

    phases: tuple[Phase, ...]
    liveness: Liveness = "always_live"
    separate_backward: bool = False
    strategy: Strategy = field(default="serial_phased", init=False)

    def __init__(self, *phases: Any, liveness: Liveness = "always_live", separate_backward: bool = False) -> None:
        if len(phases) == 1 and isinstance(phases[0], list | tuple) and any(isinstance(p, list | tuple | Phase) for p in phases[0]):
            phases = tuple(phases[0])
        if not phases or not all(isinstance(p, Phase | Stage | str | list | tuple) for p in phases):
            raise OptionError("There is currently no AutoStage for PhasedExecution, please explicitly specify the phases")
        self.phases = tuple(p if isinstance(p, Phase) else Phase(*(p if isinstance(p, list | tuple) else (p,))) for p in phases)
        self.liveness, self.separate_backward = liveness, separate_backward
        self._check()

    def phase(self, number: int) -> ChosenPhase[Self]:
        """A phase by its number, to say where its stages are: `strategy.phase(0).ipus(0, 2)`.

        Raises:
            OptionError: there is none of that number.
        """
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.phases):
            raise OptionError(f"There is no phase {number!r}; phases are numbered from 0 to {len(self.phases) - 1}.")
        return ChosenPhase(self._put, number)

    def _put(self, number: int, ipus: tuple[int, ...]) -> Self:
        before = self.phases
        self.phases = (*before[:number], before[number].ipus(*ipus), *before[number + 1:])
        try:
            self._check()
        except OptionError:
            self.phases = before
            raise
        return self

    def _check(self) -> None:
        """OptionError where phases, their IPUs and the liveness of their tensors do not go together."""
        check_liveness(self.strategy, self.liveness)
        parsed(tuple(map(str, self.phases)))

    def to_options(self) -> dict[str, Any]:
        """Keywords for `tileflow.Options`."""
        return {"strategy": self.strategy, "stages": tuple(map(str, self.phases)), "tensors_liveness": self.liveness,
                "separate_backward_phase": self.separate_backward}


@dataclass(init=False)
class SerialPhasedExecution(_Phased):
    """Phases one after the other on one group of IPUs: stages of a phase each have one.

    Args:
        phases: each a Phase, a Stage, the name of a block, or a list of stages or of names, as `Phase` takes them; or
            all of them in one list.
        liveness: when tensors that later phases read leave the chip (the option tensors_liveness).
        separate_backward: the last phase's backward pass is a phase of its own.

    Raises:
        OptionError: something else is given, a block is in two stages, or the liveness does not fit.
    """

    strategy: Strategy = field(default="serial_phased", init=False)


@dataclass(init=False)
class ParallelPhasedExecution(_Phased):
    """Phases on two groups of IPUs in turn, even phases on even IPUs and odd ones on odd; arguments as of
    `SerialPhasedExecution`.

    Raises:
        OptionError: as there, or a stage is on an IPU of the other group.
    """

    strategy: Strategy = field(default="parallel_phased", init=False)

    def _check(self) -> None:
        super()._check()
        numbers = [i for i, p in enumerate(self.phases) for _ in p.stages]
        given = [s.ipu_id for p in self.phases for s in p.stages]
        require_parity([own if ipu is None else ipu for ipu, own in zip(given, default_ipus(self.strategy, numbers), strict=True)], numbers)
