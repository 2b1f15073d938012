"""Whole networks: training steps against eager PyTorch, inference of a file against ONNX Runtime."""
from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ROOT, files, memory, networks
from ..models import initial_weights, tutorial_cnn
from ..peer_onnx import OnnxRuntime
from .base import Problem, Runner, Unsupported, beside_largest

CHECKED_ROWS, CHECKED_STEPS = 4, 3
"""The trajectory that is compared with float64: updates, on a micro-batch of so many rows, without dropout. Few, because float32 training
leaves that of float64 sooner or later, on every side, and then the figure is chance."""
CASES = {"mnist": "mnist", "resnet18": "resnet", "bert-mini": "transformer"}
MASKED_TOKENS = 20
Losses = Callable[[], list[float]]


class Network(Problem):
    """A step (or `updates` of them) on fixed rows; `pass`: training or inference."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.network, self.which, self.batch = shape["network"], shape["pass"], shape["batch"]
        self.accumulation, self.updates, self.sequence = shape.get("accumulation", 1), shape.get("updates", 1), shape.get("sequence", 0)
        self.precision = shape.get("precision", "32")
        many = f" x {self.accumulation} x {self.updates}" if self.accumulation > 1 else ""
        self.name = f"{self.network} {self.which} batch {self.batch}{many}" + (f" sequence {self.sequence}" if self.sequence else "")
        self.name += f" {self.precision}" if self.precision != "32" else ""
        self.case = CASES[self.network]
        self.rows = self.batch * self.accumulation * self.updates
        self.questions = ("memory",) if self.which == "training" else ()

    def data(self, rows: int) -> tuple[np.ndarray, ...]:
        """Inputs and labels."""
        rng = np.random.default_rng(0)
        match self.network:
            case "mnist":
                x = rng.standard_normal((rows, 1, 28, 28)).astype(np.float32)
                x[:, :, :4] = x[:, :, -4:] = -0.4242             # blank borders, as MNIST has them
                return x, rng.integers(0, 10, rows)
            case "resnet18":
                return rng.standard_normal((rows, 3, 224, 224)).astype(np.float32), rng.integers(0, 1000, rows)
        tokens = rng.integers(0, networks.VOCABULARY, (rows, self.sequence))
        positions, segments = np.tile(np.arange(self.sequence), (rows, 1)), (np.arange(self.sequence) >= self.sequence // 2).astype(np.int64)
        visible = np.ones((rows, self.sequence), np.float32)
        visible[::3, -self.sequence // 8:] = 0
        words = rng.integers(0, networks.VOCABULARY, rows * MASKED_TOKENS)
        return tokens, positions, np.tile(segments, (rows, 1)), visible, words, rng.integers(0, 2, rows)

    def file(self) -> Any:
        """The ONNX file of the network."""
        return files.resnet18() if self.network == "resnet18" else files.bert_mini(self.sequence)

    def feed(self) -> np.ndarray:
        """What the file takes."""
        return self.data(self.batch)[0]

    def exact_scores(self) -> np.ndarray:
        """The file's output by ONNX's reference evaluator in float64."""
        from onnx.reference import ReferenceEvaluator
        x = self.feed()
        evaluator = ReferenceEvaluator(files.in_float64(self.file()))
        name = evaluator.input_names[0]
        return np.asarray(evaluator.run(None, {name: x.astype(np.float64) if x.dtype.kind == "f" else x})[0])

    def training(self, threads: int, again: Sequence[str] = ()) -> Any:
        """Our training model; `again`: names of what is computed again in the backward pass."""
        return _model(self, threads, 0.1, self.updates, again)

    def ours(self, threads: int) -> Runner:
        from tileflow.system.errors import TileflowError
        try:
            return _OurTraining(self, threads) if self.which == "training" else _OurInference(self, threads)
        except TileflowError as error:
            raise Unsupported(f"not supported yet: {error}") from None

    def torch(self, threads: int, variant: str = "") -> Runner:
        import torch
        torch.set_num_threads(threads)
        return _TorchTraining(self, variant)

    def onnxruntime(self, threads: int, variant: str = "") -> Runner:
        """ONNX Runtime's side."""
        return _OnnxRuntime(self, threads)

    def checked(self) -> tuple[np.ndarray, ...]:
        """The rows of the trajectory that is compared with float64."""
        return self.data(CHECKED_STEPS * self.batch * self.accumulation if self.network == "mnist" else CHECKED_ROWS)

    @property
    def checked_calls(self) -> int:
        """How many calls on those rows the trajectory takes: MNIST's rows are those of all its updates."""
        return 1 if self.network == "mnist" else CHECKED_STEPS


