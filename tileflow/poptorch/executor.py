"""`trainingModel`, `inferenceModel`, and the object they return, under the reference's names: over the bridge from
PyTorch."""
from __future__ import annotations

import contextlib
import datetime
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from ..api.surroundings import cycles, write_report
from ..options.reference.enums import OutputMode
from ..torch import inference_model, load_executable, training_model
from . import optim
from .call_tensors import check_inputs, no_backward
from .call_times import CallTimes
from .errors import Error, translated
from .grouped import Grouped, Weight
from .hooks import call_hooks
from .ops import told
from .options import Options
from .spelling import both_spellings
from .strategies import PipelinedExecution, ShardedExecution

NO_EXECUTABLE = "Model has not been compiled or has been destroyed."
WRAPPED = ("Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on the model to unwrap "
           "before wrapping again. (The model is what trainingModel returned.)")
ACCUMULATES = ("You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its default value "
               "(1) when running a poptorch.inferenceModel().")
MORE_ITERATIONS = (" Use poptorch.Options().deviceIterations to process a sufficient number of batches each run for "
                   "pipelined execution instead.")
TRAINING = attrgetter("training")
UPDATED = "UpdatedVar___"
"""What the name of a parameter has before it where what the update makes of it is meant."""
_trained: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[PoplarExecutor]] = weakref.WeakKeyDictionary()
"""Modules that a training wrapper holds."""


