"""Weight updates: 16-bit weights with float32 arithmetic and moments, updates done whole or not at all, padding between weights."""
from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches NumPy the name bfloat16)
import numpy as np
import onnx
import pytest
from images import segments_of
from onnx import TensorProto, helper
from peers import needs
from test_half import model as half_classifier

import tileflow
from tileflow import exact, nn, optim
from tileflow.importers.onnx import wrap_model
from tileflow.memory.alignment import padded_nbytes
from tileflow.optim.transform import Chain, Transform
from tileflow.runtime.binding import bind
from tileflow.runtime.checkpoint import load_tensors, save_tensors
from tileflow.system.errors import CheckpointError, TrainingError, WeightsLostError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze

Array = np.ndarray
HALVES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
OPTIMIZERS: list[Any] = [lambda: optim.AdamW(lr=1e-2), lambda: optim.Adam(lr=1e-2, weight_decay=0.1), lambda: optim.SGD(lr=0.1),
                         lambda: optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.1), lambda: optim.SGD(lr=0.1, momentum=0.5, nesterov=True)]


def line(start: dict[str, Array]) -> onnx.ModelProto:
    """The sum of x * w over all weights w, each with its own x: the gradients are the inputs."""
    nodes, sums, inputs = [], [], []
    for name, w in start.items():
        kind = helper.np_dtype_to_tensor_dtype(w.dtype)
        inputs.append(helper.make_tensor_value_info(f"x_{name}", kind, ["n", *w.shape]))
        nodes += [helper.make_node("Cast", [n], [f"c_{n}"], to=TensorProto.FLOAT) for n in (name, f"x_{name}")]
        nodes += [helper.make_node("Mul", [f"c_x_{name}", f"c_{name}"], [f"p_{name}"]),
                  helper.make_node("ReduceSum", [f"p_{name}"], [f"s_{name}"], keepdims=0)]
        sums.append(f"s_{name}")
    nodes.append(helper.make_node("Sum", sums, ["y"]))
    weights = [helper.make_tensor(n, helper.np_dtype_to_tensor_dtype(w.dtype), w.shape, w.tobytes(), raw=True) for n, w in start.items()]
    graph = helper.make_graph(nodes, "line", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def trainer(start: dict[str, Array], optimizer: optim.Optimizer, **options: Any) -> Any:
    return tileflow.training_model(wrap_model(line(start)), optimizer=optimizer, loss="identity", **options)


def step(model: Any, gradients: list[Array]) -> None:
    model(*[g[None] for g in gradients])


def drawn(dtype: str, shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


# ---- 16-bit weights

@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "options"), [("AdamW", {}), ("Adam", dict(weight_decay=0.1)), ("SGD", dict(momentum=0.9))])
def test_updates_of_16_bit_weights_are_pytorchs_with_states_in_float32(name: str, options: dict[str, Any], dtype: str) -> None:
    """PyTorch updates a float32 copy, which is rounded after every step; small gradients, whose squares 16 bits do not hold."""
    torch = needs("torch")
    w = drawn(dtype, (70, 3), 0)
    ours = trainer({"w": w}, getattr(optim, name)(lr=0.02, **options))
    theirs = torch.nn.Parameter(torch.tensor(w.astype("f4")))
    peer = getattr(torch.optim, name)([theirs], lr=0.02, **options)
    for i in range(20):
        g = drawn(dtype, w.shape, 1 + i, 1e-3)
        step(ours, [g])
        theirs.grad = torch.tensor(g.astype("f4"))
        peer.step()
        theirs.data = theirs.data.to(getattr(torch, dtype)).float()
    found = ours.source.session["w"]
    assert found.dtype == w.dtype
    wanted, spacing = theirs.detach().numpy(), 2.0 ** (-10 if dtype == "float16" else -7)
    assert (found.astype("f4") == wanted).mean() > 0.98            # the last bit of float32 may decide a rounding
    np.testing.assert_allclose(found.astype("f4"), wanted, rtol=2 * spacing, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_default_optimizer_trains_a_classifier_of_16_bits(dtype: str) -> None:
    x, y = drawn(dtype, (12, 1, 6, 6), 2), np.random.default_rng(3).integers(0, 10, 12)
    model = tileflow.training_model(wrap_model(half_classifier(HALVES[dtype])), learning_rate=1e-2)
    assert isinstance(model.optimizer, optim.AdamW)
    losses = [float(np.asarray(model(x, y)[-1]).reshape(-1)[-1]) for _ in range(40)]
    assert losses[-1] < 0.06 * losses[0], losses


def test_moments_of_16_bit_weights_survive_in_float32(tmp_path: Path) -> None:
    def fresh() -> Any:
        return trainer({"w": drawn("float16", (9,), 0), "v": drawn("float32", (5,), 1)}, optim.AdamW(lr=0.05))

    def go_on(model: Any, first: int) -> dict[str, bytes]:
        for i in range(first, first + 3):
            step(model, [drawn("float16", (9,), i), drawn("float32", (5,), i)])
        return {n: a.tobytes() for n, a in model.source.session.snapshot().items()}
    model = fresh()
    go_on(model, 0)
    session = model.source.session
    assert {n: session[n].dtype.name for n in session.names("optimizer", "parameter")} == {
        "w": "float16", "w.exp_avg": "float32", "w.exp_avg_sq": "float32", "v": "float32", "v.exp_avg": "float32", "v.exp_avg_sq": "float32",
        "optimizer.step": "float64", "optimizer.loss_scale": "float32"}
    save_tensors(tmp_path / "c.safetensors", session.lasting())
    whole = go_on(model, 3)
    other = fresh()
    go_on(other, 7)
    tensors, _ = load_tensors(tmp_path / "c.safetensors")
    other.source.session.restore(tensors, updates=3, micro_batches=3)
    assert go_on(other, 3) == whole
    with pytest.raises(CheckpointError, match=r"'w.exp_avg' is float16\[9\], the model needs float32\[9\]"):
        other.source.session.restore({**tensors, "w.exp_avg": tensors["w.exp_avg"].astype("f2")}, updates=3, micro_batches=3)


# ---- whole or not at all

def everything(model: Any) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in model.source.session.snapshot().items()}


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("make", [lambda: optim.AdamW(lr=0.5, weight_decay=0), lambda: optim.SGD(lr=2.0, momentum=0.5)])
def test_an_overflow_of_a_16_bit_weight_is_found_before_anything_is_written(make: Any, accumulation: int) -> None:
    start = {"a": drawn("float16", (130,), 0), "b": np.full((3, 5), 65504, "f2"), "c": drawn("float32", (4,), 1)}
    model = trainer(start, make(), gradient_accumulation=accumulation)

    def gradients(b: float) -> list[Array]:
        return [np.repeat(g[None], accumulation, 0) for g in (drawn("float16", (130,), 2), np.full((3, 5), b, "f2"), drawn("float32", (4,), 3))]
    model(*gradients(0.01))
    before = everything(model)
    model.optimizer.lr = 100.0
    with pytest.raises(TrainingError, match="Update 1 would make b infinite or NaN, which 16 bits cannot hold; the weights are kept") as failure:
        model(*gradients(-30.0))
    assert not isinstance(failure.value, WeightsLostError)
    assert everything(model) == before
    assert model.source.session.updates == 1
    model.optimizer.lr = 0.01
    model(*gradients(0.01))
    assert everything(model) != before


