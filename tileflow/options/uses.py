"""Which verb uses which option, and what is said of one that would have no effect where it was given.

An options file or an Options object describes a whole project and may say more than one verb needs; what somebody
writes into a call or behind a command is meant for that verb, so it has an effect there or is refused.
"""
from __future__ import annotations

from collections.abc import Iterable

from ..system.errors import OptionError
from .declaration import Declaration
from .needs import joined
from .options import Options, declarations
from .verbs import COMMANDS, SIMULATED

AXES = ("training", "machine", "replication_factor", "ipus", "micro_batch_size", "gradient_accumulation", "precision",
        "available_memory_proportion", "recompute", "optimizer_off_chip")
"""What may have several values in an exploration, in the order of tables: options, whether the model is trained, and on
how many IPUs it runs."""


def used_by(verb: str) -> list[Declaration]:
    """The options that a verb uses, in their order."""
    return [d for d in declarations().values() if verb in d.verbs]


def check_use(verb: str, given: Iterable[str], options: Options, *, training: bool = True,
              command: bool = False) -> None:
    """Refuse what was given to a verb and would have no effect.

    Args:
        given: names of the options that were written for this very call or command, among all of `options`.
        training: whether a verb that may or may not train does.
        command: sentences are for the command line.

    Raises:
        OptionError: one of them has no effect; the sentence says where it would.
    """
    for name in given:
        reason = _no_effect(verb, declarations()[name], options, training, command)
        if reason is not None:
            raise OptionError(f"Option {name}{f' ({declarations()[name].flag})' if command else ''} {reason}")


def check_layers(options: Options) -> None:
    """Refuse what is set for an ONNX file where the model is a network of layers; OptionError."""
    for d in declarations().values():
        if d.of_files and options.given(d.name, files=False):
            raise OptionError(f"Option {d.name} has no effect on a network of layers; it is for ONNX files.")


def _no_effect(verb: str, declaration: Declaration, options: Options, training: bool, command: bool) -> str | None:
    """Why an option has no effect on a verb; None where it has one."""
    verbs = declaration.verbs
    neutral = declaration.neutral is not None and getattr(options, declaration.name) == declaration.neutral
    if neutral and (verb in verbs or not command):
        return None                                     # so it is everywhere; a flag that a command has not is none
    if verb not in verbs:
        shown = [v for v in verbs if v in COMMANDS] if command else verbs
        return f"has no effect on {verb}; it is for {joined(shown or verbs)}."
    if not command and verb in declaration.commands:
        typed = {v for d in declarations().values() for v in d.commands}
        return f"has no effect on the function {verb}, which returns its results; it is for " \
               f"{joined(v for v in verbs if v not in typed)} and the command line."
    if verb == "compile" and options.machine is None and declaration.of_machine:
        machine = "--machine gc200" if command else "machine='gc200'"
        return f"is about the tile machine; name one, for example {machine}, or leave it out."
    if verb in (*SIMULATED, "inspect") and not training and declaration.for_training:
        return f"counts for training only; add {'--training' if command else 'training=True'}, or leave it out."
    if verb == "train" and options.resume is not False:          # the run's folder knows the rest
        return None
    for need in declaration.needs:
        if not need.met(options, verb):
            return f"has no effect {need.missing(options)}; it is for {need.wanted()}."
    return None
