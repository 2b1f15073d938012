"""Models whose sizes, branches or turns follow from data: cut into as few pieces as can be, each compiled once for what decides its shapes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model_of, node, port

import tileflow
from tileflow.importers.onnx import wrap_model
from tileflow.onnx_backend import Backend, Prepared
from tileflow.runtime.pieces import Pieces
from tileflow.system.errors import (
    DataError,
    ModelError,
    OptionError,
    OutOfMemoryError,
    ShapeError,
    TileflowError,
    TypeMismatchError,
    UnsupportedError,
)

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def prepared(proto: onnx.ModelProto) -> Prepared:
    return Backend.prepare(proto)


def check(proto: onnx.ModelProto, *inputs: Any, pieces: int | None = None) -> Prepared:
    """What comes out is what ONNX's reference computes; and in how many compiled pieces."""
    ready = prepared(proto)
    run = ReferenceEvaluator(proto)
    names = [p.name for p in proto.graph.input]
    for given in inputs:
        wanted, found = run.run(None, dict(zip(names, given, strict=True))), ready.run(list(given))
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    if pieces is not None:
        assert ready._pieces is not None
        assert ready._pieces.compiled == pieces
    return ready


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
        return
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def graph(nodes: Sequence[Any], outputs: Sequence[Any], inputs: Sequence[Any] = (), weights: Mapping[str, np.ndarray] | None = None) -> Any:
    """An inner graph; ports are (name, element type, shape)."""
    info = helper.make_tensor_value_info
    return helper.make_graph(list(nodes), "inner", [info(*p) for p in inputs], [info(*p) for p in outputs],
                             [onnx.numpy_helper.from_array(a, n) for n, a in (weights or {}).items()])


def x_of(*values: float) -> list[np.ndarray]:
    return [np.array(values, np.float32)]


def chosen() -> onnx.ModelProto:
    """The elements above 0, with more before and after."""
    return model_of([node("Mul", ["x", "two"], ["a"]), node("Greater", ["a", "zero"], ["up"]), node("NonZero", ["up"], ["at"]),
                     node("Transpose", ["at"], ["places"]), node("GatherND", ["a", "places"], ["found"]), node("Add", ["found", "two"], ["b"]),
                     node("ReduceSum", ["b"], ["y"], keepdims=0), node("Neg", ["x"], ["other"])],
                    [port("x", ["N"])], ["y", "b", "other"], {"two": np.array(2, np.float32), "zero": np.array(0, np.float32)})


def test_one_cut() -> None:
    """Two pieces, whatever else there is; the second one anew where as many elements were not found before."""
    ready = check(chosen(), x_of(1, -2, 3), x_of(4, 5, -6), pieces=2)
    check(chosen(), x_of(1, -2, 3), x_of(4, 5, 6), x_of(-1, -1, -1), x_of(1, 2), pieces=6)
    again = ready._pieces.compiled                                                                     # type: ignore[union-attr]
    ready.run(x_of(1, -2, 3))
    assert ready._pieces.compiled == again                                                             # type: ignore[union-attr]


def test_cuts_side_by_side_are_one() -> None:
    nodes = [node("NonZero", ["x"], ["p"]), node("NonZero", ["z"], ["q"]), node("Concat", ["p", "q"], ["r"], axis=1), node("Shape", ["r"], ["y"]),
             node("Relu", ["x"], ["a"]), node("NonZero", ["a"], ["s"])]
    check(model_of(nodes, [port("x", [4]), port("z", [3])], ["y", "r", "s"]), [*x_of(1, 0, 2, -1), *x_of(0, 0, 1)], pieces=2)


def test_static_models_have_no_pieces() -> None:
    ready = prepared(model_of([node("Relu", ["x"], ["y"])], [port("x", ["N"])], ["y"]))
    ready.run(x_of(1, 2))
    assert ready._pieces is None
    assert ready._last is not None