def test_a_float32_weight_that_is_lost_is_said() -> None:
    model = trainer({"a": drawn("float32", (130,), 0), "b": drawn("float32", (3,), 1)}, optim.SGD(lr=1.0))
    step(model, [drawn("float32", (130,), 2), drawn("float32", (3,), 3)])
    model.optimizer.lr = 3e38
    with pytest.raises(WeightsLostError, match="Update 1 made b infinite or NaN although loss and gradients were finite"):
        step(model, [drawn("float32", (130,), 2, 1e-3), np.array([1e-3, 5, 1e-3], "f4")])
    assert model.source.session.updates == 1


class Steep(nn.Module):
    """One weight, whose gradient is the input."""

    def __init__(self) -> None:
        self.w = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x: nn.Tensor) -> nn.Tensor:                          # type: ignore[override]
        return x * self.w


def test_the_last_good_checkpoint_is_named(tmp_path: Path) -> None:
    """The sixth row's gradient is finite, its weight is not."""
    x = np.array([[1e-3], [1e-3], [1e-3], [1e-3], [1e-3], [1e10]], "f4")
    options: dict[str, Any] = dict(data=(x, np.full((6, 1), 3e38, "f4")), loss="l1", optimizer=optim.SGD(lr=1e30), micro_batch_size=1,
                                   shuffle=False, epochs=2)
    with pytest.raises(WeightsLostError) as failure:
        tileflow.train(Steep(), out=str(tmp_path / "none"), **options)
    assert "had not written a checkpoint yet" in failure.value.__notes__[0]
    assert not (tmp_path / "none" / "checkpoint.failed").exists()
    with pytest.raises(WeightsLostError) as failure:
        tileflow.train(Steep(), out=str(tmp_path / "some"), save_every_updates=3, **options)
    good = tmp_path / "some" / "checkpoint.safetensors"
    assert failure.value.__notes__[0].startswith(f"The last good checkpoint is {good}. Go on from it with ")
    assert np.isfinite(load_tensors(good)[0]["w"]).all()


