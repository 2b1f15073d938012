"""How updates round to 16 bits: at random, and with the rest kept beside the weight; kernels, rows, whole trainings."""
from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import paths
import pytest
from evaluate import check_kernel, run_kernel, run_reference
from images import rows_of

import tileflow
from tileflow import exact, nn
from tileflow.exact import Tiles
from tileflow.graph import HALVES
from tileflow.kernels.elementwise.rounding import joined, stochastic
from tileflow.kernels.isa import cpu
from tileflow.kernels.random import philox, position_bits
from tileflow.ops.cast import Cast, CastAway, Joined, Remainder, StochasticCast
from tileflow.system.errors import OptionError, TrainingError
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import analyze

Array = np.ndarray
MILLION = 1_000_000


def bits(a: Array) -> Array:
    """The patterns, all NaN alike."""
    return np.where(np.isnan(a.astype(np.float32)), np.uint16(0xFFFF), a.view(np.uint16))


def numbers() -> Array:
    """float32 of every kind and size, and what 16 bits cannot hold."""
    rng = np.random.default_rng(0)
    edges = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 65504, 65505, 65519, 65520, 65536, -65519, 6e-8, 2.9e-8, 1e-45, 6.1e-5, 6.103515625e-05,
                        3.39e38, 3.4e38, -3.4e38, 1.00390625, 1.01171875, -1.00390625])
    any_bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([edges, any_bits, rng.standard_normal(5003).astype(np.float32), (1e-6 * rng.standard_normal(5000)).astype(np.float32)])


# ---- stochastic rounding

@pytest.mark.parametrize("path", paths.PATHS)
@pytest.mark.parametrize("to", HALVES)
def test_the_kernel_draws_as_its_twin_wherever_the_range_is_cut(path: str, to: str) -> None:
    x = numbers()
    with cpu.forced(path), np.errstate(all="ignore"):
        for n, at in ((1, 0), (63, 64), (len(x), 128)):
            op = StochasticCast(to=to, stream=7, at=at)
            got = [run_kernel(op, x[:n], workers=w, seed=2**40 + 5, micro=11)[0] for w in (1, 2, 5)]
            want = run_reference(op, x[:n], seed=2**40 + 5, micro=11)[0]
            for g in got:
                np.testing.assert_array_equal(bits(g), bits(want))


@pytest.mark.parametrize("to", HALVES)
@pytest.mark.parametrize("value", [0.1, -3.7, 1e-6, 3.1e-8, -1e-10, 3e-5, 6.1e-5, 1.00001, 40000.7])
def test_the_mean_of_a_million_roundings_is_the_number(to: str, value: float) -> None:
    x = np.full(MILLION, value, np.float32)
    y = run_kernel(StochasticCast(to=to), x, seed=3, micro=1)[0].astype(np.float64)
    low, high, exact = y.min(), y.max(), float(x[0])
    share = (exact - low) / (high - low)
    assert 0 < share < 1
    assert abs(y.mean() - exact) < 4 * (share * (1 - share) / MILLION) ** 0.5 * (high - low)
    assert np.unique(y).size == 2


@pytest.mark.parametrize("to", HALVES)
def test_what_16_bits_hold_is_not_rounded(to: str) -> None:
    """Every number of the type, its infinities and NaN included, in every state of the generator that we try."""
    with np.errstate(all="ignore"):
        x = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(to)
        for micro in range(3):
            np.testing.assert_array_equal(bits(run_kernel(StochasticCast(to=to), x.astype(np.float32), micro=micro)[0]), bits(x))


def test_beyond_the_largest_number_lies_infinity() -> None:
    """65510 is 6/32 of the way from the largest float16 to where the next one would be."""
    y = run_kernel(StochasticCast(to="float16"), np.full(MILLION, 65510, np.float32))[0]
    assert set(np.unique(y).astype(float)) == {65504.0, np.inf}
    assert abs(np.isinf(y).mean() - 6 / 32) < 0.002
    assert np.isinf(run_kernel(StochasticCast(to="float16"), np.full(100, 65536, np.float32))[0]).all()


def test_an_element_has_words_of_its_own() -> None:
    """Other streams, positions, counts and seeds draw other words; the same ones the same, whatever lies before them."""
    one = position_bits(256, 0, 1, 2, 3)
    np.testing.assert_array_equal(position_bits(128, 128, 1, 2, 3), one[128:])
    assert np.unique(one).size == 256
    for other in (position_bits(256, 256, 1, 2, 3), position_bits(256, 0, 2, 2, 3), position_bits(256, 0, 1, 3, 3), position_bits(256, 0, 1, 2, 4)):
        assert not np.intersect1d(one, other).size
    known = philox(np.array([[16 + 5, 0, 3, 0]], np.uint32), (1, 2))[0]           # element 64 + 2 * 16 + 5: word 2 of block 16 + 5
    assert one[64 + 2 * 16 + 5] == known[2]


# ---- remainders

