"""PopTorch's execution strategies, as written in a line, to tileflow's options."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...program.staging import PHASED
from ...system.errors import OptionError
from .values import Made, Word, WrittenCall, member

KINDS = {"PipelinedExecution": "pipelined", "ShardedExecution": "sharded", "SerialPhasedExecution": "serial_phased",
         "ParallelPhasedExecution": "parallel_phased"}
LATER = {"useSeparateBackwardPhase": PHASED, "setTensorsLiveness": ("serial_phased",),
         "sendTensorsOffChipAfterFwd": ("parallel_phased",)}
"""Calls on a strategy, and the strategies that have them."""


def execution(strategy: Any) -> Mapping[str, Any]:
    """The options that say `poptorch.PipelinedExecution(poptorch.Stage("B1").ipu(0), "B2")` and its like.

    Raises:
        OptionError: it is no strategy, or its arguments are none that it takes.
    """
    if not isinstance(strategy, Made) or strategy.kind not in KINDS:
        raise OptionError(f"needs one of {', '.join(f'poptorch.{name}(...)' for name in KINDS)}, not {strategy!r}.")
    kind, first = KINDS[strategy.kind], strategy.calls[0]
    if first.kwargs:
        raise OptionError(f"{strategy.kind} takes no {next(iter(first.kwargs))}.")
    phased = kind.endswith("phased")
    if not phased and len(first.args) == 1 and isinstance(first.args[0], Word):
        found: dict[str, Any] = {"strategy": kind, "auto_stage": member("AutoStage", first.args[0])}
    else:
        stages = [_phase(a) for a in _phases(first.args)] if phased else [_stage(a) for a in first.args]
        if phased and not stages:
            raise OptionError("There is currently no AutoStage for PhasedExecution, please explicitly specify the "
                              "phases.")
        found = {"strategy": kind, **({"stages": stages} if stages else {})}
    later = iter(strategy.calls[1:])
    for call in later:
        if phased and call.name == "phase":
            at = _number_of(call, len(stages))
            stages[at] = _on_ipus(stages[at].split("|"), next(later, WrittenCall("nothing")))
        else:
            found |= _later(call, kind, strategy.kind)
    return found


def _number_of(call: WrittenCall, count: int) -> int:
    """Which phase `.phase(i)` means."""
    found = call.args[0] if len(call.args) == 1 and not call.kwargs else None
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < count:
        raise OptionError(f"a phase is named by .phase(i), a whole number from 0 to {count - 1}.")
    return found


def _later(call: WrittenCall, kind: str, shown: str) -> Mapping[str, Any]:
    """A call on a strategy; without an argument it means True."""
    name = next((n for n in LATER if n.lower() == call.name.replace("_", "").lower() and kind in LATER[n]), None)
    if name is None:
        has = [n for n, kinds in LATER.items() if kind in kinds]
        raise OptionError(f"{shown}(...).{call.name} cannot be said here; " +
                          (f"it has {' and '.join([*has, 'phase(i).ipus(n, ...)'])}."
                           if has else "give Stage(...).ipu(n)."))
    value = call.args[0] if len(call.args) == 1 and not call.kwargs else True if not call.args and not call.kwargs else None
    if name == "setTensorsLiveness":
        return {"tensors_liveness": member("Liveness", value)}
    if not isinstance(value, bool):
        raise OptionError(f"{name} takes True or False.")
    if name == "useSeparateBackwardPhase":
        return {"separate_backward_phase": value}
    return {"tensors_liveness": "off_chip_after_fwd" if value else "always_live"}


def _stage(made: Any) -> str:
    """A word of the option stages: "a+b@1"."""
    if isinstance(made, str):
        return _named([made])
    if not isinstance(made, Made) or made.kind != "Stage" or len(made.calls) > 2 or made.calls[0].kwargs:
        raise OptionError(f"stages are poptorch.Stage(\"block\", ...).ipu(n) or names of blocks, not {made!r}.")
    blocks = _named(made.calls[0].args)
    return blocks if len(made.calls) == 1 else f"{blocks}@{_number(made.calls[1], 'ipu')}"


def _phases(given: Sequence[Any]) -> Sequence[Any]:
    """The phases: each an argument, or all of them in one list, as the user guide writes them."""
    if len(given) == 1 and isinstance(given[0],
                                      list) and any(isinstance(p, list) or (isinstance(p, Made) and p.kind == "Phase")
                                                    for p in given[0]):
        return given[0]
    return given


def _phase(made: Any) -> str:
    """A word of the option stages for a phase, "a+b@0|c@1": names of blocks or stages, a list of them, or Phase(...) of
    them, with .ipus(n, ...)."""
    if isinstance(made, list):
        return "|".join(_together(made))
    if not isinstance(made, Made) or made.kind != "Phase":
        return _stage(made)
    if len(made.calls) > 2 or made.calls[0].kwargs:
        raise OptionError("phases are poptorch.Phase(...).ipus(n, ...).")
    stages = _together(made.calls[0].args)
    return "|".join(stages) if len(made.calls) == 1 else _on_ipus(stages, made.calls[1])


def _on_ipus(stages: Sequence[str], call: WrittenCall) -> str:
    """A phase's word with its stages on the IPUs that `.ipus(n, ...)` says."""
    if call.name != "ipus":
        raise OptionError("where the stages of a phase are is said by .ipus(n, ...).")
    if len(call.args) != len(stages):
        raise OptionError(f"Phase contains {len(stages)} stages but you provided {len(call.args)} ipus")
    ipus = [_number(WrittenCall(call.name, (n,), call.kwargs), "ipus") for n in call.args]
    return "|".join(f"{stage.partition('@')[0]}@{ipu}" for stage, ipu in zip(stages, ipus, strict=True))


def _together(stages: Sequence[Any]) -> list[str]:
    """The stages of a phase: names of blocks, which are one, or stages."""
    if stages and all(isinstance(s, str) for s in stages):
        return [_named(stages)]
    if not stages or any(isinstance(s, str) for s in stages):
        raise OptionError("a phase takes stages, or names of blocks, which are one stage, but not both.")
    return [_stage(s) for s in stages]


def _named(blocks: Sequence[Any]) -> str:
    for name in blocks:
        if not isinstance(name, str) or not name or any(c in name for c in "+@,|"):
            raise OptionError(f"blocks are named by texts without +, @, | or commas, not {name!r}.")
    if not blocks:
        raise OptionError("a stage needs at least one block.")
    return "+".join(blocks)


def _number(call: WrittenCall, wanted: str) -> int:
    """The IPU that a call names."""
    found = call.args[0] if len(call.args) == 1 and not call.kwargs else None
    if call.name.lower() != wanted or isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise OptionError(f"an IPU is named by .{wanted}(n), a whole number from 0 on.")
    return found
