"""Philox against its published vectors; dropout: reproducible, independent of splits, the same mask in both directions."""
from __future__ import annotations

import numpy as np
import paths
import pytest
from evaluate import check_gradient, check_kernel, run_kernel, run_reference

from tileflow.graph import TensorType
from tileflow.kernels.isa import cpu
from tileflow.kernels.random import philox, uniform_bits
from tileflow.ops.dropout import Dropout, DropoutGrad
from tileflow.system.errors import OptionError, TypeMismatchError

rng = np.random.default_rng(5)

KNOWN = [           # Random123, kat_vectors: counter, key, output
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_philox_known_answers(counter: str, key: str, wanted: str) -> None:
    k0, k1 = words(key)
    assert philox(np.array([words(counter)], "u4"), (k0, k1))[0].tolist() == words(wanted)


@pytest.mark.parametrize("shape", [(7, 11), (1,), (4096,), (0, 3), (3,), (48,)])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 1.0])
def test_kernel_draws_what_the_reference_draws(shape: tuple[int, ...], ratio: float) -> None:
    x = rng.standard_normal(shape)
    for seed, micro, stream in ((0, 0, 0), (123456789012345, 7, 3), (-5, 2 ** 33 + 1, 2 ** 31)):
        op = Dropout(ratio=ratio, stream=stream, training_mode=1, mask=1)
        y, mask = check_kernel(op, x.astype("float32"), seed=seed, micro=micro)
        grad, = check_kernel(DropoutGrad(ratio=ratio, stream=stream), np.ones(shape), seed=seed, micro=micro)
        assert ((grad != 0) == (mask & (ratio < 1))).all()
        assert (y[~mask] == 0).all()


@pytest.mark.parametrize("path", paths.PATHS)
def test_every_path_draws_the_same(path: str) -> None:
    with cpu.forced(path):
        check_kernel(Dropout(ratio=0.3, training_mode=1, mask=1), rng.standard_normal((3, 37)), seed=9, micro=4)


def test_share_scale_and_independence() -> None:
    x = np.ones(100_000, "float32")
    op = Dropout(ratio=0.25, training_mode=1)
    draws = {at: run_kernel(op, x, seed=at[0], micro=at[1])[0] for at in ((1, 0), (1, 1), (2, 0), (2 ** 32 + 1, 0))}
    draws[3, 0] = run_kernel(Dropout(ratio=0.25, stream=1, training_mode=1), x, seed=1)[0]
    for y in draws.values():
        assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
        assert abs(np.mean(y != 0) - 0.75) < 0.007
    kept = np.array([y != 0 for y in draws.values()], float)
    assert np.abs(np.corrcoef(kept) - np.eye(len(kept))).max() < 0.02
    assert abs(np.corrcoef(kept[0][1:], kept[0][:-1])[0, 1]) < 0.02


def test_element_numbers_do_not_depend_on_the_tensor() -> None:
    assert (uniform_bits(10, 1, 2, 3) == uniform_bits(1000, 1, 2, 3)[:10]).all()


def test_inference_is_the_identity() -> None:
    x = rng.standard_normal((3, 5)).astype("float32")
    assert Dropout().alias == 0
    assert Dropout(training_mode=1).alias is None
    assert (check_kernel(Dropout(), x)[0] == x).all()
    y, mask = check_kernel(Dropout(mask=1, ratio=0.9), x)
    assert mask.all()
    assert (y == x).all()


def test_dropped_nan_is_zero_and_kept_nan_stays() -> None:
    y, mask = run_kernel(Dropout(ratio=0.5, training_mode=1, mask=1), np.full(64, np.nan, "float32"))
    assert np.isnan(y[mask]).all()
    assert (y[~mask] == 0).all()


def test_gradients() -> None:
    for op in (Dropout(ratio=0.4, training_mode=1), Dropout(), DropoutGrad(ratio=0.4)):
        check_gradient(op, rng.standard_normal((5, 6)))


def test_errors_and_work() -> None:
    t = TensorType("float32", (3, 4))
    with pytest.raises(OptionError, match=r"1\.5"):
        Dropout(ratio=1.5).infer(t)
    with pytest.raises(TypeMismatchError, match="int32"):
        Dropout().infer(t.with_dtype("int32"))
    assert Dropout.random
    assert DropoutGrad.random
    assert Dropout(training_mode=1).work([t], [t]).flops == 24
    assert run_reference(Dropout(training_mode=1), np.ones(8), seed=1)[0].shape == (8,)
