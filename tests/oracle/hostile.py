"""Small files to damage, and ways to damage them: bytes, and what the bytes mean. Deterministic by seed.

`python tests/oracle/hostile.py 600` goes on for ten minutes, each case in bounded time and memory, and prints what is
no sentence.
`tests/oracle/hostile_models.py` judges a number of models, each in a process of its own.
"""
from __future__ import annotations

import io
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

EXTREME = (0, 1, -1, 2, 3, 7, 33, 65, 1 << 16, 1 << 31, -(1 << 31), 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), -2, -5)
NAMES = ("", "x", "y", "w", "nothing", "n" * 3000, "a\0b", "\u202egnp.exe", "\x1b[31m", "../x", "a/b", "ü")
OPERATORS = ("Relu", "Add", "Sum", "Concat", "Reshape", "Slice", "Split", "Transpose", "Gather", "MatMul", "Conv", "Softmax", "Shape", "Squeeze",
             "Unsqueeze", "Expand", "Tile", "Pad", "ReduceSum", "MaxPool", "Identity", "Cast", "Where", "If", "Loop", "Constant", "Nothing", "Scan",
             "NonZero", "Unique", "Compress", "SequenceConstruct", "SequenceAt", "SequenceInsert", "ConcatFromSequence", "SplitToSequence",
             "SequenceMap", "Optional", "StringConcat", "Equal",
             "NonMaxSuppression", "DequantizeLinear")
NUMERIC = sorted(set(helper.get_all_tensor_dtypes()) - {TensorProto.STRING})
LARGEST_RUN = 1 << 20
"""Bytes of the inputs, outputs and weights of a model that is run as well."""


def array(name: str, value: Any, dtype: type = np.float32) -> TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(value, dtype), name)


def ones(name: str, *shape: int) -> TensorProto:
    return array(name, np.linspace(-1, 1, int(np.prod(shape))).reshape(shape))


def model_of(nodes: list[NodeProto], shape: list[Any], weights: list[TensorProto], opset: int = 17, outputs: tuple[str, ...] = ("y",)) -> ModelProto:
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)], ir_version=8)


