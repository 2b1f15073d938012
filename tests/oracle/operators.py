"""One example or more of every operator of the registry: the operator with its attributes, and the types of its inputs."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samples import Case, cases

import tileflow.ops  # noqa: F401   (registers the operators)
from tileflow.graph import OPS as REGISTRY
from tileflow.graph import Op, TensorType
from tileflow.graph.composite import declares
from tileflow.kernels.elementwise.expr import Var, exp, plus

Example = tuple[Op, tuple[TensorType | None, ...]]
OPS: dict[str, Any] = dict(REGISTRY)

UNARY = ("Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log "
         "LogSoftmax Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh "
         "ThresholdedRelu Flatten IdentityLoss GlobalAveragePool GlobalMaxPool Dropout")
BINARY = "Add Div Max Mean Min Mod Mul PRelu Pow Sub Sum Equal Greater GreaterOrEqual Less LessOrEqual"


def f(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, shape)


def examples() -> Iterator[Example]:
    """All of them: those of more than a few elements that are written here, and what the other operators declare themselves."""
    yield from _written()
    yield from ((c.op, tuple(c.types)) for c in declared())


def declared() -> Iterator[Case]:
    """The samples, with their operands, of those operators of which nothing is written here."""
    names = {op.name for op, _ in _written()}
    yield from (c for c in cases() if c.op.name not in names and declares(c.op, "work"))


def _written() -> Iterator[Example]:
    x, row, whole = f(6, 8, 10, 4), f(10, 1), f(6, 8, 10, 4, dtype="int64")
    for name in UNARY.split():
        yield OPS[name](), (x,)
    for name in BINARY.split():
        yield OPS[name](), (x, row if name != "PRelu" else f(8, 1, 1))
    for name in ("And", "Or", "Xor"):
        yield OPS[name](), (f(5, 7, dtype="bool"), f(7, dtype="bool"))
    yield OPS["Not"](), (f(5, 7, dtype="bool"),)
    for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield OPS[name](), (whole, whole)
    yield OPS["BitwiseNot"](), (whole,)
    yield OPS["Where"](), (f(5, 1, dtype="bool"), f(5, 7), f(7))
    yield OPS["Clip"](min=0.0, max=1.0), (x,)
    yield OPS["Cast"](to="float64"), (x,)
    expr = plus(exp(Var(0, "float32")), Var(1, "float32"))
    yield OPS["Map"](exprs=(expr,)), (x, x)
    yield from moves(x)
    yield from products()
    yield from windows()
    yield from sums(x)


def moves(x: TensorType) -> Iterator[Example]:
    """Views, rearrangements, lookups."""
    yield OPS["Reshape"](shape=(48, 40)), (x,)
    yield OPS["Squeeze"](axes=(1,)), (f(5, 1, 3),)
    yield OPS["Unsqueeze"](axes=(0,)), (x,)
    yield OPS["Transpose"](perm=(3, 0, 2, 1)), (x,)
    yield OPS["Concat"](axis=1), (x, f(6, 3, 10, 4))
    yield OPS["Split"](axis=1, sizes=(3, 5)), (x,)
    yield OPS["Slice"](starts=(1,), ends=(7,), axes=(1,), steps=(2,)), (x,)
    yield OPS["SliceGrad"](starts=(1,), ends=(7,), axes=(1,), steps=(2,), shape=x.shape), (f(6, 3, 10, 4),)
    yield OPS["Expand"](shape=(6, 8, 10, 4)), (f(10, 1),)
    yield OPS["Pad"](pads=(0, 0, 1, 1, 0, 0, 1, 1)), (x,)
    yield OPS["Tile"](repeats=(2, 1, 1, 3)), (x,)
    yield OPS["Gather"](axis=0), (f(500, 32), f(3, 40, dtype="int64"))
    yield OPS["GatherGrad"](axis=0, shape=(500, 32)), (f(3, 40, 32), f(3, 40, dtype="int64"))


def products() -> Iterator[Example]:
    a, b = f(3, 16, 24), f(24, 40)
    yield OPS["MatMul"](), (a, b)
    yield OPS["FusedMatMul"](transB=1), (f(16, 24), f(40, 24))
    yield OPS["Gemm"](transB=1), (f(16, 24), f(40, 24), f(40))
    yield OPS["SerializedMatMul"](mode="output_channels", factor=4), (f(16, 24), f(24, 40))
    yield OPS["SerializedGemm"](mode="reducing_dim", factor=3), (f(16, 24), f(24, 40), f(40))


def windows() -> Iterator[Example]:
    x, w = f(3, 4, 9, 8), f(6, 4, 3, 3)
    y = f(3, 6, 9, 8)
    a: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    yield OPS["Conv"](**a), (x, w, f(6))
    yield OPS["ConvInputGrad"](shape=x.shape[2:], **a), (y, w)
    yield OPS["ConvWeightGrad"](kernel_shape=(3, 3), biased=True, **a), (x, y)
    yield OPS["Conv"](group=2), (x, f(6, 2, 3, 3))
    p: dict[str, Any] = {"kernel_shape": (2, 2), "strides": (2, 2)}
    half = f(3, 4, 4, 4)
    yield OPS["MaxPool"](**p), (x,)
    yield OPS["MaxPoolGrad"](**p), (half, x)
    yield OPS["AveragePool"](**p), (x,)
    yield OPS["AveragePoolGrad"](shape=x.shape[2:], **p), (half,)
    yield OPS["MaxPool"](kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (f(2, 8, 32, 32),)


def sums(x: TensorType) -> Iterator[Example]:
    """Reductions, normalisations, losses."""
    for name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"):
        yield OPS[name](axes=(0, 2)), (x,)
        yield OPS[name](axes=(0, 1, 2, 3), keepdims=False), (x,)
    per = f(8)
    yield OPS["BatchNormalization"](training_mode=1), (x, per, per, None, None)
    yield OPS["BatchNormalization"](), (x, per, per, per, per)
    yield OPS["BatchNormalizationGrad"](), (x, x, per, per, per)
    for name in ("ArgMax", "ArgMin"):
        yield OPS[name](axis=1), (x,)
    yield OPS["InstanceNormalization"](), (x, per, per)
    yield OPS["InstanceNormalizationTraining"](), (x, per, per)
    for groups in (1, 2, 4):
        yield OPS["GroupNormalization"](num_groups=groups), (x, per, per)
        yield OPS["GroupNormalizationTraining"](num_groups=groups), (x, per, per)
        yield OPS["GroupNormalizationGrad"](num_groups=groups), (x, x, per, f(x.shape[0], groups), f(x.shape[0], groups))
    yield OPS["LayerNormalization"](), (f(20, 48), f(48), f(48))
    yield OPS["LayerNormalizationGrad"](), (f(20, 48), f(20, 48), f(48), f(20, 1), f(20, 1))
    yield OPS["RMSNormalization"](), (f(20, 48), f(48))
    yield OPS["RMSNormalizationGrad"](), (f(20, 48), f(20, 48), f(48), f(20, 1))
    heads, whole = f(2, 3, 24, 16), f(1, 1, 24, 24)
    yield OPS["FusedAttention"](scale=0.25), (heads, heads, heads, whole)
    yield OPS["FusedAttentionGrad"](scale=0.25), (heads, heads, heads, heads, whole, heads, f(2, 3, 24))
    for name in ("SoftmaxGrad", "LogSoftmaxGrad"):
        yield OPS[name](), (f(20, 48), f(20, 48))
    yield OPS["DropoutGrad"](), (x,)
    labels = f(20, dtype="int64")
    for name in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        yield OPS[name](), (f(20, 48), labels)
        yield OPS[name + "Grad"](), (f(), f(20, 48), labels)
    for name in ("MSELoss", "L1Loss", "BCELoss", "BCEWithLogitsLoss"):
        yield OPS[name](), (f(20, 48), f(20, 48))
