"""An optimizer's update of many weights: the rows of our update graph against a step of PyTorch's optimizer, or of timm's."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tileflow import optim
from tileflow.graph import Graph, State, TensorType, Value
from tileflow.optim.adapting import adapt
from tileflow.optim.base import build_update
from tileflow.optim.scaling import LossScaling

from .base import Problem, Runner, Unsupported, beside_largest, numbers, plain, some, tensor
from .update_exact import STEPS, exact

SETTINGS: dict[str, dict[str, Any]] = {
    "AdamW": dict(lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8),
    "SGD": dict(lr=1e-2, weight_decay=1e-4, momentum=0.9),
    "RMSprop": dict(lr=1e-3, weight_decay=1e-4, alpha=0.99, eps=1e-8),
    "LAMB": dict(lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-6),
}
"""What both sides are told, by optimizer."""
VARIANTS = ("", "default", "fused", "timm")


class UpdateStep(Problem):
    """`parameters` weights in `tensors` tensors of about the same size, updated by `optimizer` (and `options` of it).

    `max_grad_norm` clips by the norm of all gradients first. `dtype` is the weights' and gradients' type, `moments` that of the moments where
    it is not float32. `scaling` is dynamic loss scaling: the gradients' scale is undone, they are looked at, and an update with one that is
    not finite changes nothing.
    """

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__(shape)
        self.count, self.tensors, self.optimizer = shape["parameters"], shape["tensors"], shape["optimizer"]
        self.options: dict[str, Any] = dict(shape.get("options", {}))
        self.clip: float | None = shape.get("max_grad_norm")
        self.moments, self.scaling = shape.get("moments", "float32"), shape.get("scaling", False)
        self.settings = SETTINGS[self.optimizer] | self.options
        words = [self.optimizer, *(k if v is True else f"{k} {v}" for k, v in self.options.items()), f"{self.count / 1e6:g} M in {self.tensors}"]
        words += ["clipped"] * (self.clip is not None) + ["scaled"] * self.scaling
        words += [self.dtype] * (self.dtype != "float32") + [f"{self.moments} moments"] * (self.moments != "float32")
        self.name = " ".join(words)

    def sizes(self) -> list[int]:
        """Elements of each tensor: they differ, as those of a network do."""
        cuts = np.linspace(0, self.count, self.tensors + 1).astype(np.int64)
        cuts[1:-1] += np.arange(1, self.tensors) % 7
        return [int(n) for n in np.diff(cuts)]

    def start(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Weights and their gradients."""
        return ([numbers(f"w{i}", (n,), self.dtype, 0.1) for i, n in enumerate(self.sizes())],
                [numbers(f"g{i}", (n,), self.dtype, 0.01) for i, n in enumerate(self.sizes())])

    def away(self, first: np.ndarray) -> float:
        """The largest deviation of the first tensor's weights after STEPS updates from float64: over how far the weights came, or where they are
        rounded to 16 bits over their size."""
        weights, gradients = self.start()
        start, truth = weights[0].astype(np.float64), exact(self, weights[0], gradients)
        at = some(len(start), 100_000)
        if self.dtype != "float32":
            return beside_largest(first[at], truth[at])
        return float(np.abs(first[at] - truth[at]).max() / np.abs(truth[at] - start[at]).max())

    def nbytes(self) -> float:
        """Reads weight, gradient and moments, writes all but the gradient."""
        plain, wide = (2 if self.dtype != "float32" else 4), (2 if self.moments != "float32" else 4)
        moments = {"SGD": 1, "RMSprop": 2 if self.options.get("centered") else 1}.get(self.optimizer, 2)
        return float(self.count * (3 * plain + 2 * moments * wide))

    def ours(self, threads: int) -> Runner:
        return _Ours(self, threads)

    def torch(self, threads: int, variant: str = "") -> Runner:
        import torch
        torch.set_num_threads(threads)
        assert variant in VARIANTS, variant
        return _Torch(self, torch, variant)


