"""Programs that nobody vouches for: what is wrong in their data is refused by a sentence that names the place, before
anything is computed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_programs
import numpy as np
import pytest
from paths import exhaustive
from program_kinds import kinds, sampled, trained
from samples import cases

from tileflow.graph import Builder, Graph, TensorType
from tileflow.graph.region import closed
from tileflow.kernels.elementwise.expr import OPERATIONS, Const, Expr, Var, key, make, where
from tileflow.ops.control import If
from tileflow.program import expressions
from tileflow.program.batching import Batching
from tileflow.program.fields import Fault, read, written
from tileflow.program.program import Program
from tileflow.program.reading import DEEPEST, program_of
from tileflow.program.writing import structure_of

Structure = dict[str, Any]
PLAIN, FEW, MANY = 24, 20, 264
"""Damaged programs of every change, of one exhaustive test, and of all of them."""


def refused(structure: Structure, arrays: list[np.ndarray], said: str) -> None:
    with pytest.raises(Fault, match=said):
        program_of(json.loads(json.dumps(structure)), arrays)


def node_of(structure: Structure, name: str, part: str = "micro") -> list[Any]:
    return next(node for node in structure["parts"][part]["nodes"] if node[0] == name)


def _state(structure: Structure, kind: str) -> dict[str, Any]:
    return next(s for part in structure["parts"].values() for s in part["states"] if s["kind"] == kind)


def _rename(structure: Structure) -> None:
    values, (x, labels) = structure["values"], structure["parts"]["micro"]["inputs"][:2]
    values[x][0] = values[labels][0]


def _feed(structure: Structure) -> None:
    """An input of a part becomes another part's value, without a link."""
    graph = structure["parts"]["fold"]
    inner, source = next(link for link in structure["links"] if link[0] in graph["inputs"])
    graph["inputs"] = [source if n == inner else n for n in graph["inputs"]]
    structure["links"] = [link for link in structure["links"] if link[0] != inner]
    for node in graph["nodes"]:
        node[2] = [source if n == inner else n for n in node[2]]


def _backwards(structure: Structure) -> None:
    """Of two linked parts the first reads what the second makes."""
    link = next(link for link in structure["links"] if link[0] in structure["parts"]["fold"]["inputs"])
    values, nodes = structure["values"], structure["parts"]["update"]["nodes"]
    link[1] = next(n for node in nodes for n in node[3] if values[n][1:] == values[link[0]][1:])