@pytest.mark.parametrize("path", paths.PATHS)
def test_a_bfloat16_number_and_its_remainder_are_the_float32_number(path: str) -> None:
    with cpu.forced(path), np.errstate(all="ignore"):
        x = numbers()
        w = check_kernel(CastAway(), x)[0]
        rest = check_kernel(Remainder(), x, w)[0]
        back = check_kernel(Joined(), w, rest)[0]
    finite = np.isfinite(w.astype(np.float32))
    np.testing.assert_array_equal(back[finite].view(np.uint32), x[finite].view(np.uint32))
    near = np.abs(x[finite].astype(np.float64) - w[finite].astype(np.float64))
    np.testing.assert_array_less(near, np.maximum(np.abs(x[finite]) * 2.0 ** -8, 1e-40) * (1 + 1e-6))
    assert (~finite).any()


@pytest.mark.parametrize("path", paths.PATHS)
def test_a_float16_number_and_its_remainder_are_the_float32_number_from_a_size_on(path: str) -> None:
    with cpu.forced(path), np.errstate(all="ignore"):
        x = numbers()
        w = check_kernel(Cast(to="float16"), x)[0]
        rest = check_kernel(Remainder(), x, w)[0]
        back = check_kernel(Joined(), w, rest)[0]
    finite = np.isfinite(w.astype(np.float32))
    large = finite & (np.abs(x) >= 2.0 ** -16)
    np.testing.assert_array_equal(back[large].view(np.uint32), x[large].view(np.uint32))
    assert np.abs(back[finite].astype(np.float64) - x[finite]).max() <= 2.0 ** -40
    assert (finite & ~large).any()


# ---- whole trainings

SIZES = (5, 70, 64, 1, 300)


class Sums(nn.Module):
    """A loss whose gradient by each weight is the input's sum, whatever the weights are."""

    def __init__(self, sizes: tuple[int, ...] = SIZES) -> None:
        rng = np.random.default_rng(4)
        self.weights = [nn.Parameter(rng.standard_normal(n).astype(np.float32)) for n in sizes]

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        total = sum((w.sum() for w in self.weights), x.sum() * 0.0)
        return total * x.mean()                                # type: ignore[no-any-return]


