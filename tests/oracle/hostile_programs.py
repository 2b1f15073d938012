"""Damaged Programs, each read and run in a forked process of its own: a sentence, or a run in its own memory.

    python tests/oracle/hostile_programs.py 1000                  # seeds 0 to 999
    python tests/oracle/hostile_programs.py 1 --first 77          # one of them again

A case is a sample of an operator, a drawn graph or a step of training, damaged where it is data: numbers of the
structure, attributes and types of operators (with the types that follow from them, so that reading is not the end),
elements of constants, bytes of the header. Digests are made anew, so that it is the reader who must find it. What is
taken is lowered, compiled and run: all memory of the engine lies between pages that nobody may touch.
"""
from __future__ import annotations

import argparse
import copy
import ctypes
import functools
import hashlib
import json
import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from random_strategies import Images
from samples import cases, drawn
from test_random_graphs import recipe

from tileflow import compiler, optim
from tileflow.executable import memory, ports
from tileflow.graph import OPS, Builder, Graph, TensorType, type_of
from tileflow.kernels.elementwise.expr import Expr
from tileflow.loss import find
from tileflow.memory import alignment
from tileflow.nn.module import record
from tileflow.program import file
from tileflow.program.arrays import bytes_of, digest_of
from tileflow.program.batching import Batching
from tileflow.program.expressions import from_data
from tileflow.program.fields import read
from tileflow.program.program import Program
from tileflow.program.text import text_of
from tileflow.program.writing import structure_of
from tileflow.runtime import segments
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session, session
from tileflow.system.errors import TileflowError

PAGE = mmap.PAGESIZE
EXTREME = (0, 1, 2, 3, 5, 7, 17, 64, 1 << 16, 1 << 31, 1 << 40, (1 << 63) - 1, -1, -2, -3, -17, -(1 << 31), -(1 << 63))
WORDS = ("x", "reflect", "edge", "wrap", "constant", "linear", "cubic", "nearest", "SAME_UPPER", "VALID", "bilinear",
         "add", "max", "mean", "none", "sum", "float16", "bfloat16", "float64", "int8", "int64", "bool", "int4",
         "reverse", "Relu", "")
LARGEST_RUN = 1 << 24
"""Bytes of the values of a program that is run."""
SECONDS, REFUSED_IN = 120, 3
"""CPU time after which a case is ended: compiling takes most of it; and in which the reader refuses what it refuses."""
BYTES = 3 << 30
"""Memory that a case may take beyond what it begins with."""
SMALL = (2, 3)
"""Rows of a micro-batch and micro-batches of the step of training."""


@dataclass
class Found:
    """What came of a case. how: "refused" (by the reader), "refused later", "ran", "large" (not run) or "wrong"."""

    seed: int
    how: str
    said: str = ""


# ---- programs

@functools.cache
def base(number: int) -> Program:
    """A program by number: every sample of every operator, then some graphs and steps of training."""
    every = cases()
    if number < len(every):
        case = every[number]
        graph = Graph(case.name)
        b = Builder(graph)
        operands = [None if o is None else b.input(f"x{i}", o.type) if o.type.is_float or not (i + number) % 3 else
                    b.constant(drawn(o, np.random.default_rng(0))) for i, o in enumerate(case.operands)]
        graph.outputs = list(b.emit(case.op, *operands))
        return Program.of(graph, Batching(1))
    if number % 4:
        return compiler.inference(recipe(number).build()[0], Batching(1)).program
    x = Images.rows(np.random.default_rng(0), SMALL[0])
    graph = record(Images(), [("x", type_of(x))], training=True, dtype="float32")
    batching = Batching(*SMALL, replicas=1 + number % 3)
    return compiler.training(graph, find("cross_entropy"), optim.SGD(lr=0.1, momentum=0.9), batching).program


MORE = 60
"""Programs that are no samples."""


# ---- damage