def convolutional() -> ModelProto:
    n = helper.make_node
    return model_of([n("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[1, 1], name="conv"),
                     n("BatchNormalization", ["c", "s", "t", "m", "v"], ["d"], epsilon=1e-5), n("Relu", ["d"], ["r"]),
                     n("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]), n("Flatten", ["p"], ["f"], axis=1),
                     n("Gemm", ["f", "g", "h"], ["z"], transB=1), n("LogSoftmax", ["z"], ["y"], axis=1)],
                    ["N", 1, 4, 4], [ones("w", 2, 1, 3, 3), ones("b", 2), ones("s", 2), ones("t", 2), ones("m", 2), array("v", [1, 2]),
                                     ones("g", 3, 8), ones("h", 3)])


def attentive() -> ModelProto:
    n = helper.make_node
    return model_of([n("Shape", ["x"], ["shape"]), n("Gather", ["shape", "zero"], ["batch"], axis=0), n("Unsqueeze", ["batch", "front"], ["b1"]),
                     n("Concat", ["b1", "rest"], ["target"], axis=0), n("MatMul", ["x", "w"], ["q"]), n("Reshape", ["q", "target"], ["h"]),
                     n("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]), n("Transpose", ["h"], ["v"], perm=[0, 2, 1, 3]), n("MatMul", ["v", "k"], ["s"]),
                     n("Div", ["s", "root"], ["t"]), n("Softmax", ["t"], ["p"], axis=-1), n("MatMul", ["p", "v"], ["o"]),
                     n("ReduceMean", ["o"], ["y"], axes=[1, 2], keepdims=0)],
                    [2, 3, 4], [ones("w", 4, 4), array("zero", 0, np.int64), array("front", [0], np.int64), array("rest", [3, 2, 2], np.int64),
                                array("root", 1.5)])


def shuffling() -> ModelProto:
    n = helper.make_node
    ints = {"from": [1], "to": [4], "axes": [1], "steps": [2], "sizes": [1, 1], "pads": [0, 1, 0, 1], "repeats": [1, 2], "shape": [2, -1],
            "big": [2, 2, 4], "where": [0, 1]}
    return model_of([n("Slice", ["x", "from", "to", "axes", "steps"], ["a"]), n("Split", ["a", "sizes"], ["b", "c"], axis=1),
                     n("Concat", ["c", "b"], ["d"], axis=1), n("Pad", ["d", "pads"], ["e"]), n("Tile", ["e", "repeats"], ["f"]),
                     n("Reshape", ["f", "shape"], ["g"]), n("Gather", ["g", "where"], ["h"], axis=1), n("Squeeze", ["h"], ["i"]),
                     n("Unsqueeze", ["g", "axes"], ["j"]), n("Expand", ["j", "big"], ["k"]), n("Sum", ["k", "k", "k"], ["l"]),
                     n("Clip", ["l", "low", "high"], ["m"]), n("Where", ["yes", "m", "l"], ["o"]), n("Mul", ["o", "w"], ["y"])],
                    [2, 5], [array(k, v, np.int64) for k, v in ints.items()] + [array("low", 0), array("high", 2), array("yes", True, np.bool_),
                                                                               ones("w", 4)], outputs=("y", "i"))


def calling() -> ModelProto:
    """Functions within functions, and a branch."""
    n = helper.make_node
    inner = helper.make_function("mine", "Inner", ["a"], ["b"], [n("LeakyRelu", ["a"], ["b"])], [helper.make_opsetid("", 17)], ["alpha"])
    slope = inner.node[0].attribute.add()
    slope.name, slope.ref_attr_name, slope.type = "alpha", "alpha", AttributeProto.FLOAT
    outer = helper.make_function("mine", "Outer", ["a"], ["b"], [n("Inner", ["a"], ["t"], domain="mine", alpha=0.1), n("Neg", ["t"], ["b"])],
                                 [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)])
    branches = {f"{kind}_branch": helper.make_graph([n("Outer" if kind == "then" else "Inner", ["x"], [kind], domain="mine")], kind, [],
                                                    [helper.make_tensor_value_info(kind, TensorProto.FLOAT, None)]) for kind in ("then", "else")}
    model = model_of([n("If", ["c"], ["t"], **branches), n("HardSwish", ["t"], ["u"]), n("Add", ["u", "w"], ["y"])], [2, 3],
                     [array("c", True, np.bool_), ones("w", 3)])
    model.functions.extend([inner, outer])
    return model


def inner(nodes: list[NodeProto], outputs: list[tuple[str, int]], inputs: list[tuple[str, int]] | None = None) -> onnx.GraphProto:
    info = helper.make_tensor_value_info
    ports = [[info(name, kind, None) for name, kind in side] for side in (inputs or [], outputs)]
    return helper.make_graph(nodes, "inner", *ports)


F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def looping() -> ModelProto:
    """Regions: a loop and a scan of static shapes, and a computed condition."""
    n = helper.make_node
    turn = inner([n("Mul", ["v", "w"], ["v2"]), n("Identity", ["on"], ["on2"]), n("ReduceSum", ["v2"], ["row"], keepdims=0)],
                 [("on2", B), ("v2", F), ("row", F)], [("i", I), ("on", B), ("v", F)])
    step = inner([n("Add", ["h", "r"], ["h2"]), n("Tanh", ["h2"], ["o"])], [("h2", F), ("o", F)], [("h", F), ("r", F)])
    return model_of([n("Loop", ["turns", "", "x"], ["l", "rows"], body=turn), n("Scan", ["w", "l"], ["s", "t"], body=step, num_scan_inputs=1),
                     n("ReduceMax", ["s"], ["m"], keepdims=0), n("Greater", ["m", "zero"], ["c"]),
                     n("If", ["c"], ["b"], then_branch=inner([n("Exp", ["t"], ["p"])], [("p", F)]),
                       else_branch=inner([n("Neg", ["t"], ["q"])], [("q", F)])),
                     n("Add", ["b", "x"], ["y"])],
                    [2, 3], [array("turns", 3, np.int64), ones("w", 3), array("zero", 0)], outputs=("y", "rows"))


def cutting() -> ModelProto:
    """Sizes, a branch and turns that follow from data."""
    n = helper.make_node
    grow = inner([n("Concat", ["v", "v"], ["v2"], axis=0), n("Size", ["v2"], ["size"]), n("Less", ["size", "enough"], ["on2"]),
                  n("ReduceSum", ["v2"], ["row"], keepdims=1)], [("on2", B), ("v2", F), ("row", F)], [("i", I), ("on", B), ("v", F)])
    return model_of([n("NonZero", ["x"], ["at"]), n("Transpose", ["at"], ["places"]), n("GatherND", ["x", "places"], ["found"]),
                     n("Unique", ["found"], ["u", "first"], sorted=0), n("Size", ["u"], ["many"]), n("Greater", ["many", "two"], ["c"]),
                     n("If", ["c"], ["b"], then_branch=inner([n("Concat", ["u", "w"], ["p"], axis=0)], [("p", F)]),
                       else_branch=inner([n("Neg", ["u"], ["q"])], [("q", F)])),
                     n("Loop", ["turns", "", "b"], ["y", "rows"], body=grow), n("Gather", ["y", "first"], ["z"]),
                     n("Compress", ["z", "keep"], ["k"], axis=0)],
                    [2, 3], [array("two", 2, np.int64), array("turns", 5, np.int64), array("enough", 9, np.int64), ones("w", 3),
                             array("keep", [True, False, True], np.bool_)], outputs=("y", "k"))


def sequencing() -> ModelProto:
    """Sequences, optionals and texts."""
    n = helper.make_node
    half = inner([n("Mul", ["e", "w"], ["o"])], [("o", F)], [("e", F)])
    words = helper.make_tensor("words", TensorProto.STRING, [3], [b"a b", b"", b"c"])
    return model_of([n("SplitToSequence", ["x", "sizes"], ["s"], axis=0), n("SequenceMap", ["s"], ["m"], body=half),
                     n("SequenceInsert", ["m", "x", "place"], ["i"]),
                     n("SequenceErase", ["i", "place"], ["e"]), n("SequenceAt", ["e", "last"], ["a"]),
                     n("SequenceLength", ["i"], ["l"]), n("ConcatFromSequence", ["e"], ["t"], axis=0), n("Optional", ["a"], ["o"]),
                     n("OptionalHasElement", ["o"], ["h"]), n("OptionalGetElement", ["o"], ["g"]), n("StringSplit", ["words"], ["p", "q"]),
                     n("StringConcat", ["words", "words"], ["r"]), n("Equal", ["r", "words"], ["same"]), n("Cast", ["same"], ["f"], to=1),
                     n("Add", ["g", "f"], ["d"]), n("Sum", ["t", "d"], ["y"])],
                    [2, 3], [array("sizes", [1, 1], np.int64), array("place", 1, np.int64), array("last", -1, np.int64),
                             ones("w", 3), words], opset=20)


def narrow() -> ModelProto:
    """Sparse and 4-bit tensors, and floats of 8 bits."""
    n = helper.make_node
    weights = [helper.make_tensor("q", TensorProto.INT4, [3, 4], list(range(-6, 6))), helper.make_tensor("z", TensorProto.INT4, [4], [0, 1, -1, 2]),
               helper.make_tensor("e", TensorProto.FLOAT8E4M3FN, [4], [0.5, 1, -2, 4]), ones("s", 4)]
    model = model_of([n("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1), n("MatMul", ["x", "w"], ["a"]), n("Add", ["a", "sparse"], ["b"]),
                      n("Cast", ["e"], ["f"], to=1), n("Mul", ["b", "f"], ["c"]), n("Constant", [], ["k"]), n("Add", ["c", "k"], ["y"])],
                     [2, 3], weights, opset=21)
    values = helper.make_sparse_tensor(array("sparse", [1, 2]), array("where", [1, 6], np.int64), [2, 4])
    model.graph.sparse_initializer.append(values)
    held = helper.make_sparse_tensor(array("", [3]), array("", [[1, 3]], np.int64), [2, 4])
    model.graph.node[5].attribute.append(AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=held))
    model.ir_version = 10
    return model


def voting() -> ModelProto:
    """Two trees as the older operators list them, three as the newer one does."""
    older = {"nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2], "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0],
             "nodes_modes": [mode.encode() for mode in ("BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "BRANCH_EQ", "LEAF", "LEAF")],
             "nodes_values": [0.5, 1.5, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0], "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
             "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0], "nodes_missing_value_tracks_true": [0, 1, 0, 0, 0, 0, 0, 0],
             "target_treeids": [0, 0, 0, 1, 1], "target_nodeids": [2, 3, 4, 1, 2], "target_ids": [0, 1, 0, 1, 0],
             "target_weights": [0.5, -1.0, 2.0, 0.25, 4.0], "n_targets": 2, "base_values": [0.5, 0.25]}
    newer = {"n_targets": 2, "tree_roots": [0, 2, 4], "nodes_featureids": [0, 1, 2, 1, 0],
             "nodes_modes": onnx.numpy_helper.from_array(np.array([0, 6, 3, 1, 4], np.uint8)), "nodes_splits": array("", [0.5, 1, -1, 0, 2]),
             "nodes_truenodeids": [1, 0, 3, 3, 5], "nodes_trueleafs": [0, 1, 0, 1, 1], "nodes_falsenodeids": [1, 2, 4, 0, 6],
             "nodes_falseleafs": [1, 1, 1, 1, 1], "leaf_targetids": [0, 1, 0, 1, 0, 1, 0], "leaf_weights": array("", [1, 2, 3, 4, 5, 6, 7]),
             "membership_values": array("", [1, 2, 5, np.nan])}
    nodes = [helper.make_node("TreeEnsembleRegressor", ["x"], ["a"], domain="ai.onnx.ml", **older),
             helper.make_node("TreeEnsemble", ["x"], ["b"], domain="ai.onnx.ml", **newer), helper.make_node("Add", ["a", "b"], ["y"])]
    model = model_of(nodes, [3, 3], [])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    return model


MODELS: tuple[Callable[[], ModelProto], ...] = (convolutional, attentive, shuffling, calling, looping, narrow, voting)
CUT: tuple[Callable[[], ModelProto], ...] = (cutting, sequencing, cutting, looping, calling, narrow)
"""Models for a run in pieces."""


# ---- damage ---------------------------------------------------------------------------------------------------------------


def damaged_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, doubled, or overwritten."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data)) if data else 0
        how = rng.randrange(6)
        if how == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and data:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif how == 2:
            del data[at:at + rng.choice((1, 4, 100, len(data)))]
        elif how == 3:
            data[at:at] = data[at:at + rng.choice((1, 8, 64))]
        elif how == 4:
            data[at:at + 8] = rng.choice(EXTREME).to_bytes(8, "little", signed=True)
        else:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 10))))
    return bytes(data)