def test_values_that_decide_a_shape_are_cut_out_or_compiled_in() -> None:
    """A shape that is given is compiled in; one that follows from many numbers makes a cut."""
    small = model_of([node("Cast", ["s"], ["t"], to=INT), node("Reshape", ["x", "t"], ["y"])], [port("x", [2, 3]), port("s", [2], "int32")], ["y"])
    assert check(small, [np.ones((2, 3), np.float32), np.array([3, 2], np.int32)])._pieces is None
    nodes = [node("ReduceMax", ["x"], ["top"], keepdims=0), node("Cast", ["top"], ["n"], to=INT), node("Unsqueeze", ["n", "front"], ["shape"]),
             node("Tile", ["x", "shape"], ["y"])]
    large = model_of(nodes, [port("x", ["N"])], ["y"], {"front": np.array([0])}, opset=17)
    check(large, x_of(3, 1), x_of(2, 5), x_of(0, 3), pieces=3)


def conditional(then: Sequence[Any], other: Sequence[Any], **weights: np.ndarray) -> onnx.ModelProto:
    return model_of([node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["yes"]), node("Exp", ["x"], ["e"]),
                     node("If", ["yes"], ["r"], then_branch=graph(then, [("t", FLOAT, None)]), else_branch=graph(other, [("o", FLOAT, None)])),
                     node("Add", ["r", "r"], ["y"])],
                    [port("x", ["N"])], ["y"], {"zero": np.array(0, np.float32), **weights}, opset=17)


def test_branches_of_other_shapes() -> None:
    """The condition is a cut; only the branch that is taken is compiled at all."""
    proto = conditional([node("Concat", ["e", "x"], ["t"], axis=0)], [node("Neg", ["e"], ["o"])])
    ready = check(proto, x_of(1, 2), pieces=2)
    ready.run(x_of(-1, -2))
    assert ready._pieces.compiled == 3                                                                 # type: ignore[union-attr]
    check(proto, x_of(1, 2), x_of(-1, -2), x_of(3, 4), pieces=3)


def test_branches_within_branches_and_cuts_in_them() -> None:
    inner = node("If", ["small"], ["t"], then_branch=graph([node("Identity", ["x"], ["p"])], [("p", FLOAT, None)]),
                 else_branch=graph([node("NonZero", ["x"], ["at"]), node("Cast", ["at"], ["c"], to=FLOAT), node("Squeeze", ["c", "front"], ["q"])],
                                   [("q", FLOAT, None)], weights={"front": np.array([0])}))
    proto = conditional([node("Less", ["sum", "ten"], ["small"]), inner], [node("Concat", ["x", "x"], ["o"], axis=0)], ten=np.array(10, np.float32))
    check(proto, x_of(1, 2), x_of(50, 0, 2), x_of(-1, -2), x_of(50, 0, 3))


def test_a_branch_that_is_not_taken_may_be_anything() -> None:
    proto = conditional([node("Concat", ["x", "x"], ["t"], axis=0)], [node("Strange", ["x"], ["o"], domain="other")])
    proto.opset_import.append(helper.make_opsetid("other", 1))
    ready = prepared(proto)
    np.testing.assert_array_equal(ready.run(x_of(1, 2))[0], [2, 4, 2, 4])
    with pytest.raises(UnsupportedError, match="other::Strange"):
        ready.run(x_of(-1, -2))


def growing() -> onnx.ModelProto:
    """Each turn doubles what is carried, and gives its sum, until it is long enough."""
    body = graph([node("Concat", ["v", "v"], ["longer"], axis=0), node("ReduceSum", ["longer"], ["total"], keepdims=1),
                  node("Size", ["longer"], ["size"]),
                  node("Less", ["size", "limit"], ["more"]), node("Mul", ["total", "scale"], ["row"])],
                 [("more", BOOL, []), ("longer", FLOAT, None), ("row", FLOAT, [1])], [("i", INT, []), ("on", BOOL, []), ("v", FLOAT, None)])
    return model_of([node("Loop", ["most", "on", "x"], ["y", "rows"], body=body), node("Neg", ["y"], ["z"])],
                    [port("x", ["N"]), port("most", [], "int64"), port("on", [], "bool")], ["y", "rows", "z"],
                    {"limit": np.array(10), "scale": np.array(3, np.float32)}, opset=17)


