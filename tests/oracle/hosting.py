"""Operators with what the host adds to them, made by hand as its passes make them."""
from __future__ import annotations

from collections.abc import Sequence

from tileflow.graph import Op, TensorType
from tileflow.host.form import HostForm, Packed
from tileflow.host.hosted import Hosted, hosted
from tileflow.kernels.elementwise.expr import Expr
from tileflow.kernels.isa import cpu
from tileflow.ops.conv import ConvWeightGrad


def channels_last(op: Op) -> Hosted:
    """A convolution or a gradient of it over channels-last images."""
    return Hosted(op, HostForm((True, True), ()) if isinstance(op, ConvWeightGrad) else HostForm((True,), (True,)))


def stem(op: Op) -> Hosted:
    """A convolution from planar to channels-last images."""
    return Hosted(op, HostForm((), (True,)))


def packed(op: Op, inputs: Sequence[TensorType | None]) -> tuple[Packed | None, Hosted]:
    """How an operand is laid out, and the operator that reads it so."""
    host = hosted(op)
    found = host.packing(inputs, op.infer(*inputs), cpu.current())
    return found, host if found is None else host.also(packed=found)


def finished(op: Op, inputs: int, y: TensorType, exprs: tuple[Expr, ...], kinds: tuple[str, ...]) -> Hosted:
    """The operator, of so many inputs and one result `y`, with an epilogue whose operands lie as `kinds` say."""
    host = hosted(op)
    assert host.blockwise is not None
    shapes = {"full": y.shape, "channel": (y.shape[host.blockwise.channels],), "scalar": ()}
    return host.then(exprs, inputs, [y], [(y.with_shape(shapes[kind]), kind) for kind in kinds])


def added(op: Op) -> set[str]:
    """What the host adds to an operator, in words."""
    form = op.form if isinstance(op, Hosted) else HostForm()
    last = any(form.turned_inputs)
    every = {"channels last": last, "stem": form.turned and not last, "narrow": form.narrow, "packed": form.packed,
             "epilogue": form.epilogue, "pooled": form.pooled}
    return {word for word, there in every.items() if there}
