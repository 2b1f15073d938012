"""Users' operators in modules of PyTorch: PyTorch computes them by their references, both exporters keep them,
training is PyTorch's."""

from __future__ import annotations

from typing import Any

import declared
import numpy as np
import pytest
from declared import taken_back  # noqa: F401
from paths import exhaustive, rare
from peers import needs

torch = needs("torch")
needs("onnxscript")

import tileflow  # noqa: E402
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
@pytest.mark.parametrize(
    ("declare", "inputs", "attributes"),
    [
        (declared.leaky_relu, 1, {"alpha": 0.1}),
        rare(declared.compiled_leaky_relu, 1, {"alpha": 0.1}),
        rare(declared.python_leaky_relu, 1, {"alpha": 0.1}),
        rare(declared.cube, 2, None),
        (lambda: declared.cube("composition"), 2, None),
    ],
)
def test_a_module_with_the_references_examples_trains_as_in_pytorch(
    exporter: Any, declare: Any, inputs: int, attributes: Any
):
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
    with pytest.raises(
        UnsupportedError, match=r"com\.acme::LeakyRelu is not declared; @tileflow\.operator\('com\.acme', 'LeakyRelu'\)"
    ):
        tileflow.torch.custom_op([x], "LeakyRelu", "com.acme")
    declared.leaky_relu()
    with pytest.raises(OptionError, match="attributes do not suffice"):
        tileflow.torch.custom_op([x], "LeakyRelu", "com.acme", attributes={"beta": 1.0})
    assert poptorch.custom_op([x], "LeakyRelu", "com.acme", 1, [x], {"alpha": 0.5})[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("attributes", "error", "says"),
    [
        ({1: 1.0}, ValueError, "All attribute keys must be strings."),
        ({"a": [1, "x"]}, ValueError, "must all be the same"),
        ({"a": None}, ValueError, "Attribute values must be floats"),
        ({"a": "\u1f00"}, ValueError, "contains non-ASCII"),
        ({"alpha": 1e300}, poptorch.Error, r"1e\+300 is too high for a Popart float attribute."),
        ({"alpha": -1e300}, poptorch.Error, r"-1e\+300 is too low"),
        ({"alpha": "x"}, poptorch.Error, "alpha must be a float"),
        ({}, None, ""),
    ],
)
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


# ---- what else the reference has that neither ONNX nor exporters do


class Printing(torch.nn.Module):
    """A printed layer, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.layer.weight)

    def forward(self, x: Any, target: Any) -> Any:
        y = poptorch.ipu_print_tensor(self.layer(x), "y", digits=0)
        return y, poptorch.identity_loss((y - target) ** 2, "mean")


@pytest.mark.parametrize("exporter", ["torch.export", rare("TorchScript")])
def test_ipu_print_tensor_prints_values_and_gradients_in_order_and_not_while_it_is_compared(
    exporter: Any, capsys: pytest.CaptureFixture[str]
):
    net = Printing()
    x = torch.arange(1.0, 4.0).reshape(3, 1)
    net(x, x)
    options = tileflow.Options(micro_batch_size=1, gradient_accumulation=3, threads=2)
    model = tileflow.torch.training_model(net, options, torch.optim.SGD(net.parameters(), lr=0.1), exporter=exporter)
    model(x, x - 1)
    assert capsys.readouterr().out.splitlines() == [
        line for i in (1, 2, 3) for line in (f"y: (({i}.))", "y_gradient: ((2.))")
    ]
    with pytest.raises(poptorch.Error, match="float_format must be one of"):
        poptorch.ipu_print_tensor(x, float_format="wrong")


def test_cpu_runs_a_function_of_pytorchs_in_the_midst_of_a_model():
    """What exporters know nothing of; in inference, and refused where a gradient is wanted."""

    class Net(torch.nn.Module):
        def __init__(self, trains: bool) -> None:
            super().__init__()
            self.layer, self.trains = torch.nn.Linear(3, 3), trains
            self.cpu = poptorch.CPU(self.on_host, "host")

        def on_host(self, x: Any) -> Any:
            return torch.tensor(np.sort(x.detach().numpy(), -1)) if type(x) is torch.Tensor else x.clone(), x.sum()

        def forward(self, x: Any) -> Any:
            ordered, total = self.cpu(self.layer(x))
            return (ordered * total, poptorch.identity_loss(ordered, "sum")) if self.trains else ordered * total

    net, x = Net(False), torch.randn(4, 3)
    h = net.layer(x).detach()
    torch.testing.assert_close(poptorch.inferenceModel(net)(x), torch.sort(h, -1)[0] * h.sum(), rtol=1e-5, atol=1e-5)
    with pytest.raises(poptorch.Error, match="no gradient is given for the function that Python runs"):
        poptorch.trainingModel(Net(True))(x)
    nested = poptorch.CPU(lambda x: nested(x), "nested")
    with pytest.raises(poptorch.Error, match="CPU ops must not overlap"):
        nested(x)


@exhaustive
def test_pytorchs_ctc_loss_trains_and_the_decoder_decodes():
    targets, steps, lengths = torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([7, 5]), torch.tensor([3, 2])

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 4)

        def forward(self, x: Any) -> Any:
            probs = self.layer(x).log_softmax(-1)
            return probs, torch.nn.functional.ctc_loss(probs, targets, steps, lengths)

    net, x = Net(), torch.randn(7, 2, 3)
    probs, loss = net(x)
    loss.backward()
    wanted = net.layer.weight.detach() - 0.1 * net.layer.weight.grad
    model = tileflow.torch.training_model(
        net, tileflow.Options(micro_batch_size=7), torch.optim.SGD(net.parameters(), lr=0.1)
    )
    assert model(x)[1].item() == pytest.approx(loss.item(), rel=1e-6)
    torch.testing.assert_close(net.layer.weight.detach(), wanted, rtol=1e-5, atol=1e-6)

    class Decoding(torch.nn.Module):
        def forward(self, probs: Any) -> Any:
            return poptorch.ctc_beam_search_decoder(probs, torch.tensor([7, 5]), top_paths=2)

    decoding, probs = Decoding(), probs.detach()
    model = tileflow.torch.inference_model(decoding, tileflow.Options(micro_batch_size=7))
    for found, wanted in zip(model(probs), decoding(probs), strict=True):
        torch.testing.assert_close(found.reshape(wanted.shape), wanted)
    with pytest.raises(poptorch.Error, match="from 1 to as many"):
        poptorch.ctc_beam_search_decoder(probs, steps, top_paths=200)
