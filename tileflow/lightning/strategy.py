"""The strategy that lets Lightning's Trainer train and run modules here, and the accelerator that its devices are
counted by."""
from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from torch.utils import _pytree as pytree

from .. import poptorch
from ..system.errors import OptionError, TileflowWarning
from .steps import LOSS, Step

NAME = "ipu"
NUMBERS = ("lr", "momentum", "dampening", "weight_decay", "betas", "eps", "alpha")
"""Attributes of an optimizer's groups that schedulers may change."""
PRECISIONS = ("32-true", "64-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")
GRADIENTS = ("backward", "configure_gradient_clipping")
"""What a module may do to gradients itself."""
UNCALLED = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""Hooks between the loss and the update, which are one call here."""


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
        counted = isinstance(devices, (int, str)) and str(devices).isdigit()
        count = 1 if devices in (-1, "-1", "auto") else int(devices) if counted else 0
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
    """Trains and runs a LightningModule here: gradient accumulation, devices and precision become options, loaders give
    the rows of whole calls.

    Lightning keeps its loops, callbacks and loggers. A step is exported once; `batch_idx` is 0 in it, and what it logs
    is logged after each call.

    Args:
        device_iterations: updates (of inference: micro-batches) of a call.
        autoreport, autoreport_dir: write reports of what is compiled, into this folder or `.`.
        training_opts, inference_opts: `poptorch.Options` to begin with.

    Raises:
        OptionError: options are none, or the module has several optimizers.
    """

    strategy_name = "ipu_strategy"

    def __init__(self, accelerator: Any = None, device_iterations: int = 1, autoreport: bool = False,
                 autoreport_dir: str | None = None,
                 parallel_devices: Any = None, cluster_environment: Any = None, checkpoint_io: Any = None,
                 precision_plugin: Any = None,
                 training_opts: poptorch.Options | None = None, inference_opts: poptorch.Options | None = None) -> None:
        super().__init__("cpu", accelerator, checkpoint_io, precision_plugin)
        self._devices: list[torch.device] | None = None
        for given in (training_opts, inference_opts):
            if given is not None and not isinstance(given, poptorch.Options):
                raise OptionError(f"training_opts and inference_opts are poptorch.Options, not {type(given).__name__}.")
        self._iterations, self._report = device_iterations, (autoreport_dir
                                                             or ".") if autoreport or autoreport_dir else None
        self._given = {True: training_opts, False: inference_opts}
        self._executors: dict[tuple[Any, ...], Any] = {}
        self._steps: dict[tuple[Any, ...], Step] = {}
        self._numbers: list[Any] = []
        self._accumulated = 1
        self._plugin: Any = None

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
        if self._plugin is None:                                                    # a Trainer's first run
            self._plugin, self.precision_plugin = self.precision_plugin, Precision()  # type: ignore[has-type]
        if self._plugin.precision not in PRECISIONS:
            raise OptionError(f"precision is {', '.join(PRECISIONS)}, not {self._plugin.precision}.")
        self.model = self._plugin.convert_module(self.model)                        # type: ignore[has-type]
        self._executors, self._steps = {}, {}
        super().setup(trainer)
        if trainer.state.fn == "fit":
            self._check(trainer)

    def _check(self, trainer: pl.Trainer) -> None:
        """OptionError for what a compiled step cannot do; a warning for hooks that are not called."""
        module = self.lightning_module
        assert module is not None
        if len(self.optimizers) > 1:
            raise OptionError("IPUs currently only support one optimizer.")
        if not module.automatic_optimization:
            raise OptionError(
                "IPUs do not support manual optimization, for a step and its update are compiled together; leave "
                "automatic_optimization=True, or call tileflow.torch.training_model in a loop of your own.")
        own = [n for n in (*GRADIENTS, *UNCALLED) if getattr(type(module), n) is not getattr(pl.LightningModule, n)]
        if trainer.gradient_clip_val or any(name in GRADIENTS for name in own):
            raise OptionError(
                "IPUs currently do not support clipping gradients, or a backward() of the module's own: leave "
                f"gradient_clip_val and {' and '.join(GRADIENTS)} out, and give an optimizer of "
                "tileflow.poptorch.optim its max_grad_norm.")
        if own:
            warnings.warn(f"{', '.join(own)} of {type(module).__name__} is not called: gradients are compiled into the "
                          "step.", TileflowWarning, stacklevel=2)

    def _dtype(self) -> torch.dtype | None:
        """The type that floating inputs are cast to: that of parameters that are not float32; None: as they are."""
        module = self.lightning_module
        assert module is not None
        found = {p.dtype for p in module.parameters() if p.is_floating_point()} - {torch.float32}
        return found.pop() if found else None

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
        if "mixed" in self._plugin.precision and self._dtype() is None:  # a module of another type is so already
            options._add({"precision": self._plugin.precision})
        if self._report is not None:
            options.enableProfiling(self._report)
        return options

    # ---- data

    def process_dataloader(self, dataloader: Any) -> Any:
        """A loader that gives the rows of whole calls."""
        if isinstance(dataloader, poptorch.DataLoader) or not isinstance(dataloader, torch.utils.data.DataLoader):
            return dataloader
        options = self.options(bool(self._trainer.training))
        given = {name: getattr(dataloader, name)
                 for name in ("num_workers", "collate_fn", "worker_init_fn", "timeout", "generator",
                                                              "multiprocessing_context", "prefetch_factor",
                                                              "persistent_workers")}
        values = options.tileflow()
        calls = values.input_groups * values.gradient_accumulation * values.device_iterations
        if dataloader.batch_size is None:
            if dataloader.batch_sampler is None:
                return dataloader                                               # the data set gives whole batches
            batches: Any = dataloader.batch_sampler if calls == 1 else Even(dataloader.batch_sampler)
            if left := len(batches) % calls:
                warnings.warn(f"{left} of {len(batches)} batches are left out, for they fill no call of {calls} "
                              "micro-batches.", TileflowWarning, stacklevel=2)
            return poptorch.DataLoader(options, dataloader.dataset, batch_sampler=batches, drop_last=calls > 1, **given)
        whole = dataloader.drop_last
        if not isinstance(dataloader.dataset, torch.utils.data.IterableDataset):
            given["sampler"] = dataloader.sampler
            rows = len(dataloader.sampler)                                       # type: ignore[arg-type]
            left = rows % (dataloader.batch_size * calls)
            if left and calls > 1 and not whole:
                warnings.warn(f"{left} of {rows} rows are left out of each epoch, for they fill no call of {calls} "
                              "micro-batches.", TileflowWarning, stacklevel=2)
                whole = True
        return poptorch.DataLoader(options, dataloader.dataset, dataloader.batch_size, drop_last=whole, **given)

    # ---- steps

    def _call(self, name: str, batch: Any, *more: Any) -> Any:
        """A step of a batch; `more`: its number, and that of the loader, as far as the step takes them."""
        key, training = (name, len(more), *more[1:]), name == "training_step"
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = Step(self.lightning_module, name, more and (0, *more[1:]))
            if training:
                self._executors[key] = poptorch.trainingModel(step, self.options(True), self.optimizers[0])
            else:
                self._executors[key] = poptorch.inferenceModel(step, self.options(False))
            self._numbers = self._now()
        if training and self._now() != self._numbers:
            self._numbers = self._now()
            self._executors[key].setOptimizer(self.optimizers[0])
        if (dtype := self._dtype()) is not None:
            batch = pytree.tree_map(
                lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x, batch)
        with self._plugin.forward_context() if "true" in self._plugin.precision else contextlib.nullcontext():
            found = self._executors[key](batch)
        if "logged" in found:
            step.tell(found["logged"], rows_of(batch))
        return found

    def _now(self) -> list[Any]:
        """The numbers of the optimizer's groups."""
        return [[group.get(name) for name in NUMBERS] for o in self.optimizers for group in o.param_groups]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        found = self._call("training_step", *args)
        loss = found[LOSS].float().mean()
        outputs = found.get("outputs")
        return {**outputs, LOSS: loss} if outputs else loss

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("validation_step", *args).get("outputs")

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("test_step", *args).get("outputs")

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("predict_step", *args).get("outputs")

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


class Even:
    """Lists of row numbers that are as long as the first: micro-batches of a call are."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        length = None
        for batch in self.batches:
            length = length or len(batch)
            if len(batch) == length:
                yield batch
            else:
                warnings.warn(f"{len(batch)} rows are left out, for they fill no micro-batch of {length}.",
                              TileflowWarning, stacklevel=2)


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
        ours = self._accelerator_flag == NAME or isinstance(self._accelerator_flag, IPUAccelerator)
        return IPUStrategy() if ours else chosen(self)
    _AcceleratorConnector._choose_strategy = choose                                # type: ignore[method-assign]
