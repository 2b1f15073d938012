"""What must hold between the parts of a Program, whoever made it: what links, outputs, states, schedule and stages name
is there, and all parts mean it alike.

Memory is taken and addressed by these: how often a part runs says how much of a caller's arrays it reads, the type of a
state how long its memory is.
"""
from __future__ import annotations

from collections.abc import Mapping

from ..graph import PARTIAL, State, TensorType, Value
from . import schedule
from .fields import Fault, shown
from .program import Program
from .replicas import copy_name
from .staging import SEVERAL

SCALAR = TensorType("float64", ())
"""The type of a hyper-parameter."""
REACH = 1 << 31
"""What memory of whole numbers begins with lies between minus this and this."""


def check(program: Program) -> None:
    """Raise Fault where parts do not fit together; each of them is what `verify` accepts."""
    _check_schedule(program)
    _check_values(program)
    found: dict[str, State] = {}
    for name, graph in program.parts.items():
        for state in graph.states:
            _check_state(name, state, found.setdefault(state.name, state))
            _check_partial(name, state)
    for state in found.values():
        start = found.get(state.start)
        if state.start and (state.kind != "accumulator" or start is None or start.input.type != state.input.type):
            raise Fault(f"state {shown(state.name)}", f"begins as {shown(state.start)}, which is no state like it")
    for name, others in program.own.items():
        _check_own(program, found, name, others)
    _check_staging(program)


def _check_schedule(program: Program) -> None:
    """A program that is not cut has the schedule of its batching."""
    batching = program.batching
    updates = batching.device_iterations if program.training else None
    count = batching.per_update if program.training else batching.micro_batches
    wanted = [schedule.one_by_one(count, updates, writes) for writes in (False, True)]
    if schedule.ACCUMULATE in program.parts:
        if not program.training or min(batching.replicas, batching.gradient_accumulation) < 2:
            raise Fault("the schedule", f"has sums of replicas, of which {batching} has none")
        wanted = [schedule.replicas_first(steps, batching.replicas) for steps in wanted]
    if program.own:
        wanted = [schedule.with_replicas(steps, batching.replicas, program.own_weights) for steps in wanted]
    if program.schedule not in wanted:
        raise Fault("the schedule", f"is not that of {batching}")


def _check_values(program: Program) -> None:
    """What parts hand to each other, and what a caller gives and gets."""
    made = {v: name for name, graph in program.parts.items() for node in graph.nodes for v in node.outputs}
    for name, graph in program.parts.items():
        for v in (*graph.inputs, *graph.constants, *(s.input for s in graph.states)):
            if v in made:
                raise Fault(name, f"is given {v.shown}, which {made[v]} makes, without a link")
    order = schedule.parts(program.schedule)
    readers = {v: name for name, graph in program.parts.items() for v in graph.inputs}
    for inner, source in program.links.items():
        reader, maker = readers[inner], made.get(source)
        if maker not in order or (reader in order and order.index(maker) >= order.index(reader)):
            raise Fault(reader, f"is fed {source.shown}, which no part before it makes")
    if program.returned is not None and not 0 <= program.returned <= len(program.micro.outputs):
        raise Fault("returned", f"is {program.returned} of {len(program.micro.outputs)} outputs")
    if len({v.name for v in (*program.inputs, *program.outputs)}) < len(program.inputs) + len(program.outputs):
        raise Fault("inputs and outputs", "share names")
    _check_loss(program, made)


def _check_loss(program: Program, made: Mapping[Value, str]) -> None:
    loss = program.loss
    if loss is not None and (made.get(loss) != "micro" or loss.type.size != 1 or not loss.type.is_float):
        raise Fault("the loss", f"is {loss!r} and not a floating-point number that the step makes")


def _check_state(part: str, state: State, first: State) -> None:
    """A state as a part has it. first: the same as some part before has it."""
    name, t = shown(state.name), state.input.type
    if (first.input.type, first.kind) != (t, state.kind):
        raise Fault(part, f"has the state {name} as {state.kind} of {t}; elsewhere it is another")
    if state.output is not None and state.output.type != t:
        raise Fault(part, f"writes {state.output.type} into the state {name} of {t}")
    if state.kind == "scalar" and (t != SCALAR or state.output is not None):
        raise Fault(part, f"has the hyper-parameter {name} as {t}, or writes it")
    if not t.is_float and not (abs(state.fill) < REACH and state.fill == int(state.fill)):
        raise Fault(part, f"fills the state {name} of {t} with {state.fill}")


def _check_partial(part: str, state: State) -> None:
    """Each replica has what accumulates its gradients, and nothing else; another part sums that up."""
    partial, written = state.role == PARTIAL, state.output is not None
    whose = (schedule.ACCUMULATE, schedule.REDUCE) if not written else (schedule.ACCUMULATE,)
    if (part == schedule.ACCUMULATE
        and written) > partial or (partial and (state.kind != "accumulator" or state.start or part not in whose)):
        raise Fault(part, f"has the state {shown(state.name)} of role {shown(state.role)}, which is no sum of each "
                          "replica, or must not be one")


def _check_own(program: Program, states: Mapping[str, State], name: str, others: tuple[str, ...]) -> None:
    """What each replica calls its own of a state."""
    state, replicas = states.get(name), program.batching.replicas
    if state is None or len(others) != replicas:
        raise Fault("own", f"has {len(others)} names of {shown(name)} for {replicas} replicas")
    whose = name if state.kind in ("parameter", "buffer") else state.owner
    copies = {copy_name(whose, replica) + name[len(whose):] for replica in range(replicas)}
    known = {states[other].input.type for other in others if other in states}
    if not name.startswith(whose) or not copies.issuperset(others) or known - {state.input.type}:
        raise Fault("own", f"calls {shown(name)} {shown(others)}")


def _check_staging(program: Program) -> None:
    """There is a place for every mark."""
    staging = program.staging
    if staging is None:
        return
    stages, marks = len(staging.ipus), [node.origin.hints.stage for node in program.micro.nodes]
    if staging.strategy not in SEVERAL or not stages or len(staging.phases) not in (0, stages):
        raise Fault("staging", f"is {shown(staging)}")
    if min((*staging.ipus, *staging.phases)) < 0:
        raise Fault("staging", f"is {shown(staging)}")
    if any(mark is not None and mark >= stages for mark in marks):
        raise Fault("staging", f"has {stages} stages, and nodes are marked for others")
