"""One small graph written at every opset that has it: the operators whose form changed over the years compute what they always did.

A case says how its nodes are written at an opset, and what they compute, in NumPy. ONNX Runtime, where it is installed, is asked as well: it
reads the same files, so that what is compared is the operator as ONNX has it, not as this file believes it to be.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from evaluate import evaluate
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_models import imported
from peers import needs

from tileflow.onnx_backend import Backend

OPSETS = range(7, onnx.defs.onnx_opset_version() + 1)
node = helper.make_node
F, I64 = np.float32, np.int64


@dataclass
class Written:
    """Nodes that make `outputs` from the inputs x, … of a case, with the constants that they name."""

    nodes: list[NodeProto]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)


Writer = Callable[[int], Written | None]


@dataclass(frozen=True)
class Case:
    """write(opset): None where that opset has it not. wanted(opset, *inputs): what the outputs are."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    write: Writer
    wanted: Callable[..., Sequence[Any]]
    positive: bool = False


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(-2, 2, shape).astype(F)


def whole(*values: int) -> np.ndarray:
    return np.array(values, I64)


CASES: list[Case] = []


def case(*shapes: tuple[int, ...], wanted: Callable[..., Any], name: str = "", positive: bool = False) -> Callable[[Writer], None]:
    """Register how something is written; `wanted` takes the opset and the inputs, and gives an array or several."""
    def register(write: Writer) -> None:
        def every(opset: int, *inputs: np.ndarray) -> Sequence[Any]:
            found = wanted(opset, *inputs)
            return found if isinstance(found, tuple) else (found,)
        CASES.append(Case(name or write.__name__, shapes, write, every, positive))
    return register


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def flat(function: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., np.ndarray]:
    """Below opset 13 all axes from the second one were one axis; since then the axis is one by itself."""
    return lambda opset, x: function(x.reshape(len(x), -1), 1).reshape(x.shape) if opset < 13 else function(x, 1)


@case((2, 3, 4), wanted=lambda _, x: x)
def dropout(opset: int) -> Written:
    if opset < 12:
        return Written([node("Dropout", ["x"], ["y"], ratio=0.75)])
    return Written([node("Dropout", ["x", "ratio"], ["y"])], {"ratio": np.array(0.75, F)})


@case((2, 3, 4, 4), wanted=lambda _, x: ((x - numbers(3, seed=3)[:, None, None]) / np.sqrt(np.array([1, 2, 3], F)[:, None, None] + F(1e-3))
                                         * numbers(3, seed=1)[:, None, None] + numbers(3, seed=2)[:, None, None]))
def batch_normalization(opset: int) -> Written:
    extra: dict[str, Any] = {"spatial": 1} if opset < 9 else {"training_mode": 0} if opset >= 14 else {}
    return Written([node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=1e-3, momentum=0.8, **extra)],
                   {"s": numbers(3, seed=1), "b": numbers(3, seed=2), "m": numbers(3, seed=3), "v": np.array([1, 2, 3], F)})


@case((2, 1, 3, 1), wanted=lambda _, x: x.reshape(2, 3, 1, 1))
def squeeze_and_unsqueeze(opset: int) -> Written:
    if opset < 13:
        return Written([node("Squeeze", ["x"], ["a"], axes=[1, 3]), node("Unsqueeze", ["a"], ["y"], axes=[2, 3])])
    return Written([node("Squeeze", ["x", "out"], ["a"]), node("Unsqueeze", ["a", "in"], ["y"])], {"out": whole(1, -1), "in": whole(3, 2)})


