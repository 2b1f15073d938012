"""Loops whose body reads what it appends to: several turns are one program, and whatever ends the loop among them, it
gives what single turns give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from declared import taken_back  # noqa: F401
from onnx_models import model_of, node, port
from test_many_turns import COND, NUMBERS, TURN, calls, loop_of  # noqa: F401
from test_pieces import BOOL, FLOAT, INT, check, graph, prepared

import tileflow
from tileflow import custom
from tileflow.executable.engine import Engine
from tileflow.importers.onnx import rows, wrap_model
from tileflow.importers.onnx.pieces import cut, steps
from tileflow.onnx_backend import Prepared
from tileflow.system.errors import ModelError, TileflowError

WIDTH = 6
ENDS = [node("Add", ["i", "one"], ["n"]), node("Less", ["n", "end"], ["more"])]
NEVER_ENDS = [node("Identity", ["on"], ["more"])]


def decoder(
    condition: Sequence[Any] = ENDS,
    more: Sequence[Any] = (),
    given: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Appends two rows to `keys` and a column to `values`, and reads both; a token to what nobody reads; hands `kept`
    on as it is. Every turn gives its sum."""
    rng = np.random.default_rng(1)
    weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2 for name in ("wk", "wv")}
    body = graph(
        [
            node("MatMul", ["x", "wk"], ["row"]),
            node("Tanh", ["row"], ["second"]),
            node("Concat", ["keys", "row", "second"], ["more keys"], axis=0),
            node("MatMul", ["x", "wv"], ["value"]),
            node("Transpose", ["value"], ["column"], perm=[1, 0]),
            node("Concat", ["values", "column"], ["more values"], axis=-1),
            node("Transpose", ["more keys"], ["k"], perm=[1, 0]),
            node("MatMul", ["x", "k"], ["scores"]),
            node("Softmax", ["scores"], ["shares"], axis=-1),
            node("ReduceMax", ["shares"], ["top"], keepdims=0),
            node("ReduceMean", ["more values"], ["mean"], axes=[1], keepdims=0),
            node("Mul", ["mean", "top"], ["found"]),
            node("Sum", ["found", "x", "kept"], ["all of it"]),
            node("Tanh", ["all of it"], ["next"]),
            node("ArgMax", ["next"], ["token"], axis=1, keepdims=0),
            node("Concat", ["tokens", "token"], ["more tokens"], axis=0),
            node("ReduceSum", ["next"], ["sum"], keepdims=0),
            node("Reshape", ["sum", "flat"], ["given sum"]),
            *more,
            *condition,
        ],
        [
            COND,
            ("next", FLOAT, None),
            ("more keys", FLOAT, None),
            ("more tokens", INT, None),
            ("more values", FLOAT, None),
            ("kept", FLOAT, None),
            ("given sum", FLOAT, [1]),
        ],
        [
            *TURN,
            ("x", FLOAT, None),
            ("keys", FLOAT, None),
            ("tokens", INT, None),
            ("values", FLOAT, None),
            ("kept", FLOAT, None),
        ],
        weights,
    )
    carried = ["x0", "keys0", "tokens0", "values0", "kept0"]
    ports = [
        port("most", [], "int64"),
        port("on", [], "bool"),
        port("end", [], "int64"),
        port("x0", [1, WIDTH]),
        port("keys0", ["M", WIDTH]),
        port("tokens0", ["T"], "int64"),
        port("values0", [WIDTH, "N"]),
        port("kept0", [WIDTH]),
        *given,
    ]
    outputs = ["last", "keys", "tokens", "values", "kept", "sums"]
    proto = loop_of(body, ["most", "on", *carried], outputs, ports)
    proto.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in domains)
    return proto


def data(end: int, most: int = 1 << 40, on: bool = True, size: int = 2) -> list[np.ndarray]:
    """At most so many turns; `size` turns seem to be made already."""
    rng = np.random.default_rng(3)
    x, keys, values, kept = (
        rng.standard_normal(s).astype(np.float32) for s in ((1, WIDTH), (2 * size, WIDTH), (WIDTH, size), (WIDTH,))
    )
    return [np.array(most), np.array(on), np.array(end), x, keys, np.array([4, 2]), values, kept]


