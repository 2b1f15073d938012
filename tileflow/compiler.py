"""From a graph to a Program: the named, timed steps of the street, stoppable after any of them."""
from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from .graph import Builder, Graph, Origin, State, Value, verify
from .graph.collector import without_collector
from .graph.rules import FOLDED
from .optim import Optimizer, noise, rounding
from .optim.adapting import adapt, loss_scale
from .optim.base import Averaged, build_fold, build_reduce, build_update
from .optim.listed import chosen
from .optim.scaling import LossScaling
from .options.options import Options
from .passes.autocast import autocast
from .passes.autograd import gradients, losses, reached
from .passes.casts import shorten_casts
from .passes.checkpoint import keep_results, recompute
from .passes.cse import cse
from .passes.fold import fold
from .passes.gather import gather
from .passes.partials import require_halves, set_partials
from .passes.serialize import serialize
from .passes.split import hoist, split_fold
from .precision.casting import choices
from .precision.types import Precision
from .program import schedule
from .program.batching import Batching
from .program.program import Program
from .program.replicas import Grouping, copy_of, grouped, own_states, refuse_written
from .program.staging import SEVERAL
from .strategy.mark import Marking
from .system.errors import OptionError, UnsupportedError
from .system.text import one_line

Loss = Callable[[Builder, Sequence[Value]], Value]
"""Builds a loss from the model's outputs; makes the inputs it needs (labels) itself and returns the loss."""


@dataclass(repr=False)
class Compilation:
    """A Program under construction, with what each step took and left behind."""

    program: Program
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Sentences on what nobody chose."""

    def __repr__(self) -> str:
        """One line: graphs, plans and reports of a large model are megabytes."""
        parts = {name: len(graph.nodes) for name, graph in self.program.parts.items() if graph.nodes}
        return f"{type(self).__name__}({', '.join(f'{name}: {n} operators' for name, n in parts.items())})"

    def to_text(self) -> str:
        """What there is to say, the steps with their times, then the program as it stands."""
        said = "".join(f"{note}\n" for note in self.notes)
        steps = "\n".join(f"  {name:<10} {1e3 * s:8.1f} ms" for name, s in self.seconds.items())
        return f"{said}steps\n{steps}\n\n{self.program.to_text()}"


Step = tuple[str, Callable[[Program], None]]


@without_collector
def run_steps(program: Program, steps: Sequence[Step], stop_after: str | None = None) -> Compilation:
    """Run the steps in order, verifying every graph after each.

    Raises:
        OptionError: `stop_after` names no step.
    """
    names = [name for name, _ in steps]
    if stop_after is not None and stop_after not in names:
        raise OptionError(f"stop_after={stop_after!r} is no step of this compilation; the steps are {', '.join(names)}.")
    compilation = Compilation(program)
    for name, step in steps:
        began = time.perf_counter()
        step(program)
        for graph in program.graphs:
            verify(graph)
        compilation.seconds[name] = time.perf_counter() - began
        if name == stop_after:
            break
    return compilation


Measures = Callable[[Builder, Sequence[Value]], Sequence[Value]]
"""Builds what is to be measured (losses) from the model's outputs, with the inputs that it needs."""