REDUCED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ReduceSum": lambda x: x.sum((0, 2), keepdims=True), "ReduceMean": lambda x: x.mean((0, 2), keepdims=True),
    "ReduceMax": lambda x: x.max((0, 2), keepdims=True), "ReduceMin": lambda x: x.min((0, 2), keepdims=True),
    "ReduceProd": lambda x: x.prod((0, 2), keepdims=True), "ReduceL1": lambda x: np.abs(x).sum((0, 2), keepdims=True),
    "ReduceL2": lambda x: np.sqrt((x * x).sum((0, 2), keepdims=True)), "ReduceSumSquare": lambda x: (x * x).sum((0, 2), keepdims=True),
    "ReduceLogSum": lambda x: np.log(x.sum((0, 2), keepdims=True)), "ReduceLogSumExp": lambda x: np.log(np.exp(x).sum((0, 2), keepdims=True))}


def _reduced(operator: str) -> Callable[[int], Written]:
    def write(opset: int) -> Written:
        if opset < (13 if operator == "ReduceSum" else 18):
            return Written([node(operator, ["x"], ["y"], axes=[0, 2], keepdims=1)])
        return Written([node(operator, ["x", "axes"], ["y"], keepdims=1)], {"axes": whole(0, -1)})
    return write


for _name, _of in REDUCED.items():
    case((2, 3, 4), wanted=lambda _, x, of=_of: of(x), name=_name, positive=_name == "ReduceLogSum")(_reduced(_name))


@case((2, 3), wanted=lambda opset, x: x if opset >= 18 else x.sum().reshape(1, 1))
def no_axes(opset: int) -> Written:
    """Of all axes, or of none where that is asked for, as it can be since axes are an operand."""
    if opset < 18:
        return Written([node("ReduceSum", ["x"], ["y"])])
    return Written([node("ReduceSum", ["x", "axes"], ["y"], noop_with_empty_axes=1)], {"axes": whole()})


@case((2, 5), wanted=lambda _, x: (x[:, :3], x[:, 3:]))
def split(opset: int) -> Written:
    """Sizes; from opset 18 a number of parts, of which the last may be smaller."""
    if opset < 13:
        return Written([node("Split", ["x"], ["y", "z"], axis=1, split=[3, 2])], outputs=("y", "z"))
    if opset < 18:
        return Written([node("Split", ["x", "sizes"], ["y", "z"], axis=1)], {"sizes": whole(3, 2)}, ("y", "z"))
    return Written([node("Split", ["x"], ["y", "z"], axis=1, num_outputs=2)], outputs=("y", "z"))


@case((3, 4), wanted=lambda _, x: (np.clip(x, -0.5, 1), np.minimum(x, 1)))
def clip(opset: int) -> Written:
    if opset < 11:
        return Written([node("Clip", ["x"], ["y"], min=-0.5, max=1.0), node("Clip", ["x"], ["z"], max=1.0)], outputs=("y", "z"))
    return Written([node("Clip", ["x", "low", "high"], ["y"]), node("Clip", ["x", "", "high"], ["z"])],
                   {"low": np.array(-0.5, F), "high": np.array(1, F)}, ("y", "z"))


@case((2, 3), wanted=lambda _, x: (np.pad(x, ((0, 0), (1, 2)), constant_values=1.5), np.pad(x, ((1, 0), (1, 2)), mode="reflect")))
def pad(opset: int) -> Written:
    outputs = ("y", "z")
    if opset < 11:
        return Written([node("Pad", ["x"], ["y"], pads=[0, 1, 0, 2], value=1.5), node("Pad", ["x"], ["z"], pads=[1, 1, 0, 2], mode="reflect")],
                       outputs=outputs)
    constants = {"pads": whole(0, 1, 0, 2), "fill": np.array(1.5, F), "all": whole(1, 1, 0, 2)}
    operands = ["x", "pads", "fill"]
    if opset >= 18:
        constants |= {"pads": whole(1, 2), "axes": whole(-1)}
        operands.append("axes")
    return Written([node("Pad", operands, ["y"]), node("Pad", ["x", "all"], ["z"], mode="reflect")], constants, outputs)


