"""Kernels of float32 over 16-bit memory: rows are widened a few at a time into the worker's scratch, computed there, and rounded once.

    streamed(calls, {0: "b2"}, {0: "b2"})          # the same calls; input 0 and output 0 are bfloat16 in memory

The leaf's own body does the work, so results are those of widening whole tensors first, for none of their memory. It serves leaves that get their
arrays cut by rows of their range; others say themselves how they read 16-bit memory (`Leaf.narrowed`). Small arrays beside them (scales,
statistics) are converted whole.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .dtypes import ELEMENTS
from .elementwise.expr import Var, cast
from .elementwise.loops import elementwise_call
from .isa import cpu
from .isa.half import narrow_rows, widen_rows
from .machine.call import Call, In, Out, Work
from .machine.emitted import EmittedLeaf
from .machine.leaf import Leaf, from_lines
from .machine.places import address_of, shaped

ROOM = 4096
"""float32 numbers of scratch that rows share: with what is read and written beside them they stay in the first-level cache."""
SMALL = 16384
"""Elements of an array that may be converted whole."""


def streamed(calls: Sequence[Call], inputs: Mapping[int, str], outputs: Mapping[int, str]) -> list[Call] | None:
    """Calls of float32 kernels with inputs and outputs of these indices in 16-bit memory ("f2" or "b2"); None where a leaf cannot."""
    before: dict[tuple[type, int], Call] = {}
    after: dict[tuple[type, int], Call] = {}
    made: list[Call] = []
    for call in calls:
        found = _streamed(call, inputs, outputs, before, after)
        if found is None:
            return None
        made.append(found)
    return [*before.values(), *made, *after.values()]


def _letter(arg: Any, inputs: Mapping[int, str], outputs: Mapping[int, str]) -> str:
    """The 16-bit type that an argument lies in; empty where it does not."""
    return inputs.get(arg.index, "") if isinstance(arg, In) else outputs.get(arg.index, "") if isinstance(arg, Out) else ""


def _streamed(call: Call, inputs: Mapping[int, str], outputs: Mapping[int, str], before: dict[Any, Call], after: dict[Any, Call]) -> Call | None:
    leaf, args = call.leaf, list(call.args)
    parameters = leaf.takes(args)
    kinds: list[str] = []
    own: dict[int, str] = {}
    for i, (p, arg) in enumerate(zip(parameters, args, strict=True)):
        letter = _letter(arg, inputs, outputs)
        kinds.append("")
        if not letter:
            continue
        if p.dtype != "f4" or isinstance(leaf, EmittedLeaf):
            return None
        if p.cut == "r":
            kinds[i] = ("<" if isinstance(arg, In) else ">") + letter
            continue
        size, number = math.prod(arg.shape), arg.index
        if size > SMALL:
            own[i] = letter
            continue
        wide = Work(f"wide {'input' if isinstance(arg, In) else 'output'} {number}", arg.shape, "f4")
        flat, name = replace(wide, shape=(size,)), ELEMENTS[letter].name
        if isinstance(arg, In):
            before[In, number] = elementwise_call([cast(Var(0, name), "float32")], [In(number, (size,))], [flat])
        else:
            after[Out, number] = elementwise_call([cast(Var(0, "float32"), name)], [flat], [Out(number, (size,))])
        args[i] = wide
    call = replace(call, args=args)
    if own:
        return None if any(kinds) or leaf.narrowed is None else leaf.narrowed(call, own)
    if not any(kinds):
        return call
    if leaf.same or any(p.dtype == "rest" for p in leaf.parameters):
        return None
    width = sum(math.prod(arg.shape[1:]) for arg, kind in zip(args, kinds, strict=True) if kind)
    step = max(1, ROOM // max(1, width))
    made = _leaf(leaf, tuple(kinds), cpu.current())
    extra = 0.05 * call.n * width
    return replace(call, leaf=made, args=[*args, Work(f"rows in float32, {step * width}", (step * width,), "f4"), step], cost=call.cost + extra)


def own_form(make: Callable[[tuple[str, ...]], Leaf], arrays: Sequence[int], spare: int, room: Callable[[Sequence[Any]], int]) -> Any:
    """`Leaf.narrowed` of a leaf whose parameters `arrays` may lie in 16-bit memory: make(their types, "" for float32) is the leaf then, and its
    parameter `spare` takes room(arguments) float32 numbers for each worker."""
    def narrowed(call: Call, letters: Mapping[int, str]) -> Call | None:
        if not set(letters) <= set(arrays):
            return None
        args, size = list(call.args), room(call.args)
        args[spare] = Work(f"in float32, {size}", (size,), "f4")
        return replace(call, leaf=make(tuple(letters.get(i, "") for i in arrays)), args=args)
    return narrowed


@functools.cache
def _leaf(leaf: Leaf, kinds: tuple[str, ...], path: cpu.Cpu) -> Leaf:
    """The leaf with the parameters (those with words) of these kinds in 16-bit memory: "<b2" one that is read, ">f2" one that is written."""
    names: dict[str, Any] = {"address_of": address_of, "shaped": shaped, "body": leaf.twin}
    names |= {f"widen_{t}": widen_rows(t) for t in {k[1:] for k in kinds if k}} | {f"narrow_{t}": narrow_rows(t) for t in {k[1:] for k in kinds if k}}
    left = iter(kinds)
    kind_of = [next(left) if p.words else "" for p in leaf.parameters]
    given, passed, first, last, rows = [], [], [], [], ""
    offset: list[str] = []
    for i, (p, kind) in enumerate(zip(leaf.parameters, kind_of, strict=True)):
        name = f"a{i}" if p.words else p.dtype
        given.append(name)
        if kind:
            rows = f"{name}.shape[0]"
            size = " * ".join(f"{name}.shape[{d}]" for d in range(1, p.ndim)) or "1"
            shape = ", ".join(["height", *(f"{name}.shape[{d}]" for d in range(1, p.ndim))])
            at = " + ".join([*(f"step * n{k}" for k in offset), "0"])
            first += [f"n{i} = {size}", f"v{i} = shaped(scratch[{at}:{at} + height * n{i}], ({shape},))"]
            memory = f"address_of({name}) + 2 * at * n{i}"
            if kind[0] == "<":
                first.append(f"widen_{kind[1:]}(1, height * n{i}, {memory}, 0, address_of(v{i}), 0)")
            else:
                last.append(f"narrow_{kind[1:]}(1, height * n{i}, address_of(v{i}), 0, {memory}, 0)")
            offset.append(str(i))
            passed.append(f"v{i}")
        else:
            passed.append(f"{name}[at:at + height]" if p.cut == "r" else {"lo": "lo + at", "hi": "lo + at + height"}.get(name, name))
    lines = [f"def streamed({', '.join([*given, 'scratch', 'step'])}):", f"    rows = {rows}", "    for at in range(0, rows, step):",
             "        height = min(step, rows - at)", *(f"        {line}" for line in first), f"        status = body({', '.join(passed)})",
             *(["        if status != 0:", "            return status"] if leaf.checked else []), *(f"        {line}" for line in last),
             *(["    return 0"] if leaf.checked else [])]
    made = from_lines(lines, names, leaf.twin)
    made.__module__ = __name__
    left = iter(kinds)
    words = [_word(p, next(left) if p.words else "") for p in leaf.parameters]
    numbers = next((p.numbers for p in leaf.parameters if p.numbers), None)
    return Leaf(made, ", ".join([*words, "f4[w,:]", "i8"]), checked=leaf.checked, key=f"{leaf.identity} {path.name}", numbers=numbers)


def _word(p: Any, kind: str) -> str:
    """A parameter as signatures write it."""
    if p.numbers or not p.is_array:
        return str(p.dtype)
    axes = [p.cut or ":", *[":"] * (p.ndim - 1)]
    return f"{kind[1:] or p.dtype}[{','.join(axes)}]"
