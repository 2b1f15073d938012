"""Recurrent layers: whole sequences at once, several layers and both directions; and their cells, a step at a time."""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...system.errors import OptionError
from ..functional.recurrent import check_nonlinearity, gru_cell, lstm_cell, recurrent, rnn_cell
from ..init import uniform
from ..module import Module
from ..parameter import Parameter
from ..tensor import Tensor


class _Recurrent(Module):
    """Base of RNN, GRU and LSTM, with PyTorch's arguments, names of parameters, gate order and initial weights.

    input [steps, N, input_size], with batch_first [N, steps, input_size], or [steps, input_size] for one sequence; states
    [num_layers * directions, N, hidden_size], zeros by default. Results: the last layer's outputs [steps, N, directions * hidden_size] as the
    input lies, and the last states.
    dropout: between layers, in training. proj_size is not served.
    """

    kind: ClassVar[str]
    gates: ClassVar[int]

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False, proj_size: int = 0) -> None:
        name = type(self).__name__
        if input_size < 1 or hidden_size < 1 or num_layers < 1:
            raise OptionError(f"{name}: input_size={input_size}, hidden_size={hidden_size} and num_layers={num_layers} must be 1 or more.")
        if not 0 <= dropout < 1:
            raise OptionError(f"{name}: dropout must be in [0, 1), got {dropout}.")
        if proj_size:
            raise OptionError(f"{name}: proj_size={proj_size} is not served, ONNX's layers have no projections; put a Linear behind it.")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        self.nonlinearity = "tanh"
        wide = self.gates * hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else hidden_size * (1 + bidirectional)
            for suffix in self._suffixes(layer):
                shapes = {"weight_ih": (wide, inputs), "weight_hh": (wide, hidden_size)} | (
                    {"bias_ih": (wide,), "bias_hh": (wide,)} if bias else {})
                for stem, shape in shapes.items():
                    setattr(self, stem + suffix, Parameter(uniform(shape, hidden_size)))

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", *([f"_l{layer}_reverse"] if self.bidirectional else [])]

    def _weights(self) -> list[list[list[Parameter]]]:
        names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]
        return [[[getattr(self, name + suffix) for name in names] for suffix in self._suffixes(layer)] for layer in range(self.num_layers)]

    def _run(self, input: Tensor, states: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        return recurrent(self.kind, input, self._weights(), states, batch_first=self.batch_first, dropout=self.dropout,
                         nonlinearity=self.nonlinearity)


class RNN(_Recurrent):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu in place of tanh. forward(input, hx=None) gives output, h_n.

    input: [steps, N, input_size], with batch_first [N, steps, input_size], or [steps, input_size] for one sequence.
    output: the last layer's h of every step, [steps, N, directions * hidden_size], its axes as the input's.
    hx and h_n: [num_layers * directions, N, hidden_size] ([.., hidden_size] for one sequence); hx is zeros by default.
    """

    kind, gates = "RNN", 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = check_nonlinearity(nonlinearity, "RNN")

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, h = self._run(input, (hx,))
        return y, h


class GRU(_Recurrent):
    """r, z = sigmoid(W_i x + b_i + W_h h + b_h), n = tanh(W_in x + b_in + r (W_hn h + b_hn)), h' = (1 - z) n + z h.

    forward(input, hx=None) gives output, h_n.

    input: [steps, N, input_size], with batch_first [N, steps, input_size], or [steps, input_size] for one sequence.
    output: the last layer's h of every step, [steps, N, directions * hidden_size], its axes as the input's.
    hx and h_n: [num_layers * directions, N, hidden_size] ([.., hidden_size] for one sequence); hx is zeros by default.
    """

    kind, gates = "GRU", 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, h = self._run(input, (hx,))
        return y, h


class LSTM(_Recurrent):
    """i, f, o = sigmoid(W_i x + b_i + W_h h + b_h), g = tanh(likewise), c' = f c + i g, h' = o tanh(c').

    forward(input, hx=None) gives output, (h_n, c_n); hx is (h_0, c_0).

    input: [steps, N, input_size], with batch_first [N, steps, input_size], or [steps, input_size] for one sequence.
    output: the last layer's h of every step, [steps, N, directions * hidden_size], its axes as the input's.
    h_0, c_0, h_n, c_n: [num_layers * directions, N, hidden_size] ([.., hidden_size] for one sequence); zeros by
        default.
    """

    kind, gates = "LSTM", 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, h, c = self._run(input, (None, None) if hx is None else (hx[0], hx[1]))
        return y, (h, c)


class _Cell(Module):
    """Base of the cells: input [N, input_size] or [input_size], states [N, hidden_size] or [hidden_size], zeros by default."""

    gates: ClassVar[int]

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        if input_size < 1 or hidden_size < 1:
            raise OptionError(f"{type(self).__name__}: input_size={input_size} and hidden_size={hidden_size} must be 1 or more.")
        self.input_size, self.hidden_size = input_size, hidden_size
        wide = self.gates * hidden_size
        self.weight_ih = Parameter(uniform((wide, input_size), hidden_size))
        self.weight_hh = Parameter(uniform((wide, hidden_size), hidden_size))
        self.bias_ih = Parameter(uniform((wide,), hidden_size)) if bias else None
        self.bias_hh = Parameter(uniform((wide,), hidden_size)) if bias else None

    def _zeros(self, input: Tensor) -> Tensor:
        return input.lift(np.zeros((*input.shape[:-1], self.hidden_size)))

    @property
    def _own(self) -> tuple[Any, ...]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


class RNNCell(_Cell):
    """A step of RNN. forward(input, hx=None) gives h'.

    input: [N, input_size] or [input_size]; states: [N, hidden_size] or [hidden_size], zeros by default.
    """

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = check_nonlinearity(nonlinearity, "RNNCell")

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return rnn_cell(input, self._zeros(input) if hx is None else hx, *self._own, nonlinearity=self.nonlinearity)


class GRUCell(_Cell):
    """A step of GRU. forward(input, hx=None) gives h'.

    input: [N, input_size] or [input_size]; states: [N, hidden_size] or [hidden_size], zeros by default.
    """

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return gru_cell(input, self._zeros(input) if hx is None else hx, *self._own)


class LSTMCell(_Cell):
    """A step of LSTM. forward(input, hx=None) gives (h', c'); hx is (h, c).

    input: [N, input_size] or [input_size]; states: [N, hidden_size] or [hidden_size], zeros by default.
    """

    gates = 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = (self._zeros(input),) * 2 if hx is None else hx
        return lstm_cell(input, (h, c), *self._own)
