"""Loops that data end, or whose sequences grow: many turns are one program where every turn has the same shapes; all
others run turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port
from test_pieces import BOOL, FLOAT, INT, check, graph, prepared, sequence_ports, x_of

import tileflow
from tileflow.executable.engine import Engine
from tileflow.importers.onnx import rows, wrap_model
from tileflow.importers.onnx.control import MOST_ROOM
from tileflow.importers.onnx.pieces import steps
from tileflow.runtime.pieces import MOST_PIECES, PIECE
from tileflow.system.errors import ModelError, ShapeError, UnsupportedError

NUMBERS = {
    "one": np.array(1),
    "half": np.array(0.5, np.float32),
    "few": np.array(2, np.float32),
    "twice": np.array(2, np.float32),
    "true": np.array(True),
    "most": np.array(1 << 40),
    "flat": np.array([1]),
}
COND = ("more", BOOL, [])
TURN = [("i", INT, []), ("on", BOOL, [])]


def loop_of(
    body: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    given: Sequence[Any],
    before: Sequence[Any] = (),
    after: Sequence[Any] = (),
    wanted: Sequence[str] = (),
) -> onnx.ModelProto:
    weights = {name: a for name, a in NUMBERS.items() if all(p.name != name for p in given)}
    return model_of(
        [*before, node("Loop", list(inputs), list(outputs), "turns", body=body), *after],
        list(given),
        list(wanted or outputs),
        weights,
        opset=17,
    )


def halving() -> onnx.ModelProto:
    """Halves until the sum is small: what is left, and every turn's number and sum."""
    body = graph(
        [
            node("Mul", ["v", "half"], ["w"]),
            node("ReduceSum", ["w"], ["sum"], keepdims=1),
            node("Greater", ["sum", "few"], ["more"]),
            node("Reshape", ["i", "flat"], ["number"]),
        ],
        [COND, ("w", FLOAT, None), ("sum", FLOAT, [1]), ("number", INT, [1])],
        [*TURN, ("v", FLOAT, None)],
    )
    return loop_of(
        body,
        ["most", "on", "x"],
        ["y", "sums", "numbers"],
        [port("x", ["N"]), port("most", [], "int64"), port("on", [], "bool")],
    )


def decoder(condition: Sequence[Any], *more: Any) -> onnx.ModelProto:
    """Appends what it makes to a sequence that begins with the input, until `more` is false."""
    body = graph(
        [node("Mul", ["v", "twice"], ["w"]), node("SequenceInsert", ["s", "w"], ["t"]), *more, *condition],
        [COND, ("w", FLOAT, None), ("t", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("s", FLOAT, None)],
    )
    return loop_of(
        body,
        ["most", "true", "x", "start"],
        ["last", "all"],
        [port("x", [2])],
        [node("SequenceConstruct", ["x"], ["start"])],
        [node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1), node("SequenceLength", ["all"], ["n"])],
        ["last", "y", "n"],
    )


def shorter(name: str, length: int, appended: str = "w") -> list[Any]:
    """`more`: a sequence is shorter, and what is appended a number, which only data know."""
    return [
        node("SequenceLength", [name], ["n"]),
        node("Constant", [], ["wanted"], value_int=length),
        node("Less", ["n", "wanted"], ["short"]),
        *numbers(appended),
        node("And", ["short", "fine"], ["more"]),
    ]


def numbers(name: str) -> list[Any]:
    """`fine`: all of it are numbers."""
    return [
        node("Cast", [name], ["real"], to=FLOAT),
        node("ReduceMax", ["real"], ["level"], keepdims=0),
        node("IsNaN", ["level"], ["lost"]),
        node("Not", ["lost"], ["fine"]),
    ]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """The engines that were called."""
    seen: list[Engine] = []
    run = Engine.call

    def call(self: Engine, *given: Any, **named: Any) -> Any:
        seen.append(self)
        return run(self, *given, **named)

    monkeypatch.setattr(Engine, "call", call)
    return seen