@dataclass(frozen=True)
class CompileOptions:
    """What shapes a compilation beside the graph, its batching, the loss and the optimizer: what options come to here.

    precision: element types, and which operators are cast.
    serialized: matmuls to do in pieces: name pattern -> the axis ("input_channels", "reducing_dim" or
        "output_channels") and the number of pieces.
    marking: which layers run on which IPU, and how; None: one IPU does all.
    grouping: which replicas share a parameter, by name pattern; by default all of them.
    broadcast_buffers: replicas share the buffers that micro-batches change; else each has its own.
    stop_after: the name of the last step; None: all are done.

    Inference only:
    writes: what the model writes into its buffers is kept; else each micro-batch finds them as they are.

    Training only:
    reduction: gradients are summed over an update's micro-batches ("sum"), or averaged ("mean").
    mean_reduction: averaged as a sum that the update divides ("post"), or as a running mean ("running"); None: as the
        accumulators' type has it (`optim.base.Averaged`).
    loss_scaling: what the loss scale of a new session is: a state, so that another one takes effect without compiling.
    scaling: how the loss scale changes by itself, and whether updates that are not finite are skipped.
    gradient_noise: the noise of gradients is measured (`optim.noise`).
    sync_each_batch: gradients are summed in the order of micro-batches; else each replica sums up its own of an update
        first.
    reduce_dtype: what each micro-batch's gradients are rounded to before they are summed; None: they stay as they are.
    checkpoints: name patterns of the layers and nodes to compute again for the backward pass.
    kept: name patterns of the layers and nodes whose results are kept where what is around them is computed again.
    """

    precision: Precision = field(default_factory=Precision)
    serialized: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    marking: Marking | None = None
    grouping: Mapping[str, Grouping] = field(default_factory=dict)
    broadcast_buffers: bool = True
    stop_after: str | None = None
    writes: bool = True
    reduction: str = "mean"
    mean_reduction: str | None = None
    loss_scaling: float = 1.0
    scaling: LossScaling = field(default_factory=LossScaling)
    checkpoints: Sequence[str] = ()
    kept: Sequence[str] = ()
    gradient_noise: bool = False
    sync_each_batch: bool = True
    reduce_dtype: str | None = None

    @classmethod
    def of(cls, options: Options, precision: Precision | None = None) -> CompileOptions:
        """What the options say; of a graph that was made in a `precision` of its own, with that."""
        return cls(precision or Precision.of(options), options.serial_splits, Marking.of(options),
                   Grouping.named(options.groupings), options.broadcast_buffers,
                   reduction=options.accumulation_reduction, mean_reduction=options.mean_reduction_strategy,
                   scaling=LossScaling.of(options), checkpoints=options.gradient_checkpointing,
                   kept=options.recomputation_checkpoints, gradient_noise=options.gradient_noise,
                   sync_each_batch=options.sync_each_batch, reduce_dtype=options.reduce_dtype)


DEFAULTS = CompileOptions()


def inference(graph: Graph, batching: Batching, options: CompileOptions = DEFAULTS, *, measures: Measures | None = None,
              anchors: Sequence[Value] = ()) -> Compilation:
    """Compile a forward graph for inference.

    Args:
        measures: gives outputs that follow the model's own.
        anchors: values of the graph that become outputs, too: the last ones.

    Raises:
        OptionError: the options do not fit the graph; the sentence says which.
    """
    if not options.writes:
        graph.write_nothing()

    def measure(p: Program) -> None:
        assert measures is not None
        b = Builder(p.micro, Origin(("loss",)))
        for value in measures(b, _wide(b, p.micro.outputs)):
            p.micro.outputs.append(b.Identity(value) if value.producer is None or value in p.micro.outputs else value)

    more: list[Step] = [("loss", measure), ("simplify", _simplify)] if measures is not None else []
    _anchor(graph, anchors)
    steps = [*_forward(options), *more, *_stages(options), ("split", _split), *_replicas(batching, options)]
    return run_steps(Program.of(graph, batching), steps, options.stop_after)


def _anchor(graph: Graph, anchors: Sequence[Value]) -> None:
    """Values within the graph become outputs that follow its own."""
    b = Builder(graph)
    for value in anchors:
        graph.outputs.append(b.Identity(value) if value.producer is None or value in graph.outputs else value)


