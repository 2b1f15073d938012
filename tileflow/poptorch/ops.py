"""What a module's `forward` says to the compiler, and operations that PyTorch has not, under the reference's names."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch

from ..graph import MultiConv as Group
from ..options.reference.enums import MatMulSerializationMode, MultiConvPlanType, OverlapMode, word
from ..torch.annotations import ask, exporting, identity_loss, scope, serialized_matmul
from ..torch.custom import HostModule, print_tensor
from ..torch.custom import ctc_beam_search_decoder as found_beams
from ..torch.custom import custom_op as declared_op
from .errors import Error, InvalidOption, not_there, translated
from .spelling import both_spellings

__all__ = ["CPU", "Attribute", "MultiConv", "NameScope", "cond", "ctc_beam_search_decoder", "custom_op",
           "dynamic_slice",
           "dynamic_update", "for_loop", "fps", "identity_loss", "ipu_print_tensor", "isRunningOnIpu", "nearest", "nop",
           "recomputationCheckpoint", "serializedMatMul", "set_available_memory", "set_overlap_for_input",
           "set_overlap_for_output"]


_told: dict[str, None] = {}


def _tell(sentence: str) -> None:
    """Say something once the module that is being exported is compiled: exporters run `forward` several times, and keep
    warnings to themselves."""
    if exporting() is not None:
        _told[sentence] = None


def told() -> list[str]:
    """What was to be said since this was asked last."""
    found = list(_told)
    _told.clear()
    return found


def isRunningOnIpu() -> bool:
    """Whether `forward` is being compiled, and not run by PyTorch itself."""
    return exporting() is not None


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself."""
    return tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep tensors for the backward pass where what made them is computed again for it; returns them: one as itself, a
    list or tuple as such.

    Raises:
        ValueError: something else than tensors is given.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        return type(tensors[0])(_kept(t) for t in tensors[0])
    found = tuple(_kept(t) for t in tensors)
    return found[0] if len(found) == 1 else found