def test_turns_that_data_end_are_one_call(calls: list[Engine]) -> None:
    """However many turns there are, with a limit, a first condition, and none at all."""

    def given(most: int, on: bool, *values: float) -> list[np.ndarray]:
        return [*x_of(*values), np.array(most), np.array(on)]

    ready = check(
        halving(),
        given(1000, True, 1e9, 2, 3),
        given(5, True, 1e9, 2, 3),
        given(1, True, 1, 2, 3),
        given(1000, True, 0, 0, 0),
    )
    del calls[:]
    assert ready.run(given(1000, True, 1e9, 2, 3))[2].ravel().tolist() == list(range(29))
    assert len(calls) == 1
    assert [a.shape for a in ready.run(given(0, True, 1, 2, 3))] == [(3,), (0, 1), (0, 1)]
    assert [a.shape for a in ready.run(given(9, False, 1, 2, 3))] == [(3,), (0, 1), (0, 1)]


def test_more_turns_than_there_is_room_for(calls: list[Engine]) -> None:
    """They go on where those before ended: their numbers, what is carried, lengths."""
    body = graph(
        [
            node("Add", ["v", "one"], ["w"]),
            node("Identity", ["i"], ["number"]),
            node("SequenceInsert", ["s", "w"], ["t"]),
            *shorter("t", 700),
        ],
        [COND, ("w", INT, []), ("t", INT, None), ("number", INT, [])],
        [*TURN, ("v", INT, []), ("s", INT, None)],
    )
    proto = loop_of(
        body,
        ["most", "true", "x", "start"],
        ["last", "all", "numbers"],
        [port("x", [], "int64")],
        [node("SequenceConstruct", ["x"], ["start"])],
        [node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1)],
        ["last", "y", "numbers"],
    )
    ready = prepared(proto)
    for _ in range(2):
        del calls[:]
        last, y, order = ready.run([np.array(5)])
        assert (last, y.tolist(), order.tolist()) == (704, list(range(5, 705)), list(range(699)))
    assert len(calls) == 1 + -(-699 // MOST_ROOM)


def test_sequences_that_only_grow_are_rows(calls: list[Engine]) -> None:
    """Asked for their lengths before, between and after what a turn appends."""
    ready = check(decoder(shorter("t", 40)), x_of(1, -1), x_of(3, 0.5))
    check(decoder(shorter("s", 7)), x_of(1, -1))
    two = [
        node("SequenceInsert", ["t", "v"], ["u"]),
        node("SequenceLength", ["t"], ["between"]),
        node("SequenceLength", ["u"], ["after"]),
        node("SequenceLength", ["s"], ["before"]),
        node("Sum", ["fb", "ft", "fa"], ["sum"]),
        node("Reshape", ["sum", "flat"], ["all_of"]),
        node("Less", ["all_of", "bound"], ["few_of"]),
        *numbers("w"),
        node("And", ["few_of", "fine"], ["more"]),
    ]
    casts = [node("Cast", [a], [b], to=FLOAT) for a, b in (("before", "fb"), ("between", "ft"), ("after", "fa"))]
    body = graph(
        [
            node("Mul", ["v", "twice"], ["w"]),
            node("SequenceInsert", ["s", "w"], ["t"]),
            *two[:4],
            *casts,
            node("Constant", [], ["bound"], value_float=60.0),
            *two[4:],
        ],
        [COND, ("w", FLOAT, None), ("u", FLOAT, None), ("all_of", FLOAT, [1])],
        [*TURN, ("v", FLOAT, None), ("s", FLOAT, None)],
    )
    check(
        loop_of(
            body,
            ["most", "true", "x", "start"],
            ["last", "all", "rows"],
            [port("x", [2])],
            [node("SequenceConstruct", ["x"], ["start"])],
            [node("ConcatFromSequence", ["all"], ["y"], axis=0)],
            ["last", "y", "rows"],
        ),
        x_of(1, -1),
    )
    del calls[:]
    ready.run(x_of(1, 2))
    assert len(calls) == 2  # what the sequence begins with, and all turns


def test_a_sequence_that_was_given_stays_as_it_is() -> None:
    """Its parts may have other shapes than those that are appended."""
    body = graph(
        [node("Add", ["v", "v"], ["w"]), node("SequenceInsert", ["s", "w"], ["t"]), *shorter("t", 5)],
        [COND, ("w", FLOAT, None), ("t", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("s", FLOAT, None)],
    )
    proto = loop_of(body, ["most", "true", "x", "given"], ["last", "all"], [port("given", [1]), port("x", [1])])
    sequence_ports(proto, "given", "all")
    given = [np.array([1, 2], np.float32), np.array([3], np.float32)]
    _, parts = prepared(proto).run([given, *x_of(5)])
    assert [p.tolist() for p in parts] == [[1, 2], [3], [10], [20], [40]]
    assert len(given) == 2
    parts[2][:] = 0  # the caller's own
    assert parts[3].tolist() == [20]


def test_tensors_that_are_only_appended_to_are_rows(calls: list[Engine]) -> None:
    body = graph(
        [
            node("Mul", ["v", "half"], ["w"]),
            node("Concat", ["r", "w", "v"], ["s"], axis=1),
            node("ReduceMax", ["w"], ["top"], keepdims=0),
            node("Greater", ["top", "half"], ["more"]),
        ],
        [COND, ("w", FLOAT, None), ("s", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("r", FLOAT, None)],
    )
    proto = loop_of(body, ["most", "true", "x", "rows"], ["last", "y"], [port("x", [2, "N"]), port("rows", [2, "M"])])
    x, rows = np.array([[100, 2], [3, 4]], np.float32), np.ones((2, 3), np.float32)
    ready = check(proto, [x, rows], [x, rows[:, :0]])
    del calls[:]
    assert ready.run([x, rows])[1].shape == (2, 3 + 8 * 4)
    assert len(calls) == 1


def test_conditions_of_other_shapes_are_one_truth_value(calls: list[Engine]) -> None:
    """As exporters write `a and b`: a branch gives [1], the other []."""
    inner = graph(
        [
            node("Constant", [], ["top"], value_float=100.0),
            node("ReduceMax", ["w"], ["max"], keepdims=1),
            node("Less", ["max", "top"], ["yes"]),
        ],
        [("yes", BOOL, [1])],
    )
    no = graph([node("Constant", [], ["o"], value=onnx.numpy_helper.from_array(np.array(False)))], [("o", BOOL, [])])
    condition = [*shorter("t", 20)[:3], node("If", ["short"], ["more"], then_branch=inner, else_branch=no)]
    ready = check(decoder(condition), x_of(1, -1), x_of(1e-9, 0), x_of(200, 0))
    del calls[:]
    ready.run(x_of(1, 2))
    assert len(calls) == 2
    read = decoder(
        [*condition, node("Cast", ["more"], ["c"], to=FLOAT), node("Shape", ["c"], ["unread"])]
    )  # the shape is asked for
    check(read, x_of(1, -1))


def test_nested_loops_that_data_end(calls: list[Engine]) -> None:
    """The inner one is one call in each turn of an outer one that Python makes, and rows of an outer one that is one
    call."""
    inner = graph(
        [
            node("Mul", ["a", "half"], ["b"]),
            node("ReduceSum", ["b"], ["rest"], keepdims=1),
            node("Greater", ["rest", "few"], ["m"]),
        ],
        [("m", BOOL, []), ("b", FLOAT, None), ("rest", FLOAT, [1])],
        [("j", INT, []), ("go", BOOL, []), ("a", FLOAT, None)],
    )
    begun = [
        node("Add", ["v", "twice"], ["next"]),
        node("Loop", ["most", "true", "next"], ["end", "rests"], body=inner),
    ]
    outer = graph(
        [*begun, node("SequenceInsert", ["s", "rests"], ["t"]), *shorter("t", 4, "next")],
        [COND, ("next", FLOAT, None), ("t", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("s", FLOAT, None)],
    )
    made = (
        [node("SequenceConstruct", ["x"], ["start"])],
        [node("SequenceAt", ["all", "one"], ["y"]), node("SequenceLength", ["all"], ["parts"])],
    )
    ready = check(
        loop_of(
            outer, ["most", "true", "x", "start"], ["last", "all"], [port("x", [2])], *made, ["last", "y", "parts"]
        ),
        x_of(9, 1),
        x_of(300, 1),
    )
    del calls[:]
    ready.run(x_of(300, 1))
    assert len(calls) == 1 + 3 * 3
    carried = graph(
        [
            node("Mul", ["a", "half"], ["b"]),
            node("ReduceSum", ["b"], ["rest"], keepdims=1),
            node("Greater", ["rest", "few"], ["m"]),
        ],
        [("m", BOOL, []), ("b", FLOAT, None)],
        [("j", INT, []), ("go", BOOL, []), ("a", FLOAT, None)],
    )
    flat = graph(
        [
            node("Add", ["v", "twice"], ["next"]),
            node("Loop", ["most", "true", "next"], ["end"], body=carried),
            node("SequenceInsert", ["s", "end"], ["t"]),
            *shorter("t", 9, "next"),
        ],
        [COND, ("next", FLOAT, None), ("t", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("s", FLOAT, None)],
    )
    ready = check(
        loop_of(
            flat, ["most", "true", "x", "start"], ["last", "all"], [port("x", [2])], *made, ["last", "y", "parts"]
        ),
        x_of(9, 1),
        x_of(300, 1),
    )
    del calls[:]
    ready.run(x_of(300, 1))
    assert len(calls) == 2


def test_shapes_that_stay_after_the_first_turn(calls: list[Engine]) -> None:
    """A first turn on its own, then all others at once."""
    body = graph(
        [
            node("Add", ["v", "column"], ["w"]),
            node("ReduceSum", ["w"], ["whole"], keepdims=0),
            node("Constant", [], ["end"], value_float=90.0),
            node("Less", ["whole", "end"], ["more"]),
            node("Reshape", ["whole", "flat"], ["sum"]),
        ],
        [COND, ("w", FLOAT, None), ("sum", FLOAT, [1])],
        [*TURN, ("v", FLOAT, None)],
        {"column": np.ones((3, 1), np.float32)},
    )
    ready = check(loop_of(body, ["most", "true", "x"], ["y", "sums"], [port("x", ["N"])]), x_of(1, 2))
    del calls[:]
    assert len(ready.run(x_of(1, 2))[1]) > 10
    assert len(calls) == 2


def near_misses() -> dict[str, tuple[onnx.ModelProto, list[np.ndarray]]]:
    """Loops that are like those above, and have no program for many turns."""
    place = node("Constant", [], ["zero"], value_int=0)
    front = graph(
        [
            place,
            node("Mul", ["v", "twice"], ["w"]),
            node("SequenceInsert", ["s", "w", "zero"], ["t"]),
            *shorter("t", 5),
        ],
        [COND, ("w", FLOAT, None), ("t", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("s", FLOAT, None)],
    )
    ends = (
        [node("SequenceConstruct", ["x"], ["start"])],
        [node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1)],
        ["last", "y"],
    )
    cut = graph(
        [
            node("Constant", [], ["axis"], value_ints=[0]),
            node("Unsqueeze", ["i", "axis"], ["to"]),
            node("Slice", ["x", "axis", "to"], ["part"]),
            node("ReduceSum", ["part"], ["sum"], keepdims=1),
            node("Less", ["sum", "few"], ["more"]),
        ],
        [COND, ("sum", FLOAT, [1])],
        TURN,
    )
    found = graph(
        [
            node("NonZero", ["v"], ["at"]),
            node("Size", ["at"], ["n"]),
            node("Cast", ["n"], ["c"], to=FLOAT),
            node("Sub", ["v", "c"], ["w"]),
            node("ReduceSum", ["w"], ["sum"], keepdims=1),
            node("Constant", [], ["low"], value_float=-9.0),
            node("Greater", ["sum", "low"], ["more"]),
        ],
        [COND, ("w", FLOAT, None), ("sum", FLOAT, [1])],
        [*TURN, ("v", FLOAT, None)],
    )
    return {
        "a sequence that grows in front": (
            loop_of(front, ["most", "true", "x", "start"], ["last", "all"], [port("x", [2])], *ends),
            x_of(1, -1),
        ),
        "a sequence that is read": (
            decoder(
                [
                    node("SequenceAt", ["t", "zero"], ["first"]),
                    node("Add", ["first", "w"], ["sum"]),
                    node("ReduceMax", ["sum"], ["top"], keepdims=0),
                    node("Constant", [], ["end"], value_float=40.0),
                    node("Less", ["top", "end"], ["more"]),
                ],
                place,
            ),
            x_of(1, -1),
        ),
        "a cut by the turn": (
            loop_of(cut, ["most", "true"], ["sums"], [port("x", [9])]),
            [np.full(9, 0.3, np.float32)],
        ),
        "sizes of data": (loop_of(found, ["most", "true", "x"], ["y", "sums"], [port("x", [3])]), x_of(4, 2, 0)),
    }


@pytest.mark.parametrize("which", near_misses())
def test_near_misses_run_turn_by_turn(which: str, calls: list[Engine]) -> None:
    proto, given = near_misses()[which]
    ready = check(proto, given, given)
    before = ready._pieces.compiled  # type: ignore[union-attr]
    del calls[:]
    ready.run(given)
    assert len(calls) > 2
    assert ready._pieces.compiled == before  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [halving, lambda: decoder(shorter("t", 300))], ids=["rows", "a sequence"])
def test_many_turns_give_the_bits_of_single_ones(
    make: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    others = {"most": np.array(99), "on": np.array(True)}
    width = make().graph.input[0].type.tensor_type.shape.dim[0].dim_value or 1000
    given = [rng.standard_normal(width).astype(np.float32) + 3, *(others[p.name] for p in make().graph.input[1:])]
    found = [tileflow.inference_model(wrap_model(make()), threads=threads)(*given) for threads in (1, 2)]
    monkeypatch.setattr(steps, "many_turns", lambda node: None)
    single = tileflow.inference_model(wrap_model(make()), threads=1)(*given)
    for outputs in found:
        for a, b in zip(outputs, single, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_endless_loop_of_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused after as many turns as one that is run turn by turn."""
    monkeypatch.setattr("tileflow.importers.onnx.hosted.loops.MOST_TURNS", 600)
    body = graph(
        [node("Mul", ["v", "half"], ["w"]), node("Identity", ["on"], ["more"])],
        [COND, ("w", FLOAT, None), ("v", FLOAT, None)],
        [*TURN, ("v", FLOAT, None)],
    )
    with pytest.raises(UnsupportedError, match="has made 600 turns"):
        prepared(loop_of(body, ["most", "", "x"], ["y", "rows"], [port("x", [2]), port("most", [65], "int64")])).run(
            [*x_of(1, 2), np.full(65, 1 << 30)]
        )
    ends = graph(
        [
            node("Mul", ["v", "half"], ["w"]),
            node("ReduceSum", ["w"], ["sum"], keepdims=0),
            node("Constant", [], ["bound"], value_float=-1.0),
            node("Greater", ["sum", "bound"], ["more"]),
        ],
        [COND, ("w", FLOAT, None), ("sum", FLOAT, [])],
        [*TURN, ("v", FLOAT, None)],
    )
    with pytest.raises(UnsupportedError, match="has made 600 turns"):
        prepared(loop_of(ends, ["most", "true", "x"], ["y", "sums"], [port("x", [2])])).run(x_of(1, 2))


def test_what_is_wrong_in_a_turn_is_said_as_ever() -> None:
    """An index that a turn computes and no table has; rows that do not fit what they are appended to."""
    body = graph(
        [
            node("Gather", ["x", "v"], ["row"]),
            node("Add", ["v", "one"], ["w"]),
            node("Less", ["row", "few"], ["more"]),
        ],
        [COND, ("w", INT, []), ("row", FLOAT, [])],
        [*TURN, ("v", INT, [])],
    )
    proto = loop_of(body, ["most", "true", "first"], ["last", "rows"], [port("x", [4]), port("first", [], "int64")])
    assert prepared(proto).run([*x_of(0, 1, 5, 0), np.array(0)])[1].tolist() == [0, 1, 5]
    with pytest.raises(tileflow.TileflowError, match="Gather"):
        prepared(proto).run([*x_of(0, 1, 0, 0), np.array(0)])
    grown = graph(
        [
            node("Mul", ["v", "half"], ["w"]),
            node("Concat", ["r", "w"], ["s"], axis=0),
            node("ReduceMax", ["w"], ["top"], keepdims=0),
            node("Greater", ["top", "half"], ["more"]),
        ],
        [COND, ("w", FLOAT, None), ("s", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("r", FLOAT, None)],
    )
    fits = loop_of(grown, ["most", "true", "x", "rows"], ["last", "y"], [port("x", [2, "N"]), port("rows", [2, "M"])])
    row = np.ones((2, 3), np.float32)
    assert prepared(fits).run([row, row])[1].shape == (4, 3)
    with pytest.raises(ShapeError):
        prepared(fits).run([row, row[:, :2]])


def test_files_may_not_say_anything_of_turns() -> None:
    """The node that many turns become is a node of a file like any other: one that is no loop is refused."""
    body = graph([node("Relu", ["v"], ["w"])], [("w", FLOAT, [2])], [("v", FLOAT, [2])])
    proto = model_of(
        [node("SomeTurns", ["most", "", "x"], ["y"], domain="tileflow", body=body)],
        [port("x", [2])],
        ["y"],
        NUMBERS,
        opset=17,
        domains=["tileflow"],
    )
    with pytest.raises(ModelError, match="its body has 1 inputs and 1 outputs for 1 carried values"):
        prepared(proto).run(x_of(1, 2))
    whole = graph(
        [node("Mul", ["v", "half"], ["w"]), node("Identity", ["on"], ["more"])],
        [COND, ("w", FLOAT, [2])],
        [*TURN, ("v", FLOAT, [2])],
    )
    proto.graph.node[0].attribute[0].g.CopyFrom(whole)
    proto.graph.initializer[list(NUMBERS).index("most")].CopyFrom(onnx.numpy_helper.from_array(np.array(3), "most"))
    assert prepared(proto).run(x_of(8, 16))[0].tolist() == [1, 2]


def caching(turns: int) -> onnx.ModelProto:
    """Appends to a tensor that every turn reads."""
    body = graph(
        [
            node("Concat", ["r", "v"], ["s"], axis=0),
            node("ReduceMean", ["s"], ["m"], axes=[0], keepdims=1),
            node("Mul", ["m", "half"], ["w"]),
            node("Shape", ["s"], ["size"]),
            node("Constant", [], ["first"], value_int=0),
            node("Gather", ["size", "first"], ["n"]),
            node("Constant", [], ["wanted"], value_int=turns),
            node("Less", ["n", "wanted"], ["short"]),
            *numbers("w"),
            node("And", ["short", "fine"], ["more"]),
        ],
        [COND, ("w", FLOAT, None), ("s", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("r", FLOAT, None)],
    )
    return loop_of(body, ["most", "true", "x", "r"], ["last", "y"], [port("x", [1, 2]), port("r", ["M", 2])])


def test_a_loop_that_grows_over_many_turns_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pieces are kept as there are turns, where each is one and small; else as many as ever."""
    monkeypatch.setattr(rows, "MOST", 1)
    given = [np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)]
    ready = check(caching(MOST_PIECES + 9), given)
    pieces = ready._pieces
    assert pieces is not None
    before = pieces.compiled
    ready.run(given)
    assert pieces.compiled == before > MOST_PIECES
    monkeypatch.setattr("tileflow.runtime.pieces.MOST_BYTES", MOST_PIECES * PIECE)
    ready = check(caching(MOST_PIECES + 9), given)
    assert ready._pieces is not None
    assert len(ready._pieces._ready) == MOST_PIECES