def test_loops_whose_shapes_change() -> None:
    def given(most: int, on: bool, *values: float) -> list[np.ndarray]:
        return [*x_of(*values), np.array(most), np.array(on)]
    ready = check(growing(), given(100, True, 1, 2, 3), given(1, True, 1, 2, 3), given(100, True, 1))
    rows = ready.run(given(0, True, 1, 2))
    assert [a.shape for a in rows] == [(2,), (0, 1), (2,)]
    assert [a.shape for a in ready.run(given(9, False, 1, 2))] == [(2,), (0, 1), (2,)]


def test_bodies_are_compiled_once_for_each_shape() -> None:
    ready = prepared(growing())
    ready.run([*x_of(1, 2), np.array(100), np.array(True)])
    before = ready._pieces.compiled                                                                    # type: ignore[union-attr]
    ready.run([*x_of(3, 4), np.array(100), np.array(True)])
    assert ready._pieces.compiled == before                                                            # type: ignore[union-attr]


def test_a_loop_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tileflow.importers.onnx.hosted.loops.MOST_TURNS", 50)
    body = graph([node("NonZero", ["v"], ["at"]), node("Size", ["at"], ["n"]), node("Cast", ["n"], ["c"], to=FLOAT), node("Add", ["v", "c"], ["w"]),
                  node("Identity", ["on"], ["more"])], [("more", BOOL, []), ("w", FLOAT, None)],
                 [("i", INT, []), ("on", BOOL, []), ("v", FLOAT, None)])
    proto = model_of([node("Loop", ["", "", "x"], ["y"], body=body)], [port("x", [2])], ["y"], opset=17)
    with pytest.raises(UnsupportedError, match="has made 50 turns"):
        prepared(proto).run(x_of(1, 2))


def test_scans_and_sequences() -> None:
    body = graph([node("NonZero", ["row"], ["at"]), node("Size", ["at"], ["n"]), node("Add", ["count", "n"], ["sum"]),
                  node("Identity", ["n"], ["each"])],
                 [("sum", INT, []), ("each", INT, [])], [("count", INT, []), ("row", FLOAT, None)])
    proto = model_of([node("Scan", ["zero", "x"], ["total", "each"], body=body, num_scan_inputs=1)], [port("x", ["N", "M"])], ["total", "each"],
                     {"zero": np.array(0)}, opset=17)
    check(proto, [np.array([[1, 0], [0, 0], [2, 3]], np.float32)])


def sequence_ports(proto: onnx.ModelProto, *names: str) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name in names:
            value.CopyFrom(helper.make_tensor_sequence_value_info(value.name, FLOAT, None))


def test_sequences_in_and_out() -> None:
    """A sequence of three parts that a compiled piece made goes out, too; what is given stays as it is."""
    nodes = [node("SequenceInsert", ["s", "x"], ["longer"]), node("SequenceLength", ["longer"], ["n"]),
             node("SequenceAt", ["longer", "first"], ["head"]), node("Exp", ["head"], ["y"]),
             node("SplitToSequence", ["x"], ["parts"], axis=0), node("ConcatFromSequence", ["longer"], ["all"], axis=0)]
    proto = model_of(nodes, [port("s", [1]), port("x", [3])], ["n", "y", "parts", "all"], {"first": np.array(0)}, opset=17)
    sequence_ports(proto, "s", "parts")
    given = [np.array([1, 2], np.float32), np.array([3], np.float32)]
    n, y, parts, whole = prepared(proto).run([given, *x_of(5, 6, 7)])
    assert n == 3
    np.testing.assert_allclose(y, np.exp(given[0]), rtol=1e-6)
    assert [p.tolist() for p in parts] == [[5], [6], [7]]
    assert whole.tolist() == [1, 2, 3, 5, 6, 7]
    assert len(given) == 2