def singly(proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """The model, whose loops are run turn by turn."""
    with monkeypatch.context() as patch:
        patch.setattr(steps, "many_turns", lambda node: None)
        ready = prepared(proto)
        ready.run(data(1, 1))
    return ready


def assert_equal(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_where_data_end_it_the_bits_are_those_of_single_turns(
    calls: list[Engine],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready, single = check(decoder(), data(1), data(6), data(37)), singly(decoder(), monkeypatch)
    for end in (1, 2, 3, 4, 5, 13, 14, 15, 29, 30, 31, 47):
        del calls[:]
        found = ready.run(data(end))
        assert len(calls) <= 5
        assert len(found[-1]) == end
        assert_equal(found, single.run(data(end)))


def test_as_many_turns_as_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a number of turns, which is none of those that programs have; none at all; a first condition."""
    proto = decoder(NEVER_ENDS)
    ready, single = check(proto, data(0, 5), data(0, 21)), singly(proto, monkeypatch)
    for most in (1, 2, 14, 15, 16, 17, 33):
        found = ready.run(data(0, most))
        assert len(found[-1]) == most
        assert_equal(found, single.run(data(0, most)))
    given = data(0, 0)
    for nothing in (given, data(9, on=False)):
        *carried, sums = ready.run(nothing)
        assert_equal(carried, given[3:])
        assert sums.shape == (0, 1)
    both = check(decoder(), data(9, 4), data(4, 9))
    assert [len(both.run(data(*n))[-1]) for n in ((20, 19), (19, 20), (20, 1))] == [19, 19, 1]


def test_sizes_have_programs_in_common() -> None:
    """Those of a longer beginning end where those of a shorter one do."""
    ready = prepared(decoder())
    ready.run(data(70, size=2))
    pieces = ready._pieces
    assert pieces is not None
    for size in (5, 13, 23):
        before = pieces.compiled
        ready.run(data(72 - size, size=size))
        after = pieces.compiled
        assert before < after <= before + 2
        ready.run(data(72 - size, size=size))
        assert pieces.compiled == after


def test_an_error_of_a_turn_that_is_none_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has a row for each turn, and none for those after the end; where it has too few, that is said as ever."""
    proto = decoder(
        [node("Gather", ["table", "i"], ["noise"]), node("Less", ["noise", "half"], ["more"])],
        given=[port("table", ["K"])],
    )
    ready = prepared(proto)
    for turns in (1, 5, 20):
        given = [*data(0), np.array([*[0.0] * (turns - 1), 1], np.float32)]
        found = check(proto, given).run(given)
        assert len(found[-1]) == turns
        assert_equal(ready.run(given), found)
        assert_equal(ready.run(given), found)
    short = [*data(0), np.zeros(20, np.float32)]
    with pytest.raises(TileflowError, match="Gather") as error:
        ready.run(short)
    monkeypatch.setattr(steps, "many_turns", lambda node: None)
    with pytest.raises(TileflowError, match="Gather") as wanted:
        prepared(proto).run(short)
    assert str(error.value) == str(wanted.value)


def test_a_users_function_is_called_once_a_turn() -> None:
    """Where a turn may leave more than what it gives, none is made for nothing."""
    seen: list[float] = []

    @tileflow.operator("com.acme", "Watched")
    class Watched:
        def infer(self, x: Any) -> Any:
            return x

        @custom.python
        def forward(self, x: np.ndarray) -> np.ndarray:
            seen.append(float(x.sum()))
            return x

    proto = decoder(
        [node("Watched", ["n"], ["m"], domain="com.acme"), node("Less", ["m", "end"], ["more"])],
        [node("Add", ["i", "one"], ["n"])],
        domains=["com.acme"],
    )
    assert len(prepared(proto).run(data(5))[-1]) == 5
    assert seen == [1, 2, 3, 4, 5]


INNER = graph(
    [node("Mul", ["a", "half"], ["b"]), node("Greater", ["b", "half"], ["m"])],
    [("m", BOOL, []), ("b", FLOAT, None)],
    [("j", INT, []), ("go", BOOL, []), ("a", FLOAT, None)],
)


@pytest.mark.parametrize(
    "more",
    [
        [node("RandomUniformLike", ["sum"], ["drawn"]), node("Add", ["drawn", "sum"], ["unread"])],
        [node("Loop", ["huge", "on", "sum"], ["drawn"], body=INNER)],
        [node("Slice", ["kept", "flat0", "n1"], ["cut"]), node("ReduceMax", ["cut"], ["drawn"], keepdims=0)],
        [node("Concat", ["keys", "keys"], ["both"], axis=1), node("ReduceMax", ["both"], ["drawn"], keepdims=0)],
    ],
    ids=["drawn", "a loop", "a cut by the turn", "what fits"],
)
def test_near_misses_of_rows_run_turn_by_turn(
    more: Sequence[Any],
    calls: list[Engine],  # noqa: F811
    request: pytest.FixtureRequest,
) -> None:
    first = [
        node("Constant", [], ["huge"], value_int=1 << 30),
        node("Constant", [], ["flat0"], value_ints=[0]),
        node("Add", ["i", "one"], ["n0"]),
        node("Reshape", ["n0", "flat"], ["n1"]),
    ]
    use = [node("IsNaN", ["drawn"], ["lost"]), node("Not", ["lost"], ["fine"]), node("Add", ["i", "one"], ["n"])]
    proto = decoder(
        [*use, node("Less", ["n", "end"], ["short"]), node("And", ["short", "fine"], ["more"])], [*first, *more]
    )
    ready = prepared(proto)
    assert len(ready.run(data(6))[-1]) == 6
    del calls[:]
    ready.run(data(6))
    assert (len(calls) < 4) is ("what fits" in request.node.name)


@pytest.mark.parametrize(("limit", "few"), [("MOST_NODES", 100), ("MOST_WORK", 9000), ("ROOM", 150)])
def test_turns_are_fewer_where_they_are_much(
    limit: str,
    few: int,
    calls: list[Engine],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    wanted = prepared(decoder()).run(data(30))
    for most in (1 << 30, few, 1):
        monkeypatch.setattr(rows, limit, most)
        ready = prepared(decoder())
        assert_equal(ready.run(data(30)), wanted)
        del calls[:]
        ready.run(data(30))
        counts.append(len(calls))
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("light", [1 << 20, 0], ids=["of the body", "handed to it"])
@pytest.mark.parametrize("first", [0, 1, 7])
def test_weights_of_a_body_are_the_sessions(light: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether each program lays them out or is given them, and has run before they change."""
    monkeypatch.setattr(cut, "LIGHT", light)
    draw = np.random.default_rng(0)
    w, x, rows = (draw.standard_normal(s).astype(np.float32) for s in ((4, 4), (1, 4), (2, 4)))
    body = graph(
        [
            node("MatMul", ["v", "weight"], ["row"]),
            node("Concat", ["r", "row"], ["s"], axis=0),
            node("ReduceMean", ["s"], ["m"], axes=[0], keepdims=1),
            node("Tanh", ["m"], ["w"]),
            *NEVER_ENDS,
        ],
        [COND, ("w", FLOAT, None), ("s", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("r", FLOAT, None)],
    )
    proto = model_of(
        [node("Loop", ["turns", "", "x", "rows"], ["y", "all"], "turns", body=body)],
        [port("turns", [], "int64"), port("x", [1, 4]), port("rows", ["M", 4])],
        ["y", "all"],
        {"weight": w},
    )
    model = tileflow.inference_model(wrap_model(proto))

    def wanted(weight: np.ndarray, turns: int) -> list[np.ndarray]:
        v, kept = x, rows
        for _ in range(turns):
            kept = np.concatenate([kept, v @ weight])
            v = np.tanh(kept.mean(0, keepdims=True))
        return [v, kept]

    for turns in (first, 7):
        for found, right in zip(model(np.array(turns), x, rows), wanted(w, turns), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
        assert list(model.state_dict()) == ["weight"]
        w = -w
        model.load_state_dict({"weight": w})


def test_sequences_that_grow_beside_what_is_read(calls: list[Engine]) -> None:  # noqa: F811
    """Asked for their length in every turn, which ends the loop."""
    body = graph(
        [
            node("Concat", ["r", "v"], ["s"], axis=0),
            node("ReduceMean", ["s"], ["m"], axes=[0], keepdims=1),
            node("Add", ["m", "half"], ["w"]),
            node("SequenceInsert", ["q", "w"], ["t"]),
            node("SequenceLength", ["t"], ["n"]),
            node("Less", ["n", "end"], ["more"]),
        ],
        [COND, ("w", FLOAT, None), ("s", FLOAT, None), ("t", FLOAT, None)],
        [*TURN, ("v", FLOAT, None), ("r", FLOAT, None), ("q", FLOAT, None)],
    )
    proto = loop_of(
        body,
        ["most", "true", "x", "rows", "start"],
        ["last", "y", "all"],
        [port("x", [1, 2]), port("rows", ["M", 2]), port("end", [], "int64")],
        [node("SequenceConstruct", ["x"], ["start"])],
        [node("ConcatFromSequence", ["all"], ["parts"], axis=0)],
        ["last", "y", "parts"],
    )
    x = np.ones((1, 2), np.float32)
    ready = check(proto, [x, 3 * x, np.array(2)], [x, 3 * x, np.array(9)], [x, 3 * x, np.array(30)])
    del calls[:]
    assert ready.run([x, 3 * x, np.array(30)])[1].shape == (30, 2)
    assert len(calls) <= 6


def test_files_may_not_say_anything_of_rows_of_turns() -> None:
    """The node that several turns become is a node of a file like any other."""
    body = graph(
        [
            node("Concat", ["v", "v0"], ["w"], axis=0),
            node("ReduceSum", ["w"], ["sum"], keepdims=0),
            node("Less", ["sum", "few"], ["more"]),
        ],
        [("w", FLOAT, None), ("sum", FLOAT, []), ("more", BOOL, [])],
        [("v", FLOAT, None)],
    )

    def proto(growing: int) -> onnx.ModelProto:
        row = node("RowOfTurns", ["three", "x"], ["y", "sums", "on"], domain="tileflow", body=body, growing=growing)
        weights = {"three": np.array(3), "v0": np.ones(1, np.float32), **NUMBERS}
        return model_of([row], [port("x", [2])], ["y", "sums", "on"], weights, domains=["tileflow"])

    y, sums, on = prepared(proto(1)).run([np.zeros(2, np.float32)])
    assert (y.tolist(), sums.tolist(), on.tolist()) == ([0, 0, 1, 1, 1], [1, 2, 3], [True, False, False])
    with pytest.raises(ModelError, match="its body has 1 inputs and 3 outputs for 1 carried values, 2 of which grow"):
        prepared(proto(2)).run([np.zeros(2, np.float32)])
