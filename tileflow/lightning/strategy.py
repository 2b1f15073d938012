"""The strategy that lets Lightning's Trainer train and run modules here, and the accelerator that its devices are counted by."""
from __future__ import annotations

import functools
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from torch.utils import _pytree as pytree

from .. import poptorch
from ..system.errors import OptionError
from .steps import LOSS, Step

NAME = "ipu"
NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "betas", "eps", "alpha")
"""Attributes of an optimizer's groups that schedulers may change."""


class IPUAccelerator(Accelerator):
    """Simulated IPUs: `Trainer(accelerator="ipu", devices=4)` is four replicas, which this computer computes."""

    def setup_device(self, device: torch.device) -> None:
        """Nothing is to be set up."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """None are kept."""
        return {}

    def teardown(self) -> None:
        """Nothing is to be given back."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """The number of replicas (OptionError where it is none)."""
        count = 1 if devices in (-1, "-1", "auto") else int(devices) if isinstance(devices, (int, str)) and str(devices).isdigit() else 0
        if isinstance(devices, bool) or count < 1:
            raise OptionError(f"devices is the number of replicas, from 1 on, not {devices!r}.")
        return count

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """One for each replica."""
        return [torch.device("cpu", i) for i in range(IPUAccelerator.parse_devices(devices))]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


class IPUStrategy(SingleDeviceStrategy):
    """Trains and runs a LightningModule here: gradient accumulation, devices and precision become options, loaders give the rows of whole calls.

    Lightning keeps its loops, callbacks and loggers. A step is exported once; `batch_idx` is 0 in it, and what it logs is logged after each call.

    Args:
        device_iterations: updates (of inference: micro-batches) of a call.
        autoreport, autoreport_dir: write reports of what is compiled, into this folder or `.`.
        training_opts, inference_opts: `poptorch.Options` to begin with.

    Raises:
        OptionError: options are none, or the module has several optimizers.
    """

    strategy_name = "ipu_strategy"

    def __init__(self, accelerator: Any = None, device_iterations: int = 1, autoreport: bool = False, autoreport_dir: str | None = None,
                 parallel_devices: Any = None, cluster_environment: Any = None, checkpoint_io: Any = None, precision_plugin: Any = None,
                 training_opts: poptorch.Options | None = None, inference_opts: poptorch.Options | None = None) -> None:
        super().__init__("cpu", accelerator, checkpoint_io, precision_plugin)
        self._devices: list[torch.device] | None = None
        for given in (training_opts, inference_opts):
            if given is not None and not isinstance(given, poptorch.Options):
                raise OptionError(f"training_opts and inference_opts are poptorch.Options, not {type(given).__name__}.")
        self._iterations, self._report = device_iterations, (autoreport_dir or ".") if autoreport or autoreport_dir else None
        self._given = {True: training_opts, False: inference_opts}
        self._executors: dict[str, Any] = {}
        self._steps: dict[str, Step] = {}
        self._numbers: list[Any] = []
        self._accumulated = 1
        self._half = "32-true"

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """As many as there are replicas, once the Trainer has said how many."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        self._devices = devices

    @property
    def replicas(self) -> int:
        """How many copies of the module are trained together."""
        return max(1, len(self._devices or ()))

    def setup(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        if trainer.accumulate_grad_batches > 1:
            self._accumulated, trainer.accumulate_grad_batches = trainer.accumulate_grad_batches, 1
        plugin: Any = self.precision_plugin                                         # type: ignore[has-type]
        self._half, self.precision_plugin = str(plugin.precision), Precision()
        self._executors, self._steps = {}, {}
        super().setup(trainer)
        if len(self.optimizers) > 1:
            raise OptionError("IPUs currently only support one optimizer.")

    def _holds_halves(self) -> bool:
        """The module has parameters in float16."""
        module = self.lightning_module
        assert module is not None
        return any(p.dtype == torch.float16 for p in module.parameters())

    def options(self, training: bool) -> poptorch.Options:
        """What a call is made of: the options given, with what the Trainer says."""
        made = self._given[training]
        options = poptorch.Options() if made is None else made.clone()
        if made is None or options.device_iterations == 1:
            options.deviceIterations(self._iterations)
        if self.replicas > 1:
            options.replicationFactor(self.replicas)
        if training and self._accumulated > 1:
            options.Training.gradientAccumulation(self._accumulated)
        if "mixed" in self._half and not self._holds_halves():                                  # a module in float16 is so already
            options._add({"precision": "16-mixed"})
        if self._report is not None:
            options.enableProfiling(self._report)
        return options

    # ---- data

    def process_dataloader(self, dataloader: Any) -> Any:
        """A loader that gives the rows of whole calls."""
        if isinstance(dataloader, poptorch.DataLoader) or not isinstance(dataloader, torch.utils.data.DataLoader):
            return dataloader
        options = self.options(bool(self._trainer.training))
        given = {name: getattr(dataloader, name) for name in ("num_workers", "collate_fn", "worker_init_fn", "timeout", "generator",
                                                              "multiprocessing_context", "prefetch_factor", "persistent_workers")}
        if dataloader.batch_size is None:
            if dataloader.batch_sampler is None:
                return dataloader                                               # the data set gives whole batches
            return poptorch.DataLoader(options, dataloader.dataset, batch_sampler=dataloader.batch_sampler, **given)
        if not isinstance(dataloader.dataset, torch.utils.data.IterableDataset):
            given["sampler"] = dataloader.sampler
        return poptorch.DataLoader(options, dataloader.dataset, dataloader.batch_size, drop_last=True, **given)

    # ---- steps

    def _call(self, name: str, batch: Any) -> Any:
        step = self._steps.get(name)
        if step is None:
            step = self._steps[name] = Step(self.lightning_module, name)
            training = name == "training_step"
            self._executors[name] = poptorch.trainingModel(step, self.options(True), self.optimizers[0]) if training else \
                poptorch.inferenceModel(step, self.options(False))
            self._numbers = self._now()
        if name == "training_step" and self._now() != self._numbers:
            self._numbers = self._now()
            self._executors[name].setOptimizer(self.optimizers[0])
        if self._holds_halves():
            batch = pytree.tree_map(lambda x: x.half() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, batch)
        found = self._executors[name](batch)
        if "logged" in found:
            step.tell(found["logged"], rows_of(batch))
        return found

    def _now(self) -> list[Any]:
        """The numbers of the optimizer's groups."""
        return [[group.get(name) for name in NUMBERS] for o in self.optimizers for group in o.param_groups]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        found = self._call("training_step", args[0])
        loss = found[LOSS].float().mean()
        outputs = found.get("outputs")
        return {**outputs, LOSS: loss} if outputs else loss

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("validation_step", args[0]).get("outputs")

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("test_step", args[0]).get("outputs")

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("predict_step", args[0]).get("outputs")

    # ---- what is done already

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The call of the step has done it."""
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Run the step, which updates the weights."""
        return closure()

    def teardown(self) -> None:
        for executor in self._executors.values():
            executor.copyWeightsToHostIfNeeded()
            executor.destroy()
        self._executors, self._steps = {}, {}
        super().teardown()


def rows_of(batch: Any) -> int:
    """The rows of a batch: of the first tensor in it."""
    return next((len(t) for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor) and t.dim()), 1)


def register() -> None:
    """Let Lightning know the accelerator, and take the strategy for it where none is named."""
    if NAME in AcceleratorRegistry.available_accelerators():
        return
    AcceleratorRegistry.register(NAME, IPUAccelerator, description="simulated IPUs: tileflow")
    chosen = _AcceleratorConnector._choose_strategy

    @functools.wraps(chosen)
    def choose(self: Any) -> Any:
        return IPUStrategy() if self._accelerator_flag == NAME or isinstance(self._accelerator_flag, IPUAccelerator) else chosen(self)
    _AcceleratorConnector._choose_strategy = choose                                # type: ignore[method-assign]