def training(graph: Graph, loss: Loss, optimizer: Optimizer, batching: Batching, options: CompileOptions = DEFAULTS, *,
             anchors: Sequence[Value] = (), anchored_gradients: Sequence[str] = (),
             named: Mapping[int, str] | None = None) -> Compilation:
    """Compile a forward graph for training.

    The loss becomes an output of the micro-step: one of the model's own, or the last but for anchors. Gradients are summed over an update's
    micro-batches and, with the reduction "mean", divided by their number at the update, or kept as a running mean.

    Args:
        anchors: values of the graph that become outputs, too: the last ones.
        anchored_gradients: parameters whose gradients, of one micro-batch and of the scaled loss, become outputs after
            those.
        named: names of the network's own parameter objects, by identity, for an optimizer's groups that hold such.

    Raises:
        OptionError: nothing to train, a loss scale of zero, a parameter group that fits no parameter, no 16-bit gradient for the histogram, or
            replicas with weights of their own that cannot be trained so.
    """
    own = len(graph.outputs)
    _anchor(graph, anchors)
    program = Program.of(graph, batching, training=True)

    def add_loss(p: Program) -> None:
        b, extra = Builder(p.micro, Origin(("loss",))), p.micro.outputs[own:]
        del p.micro.outputs[own:]
        p.loss = loss(b, _wide(b, p.micro.outputs))
        if p.loss.type.size != 1 or not p.loss.type.is_float:
            raise OptionError(f"The loss must be one floating-point number per micro-batch, got {p.loss.type}; reduce it, or use identity_loss.")
        p.micro.outputs += [*([] if p.loss in p.micro.outputs else [p.loss]), *extra]
        p.returned = len(p.micro.outputs)

    def differentiate(p: Program) -> None:
        trained = [s for s in p.micro.parameters if s.trainable]
        if not trained:
            raise OptionError("The model has no weight to train; check the options frozen and trainable.")
        assert p.loss is not None
        trained = chosen(optimizer, trained, named or {})
        # A weight without gradient is not updated: neither decayed nor moved by what its moments remember (PyTorch and PopART skip it, too).
        inputs = [s.input for s in trained]
        p.notes += losses(p.micro, p.loss, inputs, [s.name for s in trained])
        trained = list(compress(trained, reached(p.micro, p.loss, inputs)))
        if not trained and p.notes:
            raise UnsupportedError(f"Nothing of the model would be trained. {p.notes[0]}")
        if not trained:
            raise OptionError("The loss depends on no weight that is trained; check the model's outputs and the options frozen and trainable.")
        scale = loss_scale(Builder(p.micro), options.loss_scaling)
        grads = gradients(p.micro, p.loss, [s.input for s in trained], scale.input)
        averaged = Averaged.of(optimizer, batching.per_update, options.reduction, options.mean_reduction,
                               options.loss_scaling)
        for name in anchored_gradients:
            p.micro.outputs.append(_gradient_of(p, name, trained, grads))
        p.returned = len(p.micro.outputs)
        groups = _grouped(p, optimizer, averaged, options.grouping)
        first = not options.sync_each_batch and min(batching.replicas, batching.gradient_accumulation) > 1
        if first:
            _check_replicas_first(p, optimizer, bool(groups))
        if options.reduce_dtype is not None and batching.per_update > 1:
            grads = [_rounded(p.micro, g, options.reduce_dtype) for g in grads]
        arriving = _add_update(p, trained, grads, optimizer, averaged, named or {}, groups, first)
        if options.gradient_noise:
            noise.check(optimizer, bool(groups))
            if batching.per_update > 1:                         # the last update of some data may have one
                p.links.update(noise.measure(p.parts, arriving, averaged, batching.micro_batch, batching.per_update))

    steps = [*_forward(options), ("loss", add_loss), *_stages(options), ("autograd", differentiate),
             *_rounding(options.precision), ("simplify", _simplify), *_scaling(options.scaling), ("split", _split),
             *_replicas(batching, options), *_checkpoints(options)]
    return run_steps(program, steps, options.stop_after)


def _gradient_of(p: Program, name: str, trained: Sequence[State], grads: Sequence[Value]) -> Value:
    """A parameter's gradient as an output; OptionError where it has none."""
    found = next((g for s, g in zip(trained, grads, strict=True) if name in (s.name, s.known_as)), None)
    if found is None:
        raise OptionError(f"Option anchored_tensors: {one_line(name)} is no parameter that has a gradient; there are "
                          f"{one_line(', '.join(s.known_as for s in trained), 1000)}.")
    return Builder(p.micro).Identity(found)


def _rounded(micro: Graph, gradient: Value, dtype: str) -> Value:
    """A gradient in a type of 16 bits, where it has more."""
    b = Builder(micro)
    with b.at(Origin((), "backward") if gradient.producer is None else gradient.producer.origin):
        return gradient if gradient.type.is_half else b.cast(gradient, dtype)