@case((4, 6), wanted=lambda _, x: x[1:3, -4:])
def slice_(opset: int) -> Written:
    if opset < 10:
        return Written([node("Slice", ["x"], ["y"], starts=[1, -4], ends=[3, 1000], axes=[0, 1])])
    return Written([node("Slice", ["x", "from", "to", "axes", "steps"], ["y"])],
                   {"from": whole(1, -4), "to": whole(3, 1000), "axes": whole(0, -1), "steps": whole(1, 1)})


@case((1, 2, 2, 3), wanted=lambda _, x: x.repeat(2, 2).repeat(3, 3))
def upsample_and_resize(opset: int) -> Written:
    scales = np.array([1, 1, 2, 3], F)
    if opset < 9:
        return Written([node("Upsample", ["x"], ["y"], mode="nearest", scales=scales.tolist())])
    if opset < 11:
        return Written([node("Upsample" if opset == 9 else "Resize", ["x", "scales"], ["y"], mode="nearest")], {"scales": scales})
    how: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if opset < 13:                                             # the operand of the region was not optional
        return Written([node("Resize", ["x", "roi", "scales"], ["y"], **how)], {"scales": scales, "roi": np.array([], F)})
    if opset < 18:
        return Written([node("Resize", ["x", "", "", "sizes"], ["y"], **how)], {"sizes": whole(1, 2, 4, 9)})
    return Written([node("Resize", ["x", "", "", "sizes"], ["y"], axes=[2, -1], **how)], {"sizes": whole(4, 9)})


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return np.log(softmax(x, axis))


def hardmax(x: np.ndarray, axis: int) -> np.ndarray:
    return (np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)]) == np.expand_dims(x.argmax(axis), axis)).astype(F)


for _name, _of2 in (("Softmax", softmax), ("LogSoftmax", log_softmax), ("Hardmax", hardmax)):
    case((2, 3, 4), wanted=flat(_of2), name=_name)(lambda opset, op=_name: Written([node(op, ["x"], ["y"], axis=1)]))
    case((2, 3, 4), wanted=lambda opset, x, of=_of2: flat(of)(7, x) if opset < 13 else of(x, 2), name=f"{_name} by default")(
        lambda opset, op=_name: Written([node(op, ["x"], ["y"])]))


@case((3, 7), wanted=lambda _, x: (np.sort(x)[:, :-4:-1], np.argsort(x)[:, :-4:-1]))
def top_k(opset: int) -> Written:
    if opset < 10:
        return Written([node("TopK", ["x"], ["y", "i"], k=3, axis=1)], outputs=("y", "i"))
    return Written([node("TopK", ["x", "k"], ["y", "i"], axis=-1, **({"largest": 1} if opset >= 11 else {}))], {"k": whole(3)}, ("y", "i"))


@case((2, 3), wanted=lambda _, x: 0.5 * x @ numbers(4, 3).T)
def gemm(opset: int) -> Written:
    constants = {"w": numbers(4, 3)} | ({"c": np.zeros(4, F)} if opset < 11 else {})
    return Written([node("Gemm", ["x", *constants], ["y"], alpha=0.5, transB=1)], constants)


@case((2, 3, 4), wanted=lambda _, x: x.reshape(6, 4))
def flatten(opset: int) -> Written:
    return Written([node("Flatten", ["x"], ["y"], axis=2 if opset < 11 else -1)])


def _scattered(_: int, x: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.put_along_axis(y, np.array([[1, 3], [0, 2]]), numbers(2, 2), 1)
    return y


@case((2, 4), wanted=_scattered)
def scatter(opset: int) -> Written | None:
    constants = {"at": np.array([[1, 3], [0, 2 if opset < 11 else -2]], I64), "new": numbers(2, 2)}
    return None if opset < 9 else Written([node("Scatter" if opset < 11 else "ScatterElements", ["x", *constants], ["y"], axis=1)], constants)


@case((1, 2, 5, 5), wanted=lambda _, x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))[:, :, ::2, ::2].max((4, 5)))
def max_pool(opset: int) -> Written:
    extra: dict[str, Any] = {"ceil_mode": 0, "dilations": [1, 1]} if opset >= 10 else {}
    return Written([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], **extra)])