def damaged(program: Program, rng: random.Random) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The structure and the constants of a program after a few changes."""
    found = structure_of(program)
    structure, arrays = copy.deepcopy(found.structure), [np.array(a) for a in found.arrays]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        try:
            rng.choice((_attribute, _attribute, _attribute, _type, _type, _element, _anywhere))(structure, arrays, rng)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):      # nothing is left there
            break
    listed = structure.get("arrays")
    for entry, array in zip(listed if isinstance(listed, list) else [], arrays, strict=False):
        if isinstance(entry, list) and len(entry) == 3:
            entry[2] = digest_of(array)
    return structure, arrays


def _nodes(graph: dict[str, Any]) -> list[Any]:
    return [node for node in graph["nodes"] if type(node) is list and len(node) == 5]


def _attribute(structure: Any, arrays: Any, rng: random.Random) -> None:
    """Another attribute of a node, and the types that follow."""
    parts = [g for g in structure["parts"].values() if _nodes(g)]
    if not parts:
        return
    graph = rng.choice(parts)
    node = rng.choice(_nodes(graph))
    names = [name for name, value in node[1].items() if value is not None]
    fields = [f for f in getattr(OPS.get(node[0]), "__dataclass_fields__", ())]
    if not fields:
        return
    name = rng.choice(names or fields)
    node[1][name] = _changed(node[1].get(name), rng)
    _follow(structure, graph)


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, 2 * value, rng.choice(EXTREME)))
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e30, "nan", "inf", value * 2, 0.5))
    if isinstance(value, str):
        return rng.choice(WORDS)
    if isinstance(value, list) and value:
        made = list(value)
        at = rng.randrange(len(made))
        how = rng.randrange(5)
        if how < 3:
            made[at] = _changed(made[at], rng)
        elif how == 3:
            del made[at]
        else:
            made.insert(at, made[at])
        return made
    if isinstance(value, dict) and value:
        made = dict(value)
        name = rng.choice(sorted(made))
        made[name] = _changed(made[name], rng)
        return made
    return rng.choice((0, 1, -1, [0], [1, 1], [2, 3], "x", None, True, 0.5))


def _type(structure: Any, arrays: Any, rng: random.Random) -> None:
    """Another type of a graph's input or constant, and those that follow."""
    graph = structure["parts"]["micro"]
    constants = [pair[0] for pair in graph["constants"]]
    sources = [n for n in (*graph["inputs"], *constants) if type(n) is int and n < len(structure["values"])]
    if not sources:
        return
    value = structure["values"][rng.choice(sources)]
    if rng.random() < 0.2:
        value[1] = rng.choice(sorted(file.CODES))
    else:
        value[2] = _changed(value[2], rng) if value[2] else [rng.choice((0, 1, 2, 3))]
    if not isinstance(value[2], list) or any(not isinstance(n, int) or not 0 <= n < 1 << 20 for n in value[2]):
        return
    for array in [pair[1] for pair in graph["constants"] if structure["values"][pair[0]] is value]:
        if array < len(arrays) and np.prod(value[2], dtype=float) < 1 << 20:
            arrays[array] = np.resize(arrays[array], value[2]).astype(value[1])
            structure["arrays"][array][:2] = value[1:]
    _follow(structure, graph)


def _follow(structure: Any, graph: Any) -> None:
    """Give the results of nodes the types that their operators infer, as long as they infer any."""
    values = structure["values"]
    for name, attributes, operands, results, _ in _nodes(graph):
        try:
            kind = OPS[name]
            op = read(attributes, kind, "", {Expr: from_data})
            signal.setitimer(signal.ITIMER_REAL, 5)
            types = op.infer(*[None if n is None else TensorType(values[n][1], tuple(values[n][2])) for n in operands])
        except (Exception, Late):
            return
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        while len(results) < len(types):
            results.append(len(values))
            values.append([f"more.{len(values)}", "float32", []])
        del results[len(types):]
        for number, t in zip(results, types, strict=True):
            values[number][1:] = [t.dtype, list(t.shape)]


def _element(structure: Any, arrays: list[np.ndarray], rng: random.Random) -> None:
    """Other elements of a constant."""
    found = [a for a in arrays if a.size and a.dtype.kind in "iu"] or [a for a in arrays if a.size]
    if found:
        array = rng.choice(found)
        flat = array.reshape(-1)
        value = rng.choice(EXTREME)
        with np.errstate(all="ignore"):
            flat[rng.randrange(flat.size)] = np.array(value).astype(array.dtype)


def _anywhere(structure: Any, arrays: Any, rng: random.Random) -> None:
    """Any change of the data, whatever it means."""
    at = structure
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = rng.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.85:
            at = at[key]
            continue
        how = rng.randrange(6)
        if how == 0:
            del at[key]
        elif how == 1 and isinstance(at, list):
            at.insert(key, copy.deepcopy(at[key]))
        elif how == 2 and len(keys) > 1:
            other = rng.choice(keys)
            at[key], at[other] = at[other], at[key]
        else:
            at[key] = _changed(at[key], rng)
        return