def summing(precision: str, lr: float = 1e-3, **options: Any) -> Any:
    return tileflow.training_model(Sums(), optimizer=tileflow.optim.SGD(lr=lr), loss="identity", precision=precision, **options)


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_updates_round_at_random_by_element_and_update(precision: str) -> None:
    """Five weights are one row, which draws what each would draw alone: the twin rounds every tensor by itself."""
    model, x = summing(precision, stochastic_rounding=True, seed=9), np.ones((4, 3), np.float32)
    plain = summing(precision)
    plain(x)
    expected = {name: a.copy() for name, a in Sums().state_dict().items()}
    dtype = np.dtype({"16-true": "float16", "bf16-true": "bfloat16"}[precision])
    expected = {name: a.astype(dtype) for name, a in expected.items()}
    stream = 1 << 31 | zlib.crc32(b"") & 0x7FFFFFFF
    for update in range(1, 4):
        model(x)
        at = 0
        for name, w in expected.items():
            exact = w.astype(np.float32) - np.float32(1e-3)
            expected[name] = stochastic(exact, position_bits(w.size, at, 9, stream, update), dtype)
            at += -(-w.size // 64) * 64
        for name, w in model.state_dict().items():
            np.testing.assert_array_equal(w.view(np.uint16), expected[name].view(np.uint16), err_msg=f"{name} after update {update}")
    assert rows_of(model.engine, "update") == rows_of(plain.engine, "update")


def trained(updates: int, resume_at: int | None = None, **options: Any) -> dict[str, Array]:
    """The states of a small network after some updates; with `resume_at` another model goes on from the states there."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((updates, 8, 6)).astype(np.float32), rng.integers(0, 3, (updates, 8))

    def made() -> Any:
        nn.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 33), nn.LayerNorm(33), nn.ReLU(), nn.Linear(33, 3))
        return tileflow.training_model(net, optimizer=tileflow.optim.AdamW(lr=1e-2), **options)
    model = made()
    for i in range(updates):
        if i == resume_at:
            kept, session = model.source.session.snapshot(), model.source.session
            model = made()
            model.compile(x[0], y[0])
            model.source.session.restore(kept, updates=session.updates, micro_batches=session.micro_batches)
        model(x[i], y[i])
    found: dict[str, Array] = model.source.session.snapshot()
    return found


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.mark.parametrize("options", [dict(stochastic_rounding=True), dict(master_weights="remainder")], ids=str)
def test_bits_depend_on_the_seed_and_not_on_threads_lanes_or_a_restart(options: dict[str, Any]) -> None:
    given: dict[str, Any] = dict(options, precision="bf16-true", gradient_accumulation=4, micro_batch_size=2)
    whole = trained(6, threads=1, seed=5, **given)
    assert same(whole, trained(6, threads=2, seed=5, **given))
    assert same(whole, trained(6, resume_at=3, threads=1, seed=5, **given))
    assert same(whole, trained(6, threads=1, seed=6, **given)) == ("stochastic_rounding" not in options)


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_small_steps_are_lost_by_rounding_and_add_up_otherwise(precision: str) -> None:
    """Steps of a thousandth of a weight's last place. Rounded to nearest they are nothing; at random the mean is right; with a remainder each is."""
    lr, updates, x = 2.0 ** -18, 64, np.ones((2, 3), np.float32)

    def moved(**options: Any) -> tuple[Array, Any]:
        model = summing(precision, lr, device_iterations=updates, **options)
        model(np.concatenate([x] * updates))
        before = np.concatenate([w.astype(model.state_dict()[name].dtype).astype(np.float64) for name, w in Sums().state_dict().items()])
        return np.concatenate([w.astype(np.float64) for w in model.state_dict().values()]) - before, model
    large = np.abs(np.concatenate(list(Sums().state_dict().values()))) > 0.3
    assert not moved()[0][large].any()
    at_random = moved(stochastic_rounding=True)[0]
    step = {"16-true": 2.0 ** -11, "bf16-true": 2.0 ** -8}[precision]             # at most: the numbers lie below 4
    deviation = (updates * lr * step * 4 / at_random.size) ** 0.5
    assert abs(at_random.mean() + updates * lr) < 4 * deviation
    _, model = moved(master_weights="remainder")
    states = model.source.session.snapshot()
    for name, first in Sums().state_dict().items():
        twin = first.astype(states[name].dtype).astype(np.float32)
        for _ in range(updates):
            twin = twin - np.float32(lr)
        whole = joined(states[name], states[f"{name}.remainder"])
        if precision == "bf16-true":
            np.testing.assert_array_equal(whole, twin)
        else:
            np.testing.assert_allclose(whole, twin, rtol=0, atol=updates * 2.0 ** -40)


def test_weights_that_are_set_have_no_remainder() -> None:
    model = summing("bf16-true", master_weights="remainder")
    model(np.ones((2, 3), np.float32))
    name = next(iter(model.state_dict()))
    session = model.source.session
    assert session[f"{name}.remainder"].any()
    model.load_state_dict(model.state_dict())
    assert not session[f"{name}.remainder"].any()


@pytest.mark.parametrize(("options", "sentence"), [
    (dict(stochastic_rounding=True), "stochastic_rounding has nothing to round"),
    (dict(master_weights="remainder"), "master_weights='remainder' has no 16-bit weight")])
def test_rounding_without_16_bits_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        summing("32", **options)(np.ones((2, 3), np.float32))


# ---- tiles

@pytest.mark.parametrize("options", [dict(stochastic_rounding=True), dict(master_weights="remainder")], ids=str)
def test_tiles_round_as_the_host_does(options: dict[str, Any]) -> None:
    """Two updates of two micro-batches on four tiles: the same bits in all states, whatever part of a tensor a tile has."""
    model = summing("bf16-true", seed=9, gradient_accumulation=2, device_iterations=2, **options)
    x = np.ones((8, 3), np.float32)
    model.compile(x)
    before = model.source.session.snapshot()
    plans = {s.node: s.plan for s in analyze(model.program, chip("gc200").variant(tiles=4, bytes_per_tile=1 << 16)).steps}
    feeds = {model.program.inputs[0].name: x.astype("bfloat16")}
    found = exact.execute(model.program, plans, feeds, before, Tiles(4, 1 << 16), scalars=model.optimizer.values, seed=model.engine.seed)
    model(x)
    for name, a in model.source.session.snapshot().items():
        assert found.states[name].tobytes() == a.tobytes(), name


@pytest.mark.parametrize("precision", ["16-true", paths.rare("bf16-true")])
def test_weights_take_half_the_room_on_tiles(precision: str) -> None:
    """And remainders the other half."""
    def bytes_of(**options: Any) -> dict[str, int]:
        nn.manual_seed(1)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        model = tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.1), **options)
        model.compile(np.zeros((8, 64), np.float32), np.zeros(8, np.int64))
        made = analyze(model.program, chip("gc200").variant(tiles=8, bytes_per_tile=1 << 17))
        return {name: int(per_tile.sum()) for name, per_tile in made.categories.items()}
    wide, narrow, completed = bytes_of(), bytes_of(precision=precision), bytes_of(precision=precision, master_weights="remainder")
    assert 2 * narrow["weights"] == wide["weights"]
    assert completed["weights"] == narrow["weights"]
    assert completed["optimizer"] - narrow["optimizer"] == narrow["weights"]


def test_a_weight_that_chance_might_make_infinite_is_refused_whole() -> None:
    """65510 lies between float16's largest number and infinity: whatever the seed, nothing is written."""
    for seed in range(4):
        model = summing("16-true", lr=6.0, seed=seed, stochastic_rounding=True)
        x = np.ones((4, 3), np.float32)
        model.compile(x)
        state = model.state_dict()
        name = next(iter(state))
        model.load_state_dict(state | {name: np.full_like(state[name], -65504)})
        before = model.state_dict()
        with pytest.raises(TrainingError, match=r"not finite|infinite"):
            model(x)
        assert same(before, model.state_dict())
