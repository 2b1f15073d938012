"""Files of any kind compute what they did once their parameters are told apart, and so do the files written back."""
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_files import called, written, zeros
from onnx import ModelProto
from onnx_models import expected, imported, model_of, node, port, run


def random_file(seed: int) -> ModelProto | None:
    """Nodes that read few tensors, directly, through Identity, Transpose and Cast, in random scopes, some with metadata."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    stored: dict[str, Any] = {}
    for i in range(draw.randint(1, 4)):
        name = draw.choice(["a.weight", "b.bias", f"onnx::MatMul_{i}", f"val_{i}", f"w{i}", f"m/d/k:{i}"])
        stored[name] = zeros(4, 4) if draw.random() < 0.5 else numbers.standard_normal((4, 4)).astype(np.float32)
    if len(stored) > 1 and draw.random() < 0.4:
        first, second, *_ = stored
        stored[second] = stored[first].T.copy() if draw.random() < 0.5 else stored[first].copy()
    nodes, tensors, values = [], list(stored), ["x"]
    for i in range(draw.randint(0, 4)):
        alias = draw.choice(["c.bias", "d.weight", "onnx::Add_9", f"e{i}"])
        if alias not in tensors:
            nodes.append(node("Identity", [draw.choice(tensors)], [alias]))
            tensors.append(alias)
    for i in range(draw.randint(2, 8)):
        op = draw.choice(["Add", "MatMul", "Mul", "Gemm", "Transpose", "Cast", "Sub"])
        scope = draw.choice(["/a/", "/b/", "/a_1/", "/l.0/a/", "", "m/d/"])
        moves = op in ("Transpose", "Cast")
        operands = [draw.choice(tensors)] if moves else draw.sample([draw.choice(values), draw.choice(tensors)], 2)
        nodes.append(node(op, operands + [draw.choice(tensors)] * (op == "Gemm"), [f"v{i}"], scope + op, **({"to": 1} if op == "Cast" else {})))
        (tensors if moves else values).append(f"v{i}")
        if draw.random() < 0.3:
            called(nodes[-1], draw.choice(["a", "b", "a.b", ""]),
                   draw.choice(["linear(%x, %p_a_weight, %p_a_bias)", "add(%x, %p_b_bias)", "mul(%x, %y)", "add(%x, %b_mask)"]))
    outputs = list(dict.fromkeys([values[-1], *(t for t in tensors[-1:] if t not in stored)]))
    if outputs[0] == "x":
        return None
    return model_of(nodes, [port("x", [4, 4])], [port(o, [4, 4]) for o in outputs], stored, producer_name=draw.choice(["pytorch", "others"]))


@pytest.mark.parametrize("seed", range(60))
def test_any_file_means_the_same_with_its_parameters_told_apart(seed: int, tmp_path: Path) -> None:
    """The import and the file written back compute what the file did, and with other weights they still agree."""
    proto = random_file(seed)
    if proto is None:
        return
    x = np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32)
    for change in (0.0, 0.25):
        result, file = written(proto, tmp_path / "m.onnx", change)
        got, wanted = run(result, {"x": x}), expected(file, {"x": x})
        for a, b, original in zip(got, wanted, expected(proto, {"x": x}), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
            if not change:
                np.testing.assert_allclose(a, original, rtol=1e-3, atol=1e-3)
    assert set(imported(file).weights) == set(result.weights)