def test_texts_in_and_out() -> None:
    proto = model_of([node("StringConcat", ["a", "b"], ["c"]), node("Equal", ["c", "wanted"], ["same"]), node("Cast", ["same"], ["y"], to=FLOAT),
                      node("Cast", ["y"], ["t"], to=TensorProto.STRING)],
                     [port("a", [2]), port("b", [2])], ["c", "y", "t"], opset=20)
    for value in (*proto.graph.input, proto.graph.output[0], proto.graph.output[2]):
        value.type.tensor_type.elem_type = TensorProto.STRING
    proto.graph.initializer.append(helper.make_tensor("wanted", TensorProto.STRING, [2], [b"ax", b"??"]))
    c, y, t = prepared(proto).run([np.array(["a", "b"]), np.array(["x", "y"], object)])
    assert c.tolist() == ["ax", "by"]
    assert y.tolist() == [1, 0]
    assert t.tolist() == ["1.0", "0.0"]
    with pytest.raises(TypeMismatchError, match="'a' has element type float64; give texts"):
        prepared(proto).run([np.ones(2), np.array(["x", "y"])])


def test_functions_are_cut_where_they_must_be() -> None:
    """A function of the model's own with a cut in it: what stands before and after the cut is compiled with its neighbours."""
    nodes = [node("Relu", ["a"], ["p"]), node("NonZero", ["p"], ["at"]), node("Cast", ["at"], ["r"], to=FLOAT)]
    body = helper.make_function("mine", "Chosen", ["a"], ["r"], nodes, [helper.make_opsetid("", 17)])
    proto = model_of([node("Neg", ["x"], ["m"]), node("Chosen", ["m"], ["c"], domain="mine"), node("Exp", ["c"], ["y"])], [port("x", [4])], ["y"],
                     opset=17, domains=["mine"])
    proto.functions.append(body)
    check(proto, x_of(1, -2, 3, -4), pieces=2)


def test_everything_that_stops_a_model_is_named_before_anything_runs() -> None:
    nodes = [node("NonZero", ["x"], ["at"]), node("Odd", ["at"], ["a"], domain="other"), node("Odder", ["x"], ["b"], domain="other")]
    proto = model_of(nodes, [port("x", [4])], ["a", "b"], domains=["other"])
    with pytest.raises(UnsupportedError, match=r"(?s)Odd .*Odder "):
        prepared(proto)


def test_errors_of_what_python_runs_name_the_node() -> None:
    nodes = [node("NonZero", ["x"], ["at"]), node("Squeeze", ["at"], ["p"]), node("Compress", ["p", "c"], ["y"], "press", axis=3)]
    proto = model_of(nodes, [port("x", [2]), port("c", [2], "bool")], ["y"], opset=17)
    with pytest.raises(ShapeError, match="Compress node 'press' cannot be computed"):
        prepared(proto).run([*x_of(1, 2), np.array([True, False])])
    nodes = [node("OptionalGetElement", ["o"], ["y"], "get")]
    empty = model_of(nodes, [port("o", [2])], ["y"], opset=18)
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    empty.graph.input[0].CopyFrom(helper.make_value_info("o", kind))
    with pytest.raises(DataError, match="'get' takes the element of an optional that is empty"):
        prepared(empty).run([None])
    np.testing.assert_array_equal(prepared(empty).run(x_of(1, 2))[0], [1, 2])


def test_a_fixed_batch_is_the_declared_one_in_pieces() -> None:
    proto = model_of([node("NonZero", ["x"], ["at"])], [port("x", [2, 3])], ["at"])
    with pytest.raises(ShapeError, match="declares batch 2 for x and got 5"):
        prepared(proto).run([np.ones((5, 3), np.float32)])


def test_turns_draw_other_numbers() -> None:
    once = graph([node("RandomUniformLike", ["x"], ["r"], dtype=FLOAT), node("Identity", ["on"], ["more"])],
                 [("more", BOOL, []), ("r", FLOAT, [2])], [("i", INT, []), ("on", BOOL, [])])
    proto = model_of([node("Loop", ["n", ""], ["rows"], body=once)], [port("x", [2])], ["rows"], {"n": np.array(3)}, opset=17)
    rows, = prepared(proto).run(x_of(1, 2))
    assert rows.shape == (3, 2)
    assert len(np.unique(rows)) == 6


