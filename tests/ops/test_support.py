"""The page of operators says what the registries say."""
from __future__ import annotations

import support
from support import PARTS, gradient, plan, served, types

from tileflow.graph import OPS


def test_the_page_is_not_stale() -> None:
    assert support.PAGE.read_text(encoding="utf-8") == support.page(), f"run {support.COMMAND}"


def test_what_it_says_of_some_operators() -> None:
    """Of one with a kernel, one of whole numbers, one without a gradient, one taken apart, one that Python runs, and one that was missing last."""
    assert (gradient(OPS["Relu"]), plan(OPS["Relu"])) == ("yes", "Map")
    assert "f32" in types(OPS["Softmax"]).replace("floats", "f32")
    assert "i64" not in types(OPS["Softmax"])
    assert gradient(OPS["Trees"]).startswith("none: trees are constant")
    assert gradient(OPS["Equal"]) == "none: no floats in or out"
    fused = served("com.microsoft", "FusedMatMul")
    assert fused is not None
    assert fused[1:] == (PARTS, PARTS)
    hosted = served("", "NonZero")
    assert hosted is not None
    assert served("ai.onnx.preview.training", "Gradient") is not None
