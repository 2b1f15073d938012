"""Training in 16 bits reaches float32's accuracy and loss: medians over five seeds, as `python -m bench precision` prints them."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench.precision import FLOAT32, MODES, TASKS, Figures, Mode, median, row, short, trained

SEEDS = range(5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", TASKS)
def test_sixteen_bits_reach_float32(task: str) -> None:
    """Within 0.3 points of accuracy and 1 % of loss (docs/precision.md); the digits' 360 test images allow for two more mistakes."""
    if missing := TASKS[task].missing():
        pytest.skip(missing)
    runs = trained(task, FLOAT32, SEEDS)
    base, chance = median(runs), 2 * float(np.std([run.loss for run in runs], ddof=1))

    def worse(figures: Figures) -> bool:
        """By more than float32's own seeds differ: another CPU has other bits, and five runs of it another median."""
        return figures.accuracy < base.accuracy - TASKS[task].points or not figures.loss <= base.loss + chance
    found = [(mode, median(trained(task, mode, SEEDS))) for mode in TASKS[task].modes() if mode.promised]
    lacking = [row(task, mode, base, figures) for mode, figures in found if short(task, base, figures) and worse(figures)]
    assert not lacking, "\n".join(lacking)


@pytest.mark.exhaustive
def test_a_mode_of_each_kind_learns_the_digits() -> None:
    """One seed: mixed, and pure with stochastic rounding, beside float32."""
    base, *others = (trained("digits", mode, [0])[0] for mode in (FLOAT32, *(m for m in MODES if m.name in (
        "bf16-mixed", "16-true, stochastic rounding"))))
    assert base.accuracy > 96
    for figures in others:
        assert figures.accuracy > base.accuracy - 1.5
        assert figures.loss < 1.3 * base.loss


@pytest.mark.parametrize(("accuracy", "loss", "sentence"), [
    (98.0, 0.05, ""), (97.71, 0.0504, ""), (97.6, 0.05, "0.40 points of accuracy below float32"), (98.0, 0.0506, "loss +1.2%"),
    (90.0, 0.06, "8.00 points of accuracy below float32, loss +20.0%"), (np.nan, np.nan, "nan points of accuracy below float32, loss +nan%")])
def test_what_is_lacking_is_said(accuracy: float, loss: float, sentence: str) -> None:
    base, found = Figures(98.0, 0.05), Figures(accuracy, loss)
    assert short("mnist", base, found) == sentence
    assert row("mnist", Mode("any", {}), base, found).endswith(f"| {sentence or 'kept'} |")


def test_medians_are_of_each_column() -> None:
    figures: Sequence[Figures] = [Figures(1, 9), Figures(3, 7), Figures(2, 8)]
    assert median(figures) == Figures(2, 8)