def damaged_model(model: ModelProto, rng: random.Random) -> ModelProto:
    """A copy with some of its numbers, names, types and places changed."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(DAMAGES)(copy, rng)
    return copy


def _node(model: ModelProto, rng: random.Random) -> NodeProto:
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node), *(n for g in _inner(model) for n in g.node)]
    return rng.choice(nodes) if nodes else model.graph.node.add()


def _inner(model: ModelProto) -> list[onnx.GraphProto]:
    """Branches and bodies."""
    return [a.g for n in model.graph.node for a in n.attribute if a.HasField("g")]


def _names(model: ModelProto, rng: random.Random) -> str:
    used = [name for n in model.graph.node for name in (*n.input, *n.output)]
    return rng.choice([*NAMES, *used, *used])


def change_dims(model: ModelProto, rng: random.Random) -> None:
    tensor = rng.choice([*model.graph.initializer]) if model.graph.initializer else model.graph.initializer.add()
    dims = list(tensor.dims)
    how = rng.randrange(4)
    if how == 0 and dims:
        dims[rng.randrange(len(dims))] = rng.choice(EXTREME)
    elif how == 1:
        dims += [1] * rng.choice((1, 30, 70))
    elif how == 2:
        rng.shuffle(dims)
    else:
        dims = [rng.choice((0, 1, 2, 1 << 40)) for _ in range(rng.randrange(5))]
    if rng.random() < 0.5 and tensor.data_type in NUMERIC and np.prod(dims, dtype=object) in range(1 << 12) and min(dims, default=0) >= 0:
        model.graph.initializer.remove(tensor)
        model.graph.initializer.append(helper.make_tensor(tensor.name, tensor.data_type, dims, np.ones(int(np.prod(dims, dtype=object)))))
        return
    del tensor.dims[:]
    tensor.dims.extend(dims)


def change_elements(model: ModelProto, rng: random.Random) -> None:
    """Other numbers in an operand of whole numbers, of the same or another length."""
    whole = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64]
    if whole:
        tensor = rng.choice(whole)
        values = [rng.choice(EXTREME) if rng.random() < 0.6 else rng.randrange(4) for _ in range(rng.choice((0, 1, 1, 2, 2, 4, 70)))]
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT64, rng.choice(([len(values)], [1, len(values)])), values))


def change_input(model: ModelProto, rng: random.Random) -> None:
    kind = model.graph.input[0].type.tensor_type
    how = rng.randrange(4)
    if how == 0:
        kind.elem_type = rng.randrange(0, 26)
        return
    if how == 1:
        del kind.shape.dim[:]
        kind.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=rng.choice((1, 2, 1 << 40))) for _ in range(rng.choice((0, 1, 5, 33, 70))))
    elif kind.shape.dim:
        dim = rng.choice(list(kind.shape.dim))
        if how == 2:
            dim.dim_value = rng.choice(EXTREME)
        else:
            dim.dim_param = rng.choice((*NAMES, "a*b", "N//0", "9**9**9", "N-1", "(" * 300))


def change_attribute(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if not node.attribute or rng.random() < 0.1:
        node.attribute.append(helper.make_attribute(rng.choice(("axis", "to", "alpha", "perm", "value", "pads", "then_branch")), rng.choice(EXTREME)))
        return
    attribute = rng.choice(list(node.attribute))
    how = rng.randrange(6)
    if how == 0:
        node.attribute.remove(attribute)
    elif how == 1:
        attribute.ref_attr_name = rng.choice(NAMES)
    elif how == 2:
        attribute.type = rng.randrange(0, 15)                          # type: ignore[assignment]
    elif how == 3:
        attribute.CopyFrom(helper.make_attribute(attribute.name, rng.choice((0.5, "word", [1, 2, 3], [0.5], rng.choice(EXTREME)))))
    elif attribute.type == AttributeProto.INTS:
        attribute.ints[:] = [rng.choice(EXTREME) for _ in range(rng.choice((len(attribute.ints), 1, 5)))]
    elif attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(EXTREME)
    else:
        attribute.f = rng.choice((float("nan"), float("inf"), -1.0, 1e38))


def change_list(model: ModelProto, rng: random.Random) -> None:
    """One element of an attribute that lists, or that is a tensor; or the list is shorter."""
    lists = [a for g in (model.graph, *_inner(model)) for n in g.node for a in n.attribute if a.ints or a.floats or a.strings or a.HasField("t")]
    if not lists:
        return
    attribute = rng.choice(lists)
    if attribute.HasField("t"):
        _change_element(attribute.t, rng)
        return
    values: Any = attribute.ints or attribute.floats or attribute.strings
    at = rng.randrange(len(values))
    if rng.random() < 0.15:
        del values[at]
    elif attribute.ints:
        values[at] = rng.choice(EXTREME) if rng.random() < 0.3 else rng.randrange(-1, 9)
    elif attribute.floats:
        values[at] = rng.choice((float("nan"), float("inf"), -1.0, 1e38, 0.0))
    else:
        values[at] = rng.choice((*values, b"", b"word", b"\xff"))


def _change_element(tensor: TensorProto, rng: random.Random) -> None:
    """Another number in a small tensor, or one less."""
    try:
        values = onnx.numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError, AttributeError, KeyError, AssertionError):      # it was damaged before
        return
    if not values.size or values.dtype.kind not in "iuf":
        return
    if rng.random() < 0.3:
        values = values.reshape(-1)[1:]
    else:
        values.flat[rng.randrange(values.size)] = rng.choice((0, 1, 5, 7, 99))
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def change_wires(model: ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    how = rng.randrange(6)
    if how == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = _names(model, rng)
    elif how == 1 and node.input:
        del node.input[rng.randrange(len(node.input))]
    elif how == 2:
        node.input.extend([_names(model, rng)] * rng.choice((1, 3)))
    elif how == 3 and node.output:
        node.output[rng.randrange(len(node.output))] = _names(model, rng)
    elif how == 4:
        node.output.append(_names(model, rng))
    elif node.output:
        del node.output[-1]


def change_nodes(model: ModelProto, rng: random.Random) -> None:
    nodes = model.graph.node
    node = _node(model, rng)
    how = rng.randrange(6)
    if how == 0:
        node.op_type = rng.choice(OPERATORS)
    elif how == 1:
        node.domain = rng.choice(("", "ai.onnx", "mine", "com.microsoft", "ai.onnx.ml", "d" * 3000))
    elif how == 2 and nodes:
        del nodes[rng.randrange(len(nodes))]
    elif how == 3 and nodes:
        nodes.append(rng.choice(list(nodes)))
    elif how == 4:
        order = list(nodes)
        rng.shuffle(order)
        del nodes[:]
        nodes.extend(order)
    else:
        node.name = rng.choice(NAMES)


def change_tensor(model: ModelProto, rng: random.Random) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(list(model.graph.initializer))
    how = rng.randrange(7)
    if how == 0:
        tensor.data_type = rng.randrange(0, 26)
    elif how == 1:
        tensor.segment.begin, tensor.segment.end = rng.choice(EXTREME), rng.choice(EXTREME)
    elif how == 2:
        tensor.raw_data = b"\0" * rng.choice((0, 1, 4, 8, 1000))
    elif how == 3:
        tensor.name = _names(model, rng)
    elif how == 4:
        model.graph.initializer.remove(tensor)
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for key, words in (("location", (*NAMES, "m.onnx", "/etc/passwd", "a/" * 3000)), ("offset", ("0", "-1", "9" * 5000, "x", "8")),
                           ("length", ("0", "8", "-8", "1e3", "9" * 30))):
            if rng.random() < 0.7:
                tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=rng.choice(words)))


def change_file(model: ModelProto, rng: random.Random) -> None:
    how = rng.randrange(6)
    if how == 0:
        rng.choice(list(model.opset_import)).version = rng.choice((*EXTREME, 7, 9, 11, 13, 18, 21))
    elif how == 1:
        model.ir_version = rng.choice((0, 3, 7, 10, -1, 1 << 40))
    elif how == 2 and model.graph.output:
        model.graph.output[0].name = _names(model, rng)
    elif how == 3:
        del model.graph.output[:]
    elif how == 4:
        model.graph.output.append(model.graph.output[0] if model.graph.output else model.graph.input[0])
    else:
        model.graph.name = rng.choice(NAMES)


def change_inner(model: ModelProto, rng: random.Random) -> None:
    """Ports and constants of a branch or a body."""
    graphs = _inner(model)
    if not graphs:
        return
    graph = rng.choice(graphs)
    ports = rng.choice((graph.input, graph.output))
    how = rng.randrange(6)
    if how == 0 and ports:
        del ports[rng.randrange(len(ports))]
    elif how == 1 and ports:
        ports.append(rng.choice(list(ports)))
    elif how == 2 and ports:
        rng.choice(list(ports)).name = _names(model, rng)
    elif how == 3:
        graph.initializer.append(ones(_names(model, rng), 2))
    elif how == 4 and graph.node:
        del graph.node[rng.randrange(len(graph.node))]
    else:
        graph.node.append(helper.make_node(rng.choice(OPERATORS), [_names(model, rng)], [rng.choice(("new", "y"))]))


def change_sparse(model: ModelProto, rng: random.Random) -> None:
    """Sizes, places and elements of a sparse tensor; one where there was none."""
    if not model.graph.sparse_initializer:
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(array(_names(model, rng), [1]), array("where", [0], np.int64), [2]))
    sparse = rng.choice(list(model.graph.sparse_initializer))
    how = rng.randrange(4)
    if how == 0 and sparse.dims:
        sparse.dims[rng.randrange(len(sparse.dims))] = rng.choice(EXTREME)
    elif how == 1:
        places = [rng.choice((*EXTREME, 0, 1, 2, 3)) for _ in range(rng.choice((0, 1, 2, 4)))]
        sparse.indices.CopyFrom(helper.make_tensor("where", TensorProto.INT64, rng.choice(([len(places)], [len(places), 1])), places))
    elif how == 2:
        sparse.values.data_type = rng.randrange(0, 26)
    else:
        sparse.values.dims[:] = [rng.choice((0, 1, 2, 1 << 40))]


DAMAGES = (change_inner, change_sparse, change_dims, change_elements, change_elements, change_input, change_attribute, change_attribute, change_list,
           change_list, change_wires, change_nodes, change_tensor, change_file)


# ---- what is done with a file ----------------------------------------------------------------------------------------------


def use_model(path: Path, run: bool = False) -> None:
    """Everything that happens to a model before it runs; `run`: a small one runs as well."""
    from tileflow import compiler
    from tileflow.importers.onnx import import_graph, inspect_model, load_model
    from tileflow.loss import find
    from tileflow.lower.plan import make_plan
    from tileflow.optim import SGD
    from tileflow.program.batching import Batching
    model = load_model(path)
    for training in (False, True):
        inspect_model(model, training=training)
    graph = import_graph(model, batch=2).graph
    plan = make_plan(compiler.inference(graph, Batching(2)).program, 1)
    if run:
        run_model(model, plan)
    graph = import_graph(model, batch=2, training=True).graph
    make_plan(compiler.training(graph, find("mse"), SGD(lr=0.1), Batching(2)).program, 1)


def run_model(model: Any, plan: Any) -> None:
    import tileflow
    types = [v.type for v in plan.program.inputs]
    results = [v.type for v in plan.program.micro.outputs]
    if not types or plan.micro.arena_bytes > LARGEST_RUN or sum(t.nbytes for t in (*types, *results)) > LARGEST_RUN:
        return
    tileflow.inference_model(model)(*(np.ones(t.shape, t.numpy) for t in types))


TURNS = 100
"""Turns of a loop that are made."""


class Refused(Exception):
    """A run that would be longer than a test."""


def use_pieces(path: Path, run: bool = False) -> tuple[dict[str, np.ndarray], list[Any]] | None:
    """A model runs in pieces, by the operators' references, or compiled where `run`: its inputs and outputs, or None where it would be too long."""
    import warnings
    from unittest.mock import patch

    from tileflow.importers.onnx import control, load_model, resolved
    from tileflow.importers.onnx.hosted import loops
    from tileflow.importers.onnx.pieces import Cutter
    from tileflow.runtime.host import Host
    from tileflow.runtime.pieces import Pieces
    from tileflow.state import Session
    model = load_model(path)
    shapes = {p.name: tuple(d if isinstance(d, int) else 2 for d in p.dims or ()) for p in model.inputs}
    if any(np.prod(shape, dtype=object) > 1 << 12 or p.dtype != "float32" for p, shape in zip(model.inputs, shapes.values(), strict=True)):
        return None
    data = {name: np.linspace(-1, 2, int(np.prod(shape))).astype(np.float32).reshape(shape) for name, shape in shapes.items()}
    kind = Pieces if run else _referring()
    pieces = kind(Cutter(resolved(model)), Session(), Host(1), compiled)
    few = patch.object(loops, "MOST_TURNS", TURNS), patch.object(control, "MOST_ROOM", TURNS)
    with warnings.catch_warnings(), few[0], few[1]:
        warnings.simplefilter("ignore", RuntimeWarning)                            # NumPy's references, of numbers that no operator is for
        try:
            return data, pieces.run(data)
        except Refused:
            return None


