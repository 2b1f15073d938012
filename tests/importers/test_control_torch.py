"""Control flow as PyTorch's exporters write it: outputs and the gradients of all parameters beside PyTorch's own."""
from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from peers import needs
from test_control import run

from tileflow.graph import Builder, type_of, verify
from tileflow.importers.onnx import import_graph, wrap_model
from tileflow.passes.autograd import gradients

torch = needs("torch")
needs("onnxscript")


class Chosen(torch.nn.Module):  # type: ignore[name-defined, misc]
    """One of two layers, then a third."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.o = torch.nn.Linear(4, 8), torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.o(torch.cond(x.sum() > 0, lambda x: torch.relu(self.a(x)), lambda x: torch.tanh(self.b(x)), (x,)))


class Repeated(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A layer n times, halved wherever its sum is above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(8, 8)

    def forward(self, x, n: int):  # type: ignore[no-untyped-def]
        h = x
        for _ in range(n):
            h = torch.tanh(self.a(h))
            if bool(h.sum() > 0):
                h = h * 0.5
        return h


def written(module: Any, arguments: tuple[Any, ...], **how: Any) -> onnx.ModelProto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                      # of parts of PyTorch that grow old
        if how.get("dynamo"):
            return torch.onnx.export(module, arguments, **how).model_proto
        file = io.BytesIO()
        torch.onnx.export(torch.jit.script(module), arguments, file, **how)
    return onnx.load_from_string(file.getvalue())


def compare(module: Any, proto: onnx.ModelProto, x: np.ndarray, *more: int) -> None:
    """In float64: the output, and the gradients of every parameter and of x."""
    values = {proto.graph.input[1 + i].name: np.array(n) for i, n in enumerate(more)}
    name = proto.graph.input[0].name
    found = import_graph(wrap_model(proto), float_dtype="float64", training=True, input_types={name: type_of(x)}, values=values)
    graph = found.graph
    b = Builder(graph)
    y = graph.outputs[0]
    weights = np.random.default_rng(1).standard_normal(y.shape)
    loss = b.ReduceSum(b.Mul(y, b.constant(weights)), keepdims=0)
    wrt = [graph.inputs[0], *(s.input for s in graph.states)]
    names = [s.name for s in graph.states]
    results = [y, *(b.Identity(g) for g in gradients(graph, loss, wrt))]
    graph.outputs = results
    verify(graph)
    computed = run(graph, {name: x}, found.weights)
    module = module.double()
    given = torch.tensor(x, requires_grad=True)
    wanted = module(given, *more)
    (wanted * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(computed[results[0].name], wanted.detach().numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(computed[results[1].name], given.grad.numpy(), rtol=1e-9, atol=1e-12)
    parameters = dict(module.named_parameters())
    assert set(names) == set(parameters)
    for name, result in zip(names, results[2:], strict=True):
        grad = parameters[name].grad
        want = np.zeros(parameters[name].shape) if grad is None else grad.numpy()
        np.testing.assert_allclose(computed[result.name], want, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_condition_of_the_newer_exporter(sign: int) -> None:
    torch.manual_seed(0)
    module = Chosen().eval()
    proto = written(module, (torch.randn(5, 4),), dynamo=True, verbose=False)
    compare(module, proto, sign * np.abs(np.random.default_rng(0).standard_normal((5, 4))))


@pytest.mark.parametrize("turns", [0, 1, 6])
def test_a_loop_of_the_older_exporter(turns: int) -> None:
    torch.manual_seed(0)
    module = Repeated().eval()
    proto = written(module, (torch.randn(5, 8), 4), dynamo=False, opset_version=17)
    compare(module, proto, np.random.default_rng(turns).standard_normal((5, 8)), turns)