def _wide(b: Builder, values: Sequence[Value]) -> list[Value]:
    """Values for a loss, which is computed in float32 where a model's outputs have 16 bits."""
    return [b.widened(v) for v in values]


def _gather(p: Program) -> None:
    gather(p.micro)


def _forward(options: CompileOptions) -> list[Step]:
    """What is done to every forward graph first."""
    return [("gather", _gather), ("autocast", _autocast(options.precision)), ("fold", _fold), ("cse", _cse),
            *_serialize(options)]


def _autocast(precision: Precision) -> Callable[[Program], None]:
    def step(p: Program) -> None:
        choose = choices(precision, p.micro)
        if choose is not None:
            autocast(p.micro, choose)
        if precision.partials:
            set_partials(p.micro, dict(precision.partials))
            if not precision.on_tiles:
                require_halves(p.micro)
    return step


def _serialize(options: CompileOptions) -> list[Step]:
    def step(p: Program) -> None:
        serialize(p.micro, options.serialized)
    return [("serialize", step)] if options.serialized else []


def _checkpoints(options: CompileOptions) -> list[Step]:
    def step(p: Program) -> None:
        recompute(p.micro, options.checkpoints)
        keep_results(p.micro, options.kept)
    return [("checkpoint", step)] if options.checkpoints or options.kept else []


def _stages(options: CompileOptions) -> list[Step]:
    """Marks for the stages, before autograd, which hands them on to gradients."""
    def step(p: Program) -> None:
        assert options.marking is not None
        p.staging = options.marking.mark(p.micro, p.batching, p.training)
    return [("stages", step)] if options.marking is not None else []


def _replicas(batching: Batching, options: CompileOptions) -> list[Step]:
    def step(p: Program) -> None:
        if options.broadcast_buffers:
            refuse_written(p.graphs)
        shared = grouped(_parameters(p), options.grouping, batching.replicas)
        p.tell_apart(own_states(p.graphs, shared, batching.replicas, not options.broadcast_buffers))
    return [("replicas", step)] if batching.replicas > 1 else []


def _parameters(p: Program) -> list[State]:
    """The model's own, wherever they are read by now."""
    return list({s.name: s for part in ("micro", "prologue") for s in p.parts[part].parameters}.values())


def _grouped(p: Program, optimizer: Optimizer, averaged: Averaged, grouping: Mapping[str, Grouping]) -> dict[str, tuple[int, ...]]:
    """The parameters that not all replicas share, where they can be trained so.

    Raises:
        OptionError: they cannot.
    """
    found = grouped(_parameters(p), grouping, p.batching.replicas)
    if found and not math.isinf(optimizer.max_grad_norm):
        raise OptionError("Option replica_grouping: max_grad_norm would have another norm for each replica, so that weights which they share would "
                          "become different; leave one of the two out.")
    if found and averaged.running:
        raise OptionError("Option replica_grouping: a running mean of gradients is over the micro-batches of all replicas, and some weights get "
                          "those of a group only; choose mean_reduction_strategy='post' (float16 accumulators take running by themselves).")
    return found


def _check_replicas_first(p: Program, optimizer: Optimizer, grouped: bool) -> None:
    """OptionError where replicas have no sums of their own."""
    if optimizer.combined:
        raise OptionError("Option sync_each_batch=False has each replica sum up its own gradients, and "
                          "use_combined_accum adds them to the velocity, which all replicas share; "
                          "leave one of the two out.")
    if grouped:
        raise OptionError("Option sync_each_batch=False sums up the gradients of all replicas once an update, and with "
                          "replica_grouping some weights get those of a group only; leave one of the two out.")
    if p.staging is not None and p.staging.strategy in SEVERAL:
        raise OptionError("Option sync_each_batch=False has each replica sum up the gradients of a whole step, and "
                          "option strategy cuts it into stages, each with sums of its own; leave one of the two out.")


