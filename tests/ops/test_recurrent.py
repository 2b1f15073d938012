"""Recurrent layers: against ONNX Runtime in every family of attributes, sizes, lengths, what is not finite, paths,
gradients, bfloat16, what is refused."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import paths
import pytest
from evaluate import KernelFailed, check_gradient, check_gradient_kernels, check_kernel, gradient_graph, run_kernel
from onnx import TensorProto, helper
from peers import needs

from tileflow import compiler, nn
from tileflow.graph import OPS, Builder, Graph, Op, TensorType, type_of
from tileflow.graph.composite import trimmed
from tileflow.host.form import takes_halves
from tileflow.kernels.isa import cpu
from tileflow.loss import find
from tileflow.lower.expand import composites
from tileflow.lower.plan import make_plan
from tileflow.nn.module import record
from tileflow.onnx_backend import Backend
from tileflow.ops.cells import GATES, TAKES
from tileflow.ops.recurrence import Recurrence
from tileflow.optim import Adam
from tileflow.program.batching import Batching
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session
from tileflow.system.errors import ShapeError, TypeMismatchError, UnsupportedError

rng = np.random.default_rng(12)
Array = np.ndarray
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def operands(kind: str, steps: int, batch: int, hidden: int, directions: int = 1, given: str = "BLhcP", layout: int = 0,
             dtype: str = "float32") -> list[Array | None]:
    """Recurrence's inputs; `given` names the optional ones."""
    wide = GATES[kind] * hidden
    order, state = ((batch, steps), (batch, directions, hidden)) if layout else ((steps, batch), (directions, batch, hidden))
    shapes = {"x": (directions, *order, wide), "R": (directions, wide, hidden), "B": (directions, 2 * wide), "L": (batch,), "h": state, "c": state,
              "P": (directions, 3 * hidden)}
    found: list[Array | None] = []
    for name, shape in shapes.items():
        if name not in "xR" + given or (name in "cP" and kind != "LSTM"):
            found.append(None)
        elif name == "L":
            found.append(rng.integers(0, steps + 1, shape).astype(np.int32))
        else:
            found.append((0.6 * rng.standard_normal(shape)).astype(dtype))
    return found


# ---- ONNX Runtime

def model(kind: str, given: str, direction: str, hidden: int = 7, dtype: type = np.float32, **attributes: Any) -> tuple[onnx.ModelProto, list[Array]]:
    """A file with one layer over 5 steps of 3 rows of 4 inputs, and arrays for its inputs."""
    steps, batch, size, d = 5, 3, 4, 2 if direction == "bidirectional" else 1
    wide = GATES[kind] * hidden
    shapes = {"X": (steps, batch, size), "W": (d, wide, size), "R": (d, wide, hidden), "B": (d, 2 * wide), "L": (batch,), "h": (d, batch, hidden),
              "c": (d, batch, hidden), "P": (d, 3 * hidden)}
    names = [n if n in "XWR" + given else "" for n in (shapes if kind == "LSTM" else list(shapes)[:-2])]
    feeds = {n: rng.integers(1, steps + 1, (batch,)).astype(np.int32) if n == "L" else (0.6 * rng.standard_normal(shapes[n])).astype(dtype)
             for n in names if n}
    results = ["Y", "Y_h", "Y_c"][:3 if kind == "LSTM" else 2]
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node(kind, names, results, hidden_size=hidden, direction=direction, **attributes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, TensorProto.INT32 if n == "L" else number, a.shape)
                                            for n, a in feeds.items()], [helper.make_tensor_value_info(n, number, None) for n in results])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), list(feeds.values())