@case((1, 2, 4, 4), wanted=lambda _, x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)).mean((4, 5)))
def average_pool(opset: int) -> Written:
    extra: dict[str, Any] = ({"ceil_mode": 0} if opset >= 10 else {}) | ({"dilations": [1, 1]} if opset >= 19 else {})
    return Written([node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], count_include_pad=1, **extra)])


@case((3, 4), wanted=lambda opset, x: (x[:, [1, 3]], x.argmax(1), x.argmin(0)[None]))
def gather_and_places(opset: int) -> Written:
    last: dict[str, Any] = {"select_last_index": 0} if opset >= 12 else {}
    return Written([node("Gather", ["x", "at"], ["y"], axis=1), node("ArgMax", ["x"], ["i"], axis=1 if opset < 11 else -1, keepdims=0, **last),
                    node("ArgMin", ["x"], ["j"], axis=0, **last)], {"at": whole(1, 3) if opset < 11 else whole(1, -1)}, ("y", "i", "j"))


@case((2, 3), wanted=lambda _, x: x + np.array([1, 2.5, 3], F))
def constants(opset: int) -> Written:
    given: dict[str, Any] = ({"value_floats": [1, 2.5, 3]} if opset >= 12 else {"value": onnx.numpy_helper.from_array(np.array([1, 2.5, 3], F))})
    return Written([node("Constant", [], ["c"], **given), node("Add", ["x", "c"], ["y"])])


@case((2, 3, 4), wanted=lambda _, x: (x.reshape(6, 4), np.tile(x, (1, 2, 1)), np.array([2, 3, 4]), np.array([3, 4])))
def shapes(opset: int) -> Written:
    made, tail = {"to": whole(-1, 4), "times": whole(1, 2, 1)}, [node("Shape", ["x"], ["t"], start=1)]
    if opset < 15:
        made["at"] = whole(1, 2)
        tail = [node("Gather", ["s", "at"], ["t"])]
    return Written([node("Reshape", ["x", "to"], ["y"], **({"allowzero": 0} if opset >= 14 else {})), node("Tile", ["x", "times"], ["z"]),
                    node("Shape", ["x"], ["s"]), *tail], made, ("y", "z", "s", "t"))


@case((2, 4), wanted=lambda _, x: np.abs(x) ** 2 + np.maximum(x, 0.5) - np.minimum(x, 0.5) + (x + x + x) / 3)
def arithmetic(opset: int) -> Written:
    """Exponents of another type since opset 12; operands of Max, Min and Mean are broadcast since 8."""
    constants = {"two": np.array(2, F if opset < 12 else I64), "half": np.full((2, 4) if opset < 8 else (), 0.5, F)}
    return Written([node("Abs", ["x"], ["a"]), node("Pow", ["a", "two"], ["b"]), node("Max", ["x", "half"], ["c"]), node("Min", ["x", "half"], ["d"]),
                    node("Mean", ["x", "x", "x"], ["e"]), node("Add", ["b", "c"], ["f"]), node("Sub", ["f", "d"], ["g"]),
                    node("Sum", ["g", "e"], ["y"])], constants)


@case((2, 4, 3), wanted=lambda _, x: (_normal(x.reshape(2, 2, 6)).reshape(x.shape) * np.repeat(numbers(2), 2)[:, None]
                                      + np.repeat(numbers(2, seed=1), 2)[:, None]))
def group_normalization(opset: int) -> Written | None:
    """Scales of channels. (Those of opset 18 were of groups; ONNX's checker does not take them any more.)"""
    made = {"s": np.repeat(numbers(2), 2), "b": np.repeat(numbers(2, seed=1), 2)}
    return None if opset < 21 else Written([node("GroupNormalization", ["x", *made], ["y"], num_groups=2, epsilon=1e-5)], made)