def _rounding(precision: Precision) -> list[Step]:
    """How the update writes states of 16 bits, where that is not simply rounded."""
    def step(p: Program) -> None:
        if precision.master_weights == "remainder":
            rounding.keep_remainders(p.parts["update"])
        if precision.stochastic_rounding:
            rounding.stochastic(p.parts["update"])
    return [("rounding", step)] if precision.stochastic_rounding or precision.master_weights != "none" else []


def _scaling(scaling: LossScaling) -> list[Step]:
    def step(p: Program) -> None:
        assert p.loss is not None
        p.links.update(adapt(p.parts, p.loss, scaling, p.batching.per_update))
        p.skips = scaling.skip
        cse(p.parts["update"])
    return [("scaling", step)] if scaling.skip or scaling.automatic != "off" else []


def _fold(p: Program) -> None:
    gather(fold(p.micro), FOLDED)


def _cse(p: Program) -> None:
    cse(shorten_casts(p.micro))


def _simplify(p: Program) -> None:
    for graph in p.graphs:
        cse(shorten_casts(fold(graph)))


def _split(p: Program) -> None:
    """Buffers that micro-batches change join the accumulators in the fold graph; what depends on weights only leaves the micro-step."""
    statistics, sums = split_fold(p.micro, p.links), p.parts["fold"]
    for part in ("inputs", "nodes", "states"):
        getattr(sums, part).extend(getattr(statistics, part))
    sums.constants.update(statistics.constants)
    _unique_names(sums, {*p.micro.constants, *(s.input for s in p.micro.states)})
    p.parts["prologue"] = hoist(p.micro, p.links, {s.name for s in sums.states if s.output is not None})


def _unique_names(graph: Graph, shared: Container[Value]) -> None:
    """Give every value of a graph a name of its own; those that it shares with another graph, where theirs differ, keep what they have."""
    taken: set[str] = set()
    values = [*graph.inputs, *graph.constants, *(s.input for s in graph.states), *(v for n in graph.nodes for v in n.outputs)]
    for value in sorted(dict.fromkeys(values), key=lambda v: v not in shared):
        stem, k = value.name, 0
        while value.name in taken:
            k += 1
            value.name = f"{stem}.{k}"
        taken.add(value.name)


def _add_update(p: Program, trained: list[State], grads: list[Value], optimizer: Optimizer, averaged: Averaged, named: Mapping[int, str],
                groups: Mapping[str, tuple[int, ...]], replicas_first: bool) -> list[Value]:
    """Gradients leave the micro-step as outputs, which are returned; they arrive in accumulators (fold, or accumulate
    and reduce) or, alone, straight at the update. That writes the weights of all groups of replicas."""
    b = Builder(p.micro)
    distinct: list[Value] = []
    taken = set(p.micro.outputs)
    for g in grads:
        if g in taken or g.producer is None:
            g = b.Identity(g)
        taken.add(g)
        distinct.append(g)
    p.micro.outputs.extend(distinct)
    accumulated = p.batching.per_update > 1
    every = p.micro.parameters
    later = [copy_of(s, g) for s in trained for g in sorted(set(groups.get(s.name, ())) - {0})]
    assert accumulated or not later, "several replicas have several micro-batches"
    p.parts["update"], arrivals = build_update(optimizer, [*trained, *later], [None if accumulated else g for g in distinct] + [None] * len(later),
                                               averaged, every=every, named=named)
    if replicas_first:
        accumulate, arrivals = build_fold(optimizer, trained, distinct, averaged, every=every, named=named,
                                          name=schedule.ACCUMULATE, partial=True)
        reduce = build_reduce(optimizer, trained, averaged, every=every, named=named, name=schedule.REDUCE)
        p.parts = {"micro": p.parts["micro"], "prologue": p.parts["prologue"], schedule.ACCUMULATE: accumulate,
                   "fold": p.parts["fold"], schedule.REDUCE: reduce, "update": p.parts["update"]}
        p.schedule = schedule.replicas_first(p.schedule, p.batching.replicas)
    elif accumulated:
        p.parts["fold"], arrivals = build_fold(optimizer, trained, distinct, averaged, every=every, named=named)
    p.links.update({arrivals[s.name]: g for s, g in zip(trained, distinct, strict=True)})
    return distinct
