"""The arithmetic of several hosts, and its table in the documentation."""
from __future__ import annotations

import pytest
from places import ROOT

from bench import scaling


def test_the_page_has_the_table_as_it_is() -> None:
    page = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    assert scaling.table() in page
    assert scaling.written(page) == page, "python -m bench.scaling docs/distributed.md"


def test_what_is_received() -> None:
    """Of 100 MB at 10 Gbit/s, 80 ms: half the contribution of the other of two hosts, and half the sums; nearly all of
    both of very many."""
    assert scaling.waits(10**8, 10**8, 2, 10) == pytest.approx(0.08)
    assert scaling.waits(10**8, 10**8, 2, 100) == pytest.approx(0.008)
    assert scaling.waits(10**8, 10**8, 2, 10, contributions=3) == pytest.approx(0.16)
    assert scaling.waits(10**8 // 2, 10**8, 2, 10, contributions=3) == pytest.approx(0.1)
    assert scaling.waits(10**8, 10**8, 10**6, 10) == pytest.approx(0.16, rel=1e-5)


def test_orders_and_types_of_elements_are_priced() -> None:
    """With four micro-batches of a replica five messages become two, and these half as long; of five, four become half
    as long."""
    rows = [line.split(" | ") for line in scaling.table().splitlines() if line.startswith("| BERT-mini | 10 |")]
    assert [row[2] for row in rows] == [*scaling.EXCHANGES]
    steps, short, once, half = (float(row[4]) for row in rows)
    assert (steps / short, steps / once, once / half) == pytest.approx((5 / 3, 2.5, 2), rel=0.1)


def test_weights_are_counted() -> None:
    assert scaling.gradients()["MNIST CNN"] == 4 * (32 * 9 + 32 + 64 * 32 * 9 + 64 + 9216 * 128 + 128 + 1290)