def compiled(graph: Any) -> Any:
    from tileflow import compiler
    from tileflow.program.batching import Batching
    return compiler.inference(check_size(graph), Batching(1)).program


def check_size(graph: Any) -> Any:
    """Raise Refused for what is too much for a test: many bytes, many turns of a loop."""
    values = [v.type for node in graph.walk() for v in node.outputs]
    turns = [n for node in graph.walk() if isinstance(n := getattr(node.op, "count", 0), int)]
    if sum(t.nbytes for t in values) > LARGEST_RUN or not all(0 <= n <= TURNS for n in turns):
        raise Refused
    return graph


def _referring() -> Any:
    """Pieces whose graphs NumPy computes."""
    from evaluate import evaluate

    from tileflow.runtime.pieces import Pieces

    class Referring:
        repeats = nbytes = 0

        def __init__(self, graph: Any, weights: Any) -> None:
            self.graph, self.weights = check_size(graph), {s.input.name: weights[s.name] for s in graph.states}

        def call(self, arrays: Any) -> list[np.ndarray]:
            feeds = dict(zip([v.name for v in self.graph.inputs], arrays, strict=True))
            try:
                found = evaluate(self.graph, {**self.weights, **feeds})
            except (ValueError, IndexError, OverflowError, ZeroDivisionError):      # indices out of range: kernels have sentences for them
                raise Refused from None
            return [found[v.name][None] for v in self.graph.outputs]

    class ByReference(Pieces):
        def engine(self, graph: Any, weights: Any) -> Any:
            return Referring(graph, weights)
    return ByReference


