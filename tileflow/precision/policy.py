"""Policies of automatic mixed precision: which operators compute in 16 bits and which in float32, as data.

A policy has PopTorch's four sets. `fp16`: operators computed in the low type (float16 or bfloat16); `fp32`: computed in float32; `promote`: in the
widest of their operands' types where those differ; `demote`: in the low type where they differ. An operator in no set follows its data: it computes
in the type that they come in, weights joining them; where data differ, in the widest type.

The default is that of PyTorch on its accelerators (its table of operators, see docs/precision.md): products of many terms gain from 16 bits and
sum in float32 anyway; what exponentiates, divides by something small or sums many numbers loses by them.
"""
from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..system.errors import OptionError

SETS = ("fp16", "fp32", "promote", "demote")
FOLLOW = "follow"
"""What an operator does that is in no set."""

_PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "SerializedMatMul", "SerializedGemm")
DEFAULT: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "fp16": (*_PRODUCTS, "Conv", "ConvTranspose", "RNN", "GRU", "LSTM"),
    "fp32": ("Softmax", "LogSoftmax", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
             "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "MSELoss", "L1Loss", "BCEWithLogitsLoss", "BCELoss", "IdentityLoss",
             "Exp", "Log", "Pow", "Reciprocal", "Softplus", "Sinh", "Cosh", "Tan", "Asin", "Acos", "Asinh", "Acosh", "Atanh",
             "ReduceSum", "ReduceMean", "ReduceProd", "CumSum"),
    "promote": ("Concat",),
    "demote": (),
})
"""The sets of the default policy, by the names of operators (ONNX's, and our own)."""

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot", "addmm", "addmv", "addbmm", "baddbmm", "chain_matmul", "einsum", "tensordot", "linear",
                     "Linear", "bilinear"), _PRODUCTS),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "conv_tbc", "Conv1d", "Conv2d", "Conv3d"), ("Conv",)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
                    ("ConvTranspose",)),
    **dict.fromkeys(("batch_norm", "BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), ("BatchNormalization",)),
    **dict.fromkeys(("instance_norm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), ("InstanceNormalization",)),
    **dict.fromkeys(("group_norm", "GroupNorm"), ("GroupNormalization",)),
    **dict.fromkeys(("layer_norm", "LayerNorm"), ("LayerNormalization",)), **dict.fromkeys(("rms_norm", "RMSNorm"), ("RMSNormalization",)),
    "softmax": ("Softmax",), "log_softmax": ("LogSoftmax",),
    **dict.fromkeys(("cross_entropy", "CrossEntropyLoss"), ("SoftmaxCrossEntropyLoss",)),
    **dict.fromkeys(("nll_loss", "NLLLoss"), ("NegativeLogLikelihoodLoss",)), "mse_loss": ("MSELoss",),
    "l1_loss": ("L1Loss",), "binary_cross_entropy": ("BCELoss",), "binary_cross_entropy_with_logits": ("BCEWithLogitsLoss",),
    **dict.fromkeys(("relu", "ReLU"), ("Relu",)), **dict.fromkeys(("leaky_relu", "LeakyReLU"), ("LeakyRelu",)),
    **dict.fromkeys(("prelu", "PReLU"), ("PRelu",)), **dict.fromkeys(("elu", "ELU"), ("Elu",)), **dict.fromkeys(("gelu", "GELU"), ("Gelu",)),
    **dict.fromkeys(("silu", "SiLU"), ("Swish",)), **dict.fromkeys(("hardswish", "Hardswish"), ("HardSwish",)), "mish": ("Mish",),
    "sigmoid": ("Sigmoid",), "tanh": ("Tanh",), "softplus": ("Softplus",),
    "exp": ("Exp",), "log": ("Log",), "pow": ("Pow",), "sqrt": ("Sqrt",), "reciprocal": ("Reciprocal",), "erf": ("Erf",),
    "add": ("Add",), "sub": ("Sub",), "mul": ("Mul",), "div": ("Div",), "maximum": ("Max",), "minimum": ("Min",), "where": ("Where",),
    "sum": ("ReduceSum",), "mean": ("ReduceMean",), "prod": ("ReduceProd",), "cumsum": ("CumSum",),
    **dict.fromkeys(("cat", "concat", "stack"), ("Concat",)), **dict.fromkeys(("embedding", "Embedding"), ("Gather",)),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d"), ("MaxPool",)),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d"), ("AveragePool",)),
    "GlobalAvgPool": ("GlobalAveragePool",), "dropout": ("Dropout",),
})
"""What PyTorch and PopTorch call operators and layers, and what our layers are called: the operators that these become."""


def operators_called(name: str) -> tuple[str, ...]:
    """The operators of that name, or those that people from PyTorch or PopTorch mean by it; empty where there are none."""
    return (name,) if _is_operator(name) else ALIASES.get(name, ())