def _normal(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + F(1e-5))


@case((2, 4), wanted=lambda _, x: _normal(x) * numbers(4))
def layer_normalization(opset: int) -> Written:
    """In its parts where it was none."""
    made = {"s": numbers(4)}
    if opset >= 17:
        return Written([node("LayerNormalization", ["x", "s"], ["y"], axis=-1, epsilon=1e-5)], made)
    return Written([node("ReduceMean", ["x"], ["m"], axes=[1]), node("Sub", ["x", "m"], ["d"]), node("Mul", ["d", "d"], ["q"]),
                    node("ReduceMean", ["q"], ["v"], axes=[1]), node("Add", ["v", "e"], ["w"]), node("Sqrt", ["w"], ["r"]),
                    node("Div", ["d", "r"], ["n"]), node("Mul", ["n", "s"], ["y"])], made | {"e": np.array(1e-5, F)})


def _through_bytes(_: int, x: np.ndarray) -> np.ndarray:
    scale = np.array([0.05, 0.1, 0.2], F)
    return (np.clip(np.rint(x / scale) + 10, 0, 255) - 10).astype(F) * scale


@case((2, 3), wanted=_through_bytes)
def quantised(opset: int) -> Written | None:
    """By channel since opset 13; in columns of their own before."""
    made = {"s": np.array([0.05, 0.1, 0.2], F), "z": np.full(3, 10, np.uint8)}
    if opset >= 13:
        return Written([node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1), node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1)], made)
    if opset < 10:
        return None
    apart = [node("QuantizeLinear", [f"x{i}", f"s{i}", f"z{i}"], [f"q{i}"]) for i in range(3)]
    apart += [node("DequantizeLinear", [f"q{i}", f"s{i}", f"z{i}"], [f"y{i}"]) for i in range(3)]
    single = {f"{name}{i}": array[i] for name, array in made.items() for i in range(3)}
    return Written([node("Split", ["x"], ["x0", "x1", "x2"], axis=1), *apart, node("Concat", ["y0", "y1", "y2"], ["y"], axis=1)], single)


def _spectrum(_: int, x: np.ndarray) -> np.ndarray:
    found = np.fft.fft(x[..., 0], axis=1)
    return np.stack([found.real, found.imag], -1).astype(F)


@case((2, 6, 1), wanted=_spectrum)
def dft(opset: int) -> Written | None:
    if opset < 17:
        return None
    if opset < 20:
        return Written([node("DFT", ["x"], ["y"], axis=1)])
    return Written([node("DFT", ["x", "", "axis"], ["y"])], {"axis": np.array(1, I64)})


def _recurrent(_: int, x: np.ndarray) -> np.ndarray:
    w, r, h, every = numbers(1, 4, 3)[0], numbers(1, 4, 4)[0], np.zeros((x.shape[1], 4), F), []
    for step in x:
        h = np.tanh(step @ w.T + h @ r.T)
        every.append(h)
    return np.stack(every)[:, None]


@case((5, 2, 3), wanted=_recurrent)
def recurrent(opset: int) -> Written:
    extra: dict[str, Any] = {"layout": 0} if opset >= 14 else {}
    return Written([node("RNN", ["x", "w", "r"], ["y"], hidden_size=4, **extra)], {"w": numbers(1, 4, 3), "r": numbers(1, 4, 4)})


@case((1, 8, 2, 2), wanted=lambda _, x: x.reshape(1, 2, 2, 2, 2, 2).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 4))
def depth_to_space(opset: int) -> Written:
    return Written([node("DepthToSpace", ["x"], ["y"], blocksize=2, **({"mode": "DCR"} if opset >= 11 else {}))])


@case((1, 8, 2, 2), wanted=lambda _, x: x.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 4, 4))
def depth_to_space_by_columns(opset: int) -> Written | None:
    return None if opset < 11 else Written([node("DepthToSpace", ["x"], ["y"], blocksize=2, mode="CRD")])