def npy_bytes(value: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def npz_bytes() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.ones((4, 3), np.float32), y=np.arange(4))
    return stream.getvalue()


def npy_with(header: str, data: bytes = b"\0" * 96) -> bytes:
    text = header.encode("latin1", "replace")
    return b"\x93NUMPY\x01\x00" + min(len(text), 65535).to_bytes(2, "little") + text + data


def header(shape: object = (4, 3), descr: object = "<f4", order: object = False, more: str = "") -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, {more}}}"


HEADERS = (
    header(), header(order=True), header(descr="|O"), header((-4, 3)), header((0, 10**20)), header((1,) * 70), header((True, 3)),
    header((4,), [("a", "<f4")]), header(4), header((0,), "<U1000000000"), header(descr="<f0"), header((2**63 - 1, 4)), header((2**63 - 1,), "|V0"),
    header(more="'x': 0"), header((4,), "<m8[99999999999Y]"), header(order=7), header(more="1: 2"), header((2,), ("<f4", (2, 2))), header((0, 3)),
    "{'descr': '<f4', 'shape': (4, 3), }", "(" * 5000, "[" * 60000, "{'a':" * 3000, "\0" * 100, "", "1")


def idx_with(rng: random.Random) -> bytes:
    rank = rng.choice((0, 1, 2, 3, 33, 65, 255))
    sizes = [rng.choice((0, 1, 2, 0xFFFFFFFF, 1 << 31)) for _ in range(rng.choice((rank, rank, 2)))]
    start = bytes([0, 0, rng.choice((8, 9, 0xB, 0xC, 0xD, 0xE, 7, 0)), rank])
    return start + b"".join(n.to_bytes(4, "big") for n in sizes) + b"\0" * rng.choice((0, 1, 8, 64))


