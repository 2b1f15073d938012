"""Plans as plain values: export, import, and pinning an operator to a plan instead of searching."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from ...system.errors import OptionError
from ..hardware.chip import Chip
from ..hardware.vertex import SLIC_CHANNELS
from .candidates import takes_depth_wise, takes_small_groups
from .contraction import Canonical, step
from .cost import Variant, evaluate
from .partition import COSTS, build_plan, mark, partials_type
from .plan import OpPlan, Vertex

FORMAT = 1
"""Version of an exported plan."""
_DECISIONS = ("splits", "grains", "serial", "vertex", "partials", "swap", "expand", "start_tile")
_RESULTS = ("cycles", "temp_bytes", "tiles", "version")
_CONTRACTION_VERTICES = ("amp", "hmac", "outer", "vmac", "slic")


def plan_to_dict(plan: OpPlan) -> dict[str, Any]:
    """A plan as plain values for JSON. Its decisions come back through a pin; cycles and bytes are there to be read."""
    return {"version": FORMAT, "vertex": plan.vertex, "splits": dict(plan.splits), "grains": dict(plan.grains), "serial": dict(plan.serial),
            "partials": plan.partials, "swap": bool(plan.notes.get("swap", False)), "expand": bool(plan.notes.get("expand", False)),
            "start_tile": plan.start_tile, "cycles": plan.phases.total, "temp_bytes": plan.temp_bytes, "tiles": plan.tiles}


def _fail(where: str, what: str) -> OptionError:
    return OptionError(f"The pinned plan of {where} {what}.")


def _counts(where: str, table: Mapping[str, Any], name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    value = table.get(name, {})
    if not isinstance(value, Mapping):
        raise _fail(where, f"has {name} {value!r}; it must be a table of axis names and whole numbers")
    for axis, n in value.items():
        if axis not in sizes:
            raise _fail(where, f"names the axis {axis!r} in {name}; the operator has {', '.join(sizes) or 'no axes'}")
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= max(1, sizes[axis]):
            raise _fail(where, f"has {name} {n!r} for axis {axis!r} of {sizes[axis]}; it must be a whole number from 1 to that size")
    return dict(value)


def check_pin(table: Any, where: str) -> Mapping[str, Any]:
    """A pin's fields and their kinds; what they mean for an operator is checked by `pinned_plan`. Raises OptionError."""
    if not isinstance(table, Mapping):
        raise _fail(where, f"must be a table, not {table!r}")
    unknown = [k for k in table if k not in _DECISIONS + _RESULTS]
    if unknown:
        raise _fail(where, f"has the unknown field {unknown[0]!r}; it may have {', '.join(_DECISIONS)}")
    if table.get("version", FORMAT) != FORMAT:
        raise _fail(where, f"has version {table['version']!r}; this program reads version {FORMAT}")
    if table.get("vertex") not in get_args(Vertex):
        raise _fail(where, f"has vertex {table.get('vertex')!r}; it must be one of {', '.join(get_args(Vertex))}")
    for name in ("swap", "expand"):
        if not isinstance(table.get(name, False), bool):
            raise _fail(where, f"has {name} {table[name]!r}; it must be true or false")
    start = table.get("start_tile", 0)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise _fail(where, f"has start_tile {start!r}; it must be a whole number of at least 0")
    return table


def pinned_plan(c: Canonical, chip: Chip, bound: int | None, table: Mapping[str, Any], precision: str, where: str) -> OpPlan:
    """The pinned plan of a contraction, priced as the planner prices its own.

    Raises:
        OptionError: the pin does not fit the operator or the chip; the sentence says why.
    """
    table = check_pin(table, where)
    sizes = c.sizes
    splits, grains, serial = (_counts(where, table, name, sizes) for name in ("splits", "grains", "serial"))
    partials = table.get("partials", partials_type(c, precision))
    if len(serial) > 1:
        raise _fail(where, f"splits {len(serial)} axes serially; a plan may split one")
    if set(serial) & set(c.taps + c.role("group")):
        raise _fail(where, f"splits {next(iter(serial))!r} serially; only channels and rows can be")
    v = Variant(table["vertex"], table.get("swap", False), table.get("expand", False), partials, tuple(sorted(grains.items())))
    _check_vertex(c, chip, v, where)
    for axis, n in splits.items():
        whole = step(sizes[axis], serial.get(axis, 1), v.grain(axis))
        if step(whole, n, v.grain(axis)) * (n - 1) >= max(1, whole):
            raise _fail(where, f"cuts axis {axis!r} of {whole} in {n} parts at grain {v.grain(axis)}, which leaves a part empty")
    parts = np.asarray([[float(splits.get(a.name, 1)) for a in c.axes]])
    used = int(parts.prod())
    start = table.get("start_tile", 0)
    if used > chip.tiles or start >= chip.tiles:
        raise _fail(where, f"needs {used} tiles from tile {start}; chip {chip.name} has {chip.tiles}")
    once = next(((a, n) for a, n in serial.items() if n > 1), None)
    costs = evaluate(chip, c, v, {a.name: parts[:, i] for i, a in enumerate(c.axes)}, (once[0], np.array([float(once[1])])) if once else None)
    row = {name: float(np.ravel(getattr(costs, name))[0]) for name in COSTS}
    plan = build_plan(chip, c, v, once, parts[0], row)
    plan = replace(plan, start_tile=start, notes={**plan.notes, "pinned": True})
    return mark(plan, bound)


def _check_vertex(c: Canonical, chip: Chip, v: Variant, where: str) -> None:
    sizes, dtype = c.sizes, c.first.dtype
    if v.kind not in _CONTRACTION_VERTICES:
        raise _fail(where, f"has vertex {v.kind!r}; a contraction takes one of {', '.join(_CONTRACTION_VERTICES)}")
    if v.partials not in ("float32", "float16"):
        raise _fail(where, f"has partials {v.partials!r}; they must be 'float32' or 'float16'")
    if v.kind == "amp" and chip.unit(dtype, v.partials) is None:
        raise _fail(where, f"has vertex 'amp', but chip {chip.name} has no matrix unit for {dtype} with {v.partials} partials")
    if v.kind == "outer" and any(sizes[a] != 1 for a in c.role("k")):
        raise _fail(where, "has vertex 'outer', which needs summed axes of size 1")
    if v.kind == "vmac" and not takes_depth_wise(c, v.swap):
        raise _fail(where, "has vertex 'vmac', which needs 16 bits and groups that make one channel each")
    if v.kind == "slic" and (v.expand or not takes_small_groups(c, chip, v.swap, v.partials)):
        raise _fail(where, f"has vertex 'slic', which needs float16, groups of at most {SLIC_CHANNELS} channels, kernel taps that are not "
                    f"folded into them, and a matrix unit for float16 with {v.partials} partials")