@case((1, 2, 4, 6), wanted=lambda _, x: x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3))
def space_to_depth(opset: int) -> Written:
    return Written([node("SpaceToDepth", ["x"], ["y"], blocksize=2)])


@case((2, 3, 4), wanted=lambda _, x: np.where(x < 0, x * numbers(3)[:, None], x))
def prelu(opset: int) -> Written:
    return Written([node("PRelu", ["x", "s"], ["y"])], {"s": numbers(3)[:, None]})


@case((3, 4), wanted=lambda opset, x: np.cumsum(x, 0))
def running_sums(opset: int) -> Written | None:
    """A scan, whose batch axis went with opset 9; CumSum since 11."""
    if opset >= 11:
        return Written([node("CumSum", ["x", "axis"], ["y"])], {"axis": np.array(0, I64)})
    if opset < 9:
        return None
    info = helper.make_tensor_value_info
    body = helper.make_graph([node("Add", ["h", "e"], ["h2"]), node("Identity", ["h2"], ["o"])], "body",
                             [info("h", TensorProto.FLOAT, [4]), info("e", TensorProto.FLOAT, [4])],
                             [info("h2", TensorProto.FLOAT, [4]), info("o", TensorProto.FLOAT, [4])])
    return Written([node("Scan", ["zero", "x"], ["last", "y"], body=body, num_scan_inputs=1)], {"zero": np.zeros(4, F)})


def model_at(one: Case, written: Written, opset: int) -> ModelProto:
    names = ["x", "x1", "x2"][:len(one.shapes)]
    kinds = {"i": TensorProto.INT64, "j": TensorProto.INT64, "s": TensorProto.INT64, "t": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, one.shapes, strict=True)]
    outputs = [helper.make_tensor_value_info(o, kinds.get(o, TensorProto.FLOAT), None) for o in written.outputs]
    graph = helper.make_graph(written.nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(a, name) for name, a in written.constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def inputs_of(one: Case) -> list[np.ndarray]:
    found = [numbers(*shape, seed=7 + i) for i, shape in enumerate(one.shapes)]
    return [np.abs(x) for x in found] if one.positive else found


def same(found: Sequence[Any], wanted: Sequence[Any], opset: int) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert np.asarray(a).shape == np.asarray(b).shape, opset
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=f"opset {opset}")


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_every_opset_computes_the_same(one: Case) -> None:
    """By the operators' references: nothing is compiled."""
    taken = 0
    for opset in OPSETS:
        if (written := one.write(opset)) is None:
            continue
        inputs = inputs_of(one)
        read = imported(model_at(one, written, opset))
        values = evaluate(read.graph, {**read.weights, **dict(zip([v.name for v in read.graph.inputs], inputs, strict=True))})
        same([values[v.name] for v in read.graph.outputs], one.wanted(opset, *inputs), opset)
        taken += 1
    assert taken >= 5


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_onnx_runtime_means_the_same(one: Case) -> None:
    """What is wanted is what it computes of the very files, in the opsets that it has."""
    runtime = needs("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    taken = 0
    for opset in OPSETS:
        if (written := one.write(opset)) is None:
            continue
        model = model_at(one, written, opset).SerializeToString()
        try:
            session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:                             # newer than it is, or without a kernel there
            if "ai.onnx" not in str(error) and "NOT_IMPLEMENTED" not in str(error):
                raise
            continue
        inputs = inputs_of(one)
        same(session.run(None, dict(zip([p.name for p in session.get_inputs()], inputs, strict=True))), one.wanted(opset, *inputs), opset)
        taken += 1
    assert taken >= 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_kernels_compute_the_same(one: Case) -> None:
    for opset in OPSETS:
        if (written := one.write(opset)) is not None:
            inputs = inputs_of(one)
            same(Backend.prepare(model_at(one, written, opset), threads=1).run(inputs), one.wanted(opset, *inputs), opset)
