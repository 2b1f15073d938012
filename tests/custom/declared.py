"""Users' operators for tests: declared by a test, and taken back after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import tileflow
from tileflow import custom
from tileflow.custom.names import DECLARED

F = custom.functions
ALPHA = 0.1


@pytest.fixture(autouse=True)
def taken_back() -> Iterator[None]:
    """What a test declares is gone after it."""
    yield
    for called in list(DECLARED):
        domain, _, name = called.rpartition("::")
        custom.forget(domain, name)


def leaky_relu() -> Any:
    """The reference's example with an attribute, whose gradient follows."""

    @tileflow.operator("com.acme", "LeakyRelu")
    class LeakyRelu:
        """x, or alpha x below 0."""

        alpha: float = 0.01

        @custom.expression
        def forward(self, x):
            return F.where(x < 0, self.alpha * x, x)

    return LeakyRelu


def compiled_leaky_relu() -> Any:
    """The same by Numba, row by row, and its gradient whole."""

    @tileflow.operator("com.acme", "LeakyReluCompiled")
    class LeakyReluCompiled:
        alpha: float = 0.01

        def infer(self, x):
            return x

        @custom.compiled(rows=("x", "y"), cost=50.0)
        def forward(x, y, alpha):
            for i in range(x.shape[0]):
                for j in range(x.shape[1]):
                    y[i, j] = x[i, j] if x[i, j] > 0 else np.float32(alpha) * x[i, j]

        @custom.compiled
        def gradient(x, y, g, dx, alpha):
            for i in range(x.shape[0]):
                for j in range(x.shape[1]):
                    dx[i, j] = g[i, j] if x[i, j] > 0 else np.float32(alpha) * g[i, j]

    return LeakyReluCompiled


def python_leaky_relu() -> Any:
    """The same by NumPy."""

    @tileflow.operator("com.acme", "LeakyReluPython")
    class LeakyReluPython:
        alpha: float = 0.01

        def infer(self, x):
            return x

        @custom.python
        def forward(self, x):
            return np.where(x > 0, x, x.dtype.type(self.alpha) * x)

        @custom.python
        def gradient(self, x, y, g):
            return np.where(x > 0, g, g.dtype.type(self.alpha) * g)

    return LeakyReluPython


def cube(form: str = "expression") -> Any:
    """The reference's example with two inputs and two outputs: x^3 + bias, and x^3."""
    if form == "expression":

        @tileflow.operator("com.acme", "Cube")
        class Cube:
            @custom.expression
            def forward(self, x, bias):
                cube = x * x * x
                return cube + bias, cube

        return Cube

    @tileflow.operator("com.acme", "Cube")
    class CubeOfParts:
        @custom.composition
        def forward(self, b, x, bias):
            cube = b.Mul(b.Mul(x, x), x)
            return b.Add(cube, bias), cube

    return CubeOfParts


def file_with(name: str, inputs: int = 1, outputs: int = 1, **attributes: Any) -> ModelProto:
    """A file in which a product is given to an operator of com.acme."""
    weights = numpy_helper.from_array(np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node(name, ["h"] * inputs, ["y", "z"][:outputs], domain="com.acme", **attributes),
    ]
    ports = [helper.make_tensor_value_info(n, 1, ["n", size]) for n, size in (("x", 3), ("y", 4))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)])