def test_sparse_initializers() -> None:
    from onnx.helper import make_sparse_tensor, make_tensor
    for indices, dims in (([1, 3], [2]), ([0, 1, 1, 1], [2, 2])):
        proto = model_of([node("Add", ["x", "w"], ["y"])], [port("x", [2, 2])], ["y"])
        proto.graph.sparse_initializer.append(make_sparse_tensor(make_tensor("w", FLOAT, [2], [5, 6]), make_tensor("i", INT, dims, indices), [2, 2]))
        np.testing.assert_array_equal(prepared(proto).run([np.zeros((2, 2), np.float32)])[0], [[0, 5], [0, 6]])
    proto.graph.sparse_initializer[0].dims[0] = 1
    with pytest.raises(ModelError, match=r"index|indices"):
        prepared(proto).run([np.zeros((2, 2), np.float32)])


def test_models_of_sequences_can_be_destroyed(tmp_path: Path) -> None:
    """The next call finds out anew that there is no one program."""
    proto = model_of([node("ConcatFromSequence", ["s"], ["y"], axis=0)], [port("s", [])], [port("y", ["n"])])
    sequence_ports(proto, "s")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    model = tileflow.inference_model(tmp_path / "m.onnx")
    for parts in (x_of(1, -2, 3) + x_of(4, 5), x_of(1, 2)):
        np.testing.assert_array_equal(model(parts), np.concatenate(parts))
        model.destroy()


def test_inference_models_run_in_pieces(tmp_path: Path) -> None:
    """With the weights of the session, texts, lists and other shapes where that was chosen."""
    path = tmp_path / "m.onnx"
    path.write_bytes(chosen().SerializeToString())
    model = tileflow.inference_model(path, on_new_shape="compile")
    for given in (x_of(1, -2, 3), x_of(4, 5, -6), x_of(1, -1)):
        for found, wanted in zip(model(*given), ReferenceEvaluator(chosen()).run(None, {"x": given[0]}), strict=True):
            same(found, wanted)
    assert model.in_pieces
    assert model.output_names == ["y", "b", "other"]
    with pytest.raises(TileflowError, match="runs in pieces, because sizes in it follow from data"):
        _ = model.program
    strict = tileflow.inference_model(path)
    strict(*x_of(1, 2))
    with pytest.raises(ShapeError, match="Shape mismatch for x"):
        strict(*x_of(1, 2, 3))
    strict.destroy()
    strict(*x_of(1, 2, 3))
    with pytest.raises(OptionError, match="leave device_iterations=2 out"):
        tileflow.inference_model(path, device_iterations=2)(*x_of(1, 2))
    with pytest.raises(UnsupportedError, match=r"inference has it and a training run of one program does not.*train it call by call"):
        tileflow.train(path, data=(x_of(1, 2)[0], x_of(1, 2)[0]), loss="mse", out=tmp_path / "run")


def test_trained_weights_are_those_of_every_piece() -> None:
    """A layer before the cut and one after it; the session's weights change between two calls."""
    draw = np.random.default_rng(0)
    weights = {"a": draw.standard_normal((3, 4)).astype(np.float32), "b": draw.standard_normal((4, 2)).astype(np.float32)}
    proto = model_of([node("MatMul", ["x", "a"], ["h"]), node("ReduceMax", ["h"], ["m"], axes=[1], keepdims=0),
                      node("Greater", ["m", "zero"], ["up"]),
                      node("Compress", ["h", "up"], ["kept"], axis=0), node("MatMul", ["kept", "b"], ["y"])],
                     [port("x", ["N", 3])], ["y"], {**weights, "zero": np.array(0, np.float32)})
    loaded = wrap_model(proto)
    model, x = tileflow.inference_model(loaded, on_new_shape="compile"), draw.standard_normal((6, 3)).astype(np.float32)

    def wanted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        h = x @ a
        return h[h.max(1) > 0] @ b
    np.testing.assert_allclose(model(x), wanted(**weights), rtol=1e-5, atol=1e-6)
    assert sorted(model.state_dict()) == ["a", "b"]
    changed = {name: -w for name, w in weights.items()}
    model.load_state_dict(changed)
    np.testing.assert_allclose(model(x), wanted(**changed), rtol=1e-5, atol=1e-6)


