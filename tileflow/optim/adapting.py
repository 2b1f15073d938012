"""A loss scale that adapts and updates that are skipped, as rewrites of a program's finished graphs: so that updates of many weights stay one row,
and the tile machine sees the selects."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ..graph import Builder, Graph, Origin, State, Value
from ..memory.types import HALVES, TensorType
from ..system.errors import OptionError
from .scaling import (
    BAD_LOSSES,
    GROWTH,
    IN_A_ROW,
    LARGE,
    LARGEST,
    LOSS_SCALE,
    SINCE,
    SKIPPED,
    SMALLEST,
    USED_SCALE,
    LossScaling,
    check_scale,
)

ORIGIN = Origin(("loss scaling",), "update")
NUMBER = TensorType("float64", ())
FLOAT16_MAX = 65504.0


def adapt(parts: Mapping[str, Graph], loss: Value, scaling: LossScaling, micro_batches: int) -> dict[Value, Value]:
    """Let the update skip what is not finite and find the next scale.

    Args:
        parts: micro, fold and update as they are otherwise complete. The update reads its gradients as inputs or from accumulators.
        loss: that of a micro-batch, a value of the micro-step.
        micro_batches: of an update.

    Returns:
        links: new inputs of the fold to values of the micro-step.

    Raises:
        OptionError: the histogram has no 16-bit gradient to count.
    """
    micro, fold, update = parts["micro"], parts["fold"], parts["update"]
    links: dict[Value, Value] = {}
    before, f, w = len(update.nodes), Builder(fold, ORIGIN), UpdateWriter(update)
    gradients = [s.input for s in update.states if s.kind == "accumulator" and s.owner != "optimizer"] + update.inputs
    finite = large = None
    total = 0
    if scaling.skip:
        arriving = f.input("loss.contribution", loss.type)
        links[arriving] = loss
        bad = f.Cast(f.Not(f.AllFinite(arriving)), to="float64")
        finite = w.b.And(w.b.AllFinite(*gradients), w.b.Equal(w.summed(f, BAD_LOSSES, bad), w.number(0.0)))
    if scaling.automatic == "histogram":
        found = tracked(micro)
        arriving = f.input("large.contribution", NUMBER)
        m, edge = Builder(micro, ORIGIN), FLOAT16_MAX * scaling.bin_edge_location
        links[arriving] = summed_in_step(m, found, lambda v: m.CountLarge(v, edge=edge))
        large, total = w.summed(f, LARGE, arriving), micro_batches * sum(v.type.size for v in found)
    update.nodes = update.nodes[before:] + update.nodes[:before]                   # before what they decide on
    if finite is not None:
        _select(w, finite)
        w.state(SKIPPED, lambda n: w.b.Add(n, w.choose(finite, 0.0, 1.0)))
        w.state(IN_A_ROW, lambda n: w.choose(finite, 0.0, w.b.Add(n, w.number(1.0))))
    if scaling.automatic != "off":
        w.state(USED_SCALE, lambda _: w.b.Cast(w.scale().input, to="float64"))
    if scaling.automatic == "dynamic":
        assert finite is not None
        _dynamic(w, scaling, finite)
    elif large is not None:
        _histogram(w, scaling, finite, large, float(total))
    return links


def _select(w: UpdateWriter, finite: Value) -> None:
    """Every state that the update writes stays as it was unless all is finite."""
    for state in w.b.graph.states:
        if state.output is not None:
            maker = state.output.producer
            with w.b.at(ORIGIN if maker is None else maker.origin):
                state.output = w.b.Where(finite, state.output, state.input)


def _dynamic(w: UpdateWriter, scaling: LossScaling, finite: Value) -> None:
    """As torch.amp.GradScaler: the scale shrinks after a bad update and grows after `growth_interval` good ones in a row."""
    b, scale = w.b, w.scale()
    due: list[Value] = []

    def counted(n: Value) -> Value:
        following = b.Add(n, w.number(1.0))
        due.append(b.GreaterOrEqual(following, w.number(float(scaling.growth_interval))))
        return w.choose(b.And(finite, b.Not(due[0])), following, 0.0)
    w.state(GROWTH, counted)
    wide = b.Cast(scale.input, to="float64")
    grown = b.Min(b.Mul(wide, w.number(scaling.growth_factor)), w.number(LARGEST))
    shrunk = b.Max(b.Mul(wide, w.number(scaling.backoff_factor)), w.number(SMALLEST))
    scale.output = b.Cast(w.choose(finite, w.choose(due[0], grown, wide), shrunk), to="float32")


def _histogram(w: UpdateWriter, scaling: LossScaling, finite: Value | None, large: Value, total: float) -> None:
    """As PopART: halved where large > f * small with f = t / (1 - t), else doubled; every `update_period` updates."""
    b, scale, t = w.b, w.scale(), scaling.threshold_upper_count_proportion
    small = b.Sub(w.number(total), large)
    down = b.Greater(large, b.Mul(w.number(t / (1 - t) if t < 1 else math.inf), small))
    if finite is not None:
        down = b.Or(down, b.Not(finite))
    wide = b.Cast(scale.input, to="float64")
    found = w.choose(down, b.Max(b.Mul(wide, w.number(0.5)), w.number(SMALLEST)), b.Min(b.Mul(wide, w.number(2.0)), w.number(LARGEST)))
    if scaling.update_period > 1:
        due: list[Value] = []

        def counted(n: Value) -> Value:
            following = b.Add(n, w.number(1.0))
            due.append(b.GreaterOrEqual(following, w.number(float(scaling.update_period))))
            return w.choose(due[0], 0.0, following)
        w.state(SINCE, counted)
        found = w.choose(due[0] if finite is None else b.Or(due[0], b.Not(finite)), found, wide)
    scale.output = b.Cast(found, to="float32")


class UpdateWriter:
    """An update graph that gets more states, all of them float64 scalars."""

    def __init__(self, update: Graph, origin: Origin = ORIGIN) -> None:
        self.b = Builder(update, origin)

    def number(self, x: float) -> Value:
        return self.b.constant(x)

    def choose(self, condition: Value, yes: Value | float, no: Value | float) -> Value:
        return self.b.Where(condition, *[x if isinstance(x, Value) else self.number(x) for x in (yes, no)])

    def scale(self) -> State:
        return self.b.graph.state(LOSS_SCALE)

    def state(self, name: str, new: Callable[[Value], Value]) -> None:
        """A state that every update writes, whatever it skips."""
        made = _own(self.b, name, "optimizer", NUMBER)
        self.b.graph.states.append(made)
        made.output = new(made.input)

    def summed(self, f: Builder, name: str, value: Value) -> Value:
        """The sum over an update's micro-batches of a value that the fold has of each."""
        total, read = _own(f, name, "accumulator", value.type), _own(self.b, name, "accumulator", value.type)
        total.output = f.Add(total.input, value)
        f.graph.states.append(total)
        self.b.graph.states.append(read)
        return read.input