@both_spellings
class PoplarExecutor(CallTimes):
    """A module that is compiled and run here; made by `trainingModel` and `inferenceModel`, and called as the module
    is.

    What it has not itself is the module's: `model.layer1`. The module's mode (`train()`, `eval()`) is that of when it
    was wrapped.
    """

    def __init__(self, model: torch.nn.Module, options: Options | None, training: bool,
                 optimizer: torch.optim.Optimizer | None = None) -> None:
        if options is not None and not isinstance(options, Options):
            raise Error(f"Invalid type: 'options' is of type {type(options)} (Expected poptorch.Options)")
        made = Options() if options is None else options.freeze().clone()
        values = made.tileflow()
        if not training and values.gradient_accumulation != 1:
            strategy = made.strategy
            pipelined = isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution)
            raise Error(ACCUMULATES + (MORE_ITERATIONS if pipelined else ""))
        if made.defaultOutputMode():
            made.outputMode(OutputMode.Final if training else OutputMode.All)
        self._user_model, self._training, self._options, self._values = model, training, made, values
        accumulation = values.gradient_accumulation if training else 1
        self._micro_batches = values.input_groups * values.device_iterations * accumulation
        self._optimizer = optimizer
        self._mode()
        self._groupings: dict[str, str] = {}
        self._grouped: Grouped | None = None
        self._bridge: Any = None
        self._is_attached = False
        self._seconds: float | None = None
        if training:
            _trained[model] = weakref.ref(self)

    # ---- what it is

    @property
    def model(self) -> torch.nn.Module:
        """The module it was made of."""
        return self._user_model

    @property
    def options(self) -> Options:
        """Its options, which cannot change any more."""
        return self._options.freeze()

    def isCompiled(self) -> bool:
        """Whether a call would run at once."""
        return self._bridge is not None and bool(self._bridge.is_compiled())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        found = getattr(self._user_model, name)
        if not isinstance(found, torch.nn.Parameter) or not self._training or self.isCompiled():
            return found
        return Weight(name, found, self._groupings, self._values.replication_factor)

    def train(self, mode: bool = True) -> PoplarExecutor:
        """Put the module into its mode for training, or inference; it counts when it is compiled."""
        self._user_model.train(mode)
        self._mode()
        return self

    def _mode(self) -> None:
        """The modes of the module's parts are those of now."""
        self._modules = list(self._user_model.modules())
        self._modes = [*map(TRAINING, self._modules)]

    def eval(self) -> PoplarExecutor:
        """Put the module into its mode for inference."""
        return self.train(False)

    # ---- compiling and running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the module, as the output mode says, of rows enough for a call; compiled at the first one.

        Raises:
            InvalidOption: an input's rows are no multiple of a call's micro-batches (an AssertionError).
            Error: it cannot be compiled or run.
        """
        begin = time.perf_counter()
        check_inputs(self._values, self._micro_batches, args, kwargs)
        with translated():
            if not self.isCompiled():
                self._compile(args, kwargs)
                begin = time.perf_counter()
            given = time.perf_counter()
            if self._grouped is not None:
                self._grouped.load(self._bridge.compiled)
            if [*map(TRAINING, self._modules)] == self._modes:
                found = self._bridge(*args, **kwargs)
            else:
                with self._as_wrapped():
                    found = self._bridge(*args, **kwargs)
            if self._grouped is not None:
                self._grouped.take(self._bridge.compiled)
        self._is_attached = True
        self._note_call(begin, given, time.perf_counter())
        return no_backward(found)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for inputs of these shapes, and run nothing."""
        if self.isCompiled():
            warnings.warn("Call to compile() ignored: the executable is already compiled", stacklevel=2)
            return
        check_inputs(self._values, self._micro_batches, args, kwargs)
        with translated():
            self._compile(args, kwargs)

    def _compile(self, args: Any, kwargs: Any) -> None:
        begin = time.perf_counter()
        call_hooks("Pre")
        with self._as_wrapped():
            if self._bridge is None:
                self._bridge = self._made()
            told()
            self._bridge.compile(*args, **kwargs)
        for sentence in told():
            warnings.warn(sentence, stacklevel=3)
        if (report := self._options.report) is not None:
            name = report[1] or ("training" if self._training else "inference")
            write_report(self._bridge.compiled.compilation, self._values, Path(report[0]), name)
        self._attach_optimizer()
        self._is_attached = True
        self._seconds = time.perf_counter() - begin
        call_hooks("Post")

    def _made(self) -> Any:
        changes: dict[str, Any] = {"on_new_shape": "compile"}
        if self._groupings:
            changes["replica_grouping"] = self._groupings
        if self._options.anchors:
            changes["anchored_tensors"] = [n for n in self._options.anchors.values() if not n.startswith(UPDATED)]
        options = self._options.tileflow(**changes)
        self._options.freeze()
        if self._groupings:
            self._grouped = Grouped(self._user_model, self._groupings)
            made = training_model(self._grouped.module, options, self._grouped.optimizer(self._optimizer))
        elif self._training:
            made = training_model(self._user_model, options, self._optimizer)
        else:
            return inference_model(self._user_model, options)
        made.follows = False                                                        # but setOptimizer
        return made

    @contextlib.contextmanager
    def _as_wrapped(self) -> Iterator[None]:
        """The module in the modes that it was wrapped in."""
        modules, now = self._modules, [*map(TRAINING, self._modules)]
        for m, mode in zip(modules, self._modes, strict=True):
            m.training = mode
        try:
            yield
        finally:
            for m, mode in zip(modules, now, strict=True):
                m.training = mode

    def destroy(self) -> None:
        """Give up what was compiled; the next call compiles anew, and the module may be wrapped again."""
        if self._bridge is not None:
            self._bridge.destroy()
            self._bridge = None
        self._is_attached = False
        if self._training and self._user_model in _trained and _trained[self._user_model]() is self:
            del _trained[self._user_model]

    # ---- weights and optimizer

    def _compiled(self) -> Any:
        if not self.isCompiled():
            raise Error(NO_EXECUTABLE)
        return self._bridge

    def copyWeightsToHost(self) -> None:
        """Let the module have the weights of now; where it shares them, it has them already (Error: it is not
        compiled)."""
        self._compiled().copy_weights_to_host()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """As copyWeightsToHost; False, for the module has them."""
        if self.isCompiled():
            self._bridge.copy_weights_to_host()
        return False

    def copyWeightsToDevice(self) -> None:
        """Let the compiled model have the module's weights of now (Error: it is not compiled)."""
        self._compiled().copy_weights_to_device()

    def copyNamedBuffersToDevice(self) -> None:
        """As copyWeightsToDevice, which does it for buffers as well."""
        self._compiled().copy_weights_to_device()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, with the weights of now."""
        self.copyWeightsToHostIfNeeded()
        return self._user_model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load the module's weights, for what is compiled as well."""
        found = self._user_model.load_state_dict(state_dict, strict)
        if self.isCompiled():
            self._bridge.copy_weights_to_device()
        return found

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Go on with this optimizer, or with its attributes of now; to be called after each change of them, a
        scheduler's as well.

        Raises:
            Error: it is of another class, or something that was compiled in differs.
        """
        if not self._training:
            raise Error("An inferenceModel has no optimizer.")
        self._optimizer = optimizer
        if self._bridge is not None:
            with translated():
                grouped = self._grouped
                self._bridge.set_optimizer(optimizer if grouped is None else grouped.optimizer(optimizer))
            self._attach_optimizer()

    def _attach_optimizer(self) -> None:
        """Let the reference's optimizers read their states here, and give those that they were loaded with."""
        made = self._optimizer
        if not isinstance(made, optim.Optimizer):
            return
        loaded = made.loaded_state()
        if loaded is not None:
            self._bridge.load_optimizer_state_dict({**loaded["ipu_state"], **(loaded["ipu_param"] or {})})
        bridge = weakref.ref(self._bridge)
        weights = tuple(f"{name}." for name, _ in self._user_model.named_parameters())

        def read() -> Mapping[str, Any]:
            found = bridge()
            arrays = {} if found is None else found.optimizer_state_dict()
            states = {name: torch.as_tensor(x) for name, x in arrays.items()}
            of_weights = {name for name in states if name.startswith(weights)}
            return {"ipu_state": {name: states[name] for name in states if name in of_weights},
                    "ipu_param": {name: states[name] for name in states if name not in of_weights}}
        made.attach(read)

    # ---- looking at it

    def getTensorNames(self) -> list[str]:
        """Names of what `anchorTensor` may name (Error: it is not compiled)."""
        graph = self._compiled().compiled.program.micro
        return [v.name for v in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))]

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What an anchored tensor was in the last call. Beside tensors, layers and nodes, `Gradient___NAME` is the
        gradient of a parameter, and `UpdatedVar___NAME` the parameter after the call (Error: it is not compiled, or has
        no such anchor)."""
        bridge, anchors = self._compiled(), self._options.anchors
        if short_name not in anchors:
            raise Error(f"There is no anchored tensor {short_name!r}; opts.anchorTensor({short_name!r}, name) makes "
                        "one before the model is wrapped.")
        name = anchors[short_name]
        if name.startswith(UPDATED):
            weights = dict(self._user_model.named_parameters())
            if name.removeprefix(UPDATED) not in weights:
                raise Error(f"{name}: the model has no such parameter; there are {', '.join(weights)}.")
            self.copyWeightsToHost()
            return weights[name.removeprefix(UPDATED)].detach().clone()
        with translated():
            return torch.as_tensor(bridge.compiled.anchored(name))

    def compilationTime(self) -> datetime.timedelta:
        """How long the last compilation took (Error: it is not compiled)."""
        if self._seconds is None:
            raise Error("Please compile the model before obtaining compilation time.")
        return datetime.timedelta(seconds=self._seconds)

    def cycleCount(self) -> int:
        """Cycles of a call on the simulated chip: that of the options, or a GC200 (Error: it is not compiled, or cannot
        be there). They follow from the program alone; `tileflow compile MODEL --machine gc200` says what they are made
        of."""
        bridge = self._compiled()
        with translated():
            return cycles(bridge.compiled.compilation, self._values) * int(self._values.device_iterations)

    def rewrapParameters(self) -> None:
        """Nothing: parameters are the module's own tensors all the time."""

    # ---- the device, which is always there

    def isAttachedToDevice(self) -> bool:
        """Whether it would run at once: after a call or `attachToDevice`, until `detachFromDevice`."""
        return self._is_attached

    def attachToDevice(self) -> None:
        """Take it up again (Error: it is not compiled, or attached)."""
        self._compiled()
        if self._is_attached:
            raise Error("Device is already attached")
        self._is_attached = True

    def detachFromDevice(self) -> None:
        """Let it rest (Error: it is not compiled, or not attached); the next call takes it up."""
        self._compiled()
        if not self._is_attached:
            raise Error("Device is not attached")
        self._is_attached = False

    # ---- executables

    def compileAndExport(self, filename: str | os.PathLike[str], *args: Any, export_model: bool = True,
                         **kwargs: Any) -> None:
        """Compile for inputs of these shapes, if need be, and write the executable: a file of data, which `load` of
        another process runs.

        Args:
            filename: of a folder, `model.poptorch` in it.
            export_model: with weights and all that the optimizer remembers; else for loadExecutable.
        """
        if not self.isCompiled():
            self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def save(self, filename: str | os.PathLike[str], export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the executable of what is compiled, as compileAndExport does (Error: nothing is, or it holds what a
        file cannot). Random numbers follow from the seed and the number of the update, which are always in it."""
        bridge = self._compiled()
        if self._grouped is not None:
            raise Error("Groups of replicas have weights of their own here, which are no module's: an executable "
                        "cannot hold them.")
        with translated():
            bridge.save(_file(filename), export_model)

    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Take what compileAndExport wrote of such a model in place of compiling it; weights stay the module's (Error:
        it is of another model, or of other options)."""
        begin = time.perf_counter()
        with translated():
            if self._bridge is None:
                self._bridge = self._made()
            self._bridge.load_executable(_file(filename))
        self._attach_optimizer()
        self._is_attached = True
        self._seconds = time.perf_counter() - begin

    @property
    def rng_state(self) -> list[int]:
        """The seed, which is all: random numbers follow from it and from the number of the update. It is set by
        opts.randomSeed."""
        return [self._values.seed]


def _module_of(model: Any) -> torch.nn.Module:
    found = model.model if isinstance(model, PoplarExecutor) else model
    if not isinstance(found, torch.nn.Module):
        raise Error(f"A model is a torch.nn.Module, or what trainingModel returned, not {type(found).__name__}.")
    return found


def trainingModel(model: torch.nn.Module | PoplarExecutor, options: Options | None = None,
                  optimizer: torch.optim.Optimizer | None = None) -> PoplarExecutor:
    """A module to train: called with inputs and labels it computes outputs and loss, and updates the module's weights.

        model = poptorch.trainingModel(net, opts, poptorch.optim.AdamW(net.parameters(), lr=1e-3))
        prediction, loss = model(x, labels)

    Args:
        options: frozen from here on. optimizer: PyTorch's, or poptorch.optim's; by default SGD with a rate of 0.01.

    Raises:
        RuntimeError: the module is wrapped already. Error: it is none.
    """
    module = _module_of(model)
    before = _trained.get(module)
    holder = None if before is None else before()
    if holder is not None and holder is not model:
        raise RuntimeError(WRAPPED)
    chosen = optim.SGD(module.parameters(), lr=0.01) if optimizer is None else optimizer
    return PoplarExecutor(module, options, True, chosen)


def inferenceModel(model: torch.nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """A module to run: called with inputs it computes outputs, with the module's weights of the call.

    Raises:
        Error: it is no module, or the options accumulate gradients.
    """
    return PoplarExecutor(_module_of(model), options, False)


def load(filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], Any] | None = None) -> PoplarExecutor:
    """What compileAndExport or save wrote, ready to be called: its `model` is a module of the weights alone, by their
    names, for a file of data has no Python code.

        model = poptorch.load("training.poptorch")
        prediction, loss = model(x, labels)

    Args:
        edit_opts_fn: called with the options, to change what a compiled program may run with, such as outputMode.

    Raises:
        Error: the file cannot be read, is damaged, or was written with export_model=False; or an option is another one
            that is compiled in.
    """
    options = Options()

    def edit(own: Any) -> None:
        options.of(own)
        if edit_opts_fn is not None:
            edit_opts_fn(options)
        for name, (_, value) in own.diff(options.tileflow()).items():
            setattr(own, name, value)
    with translated():
        bridge = load_executable(_file(filename), edit)
    made = PoplarExecutor(bridge.model, options, bridge.training, getattr(bridge.compiled, "optimizer", None))
    made._bridge, made._is_attached, made._seconds = bridge, True, 0.0
    return made


def _file(filename: str | os.PathLike[str]) -> Path:
    """The executable's file."""
    return Path(filename, "model.poptorch") if Path(filename).is_dir() else Path(filename)
