"""Products of 8-bit integers on a chip: by its own unit for them, as float16, or not at all
(`Chip.eight_bit_products`)."""
from __future__ import annotations

import math
from dataclasses import replace

from ...graph import Node
from ...graph.work import Contraction, Work
from ...system.errors import OptionError
from ..hardware import vertex
from ..hardware.chip import EIGHT_BIT_UNIT, ITEMSIZE, Chip
from ..plans.plan import OpPlan, Phases, node_name
from .layout import NOTHING, Rearrangement

BYTES = ("int8", "uint8")


def multiplied(node: Node, work: Work, chip: Chip) -> Work:
    """A product of bytes in the type in which the chip multiplies: int8, with or without signs, where it has a unit,
    else float16: a byte less its zero point has 9 bits, and float16 holds 11. OptionError where the chip refuses."""
    if not isinstance(work, Contraction) or not all(o is not None and o.dtype in BYTES for o in work.inputs[:2]):
        return work
    if EIGHT_BIT_UNIT in chip.matrix:
        dtype = "int8"
    elif chip.eight_bit_products == "refused":
        raise OptionError(f"{node_name(node)} multiplies 8-bit integers, which the chip {chip.name} refuses "
                          f"(eight_bit_products); name a chip that widens them or has a unit {EIGHT_BIT_UNIT}, "
                          "or dequantise the model.")
    else:
        dtype = "float16"
    return replace(work, inputs=(*(o and replace(o, dtype=dtype) for o in work.inputs[:2]), *work.inputs[2:]))


def widening(node: Node, work: Work, plan: OpPlan, chip: Chip) -> Rearrangement:
    """Casting the operands where they lie before their product, evenly over the tiles that do it."""
    if not isinstance(work, Contraction):
        return NOTHING
    found = NOTHING
    for value, operand in zip(node.inputs[:2], work.inputs[:2], strict=False):
        if value is not None and operand is not None and value.type.dtype in BYTES and operand.dtype == "float16":
            each = -(-math.prod(value.type.shape) // max(1, plan.tiles))
            found += Rearrangement(Phases(transform=int(vertex.cast(chip, value.type.dtype, operand.dtype, each))),
                                   each * ITEMSIZE[operand.dtype])
    return found
