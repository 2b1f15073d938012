"""CTC beside PyTorch: the loss and its gradient; the decoder beside one in plain Python, on a thousand random cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from evaluate import run_kernel
from paths import exhaustive
from peers import needs

import tileflow
from tileflow import nn
from tileflow.ops.ctc import CTCBeamSearchDecoder, CTCLoss
from tileflow.system.errors import OptionError, ShapeError, TrainingError

F = nn.functional


def case(rng: np.random.Generator, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities, targets with repeats, steps and lengths, some of which no alignment fits."""
    steps, rows, classes, labels = rng.integers(1, 13), rng.integers(1, 5), rng.integers(2, 7), rng.integers(1, 6)
    x = rng.normal(size=(steps, rows, classes)) * 3
    probs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return (
        probs.astype(dtype),
        rng.integers(1, classes, (rows, labels)),
        rng.integers(1, steps + 1, rows),
        rng.integers(0, labels + 1, rows),
    )


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_loss_and_gradient_are_pytorchs(reduction: str, zero_infinity: bool):
    """Of scores, through log_softmax, in float64: within 1e-6 (1e-9 in fact), rows that nothing fits included."""
    torch = needs("torch")
    rng = np.random.default_rng(7)
    for _ in range(4):
        probs, targets, steps, lengths = case(rng, "float64")

        class Net(nn.Module):
            def forward(self, x: nn.Tensor) -> nn.Tensor:
                loss = F.ctc_loss(x.log_softmax(-1), targets, steps, lengths, 0, reduction, zero_infinity)  # noqa: B023
                return loss.sum() if reduction == "none" else loss

        x = torch.tensor(probs, requires_grad=True)
        wanted = torch.nn.functional.ctc_loss(
            x.log_softmax(-1), *map(torch.tensor, (targets, steps, lengths)), 0, reduction, zero_infinity
        )
        wanted = wanted.sum() if reduction == "none" else wanted
        (found,) = tileflow.grad(Net(), probs, precision="64").values()
        if not math.isfinite(wanted.item()):
            continue
        wanted.backward()
        np.testing.assert_allclose(found, x.grad, rtol=1e-6, atol=1e-9)


def test_kernels_in_float32_beside_pytorch_in_float64():
    torch = needs("torch")
    rng = np.random.default_rng(8)
    for _ in range(20):
        probs, targets, steps, lengths = case(rng)
        wanted = torch.nn.functional.ctc_loss(
            torch.tensor(probs).double(), *map(torch.tensor, (targets, steps, lengths)), reduction="none"
        )
        (found,) = run_kernel(CTCLoss(), probs, targets, steps, lengths, workers=3)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def decoded(probs: np.ndarray, width: int, blank: int) -> list[tuple[float, tuple[int, ...]]]:
    """Beams of prefixes in plain Python (probabilities, not their logarithms), the likeliest first."""
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 0.0)}
    for row in np.exp(probs.astype(np.float64)):
        new: dict[tuple[int, ...], list[float]] = {}
        for prefix, (ends_blank, ends_other) in beams.items():
            both = ends_blank + ends_other
            for c, p in enumerate(row):
                if c == blank:
                    new.setdefault(prefix, [0, 0])[0] += both * p
                elif prefix and prefix[-1] == c:
                    new.setdefault(prefix, [0, 0])[1] += ends_other * p
                    new.setdefault((*prefix, c), [0, 0])[1] += ends_blank * p
                else:
                    new.setdefault((*prefix, c), [0, 0])[1] += both * p
        best = sorted(new.items(), key=lambda item: -sum(item[1]))[:width]
        beams = {prefix: (a, b) for prefix, (a, b) in best}
    return [(sum(p), prefix) for prefix, p in beams.items()]


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=exhaustive)])
def test_the_decoder_finds_what_plain_python_does(count: int):
    """Sizes, widths and blanks at random; rows end at their own length."""
    rng, done = np.random.default_rng(9), 0
    while done < count:
        probs, _, steps, _ = case(rng)
        classes = probs.shape[2]
        width, blank = int(rng.integers(1, 9)), int(rng.integers(classes))
        top = int(rng.integers(1, width + 1))
        logs, lengths, paths = run_kernel(
            CTCBeamSearchDecoder(blank=blank, beam_width=width, top_paths=top), probs, steps, workers=2
        )
        for n in range(probs.shape[1]):
            wanted = decoded(probs[: steps[n], n], width, blank)[:top]
            for p in range(top):
                if p >= len(wanted) or wanted[p][0] == 0:
                    continue
                path = tuple(paths[n, p, : lengths[n, p]].tolist())
                assert path == wanted[p][1], (n, p, wanted, logs[n])
                assert logs[n, p] == pytest.approx(math.log(wanted[p][0]), abs=1e-5)
                assert not paths[n, p, lengths[n, p] :].any()
            done += 1


def test_in_layers_and_what_is_refused():
    class Net(nn.Module):
        def __init__(self, **given: Any) -> None:
            self.given = given

        def forward(self, x: nn.Tensor) -> Any:
            return nn.ctc_beam_search_decoder(x.log_softmax(-1), np.array([3]), **self.given)

    x = np.zeros((3, 1, 3), np.float32)
    x[0, 0, 1] = x[1, 0, 0] = x[2, 0, 2] = 9
    logs, lengths, paths = tileflow.inference_model(Net(top_paths=2), micro_batch_size=3)(x)
    assert paths[0, 0].tolist() == [1, 2, 0]
    assert lengths[0].tolist()[0] == 2
    assert logs[0, 0] > -0.01
    for given, says in (
        ({"top_paths": 101}, "from 1 to as many as it keeps"),
        ({"blank": 3}, "blank is one of 3 classes"),
    ):
        with pytest.raises(OptionError, match=says):
            tileflow.inference_model(Net(**given), micro_batch_size=3)(x)

    class Labelled(nn.Module):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return F.ctc_loss(x, np.array([[7]]), np.array([3]), np.array([1]))

    with pytest.raises(TrainingError, match="a label is outside of the classes"):
        tileflow.inference_model(Labelled(), micro_batch_size=3)(x)
    with pytest.raises(ShapeError, match=r"log_probs \[T, N, C\]"):
        tileflow.inference_model(Labelled())(x[0])