def test_infer_joins_batches() -> None:
    """Rows that a batch gives, in the order of the data; the last batch is not filled up."""
    proto = model_of([node("ReduceSum", ["x", "axis"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["up"]),
                      node("Compress", ["x", "up"], ["y"], axis=0)], [port("x", ["N", 2])], ["y", "s"],
                     {"axis": np.array([1]), "zero": np.array(0, np.float32)})
    x = np.random.default_rng(1).standard_normal((7, 2)).astype(np.float32)
    said: list[str] = []
    found = tileflow.infer(wrap_model(proto), data=x, micro_batch_size=3, say=said.append)
    np.testing.assert_array_equal(found["y"], x[x.sum(1) > 0])
    assert said == [f"The output 'y' has {len(found['y'])} rows for 7 of the data: what each batch of 3 gave, one after the other."]
    np.testing.assert_allclose(found["s"], x.sum(1), rtol=1e-6)
    whole = model_of([node("NonZero", ["x"], ["at"])], [port("x", ["N", 2])], ["at"])
    with pytest.raises(DataError, match=r"shape \[2, 3\] for 2 rows, so that what batches give of it cannot be put together"):
        tileflow.infer(wrap_model(whole), data=np.array([[1, 2], [0, 1], [0, 0]], np.float32), micro_batch_size=2)


def test_models_without_inputs() -> None:
    proto = model_of([node("Range", ["a", "b", "c"], ["r"]), node("Cast", ["r"], ["y"], to=FLOAT)], [], ["y"],
                     {"a": np.array(0), "b": np.array(3), "c": np.array(1)})
    assert tileflow.inference_model(wrap_model(proto))().tolist() == [0, 1, 2]
    assert prepared(proto).run([])[0].tolist() == [0, 1, 2]


def test_a_branch_that_does_not_fit_the_given_shapes() -> None:
    """One branch is written for rows of 4, the other for rows of 6, and a number says which: it is compiled in."""
    def branch(name: str, n: int) -> Any:
        return graph([node("Reshape", ["x", f"{name}s"], [f"{name}r"]), node("MatMul", [f"{name}r", f"{name}w"], [name])], [(name, FLOAT, [1, 2])],
                     weights={f"{name}s": np.array([1, n]), f"{name}w": np.ones((n, 2), np.float32)})
    proto = model_of([node("Equal", ["kind", "four"], ["is"]), node("If", ["is"], ["y"], then_branch=branch("t", 4), else_branch=branch("o", 6))],
                     [port("x", ["N"]), port("kind", [], "int64")], ["y"], {"four": np.array(4)})
    ready = check(proto, [np.arange(4, dtype=np.float32), np.array(4)], [np.arange(6, dtype=np.float32), np.array(6)])
    assert ready._pieces is None


def test_pieces_of_other_sizes_give_way_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = check(chosen(), x_of(1, -2, 3))
    pieces, make = ready._pieces, Pieces.engine
    assert pieces is not None

    def short(self: Pieces, *given: Any) -> Any:
        if len(self._ready):
            raise OutOfMemoryError("There is no room.")
        return make(self, *given)
    monkeypatch.setattr(Pieces, "engine", short)
    assert ready.run(x_of(1, 2, 3, 4))[0] == 28
    assert len(pieces._ready) < 3, "those of three elements are gone"


def test_an_optional_whose_value_was_compiled_in_may_be_empty() -> None:
    """What is compiled in is asked for its bytes only where it is a tensor."""
    then = graph([node("OptionalGetElement", ["s"], ["t"]), node("Reshape", ["x", "t"], ["r"])], [("r", FLOAT, None)])
    other = graph([node("Neg", ["x"], ["n"])], [("n", FLOAT, None)])
    proto = model_of([node("OptionalHasElement", ["s"], ["has"]), node("If", ["has"], ["y"], then_branch=then, else_branch=other)],
                     [port("x", [4]), port("s", [2], "int64")], ["y"], opset=18)
    proto.graph.input[1].CopyFrom(helper.make_value_info("s", helper.make_optional_type_proto(helper.make_tensor_type_proto(INT, [2]))))
    ready, x = prepared(proto), np.arange(4, dtype=np.float32)
    for _ in range(2):
        assert ready.run([x, np.array([2, 2])])[0].tolist() == [[0, 1], [2, 3]]
        assert ready.run([x, None])[0].tolist() == [0, -1, -2, -3]
