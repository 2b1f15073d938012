"""Kinds of work, one file per family: what each shape of cases.toml means on both sides."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tileflow.ops  # noqa: F401  (fills the registry)

from .attention import Attention
from .base import Problem, Runner, Unsupported
from .conv import Conv
from .integer import IntegerConv, IntegerMatMul
from .matmul import MatMul
from .model import Model
from .module import Module
from .network import Network
from .pointwise import BatchNorm, Pointwise
from .pool import Pool
from .recurrent import Recurrent
from .trees import Forest
from .update import UpdateStep
from .upsample import Upsample

KINDS: dict[str, Any] = {"matmul": MatMul, "conv": Conv, "batchnorm": BatchNorm, "pool": Pool, "pointwise": Pointwise, "update": UpdateStep,
                         "attention": Attention, "recurrent": Recurrent, "network": Network, "model": Model,
                         "module": Module,
                         "forest": Forest, "upsample": Upsample, "int8 matmul": IntegerMatMul, "int8 conv": IntegerConv}


def problem(kind: str, shape: Mapping[str, Any]) -> Any:
    """The problem of one shape of a row of this kind."""
    return KINDS[kind](shape)


__all__ = ["KINDS", "Problem", "Runner", "Unsupported", "problem"]