def write(seed: int, path: Path) -> None:
    """The file of a case."""
    rng = random.Random(f"hostile program {seed}")
    structure, arrays = damaged(base(rng.randrange(len(cases()) + MORE)), rng)
    places, parts, offset = [], [], 0
    for array in arrays:
        places.append(offset)
        parts += [bytes_of(array).tobytes(), bytes(-array.nbytes % file.ALIGNMENT)]
        offset += array.nbytes + -array.nbytes % file.ALIGNMENT
    header = text_of({"places": places, "program": structure})
    header += b" " * (-(file.START + len(header)) % file.ALIGNMENT)
    if rng.random() < 0.1:
        made = bytearray(header)
        for _ in range(rng.choice((1, 2, 5))):
            made[rng.randrange(len(made))] = rng.randrange(256)
        header = bytes(made)
    start = file.MAGIC + len(header).to_bytes(8, "little") + hashlib.sha256(header).digest()
    path.write_bytes(start + header + b"".join(parts))


# ---- judgement

def guarded(nbytes: int) -> np.ndarray:
    """As `alignment.aligned`, between pages that nobody may touch: what follows the last line is such a page."""
    size = alignment.padded(nbytes)
    pages = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, pages + 2 * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    for at in (0, PAGE + pages):
        if libc.mprotect(ctypes.c_void_p(whole.ctypes.data + at), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return whole[PAGE + pages - size:PAGE + pages]


def use(path: Path) -> tuple[str, str]:
    """What comes of a file: how, and what was said."""
    try:
        program = file.load(path)
    except TileflowError as error:
        return "refused", str(error)
    values = [t for part in program.parts for t in program.touched(part).values()]
    values += [v.type for part in program.graphs for g in part.levels() for node in g.nodes for v in node.outputs]
    if sum(t.nbytes for t in values) * program.batching.micro_batches > LARGEST_RUN:
        return "large", ""
    for module in (memory, segments, ports, session):
        module.aligned = guarded                                               # type: ignore[attr-defined]
    ports.HELD = 2 * LARGEST_RUN
    rng = np.random.default_rng(0)
    count = program.batching.micro_batches
    try:
        engine = make_engine(program, Session(), host=Host(threads=1))
        feeds = {v.name: _drawn(rng, v.type, count) for v in program.inputs}
        roles = [s.role for s in program.states.values() if s.kind == "scalar"]
        engine.run(feeds, scalars=lambda _: dict.fromkeys(roles, 0.5))
    except TileflowError as error:
        return "refused later", f"{type(error).__name__}: {error}"
    return "ran", ""


def _drawn(rng: np.random.Generator, t: TensorType, count: int) -> np.ndarray:
    shape = (count * t.shape[0], *t.shape[1:]) if t.shape else (count,)
    return (rng.random(shape) if t.is_float else rng.integers(0, 2, shape)).astype(t.numpy)


def judged(seed: int, folder: Path) -> Found:
    """A case in a process of its own."""
    read, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        how, said = "wrong", ""
        try:
            signal.signal(signal.SIGALRM, _late)
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
            resource.setrlimit(resource.RLIMIT_AS, (taken + BYTES, taken + BYTES))
            path = folder / f"{seed}.program"
            write(seed, path)
            began = time.process_time()
            how, said = use(path)
            path.unlink()
            if how == "refused" and time.process_time() - began > REFUSED_IN:
                how, said = "wrong", f"after {time.process_time() - began:.0f} s: {said}"
        except BaseException:
            said = traceback.format_exc()
        os.write(send, json.dumps([how, said[-6000:]]).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(read) as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    if answer:
        return Found(seed, *json.loads(answer))
    return Found(seed, "wrong", f"the process ended: {os.waitstatus_to_exitcode(status)}")


class Late(BaseException):
    """Inference takes too long: no types that follow."""


def _late(*_: Any) -> None:
    raise Late


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(chosen.first, chosen.first + chosen.count):
            found = judged(seed, Path(folder))
            counted[found.how] += 1
            if found.how == "wrong" or chosen.count == 1:
                print(seed, found.how, found.said, flush=True)
    print(dict(counted))
    sys.exit(counted["wrong"] > 0)


if __name__ == "__main__":
    main()