def _own(b: Builder, name: str, kind: Literal["optimizer", "accumulator"], type: TensorType) -> State:
    return State(name, kind, Value(b.name(name), type), when="micro" if kind == "accumulator" else "update", group=name, owner="optimizer",
                 role=name.removeprefix("optimizer."))


def tracked(micro: Graph) -> list[Value]:
    """The 16-bit gradients of a micro-step: what the backward pass makes from the loss scale on, but for views, and that somebody reads.

    Raises:
        OptionError: there are none.
    """
    scale = micro.state(LOSS_SCALE).input
    scaled, found, read = {scale}, [], micro.uses()
    for node in micro.nodes:
        if any(v in scaled for v in node.operands):
            scaled.update(node.outputs)
            found += [v for v in node.outputs if v.dtype in HALVES and read.get(v) and node.op.alias is None]
    if not found:
        raise OptionError("automatic_loss_scaling='histogram': no tracked gradient tensors of type float16 or bfloat16 were found, so that there is "
                          "nothing to count; train in 16 bits (precision='16-mixed'), choose dynamic, or leave it out.")
    return found


def summed_in_step(b: Builder, values: Sequence[Value], measured: Callable[[Value], Value]) -> Value:
    """The sum of a scalar of each value, an output of the builder's micro-step; each part is where its value is
    made."""
    total: Value | None = None
    for v in values:
        with b.at(b.origin if v.producer is None else v.producer.origin):
            part = measured(v)
            total = part if total is None else b.Add(total, part)
    assert total is not None
    b.graph.outputs.append(total)
    return total


def loss_scale(b: Builder, initial: float) -> State:
    """The loss scale (float32 scalar, `initial` where it begins) as a state of the builder's graph, which reads it
    only."""
    value = Value(b.name(LOSS_SCALE), TensorType("float32", ()))
    state = State(LOSS_SCALE, "optimizer", value, group=LOSS_SCALE, owner="optimizer", role="loss_scale",
                  fill=check_scale(initial))
    b.graph.states.append(state)
    return state


def unscaling(b: Builder, scale: Value, micro_batches: int) -> Value:
    """The factor (float64 scalar) that takes the scale out of a sum of gradients and divides it by the number of
    micro-batches."""
    one, count = (b.constant(number) for number in (1.0, float(micro_batches)))
    wide = b.Cast(scale, to="float64")
    return b.Div(one, wide if micro_batches == 1 else b.Mul(wide, count))