CHANGES: dict[str, tuple[Callable[[Structure], Any], str]] = {
    "a key is missing": (lambda s: s.pop("own"), "the program is no table of"),
    "a key too many": (lambda s: s.update(more=1), "the program is no table of"),
    "no batching": (lambda s: s["batching"].update(replicas=0), "batching is"),
    "another batching": (lambda s: s["batching"].update(device_iterations=3), "the schedule is not that of Batching"),
    "another schedule": (lambda s: s["schedule"][0].update(times=3), "the schedule is not that of Batching"),
    "no schedule": (
        lambda s: s["schedule"][0].update(kind="none"),
        r"the schedule cannot be read: schedule\[0\] is no step",
    ),
    "an operator": (
        lambda s: node_of(s, "MaxPool").__setitem__(0, "Pool"),
        "is 'Pool', an operator that tileflow lacks",
    ),
    "an attribute too many": (lambda s: node_of(s, "MaxPool")[1].update(x=1), r"MaxPool has no 'x'"),
    "an attribute missing": (lambda s: node_of(s, "Flatten")[1].pop("axis"), "Flatten lacks axis"),
    "an attribute of another type": (
        lambda s: node_of(s, "Flatten")[1].update(axis="1"),
        r"Flatten.axis is '1' and not what belongs",
    ),
    "a truth value": (
        lambda s: node_of(s, "Flatten")[1].update(axis=True),
        r"Flatten.axis is True and not what belongs",
    ),
    "a number too large": (
        lambda s: node_of(s, "Flatten")[1].update(axis=1 << 63),
        r"Flatten.axis is 9223372036854775808",
    ),
    "an attribute that does not fit": (
        lambda s: node_of(s, "Flatten")[1].update(axis=9),
        "Flatten cannot be|Flatten has what does not",
    ),
    "a type": (
        lambda s: s["values"][node_of(s, "Flatten")[3][0]].__setitem__(2, [2, 7]),
        r"Flatten makes \(float32\[2, 32\]\) and not",
    ),
    "an operand": (lambda s: node_of(s, "Flatten").__setitem__(2, [10**6]), "number 1000000, which is not there"),
    "an operand of a later node": (
        lambda s: node_of(s, "Flatten").__setitem__(2, node_of(s, "Flatten")[3]),
        "before it is made",
    ),
    "a result twice": (lambda s: node_of(s, "Flatten").__setitem__(3, s["parts"]["micro"]["nodes"][0][3]), "makes"),
    "no element type": (
        lambda s: s["values"][0].__setitem__(1, "float128"),
        r"values\[0\] has element type 'float128'",
    ),
    "a negative size": (lambda s: s["values"][0].__setitem__(2, [-1]), r"values\[0\] has shape \[-1\]"),
    "too many dimensions": (lambda s: s["values"][0].__setitem__(2, [1] * 33), r"values\[0\] has shape"),
    "a size beyond any memory": (lambda s: s["values"][0].__setitem__(2, [1 << 62]), "more than any memory holds"),
    "sizes beyond any memory": (
        lambda s: s["values"].extend(["v", "float64", [1 << 58]] for _ in range(4)),
        "together than any memory",
    ),
    "a name of the engine's": (
        lambda s: s["values"][0].__setitem__(0, "\0micro-batches"),
        r"values\[0\] has a name that no tensor",
    ),
    "one name for two inputs": (_rename, "value names repeat"),
    "inputs that are one": (
        lambda s: s["parts"]["micro"]["inputs"].append(s["parts"]["micro"]["inputs"][0]),
        "micro has two inputs",
    ),
    "a constant of another type": (
        lambda s: s["parts"]["micro"]["constants"].append([s["parts"]["micro"]["inputs"][0], 0]),
        "micro",
    ),
    "a value of another part": (_feed, "without a link"),
    "a link backwards": (_backwards, "which no part before it makes"),
    "a link of other types": (
        lambda s: s["links"][0].__setitem__(1, s["parts"]["micro"]["inputs"][0]),
        r"links\[0\] feeds",
    ),
    "the loss": (lambda s: s.update(loss=s["parts"]["micro"]["inputs"][0]), "the loss is"),
    "outputs returned": (lambda s: s.update(returned=99), "returned is 99 of"),
    "a state of another type": (
        lambda s: s["values"][_state(s, "accumulator")["input"]].__setitem__(2, [1 << 20]),
        "update|fold",
    ),
    "a kind of state": (lambda s: _state(s, "accumulator").update(kind="other"), "kind is 'other'"),
    "a start": (
        lambda s: _state(s, "accumulator").update(start="last.bias", name="x"),
        "begins as 'last.bias'|elsewhere|outputs",
    ),
    "replicas": (lambda s: s.update(own={"last.bias": ["last.bias"] * 5}), "schedule|own"),
    "a hint": (lambda s: s["origins"][0][2].update(stage=-1), r"origins\[0\].hints are"),
    "a cast that is asked": (lambda s: s["origins"][0][2].update(casting={"enabled": True}), r"origins\[0\].hints are"),
    "a role": (lambda s: s["origins"][0].__setitem__(1, "sideward"), r"origins\[0\].role is 'sideward'"),
    "a strategy": (
        lambda s: s.update(
            staging={
                "strategy": "none",
                "ipus": [],
                "recompute": False,
                "liveness": "always_live",
                "separate_backward": False,
                "phases": [],
                "pipeline_schedule": "grouped",
                "automatic": False,
            }
        ),
        "staging is",
    ),
}


@pytest.fixture(scope="module")
def step() -> Any:
    return structure_of(trained(optimizer="adamw", gradient_accumulation=2))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_wrong_is_named(change: str, step: Any) -> None:
    act, said = CHANGES[change]
    structure = copy.deepcopy(step.structure)
    assert program_of(json.loads(json.dumps(structure)), step.arrays).training
    act(structure)
    refused(structure, step.arrays, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own: own.update({"norm.running_mean": ["norm.running_mean"] * 3}), "has 3 names"),
        (lambda own: own.update({"nobody": ["nobody"] * 2}), "names of 'nobody'"),
        (
            lambda own: own.update({"norm.running_mean": ["norm.running_mean", "norm.running_mean@x"]}),
            "calls 'norm.running_mean'",
        ),
        (
            lambda own: own.update({"norm.running_mean": ["norm.running_mean", "last.bias"]}),
            "calls 'norm.running_mean'",
        ),
    ],
)
def test_what_replicas_have_of_their_own(change: Callable[[Any], None], said: str) -> None:
    found = structure_of(kinds()["replicas"]())
    assert program_of(found.structure, found.arrays).own
    change(found.structure["own"])
    refused(found.structure, found.arrays, said)


