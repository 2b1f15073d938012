"""What a model is called with and returns: which inputs a call takes, and outputs whose gradients are taken already."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from ..options.options import Options as TileflowOptions
from .errors import Error, InvalidOption

NO_BACKWARD = ("backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a "
               "trainingModel, the backwards pass is performed automatically when invoking the model. If you're using "
               "an inferenceModel, you should use a trainingModel instead.")


def named_tensors(args: Any, kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among arguments, with what sentences call them."""
    def within(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                yield from within(f"{name}[{key!r}]", inner)
        elif isinstance(value, (list, tuple)):
            for i, inner in enumerate(value):
                yield from within(f"{name}[{i}]", inner)
    for i, value in enumerate(args):
        yield from within(f"input {i}", value)
    for name, value in kwargs.items():
        yield from within(f"input {name}", value)


def check_inputs(values: TileflowOptions, count: int, args: Any, kwargs: Any) -> None:
    """Whether a model takes these arguments.

    Args:
        count: micro-batches of a call.

    Raises:
        Error: an input requires a gradient. InvalidOption: its rows are no multiple of a call's micro-batches.
    """
    for name, tensor in named_tensors(args, kwargs):
        if tensor.requires_grad:
            raise Error(f"An input tensor to an IPU model can not have requires_grad set to True, however {name} does: "
                        "you can set requires_grad=True from within the model as an alternative, and return gradients "
                        "as outputs to your model, if required.")
        rows = tensor.shape[0] if tensor.dim() else 1
        if rows % count:
            raise InvalidOption(
                f"Invalid batch dimension: In the input {tensor.shape}, the batch dimension ({rows}) must be a "
                f"multiple of Options.deviceIterations({values.device_iterations}) * "
                f"(Options.replicationFactor({values.replication_factor}) / "
                f"Options.inputReplicaGrouping.input_group_size({values.input_group_size})) * "
                f"Options.Training.gradientAccumulation({values.gradient_accumulation}) = {count} because it is "
                "used to calculate the batch size which will be executed on the device in any given iteration. For a "
                "full explanation see the batching semantics page of the documentation.")


def _refuse_backward(*args: Any, **kwargs: Any) -> NoReturn:
    raise Error(NO_BACKWARD)


def no_backward(found: Any) -> Any:
    """Outputs whose `backward` says that it is done already."""
    for _, tensor in named_tensors((found,), {}):
        tensor.backward = _refuse_backward                                          # type: ignore[assignment]
    return found