CSV = "a,b,label\n1,2,0\n3,4.5,1\n5,6,0\n7,8e3,1\n"


def use_data(path: Path) -> None:
    """Open data and read a batch that a model of [batch, 3] floats would take."""
    from tileflow.graph import TensorType
    from tileflow.runtime.data import open_data
    data = open_data(path)
    dataset = data.train.adapt_to({"x": TensorType("float32", (2, *data.train.tensors[0].sample))})
    dataset.gather(np.arange(min(2, len(dataset))))


ODD = (None, True, -1, 1 << 70, 1e308, float("nan"), "", "word", "\0", [], [1], {}, {"a": []}, "9" * 5000, [[]] * 3)


def damaged_json(value: Any, rng: random.Random) -> Any:
    """A value somewhere in it replaced by an odd one."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        changed = dict(value)
        if rng.random() < 0.15:
            del changed[key]
        elif rng.random() < 0.1:
            changed[rng.choice(NAMES)] = changed.pop(key)
        else:
            changed[key] = damaged_json(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        changed_list = list(value)
        changed_list[rng.randrange(len(value))] = damaged_json(value[0], rng)
        return changed_list
    if isinstance(value, str) and value[:1] in "{[" and rng.random() < 0.8:
        try:
            return json.dumps(damaged_json(json.loads(value), rng))
        except ValueError:
            return rng.choice(ODD)
    return rng.choice(ODD)


def damaged_checkpoint(raw: bytes, rng: random.Random) -> bytes:
    """The JSON header with odd values, or the bytes damaged."""
    if rng.random() < 0.3:
        return damaged_bytes(raw, rng)
    length = int.from_bytes(raw[:8], "little")
    header = damaged_json(json.loads(raw[8:8 + length]), rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + length:]


# ---- judging --------------------------------------------------------------------------------------------------------------

LONGEST = 20_010
"""Characters of a sentence."""


def judge(act: Callable[[], Any]) -> str | None:
    """What is wrong with what happened: anything but success or a TileflowError of one line. None where all is well."""
    from tileflow.system.errors import TileflowError
    try:
        act()
    except TileflowError as error:
        text = str(error)
        return None if text and "\n" not in text and text.isprintable() and len(text) <= LONGEST else f"not a sentence: {len(text)} {text[:200]!r}"
    except Exception:
        return traceback.format_exc(limit=-4)
    return None


def cases(folder: Path, checkpoint: bytes | None = None) -> dict[str, Callable[[random.Random], Callable[[], Any]]]:
    """Makers of damaged files by kind: each writes one and gives what to do with it."""
    models = [make() for make in MODELS]
    raw = [m.SerializeToString() for m in models]
    npy, npz = npy_bytes(np.ones((4, 3), np.float32)), npz_bytes()

    def written(name: str, data: bytes) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    def structured(rng: random.Random, run: bool = False) -> Callable[[], Any]:
        path = written("m.onnx", damaged_model(rng.choice(models), rng).SerializeToString())
        return lambda: use_model(path, run)

    cut = [make() for make in CUT]

    def pieces(rng: random.Random, run: bool = False) -> Callable[[], Any]:
        path = written("m.onnx", damaged_model(rng.choice(cut), rng).SerializeToString())
        return lambda: use_pieces(path, run)

    def flipped(rng: random.Random) -> Callable[[], Any]:
        path = written("m.onnx", damaged_bytes(rng.choice(raw), rng))
        return lambda: use_model(path)

    def arrays(rng: random.Random) -> Callable[[], Any]:
        how = rng.randrange(6)
        if how < 2:
            path = written("x.npy", npy_with(rng.choice(HEADERS)) if how else damaged_bytes(npy, rng))
        elif how == 2:
            path = written("d.npz", damaged_bytes(npz, rng))
        elif how == 3:
            path = written("train-images-idx3-ubyte", idx_with(rng))
        elif how == 4:
            path = written("t.csv", damaged_bytes(CSV.encode(), rng))
        else:
            import zipfile
            path = folder / "d.npz"
            with zipfile.ZipFile(path, "w") as archive:
                for name in rng.sample(("x.npy", "y.npy", "../x.npy", "a\u202e.npy", "x_test.npy"), rng.randrange(4)):
                    archive.writestr(name, npy_with(rng.choice(HEADERS)) if rng.random() < 0.7 else npy)
        return lambda: use_data(path)

    def settings(rng: random.Random) -> Callable[[], Any]:
        from tileflow.options.options import Options, read_options_file
        text = "epochs = 3\nlearning_rate = 0.1\ndims = { batch = 3 }\nfrozen = ['a*']\nloss = 'mse'\n"
        lines = "deviceIterations(4)\nTraining.gradientAccumulation(8)\noutputMode(poptorch.OutputMode.EveryN, 2)\nfrozen(['a*'])\nloss('mse')\n"
        path = written("o.toml", damaged_bytes(text.encode(), rng)) if rng.random() < 0.4 else written(
            "o.conf", damaged_bytes(lines.encode(), rng)) if rng.random() < 0.5 else written(
            "o.json", json.dumps(damaged_json({"epochs": 3, "dims": {"a": 1}, "mean": [0.5], "frozen": ["a"], "loss": "mse"}, rng)).encode())
        return lambda: Options(**read_options_file(path))

    def tensors(rng: random.Random) -> Callable[[], Any]:
        from tileflow.runtime.checkpoint import load_tensors
        assert checkpoint is not None
        path = written("c.safetensors", damaged_checkpoint(checkpoint, rng))
        return lambda: load_tensors(path)

    made: dict[str, Callable[[random.Random], Callable[[], Any]]] = {
        "structured": structured, "bytes": flipped, "arrays": arrays, "settings": settings, "run": lambda rng: structured(rng, run=True),
        "pieces": pieces, "run pieces": lambda rng: pieces(rng, run=True)}
    return made | ({"checkpoint": tensors} if checkpoint is not None else {})


def main() -> None:
    import faulthandler
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    seconds, start = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    only = sys.argv[3].split(",") if len(sys.argv) > 3 else None
    from tileflow.runtime.checkpoint import save_tensors
    seen: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tensors(folder / "c", {"w": np.ones((2, 3), np.float32), "step": np.ones((), np.float64)}, {"tileflow": '{"updates": 3}', "epoch": "1"})
        makers = cases(folder, (folder / "c").read_bytes())
        began, seed, done = time.monotonic(), start, 0
        while time.monotonic() - began < seconds:
            for kind, make in makers.items():
                if only and kind not in only:
                    continue
                faulthandler.dump_traceback_later(60, exit=True)
                print(f"{kind} {seed}", file=sys.stderr, flush=True)
                act, at = make(random.Random(f"{kind}{seed}")), time.process_time()
                wrong = judge(act)
                took = time.process_time() - at
                if took > 10:
                    wrong = f"took {took:.1f} s\n{wrong or ''}"
                if wrong:
                    last = " ".join(wrong.strip().splitlines()[-3:])[:160]
                    seen[last] = seen.get(last, 0) + 1
                    if seen[last] == 1:
                        sys.stdout.write(f"==== {kind} {seed}\n{wrong}\n")
                        sys.stdout.flush()
                done += 1
            seed += 1
    sys.stdout.write(f"{done} cases, {sum(seen.values())} wrong, {len(seen)} kinds\n")


if __name__ == "__main__":
    main()