def test_stages_that_are_not_there() -> None:
    found = structure_of(kinds()["pipelined"]())
    staging = found.structure["staging"]
    assert program_of(found.structure, found.arrays).staging is not None
    for changes in ({"ipus": staging["ipus"][:1]}, {"ipus": [-1, 0]}, {"phases": [0]}, {"ipus": []}):
        refused({**found.structure, "staging": {**staging, **changes}}, found.arrays, "staging (is|has)")


def nested(depth: int) -> Program:
    """A branch within a branch, and so on."""
    region = None
    for _ in range(depth):
        b = Builder(Graph("region"))
        word, x = b.input("word", TensorType("bool", ())), b.input("x", TensorType("float32", (2,)))
        y = b.Neg(x) if region is None else b.emit(If(region, region), word, word, x)[0]
        region = closed(b, [y])
    graph = Graph("g")
    b = Builder(graph)
    word, x = b.input("word", TensorType("bool", ())), b.input("x", TensorType("float32", (2,)))
    assert region is not None
    b.graph.outputs = list(b.emit(If(region, region), word, word, x))
    return Program.of(graph, Batching(1))


def deep(structure: Structure, depth: int) -> Structure:
    """A structure with so many regions, one within the other: each branch of the first one's is the whole again."""
    found = copy.deepcopy(structure)
    attributes = found["parts"]["micro"]["nodes"][0][1]
    inner = attributes["then"]
    for _ in range(depth - 1):
        outer = copy.deepcopy(structure["parts"]["micro"]["nodes"][0][1]["then"])
        outer["nodes"][0] = ["If", {"then": inner, "other": outer_leaf(structure), "wanted": []}, [0, 0, 1], [2], 0]
        inner = outer
    attributes["then"] = inner
    return found


def outer_leaf(structure: Structure) -> Any:
    return copy.deepcopy(structure["parts"]["micro"]["nodes"][0][1]["other"])


def test_regions_are_as_deep_as_can_be_read() -> None:
    found = structure_of(nested(1))
    read_ = program_of(deep(found.structure, DEEPEST), [])
    assert sum(1 for _ in read_.micro.levels()) > DEEPEST
    refused(deep(found.structure, DEEPEST + 1), [], f"in {DEEPEST + 1} regions")
    again = structure_of(program_of(structure_of(nested(3)).structure, []))
    assert again.structure == structure_of(nested(3)).structure


# ---- tables that kernels trust


def tabled(name: str, operand: int, change: Callable[[np.ndarray], None]) -> tuple[Structure, list[np.ndarray]]:
    """A sample with another table."""
    program = sampled(next(c for c in cases() if c.name == name))
    value = program.micro.nodes[0].inputs[operand]
    assert value is not None
    array = np.array(program.micro.constants[value])
    change(array)
    program.micro.constants[value] = array
    found = structure_of(program)
    return found.structure, found.arrays


def put(place: Any, number: int) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[place] = number

    return change


@pytest.mark.parametrize(
    ("name", "operand", "change", "said"),
    [
        ("Interpolate-0", 2, put(0, 4), "places 0 to 4 of 4"),
        ("Interpolate-0", 2, put(0, -1), "places -1 to"),
        ("Interpolate-0", 1, put(2, 40), "no rows of a matrix"),
        ("Interpolate-0", 1, put(-1, 9), "no rows of a matrix"),
        ("Interpolate-0", 5, put(1, 1 << 40), "places"),
        ("Trees-0", 2, put((0, 0), 3), "not there"),
        ("Trees-0", 2, put((0, 1), 9), "not there"),
        ("Trees-0", 2, put((1, 3), 2), "not there"),
        ("Trees-0", 2, put((1, 2), 0), "circles"),
        ("Trees-0", 3, put(0, 3), "not there"),
        ("Trees-0", 4, put(1, 3), "not there"),
        ("Trees-0", 5, put(0, 2), "not there"),
    ],
)
def test_places_that_are_not_there(name: str, operand: int, change: Callable[[np.ndarray], None], said: str) -> None:
    program_of(*tabled(name, operand, lambda array: None))
    refused(*tabled(name, operand, change), said)


@pytest.mark.parametrize("name", ["Interpolate-0", "Trees-0"])
def test_tables_that_are_not_known(name: str) -> None:
    structure, arrays = tabled(name, 2, lambda array: None)
    graph = structure["parts"]["micro"]
    number = graph["nodes"][0][2][2]
    graph["constants"] = [pair for pair in graph["constants"] if pair[0] != number]
    graph["inputs"].append(number)
    refused(structure, arrays, "no constants")