class _Ours:
    def __init__(self, problem: UpdateStep, threads: int) -> None:
        self._problem, self._threads = problem, threads
        self._native = self._made()
        self.run = self._native.run

    def _made(self) -> Any:
        from ..native import NativeUpdate
        p = self._problem
        weights, gradients = p.start()
        optimizer = _optimizer(p)
        parameters = [State(f"w{i}", "parameter", Value(f"w{i}", TensorType(p.dtype, w.shape)), group="parameter") for i, w in enumerate(weights)]
        update: Graph = build_update(optimizer, parameters, [None] * len(weights))[0]
        if p.scaling:
            _adapted(update)
        initial = {f"w{i}": w for i, w in enumerate(weights)} | {f"w{i}.grad": g for i, g in enumerate(gradients)}
        return NativeUpdate(update, initial, optimizer.values(0), self._threads)

    def error(self) -> float:
        fresh = self._made()
        fresh.run(STEPS)
        return self._problem.away(fresh.session["w0"])


def _adapted(update: Graph) -> None:
    """Dynamic loss scaling, as training has it; no micro-batch is run, and so none has a bad loss."""
    loss = Value("loss", TensorType("float32", ()))
    adapt({"micro": Graph("micro"), "fold": Graph("fold"), "update": update}, loss, LossScaling("dynamic", skip=True),
          1)


def _optimizer(p: UpdateStep) -> optim.Optimizer:
    made = getattr(optim, p.optimizer, None)
    settings = dict(p.settings)
    if p.clip is not None:
        settings["max_grad_norm"] = p.clip
    if p.moments != "float32":
        settings |= dict(first_order_momentum_accum_type=p.moments, second_order_momentum_accum_type=p.moments)
    if p.dtype != "float32":
        settings["accum_type"] = p.dtype                                  # gradients as they come from one micro-batch, as PyTorch has them
    if made is None:
        raise Unsupported(f"not supported yet: {p.optimizer}")
    try:
        optimizer: optim.Optimizer = made(**settings)
    except TypeError as error:
        raise Unsupported(f"not supported yet: {error}") from None
    return optimizer


class _Torch:
    """PyTorch's default form, its fused form, or timm's Lamb. PyTorch keeps moments in the weights' type: it has no other choice."""

    def __init__(self, problem: UpdateStep, torch: Any, variant: str) -> None:
        self._problem, self._torch, self._variant = problem, torch, variant
        self._step, _ = self._made()

    def _made(self) -> tuple[Any, Any]:
        p, torch = self._problem, self._torch
        arrays, gradients = p.start()
        weights = [torch.nn.Parameter(tensor(torch, w)) for w in arrays]
        for w, g in zip(weights, gradients, strict=True):
            w.grad = tensor(torch, g)
        if self._variant == "timm":
            optimizer = timm_lamb()(weights, max_grad_norm=None, **p.settings)
        else:
            fused = {"fused": True} if self._variant == "fused" else {}
            optimizer = getattr(torch.optim, p.optimizer)(weights, **p.settings, **fused)
        step = optimizer.step
        if p.scaling:
            scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1 << 30)
            scaler.scale(torch.zeros(()))                                    # GradScaler makes its scale when it first scales a loss

            def step() -> None:
                scaler.step(optimizer)
                scaler.update()
        if p.clip is None:
            return step, weights

        def clipped() -> None:
            torch.nn.utils.clip_grad_norm_(weights, p.clip)
            step()
        return clipped, weights

    def run(self, times: int) -> None:
        for _ in range(times):
            self._step()

    def error(self) -> float:
        step, weights = self._made()
        for _ in range(STEPS):
            step()
        return self._problem.away(plain(self._torch, weights[0]))


def timm_lamb() -> Any:
    """timm's Lamb. Only the optimizer's own files are run: all of timm wants torchvision, which an optimizer does not need.

    Raises:
        Unsupported: timm is not installed.
    """
    import importlib
    import sys
    from importlib.machinery import PathFinder
    from types import ModuleType
    found = PathFinder.find_spec("timm")
    if found is None or found.submodule_search_locations is None:
        raise Unsupported("timm is not installed, so there is no Lamb to compare with: pip install --no-deps timm")
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "timm"}
    for name in kept:
        del sys.modules[name]
    try:
        for name, folder in (("timm", ""), ("timm.optim", "/optim")):
            sys.modules[name] = package = ModuleType(name)
            package.__path__ = [f"{next(iter(found.submodule_search_locations))}{folder}"]
        return importlib.import_module("timm.optim.lamb").Lamb
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
            del sys.modules[name]
        sys.modules.update(kept)
