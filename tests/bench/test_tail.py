"""Files of the classes that are hard to be fast at: as many of each, and computed as ONNX Runtime does."""
from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from peers import needs


def test_two_files_of_each_class() -> None:
    needs("torch")
    from bench import tail
    assert set(Counter(name.partition("_")[0] for name in tail.FILES).values()) == {2}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["loop_viterbi", "loop_decoder", "cache_short", "gru_both", "spectral_gathered"])
def test_outputs_are_those_of_onnxruntime(name: str, tmp_path: Path) -> None:
    needs("torch")
    needs("onnxruntime")
    from bench import tail
    from bench.kinds.model import Model
    model = Model({"file": str(tail.write(name, tmp_path))})
    error = model.ours(1).error()
    assert error is not None
    assert error <= model.equal