def test_a_part_of_a_tensor_is_no_program() -> None:
    found = structure_of(sampled(next(c for c in cases() if c.name == "RandomBits-0")))
    program_of(found.structure, found.arrays)
    node_of(found.structure, "RandomBits")[1].update(whole=[30, 70], start=[0, 0])
    refused(found.structure, found.arrays, "part of a tensor")


# ---- fields and expressions


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, int),
        (1.5, float),
        (2, float),
        (float("inf"), float),
        (-0.0, float),
        ("ü", str),
        (True, bool),
        (None, int | None),
        (3, int | None),
        ((1, 2), tuple[int, ...]),
        ((), tuple[int, ...]),
        ((1.0, "a"), tuple[float, str]),
        (2, float | int),
        ((True, False), tuple[bool, bool]),
    ],
)
def test_fields_are_what_was_written(value: Any, kind: Any) -> None:
    found = read(json.loads(json.dumps(written(value, kind, "x"))), kind, "x")
    assert (found, type(found)) == (value, type(value))
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (1.0, int),
        (True, int),
        ("1", int),
        (1 << 63, int),
        (None, int),
        ("a", float),
        (False, float),
        (1, str),
        ("\ud800", str),
        (1, bool),
        ([1, "a"], tuple[int, ...]),
        ([1], tuple[float, str]),
        ({}, tuple[int, ...]),
        ("x", int | None),
        ([[1]], tuple[int, ...]),
    ],
)
def test_fields_that_are_something_else(data: Any, kind: Any) -> None:
    with pytest.raises(Fault):
        read(data, kind, "x")


def test_every_operation_says_what_it_takes() -> None:
    said = {*expressions.SIGNATURES, *expressions._OTHERS, *expressions.DRAWING}
    assert said == {*OPERATIONS}


X, Y = Var(0, "float32"), Var(1, "float32")


@pytest.mark.parametrize(
    "e",
    [
        X + Y * 2,
        where(X < Y, X, 0),
        Const(float("nan"), "float32") + X,
        Const(-0.0, "float16"),
        Const(True, "bool"),
        Const(1 << 63, "uint64"),
        make("cast", (X,), "bfloat16"),
        make("cast_open", (X,), "float8_e5m2"),
    ],
    ids=key,
)
def test_expressions_are_what_was_written(e: Expr) -> None:
    assert expressions.from_data(json.loads(json.dumps(expressions.to_data(e, "x"))), "x") is e


@pytest.mark.parametrize(
    "data",
    [
        [],
        [["var", "float32", -1]],
        [["var", "float32", 1 << 40]],
        [["var", "f", 0]],
        [["draw", "uint32", 0]],
        [["const", "float32", 0.1]],
        [["const", "int8", 300]],
        [["const", "uint64", 1 << 64]],
        [["const", "int8", 1.0]],
        [["const", "int8", True]],
        [["const", "bool", 1]],
        [["const", "float32", 1e300]],
        [["const", "int4", 1]],
        [["var", "float32", 0], ["nothing", "float32", [0]]],
        [["var", "float32", 0], ["neg", "float32", [1]]],
        [["var", "float32", 0], ["neg", "float64", [0]]],
        [["var", "float32", 0], ["add", "float32", [0]]],
        [["var", "float32", 0], ["shl", "float32", [0, 0]]],
        [["var", "int32", 0], ["exp", "int32", [0]]],
        [["var", "float32", 0], ["lt", "float32", [0, 0]]],
        [["var", "float32", 0], ["where", "float32", [0, 0, 0]]],
        [["var", "float32", 0], ["cast", "float32", [0]]],
        [["var", "float32", 0], ["cast_open", "float16", [0]]],
        [["var", "float32", 0], ["stochastic", "float16", [0, 0]]],
        [["var", "bool", 0], ["add", "bool", [0, 0]]],
        [["var", "float32", 0], ["neg", "float32", [-1]]],
        [["var", "int4", 0], ["neg", "int4", [0]]],
    ],
    ids=json.dumps,
)
def test_expressions_that_cannot_be_computed(data: Any) -> None:
    with pytest.raises(Fault):
        expressions.from_data(data, "x")


# ---- damaged programs


def judge(seeds: range, folder: Path) -> None:
    found = [hostile_programs.judged(seed, folder) for seed in seeds]
    assert [f for f in found if f.how == "wrong"] == []
    assert {f.how for f in found} >= {"refused", "ran"}


def test_damaged_programs_are_refused_or_run_in_their_own_memory(tmp_path: Path) -> None:
    judge(range(PLAIN), tmp_path)


@exhaustive
@pytest.mark.parametrize("first", range(PLAIN, MANY, FEW))
def test_many_damaged_programs(first: int, tmp_path: Path) -> None:
    judge(range(first, min(first + FEW, MANY)), tmp_path)