def _is_operator(name: str) -> bool:
    from .. import ops  # noqa: F401  (fills the registry: here, for runs that name none do without it)
    from ..graph import OPS
    return name in OPS


_FIRST = ("off", "fp32", "fp16", "promote", "demote")
"""Which rule counts where several names of one operator ask for several: what is said of the type itself, the wider first."""


def merged(rules: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The rules of operators from those of names, of which several may stand for one operator; a sentence says where they differ."""
    found: dict[str, str] = {}
    named: dict[str, list[str]] = {}
    for name, rule in rules:
        for operator in operators_called(name):
            named.setdefault(operator, []).append(f"{name} ({rule})")
            found[operator] = min(rule, found.get(operator, rule), key=_FIRST.index)
    told: dict[tuple[str, ...], list[str]] = {}
    for operator, names in named.items():
        if len({name.rpartition(" ")[2] for name in names}) > 1:
            told.setdefault((*names, found[operator]), []).append(operator)
    for (*names, rule), operators in told.items():
        warnings.warn(f"autocast: {', '.join(names)} are one operator here, {' or '.join(operators)}, which is in one set: {rule}.", stacklevel=2)
    return found


class Policy:
    """Which operators compute in which type.

        Policy(fp16=["Conv", tileflow.nn.ReLU], fp32=["bmm"])

    Args:
        fp16, fp32, promote, demote: operators, each by its ONNX name, by PyTorch's name (or the function or class itself, such as `torch.bmm` or
            `tileflow.nn.Conv2d`), or a network's own module class, which stands for all that is recorded within such modules. A set that is not
            given is the default one without what the other sets name.

    Names of PyTorch's that are in two sets and one operator here are merged, with a warning that says so.

    Raises:
        OptionError: something that is none of these, or that is in two sets.
    """

    def __init__(self, fp16: Iterable[Any] | None = None, fp32: Iterable[Any] | None = None, promote: Iterable[Any] | None = None,
                 demote: Iterable[Any] | None = None) -> None:
        named: dict[str, str] = {}
        layers: dict[type, str] = {}
        given = dict(zip(SETS, (fp16, fp32, promote, demote), strict=True))
        for where, entries in given.items():
            if isinstance(entries, str):
                raise OptionError(f"Policy: {where} must be a list of operators, not the text {entries!r}.")
            for entry in entries or ():
                found, name = _meant(entry), _called(entry)
                if isinstance(found, type):
                    other = layers.setdefault(found, where)
                else:
                    other = named.setdefault(name, where)
                    same = (w for n, w in named.items() if (_is_operator(n) or _is_operator(name))
                            and {*operators_called(n)} & {*found})
                    other = next((w for w in same if w != where), other)
                if other != where:
                    raise OptionError(f"Policy: {name} is in {other} and in {where}; an operator is in one set.")
        rules = merged(named.items())
        for where, entries in given.items():
            if entries is None:
                rules = {**dict.fromkeys(DEFAULT[where], where), **rules}
        self._key = (tuple(sorted(rules.items())), tuple(layers.items()))
        self._rules, self._layers = rules, layers

    def rule(self, operator: str) -> str:
        """The set that an operator is in, or FOLLOW."""
        return self._rules.get(operator, FOLLOW)

    def rule_of_layer(self, layer: type) -> str | None:
        """The set that a module class, or the nearest class it is made from, is in."""
        return next((self._layers[c] for c in layer.__mro__ if c in self._layers), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        """The operators and classes of each set."""
        every = [*self._rules.items(), *((c.__qualname__, rule) for c, rule in self._layers.items())]
        shown = {where: sorted(name for name, rule in every if rule == where) for where in SETS}
        return f"Policy({', '.join(f'{where}={names}' for where, names in shown.items())})"


def _meant(entry: Any) -> tuple[str, ...] | type:
    """The operators that an entry of a set stands for, or the module class that it is."""
    name = _called(entry)
    found = operators_called(name) if isinstance(entry, str) or _of_library(entry) else ()
    if found:
        return found
    if isinstance(entry, type) and any(c.__module__ == "tileflow.nn.module" for c in entry.__mro__):
        return entry
    raise OptionError(f"Policy: {name!r} is no operator; name one as ONNX or PyTorch does (Conv, conv2d, matmul, Softmax), or give a module class.")


def _of_library(entry: Any) -> bool:
    """A class or function of tileflow's or PyTorch's, which its name stands for."""
    return (getattr(entry, "__module__", None) or "").split(".")[0] in ("tileflow", "torch")


def _called(entry: Any) -> str:
    return entry if isinstance(entry, str) else getattr(entry, "__name__", None) or repr(entry)