def our_network(network: str, dropout: float) -> Any:
    """ResNet-18 or BERT-mini in layers, always with the same weights."""
    from tileflow import nn
    nn.manual_seed(0)
    return networks.ResNet(18) if network == "resnet18" else networks.Bert(*networks.BERT_SIZES["mini"], masked=MASKED_TOKENS, dropout=dropout)


# ---- our side -------------------------------------------------------------------------------------------------------------------

def planned(problem: Network, threads: int) -> Any:
    """The plan of our training step, whose kernels are not compiled."""
    from tileflow.lower.plan import make_plan
    model = _model(problem, threads, 0.1, problem.updates)
    return make_plan(model.program_for(*problem.data(problem.rows)), threads)


def _model(problem: Network, threads: int, dropout: float, updates: int, again: Sequence[str] = ()) -> Any:
    import tileflow
    from tileflow.importers.onnx import wrap_model
    settings: dict[str, Any] = {"threads": threads, "gradient_accumulation": problem.accumulation, "device_iterations": updates,
                                "precision": problem.precision}
    if again:
        settings["gradient_checkpointing"] = tuple(again)
    if problem.network == "mnist":
        return tileflow.training_model(wrap_model(tutorial_cnn(initial_weights(0))), optimizer=tileflow.optim.AdamW(lr=1e-3), **settings)
    net = our_network(problem.network, dropout)
    if problem.network == "resnet18":
        return tileflow.training_model(net, optimizer=tileflow.optim.SGD(lr=0.01, momentum=0.9, weight_decay=1e-4), **settings)
    return tileflow.training_model(net, optimizer=tileflow.optim.AdamW(lr=1e-3), loss=networks.pretraining_loss, **settings)


class _OurTraining:
    def __init__(self, problem: Network, threads: int) -> None:
        self._problem, self._threads = problem, threads
        self._data = problem.data(problem.rows)
        before = memory.resident()
        self._model = _model(problem, threads, 0.1, problem.updates)
        self._model.compile(*self._data)
        memory.forget_peak()
        self.run(2)
        self._peak = memory.peak() - before

    def run(self, times: int) -> None:
        for _ in range(times):
            self._model(*self._data)

    def memory(self) -> int:
        """Bytes at the peak of a step above those before the model was made: weights, states, activations, compiled code."""
        return self._peak

    def error(self) -> float | None:
        calls = self._problem.checked_calls
        model, data, losses = _model(self._problem, self._threads, 0.0, CHECKED_STEPS // calls), self._problem.checked(), []
        for _ in range(calls):
            model(*data)
            losses += [float(x) for x in model.last_losses]
        return away(losses, self._problem)


class _OurInference:
    def __init__(self, problem: Network, threads: int) -> None:
        import tileflow
        from tileflow.importers.onnx import wrap_model
        self._problem, self._x = problem, problem.feed()
        self._model = tileflow.inference_model(wrap_model(problem.file()), threads=threads)

    def run(self, times: int) -> None:
        for _ in range(times):
            self._scores = self._model(self._x)

    def error(self) -> float | None:
        return beside_largest(np.asarray(self._scores), self._problem.exact_scores())


# ---- peers ----------------------------------------------------------------------------------------------------------------------

TRIED = 3
"""Steps by which PyTorch's faster form is found."""


class _TorchTraining:
    """PyTorch in float32; the variant "fastest": in float32 or under bfloat16 autocast, whichever takes less time here."""

    def __init__(self, problem: Network, variant: str = "") -> None:
        self._problem = problem
        self._data = problem.data(problem.rows)
        self._form = min(("float32", "autocast"), key=self._seconds) if variant == "fastest" else "float32"
        before = memory.resident()
        self._step = torch_step(problem, self._data, 0.1, self._form)
        memory.forget_peak()
        self.run(2)
        self._peak = memory.peak() - before

    def run(self, times: int) -> None:
        for _ in range(times):
            self._step()

    def memory(self) -> int:
        """Bytes at the peak of a step above those before the model was made."""
        return self._peak

    def _seconds(self, form: str) -> float:
        """The least time of a step in that form."""
        step, taken = torch_step(self._problem, self._data, 0.1, form), []
        for _ in range(TRIED + 1):
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)
        return min(taken[1:])

    def error(self) -> float | None:
        return away(torch_losses(self._problem, self._form), self._problem)


