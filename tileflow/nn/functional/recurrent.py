"""Recurrent layers and cells with PyTorch's weights: their gates are put into ONNX's order as the layer is recorded."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...system.errors import OptionError, ShapeError
from ..tensor import Tensor, cat
from .linear import linear
from .normalization import dropout as dropped

ORDERS = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}
"""For each of ONNX's gates the place of PyTorch's: r, z, n to z, r, n and i, f, g, o to i, o, f, g."""


def _turned(x: Tensor, kind: str) -> Tensor:
    """PyTorch's gates along axis 0 in ONNX's order."""
    order = ORDERS[kind]
    parts = x.chunk(len(order))
    return x if len(order) == 1 else cat([parts[k] for k in order])


def _stacked(kind: str, tensors: Sequence[Tensor]) -> Tensor:
    """A weight of each direction as ONNX's operand [directions, ...]."""
    parts = [_turned(t, kind).unsqueeze(0) for t in tensors]
    return parts[0] if len(parts) == 1 else cat(parts)


Weights = Sequence[Any]
"""weight_ih, weight_hh and, unless there is none, bias_ih, bias_hh of a direction."""


def recurrent_layer(kind: str, x: Tensor, directions: Sequence[Weights], h: Tensor | None, c: Tensor | None, nonlinearity: str = "tanh",
                    ) -> tuple[Tensor, ...]:
    """One layer, in one or both directions: x [T, N, inputs] and states [directions, N, hidden] (None: zeros) to outputs [T, N, directions *
    hidden] and last states."""
    weights = [[x.lift(w).type_as(x) for w in own] for own in directions]
    bias = None
    if len(weights[0]) == 4:
        each = [cat([_turned(own[2], kind), _turned(own[3], kind)]).unsqueeze(0) for own in weights]
        bias = each[0] if len(each) == 1 else cat(each)
    hidden = weights[0][1].shape[1]
    attributes: dict[str, Any] = dict(hidden_size=hidden, direction="bidirectional" if len(weights) == 2 else "forward")
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    if nonlinearity != "tanh":
        attributes["activations"] = ("Relu",) * len(weights)
    states = () if h is None else (None, h) if c is None else (None, h, c)
    y, *last = x.apply(kind, _stacked(kind, [own[0] for own in weights]), _stacked(kind, [own[1] for own in weights]), bias, *states, **attributes)
    steps, batch = x.shape[:2]
    y = y.squeeze(1) if len(weights) == 1 else y.permute(0, 2, 1, 3).reshape(steps, batch, 2 * hidden)
    return (y, *last)


def recurrent(kind: str, input: Tensor, weights: Sequence[Sequence[Weights]], states: Sequence[Tensor | None], *, batch_first: bool = False,
              dropout: float = 0.0, nonlinearity: str = "tanh") -> tuple[Tensor, ...]:
    """Layers on top of each other, each in one or both directions.

    Args:
        kind: "RNN", "GRU" or "LSTM".
        input: [T, N, inputs], with `batch_first` [N, T, inputs], or [T, inputs].
        weights: for each layer and direction weight_ih [gates * hidden, inputs], weight_hh [gates * hidden, hidden] and biases.
        states: the first h, for LSTM also c: [layers * directions, N, hidden] (without N where the input has none), or None for zeros.
        dropout: probability with which an element of what one layer gives to the next is dropped in training.

    Returns the outputs of the last layer [T, N, directions * hidden] as `input` lies, and the last states of all layers like `states`.

    Raises:
        ShapeError: the operands do not fit together.
    """
    if len(input.shape) not in (2, 3):
        raise ShapeError(f"{kind} takes [steps, batch, features] or [steps, features], got {list(input.shape)}.")
    alone = len(input.shape) == 2
    swapped = batch_first and not alone
    x = input.unsqueeze(1) if alone else input.transpose(0, 1) if swapped else input
    given: list[Tensor | None] = []
    count, hidden = sum(map(len, weights)), weights[0][0][1].shape[1]
    for state in states:
        wanted = (count, hidden) if alone else (count, x.shape[1], hidden)
        if state is not None and state.shape != wanted:
            raise ShapeError(f"{kind}: a state of {list(state.shape)} beside input {list(input.shape)}; it must be {list(wanted)}.")
        given.append(None if state is None else state.unsqueeze(1) if alone else state)
    last: list[list[Tensor]] = [[] for _ in states]
    at = 0
    for number, own in enumerate(weights):
        start = [s if s is None or len(weights) == 1 else s.narrow(0, at, len(own)) for s in given]
        x, *found = recurrent_layer(kind, x, own, start[0], start[1] if len(start) > 1 else None, nonlinearity)
        for kept, state in zip(last, found, strict=True):
            kept.append(state)
        at += len(own)
        if dropout and number < len(weights) - 1:
            x = dropped(x, dropout)
    results = [kept[0] if len(kept) == 1 else cat(kept) for kept in last]
    if alone:
        return (x.squeeze(1), *(r.squeeze(1) for r in results))
    return (x.transpose(0, 1) if swapped else x, *results)


def lstm_cell(input: Tensor, hx: tuple[Tensor, Tensor], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> tuple[Tensor, Tensor]:
    """One step of an LSTM: input [N, inputs] or [inputs], states (h, c) [N, hidden] or [hidden] to the new ones."""
    h, c = hx
    i, f, g, o = (linear(input, w_ih, b_ih) + linear(h, w_hh, b_hh)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(input: Tensor, hx: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    """One step of a GRU: input [N, inputs] or [inputs], state [N, hidden] or [hidden] to the new one."""
    (r, z, n), (own_r, own_z, own_n) = linear(input, w_ih, b_ih).chunk(3, -1), linear(hx, w_hh, b_hh).chunk(3, -1)
    z = (z + own_z).sigmoid()
    n = (n + (r + own_r).sigmoid() * own_n).tanh()
    return (1 - z) * n + z * hx


def rnn_cell(input: Tensor, hx: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None, nonlinearity: str = "tanh") -> Tensor:
    """One step of an RNN: input [N, inputs] or [inputs], state [N, hidden] or [hidden] to the new one."""
    y = linear(input, w_ih, b_ih) + linear(hx, w_hh, b_hh)
    return y.tanh() if check_nonlinearity(nonlinearity, "rnn_cell") == "tanh" else y.relu()


def check_nonlinearity(name: str, what: str) -> str:
    """The name. Raises OptionError."""
    if name not in ("tanh", "relu"):
        raise OptionError(f"{what}: nonlinearity must be 'tanh' or 'relu', got {name!r}.")
    return name