def _kept(tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError("All inputs must be tensors")
    return ask(tensor, "kept", True)


def serializedMatMul(lhs: torch.Tensor, rhs: torch.Tensor, mode: MatMulSerializationMode, factor: int = 0,
                     keep_precision: bool = False) -> torch.Tensor:
    """lhs @ rhs, on the tile machine in `factor` pieces one after the other.

    Args:
        mode: along which axis of lhs [m, n] and rhs [n, p]: InputChannels m, ReducingDim n, OutputChannels p; Disabled:
            in one piece.
        keep_precision: where pieces are added, add in float32.

    Raises:
        InvalidOption: an argument is of another type. Error: the ranks are not 2 or 3, or not alike.
    """
    if not isinstance(mode, MatMulSerializationMode):
        raise InvalidOption(f"serializedMatMul needs a poptorch.MatMulSerializationMode, not {mode!r}.")
    if isinstance(factor, bool) or not isinstance(factor, int) or not isinstance(keep_precision, bool):
        raise InvalidOption(f"serializedMatMul takes a whole number of pieces and True or False, not {factor!r} and "
                            f"{keep_precision!r}.")
    kind = word(mode)
    if kind is None:
        return torch.matmul(lhs, rhs)
    for side, t in (("LHS", lhs), ("RHS", rhs)):
        if t.dim() not in (2, 3):
            raise Error(f"{side} Input: a tensor of shape {list(t.shape)} must have rank 2 or 3 for matmul "
                        "serialization. Please squeeze or reshape for serialization.")
    if lhs.dim() != rhs.dim():
        raise Error(f"LHS (rank {lhs.dim()}) and RHS (rank {rhs.dim()}) matmuls must have equal rank for matmul "
                    "serialization")
    return serialized_matmul(lhs, rhs, kind, max(factor, 1), keep_precision)


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Bound the temporary memory, on the tile machine, of the convolution, matmul, embedding lookup or indexing that
    made a tensor; returns it.

    Raises:
        InvalidOption: the proportion is no number from 0 to 1.
    """
    p = available_memory_proportion
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise InvalidOption(f"The proportion of set_available_memory must be a number from 0 to 1, got {p!r}.")
    return ask(tensor, "available_memory_proportion", float(p))


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """The inputs as they are: which inputs come while others compute is said by the option overlap_inputs, by name."""
    return _overlapped("input", input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """The outputs as they are: which outputs go while others compute is said by the option overlap_outputs, by name."""
    return _overlapped("output", output_tensors, mode)


def _overlapped(what: str, tensors: Any, mode: OverlapMode) -> Any:
    if not isinstance(mode, OverlapMode):
        raise InvalidOption(f"set_overlap_for_{what} needs a poptorch.OverlapMode, not {mode!r}.")
    if mode != OverlapMode.NoOverlap:
        _tell(f"set_overlap_for_{what} has no effect: give tileflow.compile the option overlap_{what}s, such as "
              f"{{\"*\": \"{word(mode)}\"}}.")
    return tensors


# ---- operations

def dynamic_slice(tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """`tensor[start:start + size:step]` along `dim`, where `start` is a tensor of one whole number, known when it runs.

    Raises:
        Error: an argument is of another type, or step does not divide size.
    """
    _tensors("dynamic_slice", tensor, start)
    for name, number in (("Dimension", dim), ("Size", size), ("Step", step)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise Error(f"{name} must be an integer.")
    if step < 1 or size % step:
        raise Error(f"Step must be at least 1 and a factor of the slicing dimension size {size}, not {step}.")
    return torch.index_select(tensor, dim, start.reshape(1).long() + torch.arange(0, size, step))


def dynamic_update(input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    """`input` with `src` in place of its rows from `start` on, `size` of them, along `dim`.

    Raises:
        Error: an argument is of another type, or ranks, types or the size of src do not fit.
    """
    _tensors("dynamic_update", input, start, src)
    for name, number in (("Dimension", dim), ("Size", size)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise Error(f"{name} must be an integer.")
    if input.dim() != src.dim():
        raise Error(f"input and src tensors must have same dimensionality. ({input.dim()}) vs ({src.dim()})")
    if input.dtype != src.dtype:
        raise Error(f"input and src tensor must have same dtype. ({input.dtype} vs {src.dtype})")
    if src.shape[dim] != size:
        raise Error(f"src has {src.shape[dim]} rows along dimension {dim}, not {size}.")
    where = start.reshape(1).long() + torch.arange(size)
    shape = [1] * input.dim()
    shape[dim] = size
    return torch.scatter(input, dim, where.reshape(shape).expand(src.shape), src)


def _tensors(function: str, *given: Any) -> None:
    for one in given:
        if not isinstance(one, torch.Tensor):
            raise Error(f"{function} must take a torch.tensor input. {type(one)} is not supported.")


def for_loop(count: int, body: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """`body` of its own results, `count` times, the first time of `inputs`: written out, and with gradients.

    Raises:
        ValueError: inputs is no list of tensors, or body does not give as many.
    """
    if not isinstance(inputs, list):
        raise ValueError("poptorch.for_loop expects input tensors (inputs) to be a list of tensors. (Object is not "
                         "list)")
    for i, one in enumerate(inputs):
        if not isinstance(one, torch.Tensor):
            raise ValueError("poptorch.for_loop expects input tensors (inputs) to be a list of tensors. "
                             f"(Object contained in list at index {i} is not torch.tensor)")
    state = [t.clone() for t in inputs]
    for _ in range(count):
        made = body(*state)
        state = list(made) if isinstance(made, (list, tuple)) else [made]
        if len(state) != len(inputs):
            raise ValueError(f"poptorch.for_loop expects body to give as many tensors as it takes: {len(inputs)}, not "
                             f"{len(state)}.")
    return state


def cond(condition: torch.Tensor, then_body: Callable[..., Any], then_inps: Sequence[torch.Tensor],
         else_body: Callable[..., Any], else_inps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What `then_body` gives of its inputs where `condition`, one truth value, holds, else what `else_body` does: both
    are computed, and one is taken, with gradients.

    Raises:
        ValueError: the two give different numbers of tensors.
    """
    found = []
    for body, given in ((then_body, then_inps), (else_body, else_inps)):
        made = body(*(t.clone() for t in given))
        found.append(list(made) if isinstance(made, (list, tuple)) else [made])
    if len(found[0]) != len(found[1]):
        raise ValueError(f"poptorch.cond: the branches give {len(found[0])} and {len(found[1])} tensors; they must "
                         "give as many.")
    return [torch.where(condition.reshape(()).bool(), a, b) for a, b in zip(*found, strict=True)]


def nearest(x: torch.Tensor, y: torch.Tensor, batch_x: Any = None, batch_y: Any = None) -> torch.Tensor:
    """For each row of x [n, d] the number of the nearest row of y [m, d], of the same batch where batches are given.

    Args:
        batch_x, batch_y: the batch of each row; both or none.

    Returns:
        int64 [n].

    Raises:
        Error: only one of the batches is given.
    """
    if (batch_x is None) != (batch_y is None):
        raise Error("nearest takes batch_x and batch_y, or neither.")
    distance = (x.unsqueeze(1) - y.unsqueeze(0)).square().sum(-1)
    if batch_x is not None:
        other = torch.as_tensor(batch_x).unsqueeze(1) != torch.as_tensor(batch_y).unsqueeze(0)
        distance = distance.masked_fill(other, torch.inf)
    return distance.argmin(1)


def ipu_print_tensor(tensor: torch.Tensor, title: str = "", print_gradient: bool = True,
                     summarise_threshold: int = 1000,
                     edge_items: int = 3, max_line_width: int = 80, digits: int = 4, float_format: str = "auto",
                     separator: str = ", ", open_bracket: str = "(", close_bracket: str = ")") -> torch.Tensor:
    """Print a tensor, and its gradient, whenever a compiled model computes it, in the order of the micro-batches;
    PyTorch itself prints nothing. Returns the tensor, to be used in its place.

    Raises:
        Error: a setting is of another kind.
    """
    _tensors("ipu_print_tensor", tensor)
    with translated():
        return print_tensor(tensor, title, print_gradient=int(print_gradient), summarise_threshold=summarise_threshold,
                            edge_items=edge_items, max_line_width=max_line_width, digits=digits,
                            float_format=float_format,
                            separator=separator, open_bracket=open_bracket, close_bracket=close_bracket)


def ctc_beam_search_decoder(probs: torch.Tensor, lengths: torch.Tensor, blank: int = 0, beam_width: int = 100,
                            top_paths: int = 1) -> list[torch.Tensor]:
    """The likeliest labellings of log-probabilities [T, N, C], with lengths [N], that a beam search finds: their
    log-probabilities [N, top_paths], lengths, and classes [N, top_paths, T].

    Raises:
        Error: an argument is no tensor, or shapes and numbers do not fit.
    """
    _tensors("ctc_beam_search_decoder", probs, lengths)
    with translated():
        return list(found_beams(probs, lengths, blank, beam_width, top_paths))


@not_there
def fps(src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> NoReturn:
    """Not there, for which points are taken follows from data, one after the other: choose them where the model is
    called, and give it their numbers."""
    raise AssertionError


LARGEST = float(np.finfo(np.float32).max)
"""Of a float attribute."""


def custom_op(inputs: Sequence[torch.Tensor], name: str, domain: str, domain_version: int,
              example_outputs: Sequence[torch.Tensor],
              attributes: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
    """An operator that `@tileflow.operator(domain, name)` declares in Python, where the reference loads compiled C++
    (docs/custom-operators.md).

    Args:
        example_outputs: one for each output; types and shapes are those that the operator's declaration infers.
        attributes: float (float32), int or str by name, or lists of one of them.

    Raises:
        ValueError: an attribute is of another kind. Error: a float is too large, the operator is not declared, or has
            other outputs.
    """
    _tensors("custom_op", *inputs)
    given = {name: _attribute(name, value) for name, value in (attributes or {}).items()}
    with translated():
        made = declared_op(inputs, name, domain, domain_version, given)
    if len(made) != len(example_outputs):
        raise Error(f"{domain}::{name} has {len(made)} outputs, and example_outputs are {len(example_outputs)}.")
    return made


def _attribute(name: Any, value: Any) -> Any:
    """An attribute as a file has it: floats in float32."""
    if not isinstance(name, str):
        raise ValueError("All attribute keys must be strings.")
    if isinstance(value, (list, tuple)):
        if len({type(v) for v in value}) > 1:
            raise ValueError("The types in a list/tuple attribute must all be the same.")
        return [_attribute(name, v) for v in value]
    if isinstance(value, bool) or not isinstance(value, (float, int, str)):
        raise ValueError("Attribute values must be floats, ints, strings or a list/tuple of float, ints of strings.")
    if isinstance(value, str) and not value.isascii():
        raise ValueError(f"{value} contains non-ASCII characters.")
    if isinstance(value, float) and abs(value) > LARGEST and not math.isinf(value):
        raise Error(f"{value:g} is too {'high' if value > 0 else 'low'} for a Popart float attribute.")
    return float(np.float32(value)) if isinstance(value, float) else value


class CPU:
    """A module or function of tensors that PyTorch itself computes in the midst of a compiled model, in inference."""

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        """`ID` names it, and has no other effect."""
        self.layer, self.ID = layer_to_call, ID
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._host = HostModule(layer_to_call)

    def __call__(self, *args: torch.Tensor) -> Any:
        """Call it (Error: within itself)."""
        with translated():
            return self._host(*args)


# ---- scopes

class NameScope:
    """A scope whose name reports may show; what is computed does not depend on it."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidOption("Parameter to NameScope must be a string")
        self.name = name

    def __enter__(self) -> NameScope:
        return self

    def __exit__(self, *what: object) -> None:
        return None


class Attribute:
    """A scope that gives operators attributes of the reference's compiler: taken, with a warning, and without
    effect."""

    def __init__(self, **kwargs: Any) -> None:
        self.attributes = kwargs

    def __enter__(self) -> Attribute:
        _tell(f"poptorch.Attribute({', '.join(self.attributes)}) has no effect: there is no outlining to steer.")
        return self

    def __exit__(self, *what: object) -> None:
        return None


@both_spellings
class MultiConv:
    """A scope whose convolutions are planned together on the tile machine; none may need another's result.

        with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial):
            a, b = self.left(x), self.right(y)
    """

    def __init__(self) -> None:
        self._proportion: float | None = None
        self._partials: str | None = None
        self._plan, self._reserved, self._back_off = "parallel", 50, 0.1
        self._entered: list[ExitStack] = []

    def availableMemoryProportions(self, value: float | Sequence[float] | None) -> MultiConv:
        """Share of a tile's memory for the temporaries of each convolution, from 0 to below 1."""
        shares = _one("availableMemoryProportions", value)
        if shares is not None and (isinstance(shares, bool) or not isinstance(shares, (int, float))
                                   or not 0 <= shares < 1):
            raise InvalidOption("Invalid available memory proportion!")
        self._proportion = shares
        return self

    def partialsTypes(self, value: Any) -> MultiConv:
        """Type of partial sums: torch.float or torch.half."""
        dtype = _one("partialsTypes", value)
        if dtype not in (torch.float, torch.half, None):
            raise ValueError("Invalid partials types. Expecting torch.float or torch.half")
        self._partials = None if dtype is None else str(dtype).removeprefix("torch.")
        return self

    def enableConvDithering(self, value: Any) -> MultiConv:
        """Taken, without effect: parts of an operator are spread evenly over the tiles by themselves."""
        if value is not None and not isinstance(_one("enableConvDithering", value), bool):
            raise ValueError("value must be bool or list of bools")
        return self

    def planType(self, value: MultiConvPlanType | None) -> MultiConv:
        """Side by side (Parallel), or one after the other (Serial)."""
        if value is not None and not isinstance(value, MultiConvPlanType):
            raise InvalidOption("Invalid plan type!")
        self._plan = "parallel" if value is None else str(word(value))
        return self

    def perConvReservedTiles(self, value: int) -> MultiConv:
        """Tiles kept for each other convolution while the largest is planned."""
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidOption(f"perConvReservedTiles must be a whole number of at least 1, got {value!r}.")
        self._reserved = value
        return self

    def cycleBackOff(self, value: float) -> MultiConv:
        """Share of cycles that the largest may take more than at its best, to leave tiles to the others."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise InvalidOption(f"cycleBackOff must be a number from 0 to 1, got {value!r}.")
        self._back_off = float(value)
        return self

    def __enter__(self) -> MultiConv:
        stack, export = ExitStack(), exporting()
        self._entered.append(stack)
        if export is not None:
            if export.scopes[export.current].multi_conv is not None:
                raise Error("Nested poptorch.MultiConv is not supported.")
            stack.enter_context(scope("multi_conv", Group(f"multi_conv_{len(export.scopes)}", self._plan,
                                                          self._reserved, self._back_off)))
            if self._proportion is not None:
                stack.enter_context(scope("available_memory_proportion", float(self._proportion)))
            if self._partials is not None:
                stack.enter_context(scope("partials", self._partials))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, where)


def _one(name: str, value: Any) -> Any:
    """One value for all convolutions; of a list all must be alike."""
    if not isinstance(value, (list, tuple)):
        return value
    if not value or any(v != value[0] for v in value):
        raise InvalidOption(f"{name} takes one value for all convolutions of the scope, not {list(value)!r}; "
                            "set_available_memory says it of one of them.")
    return value[0]