def test_the_tiles_compute_mixed_states_as_the_engine_does() -> None:
    start = {"a": drawn("float16", (40, 3), 0), "b": drawn("float32", (5,), 1)}
    model = trainer(start, optim.AdamW(lr=0.05), device_iterations=2)
    given = [np.stack([drawn(w.dtype.name, w.shape, 2 * i + k) for i in range(2)]) for k, w in enumerate(start.values())]
    model.compile(*given)
    before = {n: a.copy() for n, a in model.source.session.snapshot().items()}
    tiled = analyze(model.program, chip("gc200").variant(tiles=4))
    assert exact.check(tiled).ok
    states = {s.name: s for s in model.program.parts["update"].states}
    assert states["a.exp_avg"].input.dtype == "float32"
    found = exact.execute(model.program, {s.node: s.plan for s in tiled.steps}, {v.name: a for v, a in zip(model.program.inputs, given, strict=True)},
                          before, exact.Tiles(4, 600 * 1024), scalars=model.optimizer.values)
    model.run_call(*given)
    for name, state in model.source.session.snapshot().items():
        assert found.states[name].dtype == state.dtype
        np.testing.assert_allclose(found.states[name].astype("f8"), state.astype("f8"), rtol=1e-3 if name == "a" else 1e-5, atol=1e-6, err_msg=name)


# ---- padding

def paddings(session: Any) -> dict[str, bytes]:
    """The bytes between each state's end and what it takes."""
    found = {}
    for name in session.names():
        array = session[name]
        t = tileflow.graph.type_of(array)
        found[name] = ctypes.string_at(array.ctypes.data + array.nbytes, padded_nbytes(t) - array.nbytes)
    return found


MIXED = {"a": ("float16", (70,)), "b": ("float32", (3, 5)), "c": ("float16", (1,)), "d": ("bfloat16", (65,)), "e": ("float16", (128,)),
         "f": ("float32", (1,)), "g": ("bfloat16", (2, 2)), "h": ("float32", (200,))}


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_padding_is_zero_after_every_update(make: Any, accumulation: int) -> None:
    start = {n: drawn(*kind, 0) for n, kind in MIXED.items()}
    model = trainer(start, make(), gradient_accumulation=accumulation, trainable=tuple(MIXED))          # a single number, too
    for i in range(3):
        model(*[drawn(dtype, (accumulation, *shape), i) for dtype, shape in MIXED.values()])
        found = paddings(model.source.session)
        assert len(found) >= len(MIXED)
        assert sum(map(len, found.values())) > 1000
        assert not any(map(any, found.values())), [n for n, p in found.items() if any(p)]
    session = model.source.session
    for group in ({"a", "c", "e"}, {"d", "g"}, {"b", "f", "h"}):
        places = sorted(session[n].ctypes.data for n in group)
        ends = sorted(session[n].ctypes.data + padded_nbytes(tileflow.graph.type_of(session[n])) for n in group)
        assert places[1:] == ends[:-1], "members of a group lie side by side"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_many_weights_of_mixed_types_are_updated_by_one_row(dtype: str, accumulation: int) -> None:
    """The weight and its gradient have 16 bits, its moments 32."""
    shapes = [(7, 9), (9,), (200,), (8, 8), (1, 3), (65,)]
    model = trainer({f"w{i}": drawn(dtype, s, i) for i, s in enumerate(shapes)}, optim.AdamW(), gradient_accumulation=accumulation)
    model(*[drawn(dtype, (accumulation, *s), i) for i, s in enumerate(shapes)])
    plan = model.plan
    segments = segments_of(plan, model.source.session)
    for part in (*plan.checks.values(), plan.parts["update"]):
        assert len([b for b in bind(part.rows, segments.resolve(0), segments.settled(part.arena)) if b.n > 1]) == 1
    assert list(plan.checks) == (["update"] if dtype == "float16" else []), "bfloat16 reaches as far as float32, and is looked at as it is written"
    if dtype == "bfloat16":
        return
    check, = {row.leaf for row in plan.checks["update"].rows if row.leaf.checked}
    assert sum(p.cut == "r" for p in check.parameters) == 4, "the check reads weight, gradient and moments and writes nothing"


class Halve(Transform):
    """A last step that is no elementwise work: half of the new weight, as a product with half of the identity."""

    def step(self, u: Any) -> None:
        half = u.b.constant(0.5 * np.eye(u.weight.shape[-1], dtype=u.weight.type.numpy))
        u.result = u.b.MatMul(u.result, half)


class Turned(optim.SGD):
    """An optimizer of one's own: a chain with another link."""

    def chain(self) -> Chain:
        return *super().chain(), Halve()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_update_of_any_form_is_checked(dtype: str) -> None:
    start = {"w": drawn(dtype, (9, 3), 0), "v": drawn(dtype, (4, 5), 1)}
    model = trainer(start, Turned(lr=0.1))
    gradients = [drawn(dtype, w.shape, 2) for w in start.values()]
    step(model, gradients)
    for (name, w), g in zip(start.items(), gradients, strict=True):
        np.testing.assert_allclose(model.source.session[name].astype("f8"), 0.5 * (w.astype("f8") - 0.1 * g.astype("f8")), rtol=2e-3, atol=1e-4)
    before = everything(model)
    model.optimizer.lr = 3e38 if dtype == "float32" else 1e6
    with pytest.raises(WeightsLostError if dtype == "float32" else TrainingError, match=r"(would make|made) w, v infinite"):
        step(model, [g * g.dtype.type(4) for g in gradients])
    assert (everything(model) == before) == (dtype == "float16")