def compare(proto: onnx.ModelProto, arrays: list[Array], tolerance: float = 3e-6) -> None:
    runtime = needs("onnxruntime")
    session = runtime.InferenceSession(proto.SerializeToString())
    wanted = session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))
    for got, want in zip(Backend.run_model(proto, arrays), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize(("kind", "given", "direction", "attributes"), [
    ("LSTM", "BLhcP", "bidirectional", {}), ("GRU", "BLh", "reverse", {}), ("RNN", "BLh", "bidirectional", {}),
    paths.rare("GRU", "BLh", "bidirectional", {"linear_before_reset": 1, "clip": 0.3}),
    paths.rare("LSTM", "BLhcP", "reverse", {"input_forget": 1, "clip": 0.3}),
    paths.rare("LSTM", "", "forward", {}), paths.rare("LSTM", "B", "reverse", {}), paths.rare("LSTM", "Lc", "forward", {}),
    paths.rare("LSTM", "P", "bidirectional", {}), paths.rare("GRU", "", "forward", {}), paths.rare("GRU", "B", "bidirectional", {"clip": 0.5}),
    paths.rare("RNN", "h", "reverse", {"clip": 0.2})])
def test_attributes_mean_what_they_do_in_onnx_runtime(kind: str, given: str, direction: str, attributes: dict[str, Any]) -> None:
    compare(*model(kind, given, direction, **attributes))


def numbers(name: str) -> dict[str, list[float]]:
    """Attributes with an alpha and a beta for a function that takes them."""
    both = (("activation_alpha", "a", 0.3), ("activation_beta", "b", 0.4))
    return {attribute: [value] for attribute, letter, value in both if letter in TAKES[name]}


@pytest.mark.parametrize("name", [name if name == "HardSigmoid" else paths.rare(name) for name in TAKES])
def test_functions_are_onnx_runtimes(name: str) -> None:
    compare(*model("RNN", "BLh", "forward", activations=[name], **numbers(name)))


@pytest.mark.exhaustive
def test_alphas_go_to_the_functions_that_take_one() -> None:
    compare(*model("LSTM", "BLhcP", "forward", activations=["HardSigmoid", "LeakyRelu", "ScaledTanh"], activation_alpha=[0.3, 0.2, 1.1],
                   activation_beta=[0.45, 0.6]))
    compare(*model("GRU", "BLh", "bidirectional", activations=["HardSigmoid", "LeakyRelu", "Sigmoid", "Tanh"], activation_alpha=[0.3, 0.2],
                   activation_beta=[0.45]))


# ---- kernels against the reference

@pytest.mark.parametrize(("kind", "attributes"), [("LSTM", {}), paths.rare("GRU", {}), paths.rare("GRU", {"linear_before_reset": 1}), ("RNN", {})])
@pytest.mark.parametrize("layout", [0, 1])
def test_odd_sizes(kind: str, attributes: dict[str, Any], layout: int) -> None:
    for steps, batch, hidden in ((3, 50, 33), (1, 1, 129), (4, 17, 5), (0, 2, 3), (2, 0, 3)):
        for direction in ("reverse", "bidirectional"):
            op = Recurrence(kind=kind, direction=direction, layout=layout, **attributes)
            check_kernel(op, *operands(kind, steps, batch, hidden, op.directions, layout=layout), rtol=1e-4, atol=2e-5)


def is_shared(op: Recurrence, arrays: list[Array | None]) -> bool:
    """Whether the units of a step are shared out."""
    types = [None if a is None else type_of(a) for a in arrays]
    return any(call.leaf.name == "recurrent_step" for call in op.kernel(types, op.infer(*types), cpu.current()))


@pytest.mark.parametrize(("kind", "given", "attributes"), [
    ("LSTM", "BhcP", {}), ("GRU", "Bh", {"linear_before_reset": 1}),
    paths.rare("LSTM", "", {"direction": "reverse", "clip": 0.4}),
    paths.rare("RNN", "B", {"direction": "reverse", "layout": 1}),
    paths.rare("GRU", "h", {"linear_before_reset": 1, "direction": "reverse", "layout": 1})])
def test_steps_that_are_shared_out_have_the_same_bits(kind: str, given: str, attributes: dict[str, Any],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    op = Recurrence(kind=kind, **attributes)
    arrays = operands(kind, 5, 1, 301, given=given, layout=op.layout)
    monkeypatch.setattr("tileflow.ops.recurrence.LEAST", 1e18)
    assert not is_shared(op, arrays)
    alone = [a.tobytes() for a in run_kernel(op, *arrays)]
    monkeypatch.setattr("tileflow.ops.recurrence.LEAST", 0.0)
    assert is_shared(op, arrays)
    for workers in (1, 2, 3, 5):
        assert [a.tobytes() for a in run_kernel(op, *arrays, workers=workers)] == alone
    check_kernel(op, *arrays, rtol=1e-4, atol=5e-5)


def test_which_steps_are_shared_out() -> None:
    """Those of one row and direction without a length that multiply once, have more than one panel of units, and take
    long enough."""
    def shared(kind: str, steps: int, batch: int, hidden: int, given: str = "B", **attributes: Any) -> bool:
        op = Recurrence(kind=kind, **attributes)
        return is_shared(op, operands(kind, steps, batch, hidden, op.directions, given))
    assert shared("LSTM", 512, 1, 256)
    assert shared("GRU", 1, 1, 256, linear_before_reset=1)
    assert not shared("LSTM", 513, 1, 256)
    assert not shared("LSTM", 2, 2, 256)
    assert not shared("LSTM", 2, 1, 256, "BL")
    assert not shared("LSTM", 2, 1, 256, direction="bidirectional")
    assert not shared("GRU", 2, 1, 256)
    assert not shared("LSTM", 2, 1, 96)


def test_rows_end_at_their_own_length() -> None:
    """A row alone, cut to its length, gives the same bits; behind its end there are zeros, and its last state is that of its last step."""
    op = Recurrence(kind="LSTM", direction="bidirectional")
    x, r, b, lengths, h, c, p = operands("LSTM", 6, 4, 9, 2)
    lengths[:] = 0, 1, 4, 6
    y, last, cell, _ = run_kernel(op, x, r, b, lengths, h, c, p)
    for i, n in enumerate(lengths):
        alone = run_kernel(op, x[:, :n, i:i + 1], r, b, None, h[:, i:i + 1], c[:, i:i + 1], p)
        np.testing.assert_allclose(y[:n, :, i], alone[0][:, :, 0], rtol=1e-5, atol=1e-6)
        assert not y[n:, :, i].any()
        np.testing.assert_allclose(last[:, i], alone[1][:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(cell[:, i], alone[2][:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last[:, 0], h[:, 0])


def test_what_is_not_finite_stays_in_its_row() -> None:
    for kind in GATES:
        arrays = operands(kind, 4, 5, 19, given="Bh")
        arrays[0][0, 1, 1, 3], arrays[0][0, 0, 3, 2] = np.nan, np.inf
        y = check_kernel(Recurrence(kind=kind), *arrays, rtol=1e-4, atol=1e-5)[0]
        assert np.isnan(y[2, 0, 1]).all()
        assert np.isfinite(y[0, 0, 1]).all()
        assert np.isfinite(y[:, 0, [0, 2, 4]]).all()


@pytest.mark.parametrize("path", paths.PATHS)
def test_every_path(path: str) -> None:
    with cpu.forced(path):
        for kind in GATES if path != paths.FASTEST else ("LSTM",):
            arrays = operands(kind, 3, 14, 21)
            op = Recurrence(kind=kind)
            check_kernel(op, *arrays, rtol=1e-5, atol=1e-5)
            check_gradient_kernels(op, *arrays, outputs=range(2), rtol=1e-4, atol=1e-5)


VARIANTS = [
    ("LSTM", {"input_forget": 1, "clip": 0.9}), ("LSTM", {"direction": "bidirectional", "layout": 1}), ("GRU", {"layout": 1}),
    ("GRU", {"direction": "bidirectional", "linear_before_reset": 1}), ("RNN", {"direction": "reverse"}),
    ("LSTM", {"activations": ("HardSigmoid", "Elu", "Softsign")}), ("GRU", {"activations": ("Sigmoid", "ScaledTanh"), "activation_beta": (0.7,)}),
    ("RNN", {"activations": ("Softplus",)}), ("RNN", {"activations": ("LeakyRelu",)}), ("RNN", {"activations": ("Affine",), "clip": 0.8})]
"""Kinds and attributes whose gradients differ."""


@pytest.mark.parametrize(("kind", "attributes"), VARIANTS)
def test_gradients(kind: str, attributes: dict[str, Any]) -> None:
    """Of all outputs by all operands, against central differences. (`test_gradient_kernels` compares the kernels.)"""
    op = Recurrence(kind=kind, **attributes)
    wide = operands(kind, 3, 2, 3, op.directions, layout=op.layout, dtype="float64")
    outputs = range(3 if kind == "LSTM" else 2)
    check_gradient(op, *wide, outputs=outputs, rtol=2e-5, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "attributes"), VARIANTS)
def test_gradient_kernels(kind: str, attributes: dict[str, Any]) -> None:
    """Against the references, which are compared with central differences."""
    op = Recurrence(kind=kind, **attributes)
    wide = operands(kind, 3, 2, 3, op.directions, layout=op.layout, dtype="float64")
    check_gradient_kernels(op, *wide, outputs=range(3 if kind == "LSTM" else 2), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_other_numbers_run_the_same_kernels(kind: str) -> None:
    names = ("HardSigmoid", "LeakyRelu", "ScaledTanh")[:2 if kind == "GRU" else 3]
    arrays, leaves = operands(kind, 4, 3, 5), []
    for numbers in ((0.3, 0.2, 1.1, 0.45, 0.6, 0.9), (0.15, 0.3, 1.7, 0.7, 0.8, 0.4)):
        op = Recurrence(kind=kind, activations=names, activation_alpha=numbers[:len(names)], record=True,
                        activation_beta=numbers[3:5] if kind == "LSTM" else numbers[3:4], clip=numbers[5])
        check_kernel(op, *arrays, rtol=1e-5, atol=3e-6)
        check_gradient_kernels(op, *arrays, outputs=range(3 if kind == "LSTM" else 2), rtol=1e-4, atol=1e-5)
        types = [None if a is None else type_of(a) for a in arrays]
        made = list(op.infer(*types))
        graph, _, _ = gradient_graph(op, arrays, range(len(made) - 1))
        back, = (n for n in graph.nodes if n.op.name == "RecurrenceGrad")
        read = [None if v is None else v.type for v in back.inputs]
        written = [v.type for v in back.outputs]
        calls = [*op.kernel(types, made, cpu.current()), *back.op.kernel(read, written, cpu.current())]
        leaves.append([call.leaf for call in calls])
    assert leaves[0] == leaves[1]


def test_gradients_over_many_rows_have_the_same_bits_wherever_they_are_cut() -> None:
    op = Recurrence(kind="GRU", direction="bidirectional")
    arrays = operands("GRU", 5, 37, 11, 2)
    y, last, record = run_kernel(op, *arrays)
    gradient = OPS["RecurrenceGrad"](**op.attributes())
    check_kernel(gradient, np.ones_like(y), last, None, arrays[1], arrays[3], arrays[4], None, None, y, record, rtol=1e-4, atol=2e-5)


# ---- bfloat16

def in_bfloat16(op: Recurrence, *sizes: int) -> list[Array | None]:
    """Operands, recurrent weights as small as a layer's."""
    found = operands(op.kind, *sizes, directions=op.directions, layout=op.layout)
    return [a if a is None or a.dtype == np.int32 else (a * (sizes[2] ** -0.5 if i == 1 else 1)).astype(BFLOAT16)
            for i, a in enumerate(found)]


def widened(arrays: list[Array | None]) -> list[Array | None]:
    return [a.astype("float64") if a is not None and a.dtype == BFLOAT16 else a for a in arrays]


def near(op: Op, arrays: list[Array | None], exact: tuple[Array, ...]) -> list[Array]:
    """Results of the kernels, compared with those of float64 and with each other for several numbers of workers."""
    found = run_kernel(op, *arrays)
    for workers in (2, 3, 5):
        assert [a.tobytes() for a in run_kernel(op, *arrays, workers=workers)] == [a.tobytes() for a in found]
    for got, want in zip(found, exact, strict=True):
        assert got.dtype == BFLOAT16
        assert np.abs(got.astype("float64") - want).max(initial=0) <= 2.0 ** -6 * np.abs(want).max(initial=0)
    return found


@pytest.mark.parametrize("path", [paths.entry(path)
                                  for path in cpu.PATHS.values() if path.pairs and path.label in cpu.available()])
@pytest.mark.parametrize(("kind", "attributes", "sizes"), [
    ("LSTM", {"direction": "bidirectional"}, (7, 50, 34)), ("GRU", {"direction": "reverse", "layout": 1}, (7, 17, 66)),
    paths.rare("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}, (7, 1, 4)),
    paths.rare("RNN", {}, (7, 20, 128)),
    paths.rare("LSTM", {"input_forget": 1, "clip": 0.9, "direction": "reverse", "layout": 1}, (3, 5, 2))])
def test_products_of_pairs(path: cpu.Cpu, kind: str, attributes: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """Outputs and gradients: two roundings of what is largest, whatever the number of steps, for states stay
    float32."""
    with cpu.forced(path):
        op = Recurrence(kind=kind, **attributes)
        arrays = in_bfloat16(op, *sizes)
        exact = op.reference(*widened(arrays))
        made = near(op, arrays, exact)
        gradients = [rng.standard_normal(a.shape).astype(BFLOAT16)
                     for a in exact[:2 + op.is_lstm]] + [None] * (not op.is_lstm)
        given = [*gradients, arrays[1], *arrays[3:]]
        back = OPS["RecurrenceGrad"](**op.attributes())
        near(back, [*given, made[0], made[-1]], back.reference(*widened(given), exact[0], exact[-1]))


@pytest.mark.parametrize(("path", "hidden"), [paths.on(cpu.available()[0], 6), paths.on(cpu.available()[0], 7),
                                              paths.on(cpu.available()[-1], 6)])
def test_bfloat16_where_units_are_no_pairs_or_nobody_multiplies_them(path: str, hidden: int) -> None:
    """The host computes these in float32."""
    with cpu.forced(path) as current:
        op = Recurrence(kind="GRU")
        arrays = in_bfloat16(op, 4, 3, hidden)
        types = [None if a is None else type_of(a) for a in arrays]
        assert takes_halves(op, types, op.infer(*types), current) == (current.pairs and hidden == 6)
        graph = Graph("one")
        b = Builder(graph)
        graph.outputs = [*b.emit(op, *[None if t is None else b.input(f"x{i}", t) for i, t in enumerate(types)])]
        program = compiler.inference(graph, Batching(1)).program
        found = make_engine(program, Session(),
                            host=Host(threads=1)).run({f"x{i}": a for i, a in enumerate(arrays) if a is not None})
        for value, want in zip(program.micro.outputs, op.reference(*widened(arrays)), strict=True):
            got = found[value.name].reshape(want.shape).astype("float64")
            assert np.abs(got - want).max() <= 2.0 ** -6 * np.abs(want).max()


# ---- graphs

def test_only_training_makes_a_record() -> None:
    """Nodes: one product and the steps, whose record nobody makes where nobody reads it; the number of nodes does not know the number of steps."""
    counts = []
    for steps in (3, 300):
        graph = Graph("g")
        b = Builder(graph)
        x, w, r = (b.input(n, TensorType("float32", s)) for n, s in (("x", (steps, 2, 4)), ("w", (1, 20, 4)), ("r", (1, 20, 5))))
        graph.outputs.append(b.LSTM(x, w, r)[0])
        program = compiler.inference(graph, Batching(1)).program
        lowered = composites(program.micro)
        [steps_node] = [n for n in lowered.nodes if n.op.name == "Recurrence"]
        assert not steps_node.op.record
        assert len(steps_node.outputs) == 3
        counts.append(len(lowered.nodes))
    assert counts[0] == counts[1]
    graph = Graph("g")
    b = Builder(graph)
    made = b.emit(Recurrence(), *[None if a is None else b.input("i", TensorType(a.dtype.name, a.shape)) for a in operands("LSTM", 2, 2, 3)])
    graph.outputs.extend(made)
    assert trimmed(graph) is graph


def test_what_is_refused() -> None:
    x, r = TensorType("float32", (1, 3, 2, 20)), TensorType("float32", (1, 20, 5))
    with pytest.raises(ShapeError, match="sequence_lens is int32"):
        Recurrence().infer(x, r, None, TensorType("int32", (3,)))
    with pytest.raises(ShapeError, match="GRU takes no initial_c"):
        Recurrence(kind="GRU").infer(TensorType("float32", (1, 3, 2, 15)), TensorType("float32", (1, 15, 5)), None, None, None,
                                     TensorType("float32", (1, 2, 5)))
    with pytest.raises(TypeMismatchError, match="one float type"):
        Recurrence().infer(x, r.with_dtype("float64"))
    with pytest.raises(UnsupportedError, match="'Swish'"):
        Recurrence(activations=("Swish", "Tanh", "Tanh")).infer(x, r)
    with pytest.raises(UnsupportedError, match="direction 'up'"):
        Recurrence(direction="up").infer(x, r)
    with pytest.raises(ShapeError, match="has 2 activation functions"):
        Recurrence(activations=("Tanh", "Tanh")).infer(x, r)
    with pytest.raises(ShapeError, match="hidden_size is 4"):
        OPS["LSTM"](hidden_size=4).infer(TensorType("float32", (3, 2, 7)), TensorType("float32", (1, 20, 7)), r)
    arrays = operands("RNN", 3, 2, 4, given="L")
    arrays[3][0] = 4
    with pytest.raises(KernelFailed):
        run_kernel(Recurrence(kind="RNN"), *arrays)


class First(nn.Module):
    """A recurrent layer's output without its last states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_length_of_a_sequence_costs_no_compile_time(kind: str) -> None:
    """500 steps have the rows and compile the leaves that 10 have: the model's forward and backward pass, and its update. Only sums over all steps
    (of the loss, of gradients of biases) are made in two rows where they are long."""
    made = []
    for steps in (10, 500):
        layer = First(getattr(nn, kind)(4, 5, num_layers=2, bidirectional=True))
        graph = record(layer, [("x", TensorType("float32", (steps, 8, 4)))], training=True, dtype="float32")
        plan = make_plan(compiler.training(graph, find("mse"), Adam(), Batching(8)).program, 1)
        rows = [row.leaf for part in plan.lowered.values() for row in part.every_row()]
        sums = [leaf.name.startswith("sum_") for leaf in rows]
        others = [leaf for leaf, is_sum in zip(rows, sums, strict=True) if not is_sum]
        made.append(([leaf.name for leaf in others], len({leaf.identity for leaf in others}), sum(sums)))
        assert [sum(leaf.name == name for leaf in rows) for name in ("recurrent", "recurrent_gradient")] == [2, 2]
    (few, few_leaves, few_sums), (many, many_leaves, many_sums) = made
    assert few == many
    assert few_leaves == many_leaves
    assert few_sums <= many_sums <= 2 * few_sums
