"""Users' operators in modules of PyTorch: PyTorch computes them by their references, both exporters keep them, training is PyTorch's."""
from __future__ import annotations

from typing import Any

import declared
import numpy as np
import pytest
from declared import taken_back  # noqa: F401
from paths import rare
from peers import needs

torch = needs("torch")
needs("onnxscript")

import tileflow.poptorch as poptorch  # noqa: E402
import tileflow.torch  # noqa: E402
from tileflow.system.errors import OptionError, UnsupportedError  # noqa: E402


class Net(torch.nn.Module):
    """A layer, then an operator, whose first output is to become zero."""

    def __init__(self, name: str, inputs: int, attributes: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.op = torch.nn.Linear(3, 4), (name, inputs, attributes)

    def forward(self, x: Any, target: Any) -> Any:
        name, inputs, attributes = self.op
        h = self.layer(x)
        out = tileflow.torch.custom_op([h] * inputs, name, "com.acme", 1, attributes)
        return out[0], ((out[0] - target) ** 2).mean()


@pytest.mark.parametrize("exporter", ["torch.export", rare("TorchScript")])
@pytest.mark.parametrize(("declare", "inputs", "attributes"), [
    (declared.leaky_relu, 1, {"alpha": 0.1}), rare(declared.compiled_leaky_relu, 1, {"alpha": 0.1}),
    (declared.python_leaky_relu, 1, {"alpha": 0.1}), rare(declared.cube, 2, None), (lambda: declared.cube("composition"), 2, None)])
def test_a_module_with_the_references_examples_trains_as_in_pytorch(exporter: Any, declare: Any, inputs: int, attributes: Any):
    net = Net(declare().called, inputs, attributes)
    x, target = torch.randn(8, 3), torch.zeros(8, 4)
    _, loss = net(x, target)
    loss.backward()
    wanted = net.layer.weight.detach() - 0.1 * net.layer.weight.grad
    model = tileflow.torch.training_model(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), exporter=exporter)
    assert model(x, target)[1].item() == pytest.approx(loss.item(), rel=1e-6)
    assert model.exported_by == exporter
    torch.testing.assert_close(net.layer.weight.detach(), wanted, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_is_said_before_anything_is_exported():
    x = torch.ones(3)
    with pytest.raises(UnsupportedError, match=r"com\.acme::LeakyRelu is not declared; @tileflow\.operator\('com\.acme', 'LeakyRelu'\)"):
        tileflow.torch.custom_op([x], "LeakyRelu", "com.acme")
    declared.leaky_relu()
    with pytest.raises(OptionError, match="attributes do not suffice"):
        tileflow.torch.custom_op([x], "LeakyRelu", "com.acme", attributes={"beta": 1.0})
    assert poptorch.custom_op([x], "LeakyRelu", "com.acme", 1, [x], {"alpha": 0.5})[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("attributes", "error", "says"), [
    ({1: 1.0}, ValueError, "All attribute keys must be strings."), ({"a": [1, "x"]}, ValueError, "must all be the same"),
    ({"a": None}, ValueError, "Attribute values must be floats"), ({"a": "\u1f00"}, ValueError, "contains non-ASCII"),
    ({"alpha": 1e300}, poptorch.Error, r"1e\+300 is too high for a Popart float attribute."),
    ({"alpha": -1e300}, poptorch.Error, r"-1e\+300 is too low"), ({"alpha": "x"}, poptorch.Error, "alpha must be a float"),
    ({}, None, "")])
def test_attributes_are_those_of_the_reference(attributes: Any, error: Any, says: str):
    declared.leaky_relu()
    x = torch.tensor([-1.0])
    if error is None:
        found = poptorch.custom_op([x], "LeakyRelu", "com.acme", 1, [x], attributes)
        np.testing.assert_allclose(found[0], [-0.01], rtol=1e-6)
        return
    with pytest.raises(error, match=says):
        poptorch.custom_op([x], "LeakyRelu", "com.acme", 1, [x], attributes)


def test_as_many_outputs_as_are_told():
    declared.cube()
    x = torch.ones(2)
    with pytest.raises(poptorch.Error, match="has 2 outputs, and example_outputs are 1"):
        poptorch.custom_op([x, x], "Cube", "com.acme", 1, [x])