def torch_step(problem: Network, data: Sequence[np.ndarray], dropout: float, form: str = "float32") -> Losses:
    """PyTorch's training step on `data`; each call returns the losses of its micro-batches.

    form: "float32" or "float64", or "autocast": float32 weights under its bfloat16 autocast (of networks without accumulation).
    """
    import torch

    from .. import peer_networks, peer_torch
    low, dtype = form == "autocast", "float32" if form == "autocast" else form
    wide = getattr(torch, dtype)
    arrays = [a.astype(dtype, copy=False) if a.dtype.kind == "f" else a for a in data]
    tensors = [torch.from_numpy(a) for a in arrays]
    entropy = torch.nn.CrossEntropyLoss()
    if problem.network == "mnist":
        net: Any = peer_torch.network(initial_weights(0), wide)
        optimizer: Any = torch.optim.AdamW(net.parameters(), lr=1e-3)
        return lambda: peer_torch.call(net, optimizer, arrays[0], arrays[1], problem.batch, problem.accumulation)
    twin = peer_networks.ResNet18() if problem.network == "resnet18" else peer_networks.Bert("mini", MASKED_TOKENS, dropout)
    net = peer_networks.load(twin, our_network(problem.network, dropout).state_dict(), wide)
    if problem.network == "resnet18":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> list[float]:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            if problem.network == "resnet18":
                loss = entropy(net(tensors[0]), tensors[1])
            else:
                scores, follows = net(*tensors[:4])
                loss = entropy(scores, tensors[4]) + entropy(follows, tensors[5])
        loss.backward()
        optimizer.step()
        return [float(loss.detach())]
    return step


def torch_losses(problem: Network, form: str) -> list[float]:
    """Losses of the trajectory that is checked."""
    step = torch_step(problem, problem.checked(), 0.0, form)
    return [loss for _ in range(problem.checked_calls) for loss in step()]


def away(losses: Sequence[float], problem: Network) -> float | None:
    """The largest relative deviation of losses from PyTorch's in float64, which a process of its own computes; None without PyTorch."""
    script = ("import json, sys; from bench.kinds.network import Network, torch_losses; "
              "print(json.dumps(torch_losses(Network(json.loads(sys.argv[1])), 'float64')))")
    done = subprocess.run([sys.executable, "-c", script, json.dumps(problem.shape)], stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode:
        return None
    exact = np.array(json.loads(done.stdout.splitlines()[-1]))
    return float(np.abs((np.array(losses) - exact) / exact).max())


class _OnnxRuntime(OnnxRuntime):
    def __init__(self, problem: Network, threads: int) -> None:
        file = problem.file()
        super().__init__(file.SerializeToString(), {file.graph.input[0].name: problem.feed()}, threads)
        self._problem = problem

    def error(self) -> float | None:
        return beside_largest(self.outputs[0], self._problem.exact_scores())
