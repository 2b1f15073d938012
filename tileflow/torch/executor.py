"""Modules of PyTorch as models of ours: what is called in place of the module, its optimizer and its backward pass."""
from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..options.options import Options, with_defaults
from ..runtime.executable_file import Opened
from ..runtime.inference_model import InferenceModel
from ..runtime.loading import edited, optimizer_in
from ..runtime.model import Model
from ..runtime.training_model import TrainingModel
from ..system.errors import DataError, OptionError, TileflowError, UnsupportedError
from ..system.nested import Form, Results
from .annotations import Exporter
from .calls import array_of, flattened, result_of
from .executable import ExecutableModule, module_of, nesting_data, nesting_of
from .homes import Homed
from .moments import begin, shown, taken, tell
from .optimizers import kind_of, mapped, numbers
from .source import TorchSource

_MODE = attrgetter("training")
_begun: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Optimizers of which something was compiled: what they remember goes on. (Executors, where these have none.)"""


class Executor:
    """A module that is called as ever and computed here. Its parameters and buffers are the module's own: views of one
    memory.

    Called for training it does `device_iterations` weight updates and returns what `forward` returns, in the output
    mode. The first dimension of every tensor is divided into micro-batches, as `tileflow.training_model` does it.

    model: the module. options: those that hold, frozen. follows: attributes of an optimizer of PyTorch's, which
    schedulers change, hold from the next call on; else from the next `set_optimizer` on.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        options: Options,
        training: bool,
        optimizer: Any = None,
        exporter: Exporter | None = None,
    ) -> None:
        if exporter not in (None, *get_args(Exporter)):
            raise OptionError(f"exporter is {' or '.join(map(repr, get_args(Exporter)))}, not {exporter!r}.")
        self.model, self.options, self.training = module, options, training
        self._exporter, self.follows = exporter, True
        self._use(optimizer)
        self._parameters = [p.name for p in inspect.signature(module.forward).parameters.values()
                            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._homed: Homed | None = None
        self._made: list[_Made] = []
        self._current: _Made | None = None
        self._modules = self._moded()
        self._awaited: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle: the module, the optimizer and what that remembers, with weights of their own."""
        self.copy_weights_to_host()
        made = self._current
        trained = made is not None and isinstance(made.model, TrainingModel)
        remembered = self._trained_model().optimizer_state_dict() if trained else self._awaited
        options, optimizer = self.options.clone(), self._optimizer
        return _again, (self.model, options, self.training, optimizer, self._exporter, self.follows, remembered)

    # ---- calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call.

        Args:
            args, kwargs: those of `forward`. Tensors (and arrays) have the rows of the whole call; what is no tensor is
                compiled in.

        Returns:
            what `forward` returns, with tensors that have no gradient.

        Raises:
            UnsupportedError: the module cannot be exported, or what was exported computes something else than PyTorch.
            ShapeError, TypeMismatchError, TrainingError: as `tileflow.training_model` has them.
        """
        if self._numbers is not None and self.follows and numbers(self._optimizer) != self._numbers:
            self.set_optimizer(self._optimizer)
        made, tensors = self._ready(args, kwargs)
        found = made.model(*[array_of(t) for t in tensors])
        if made.source.example is tensors:                  # which are nobody's but the caller's
            made.source.example = ()
        if self.training:
            assert self._homed is not None
            self._homed.home.written += 1
            if isinstance(self._optimizer, torch.optim.Optimizer):
                setattr(self._optimizer, "_opt_called", True)  # noqa: B010  (a step was made: schedulers ask for it)
        return made.nested(found if isinstance(found, tuple) else (found,))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Export, check and compile for such arguments without running."""
        self._ready(args, kwargs)

    def compile_and_export(self, path: str | os.PathLike[str], *args: Any, export_model: bool = True,
                           **kwargs: Any) -> Path:
        """Compile for such arguments, if need be, and write the executable: `compile`, then `save`."""
        self.compile(*args, **kwargs)
        return self.save(path, export_model)

    def save(self, path: str | os.PathLike[str], export_model: bool = True) -> Path:
        """Write the program of the last call or `compile` as an executable of data (docs/executables.md), for
        `tileflow.torch.load_executable`; without `export_model` for the `load_executable` of such a module's model.

        Raises:
            UnsupportedError: the program, an argument or a result is something that a file cannot hold.
            TileflowError: nothing was compiled yet.
        """
        model, made = self.compiled, self._current
        assert made is not None
        results, own = made.shown
        model.save_nested(path, export_model, nesting_data(self._parameters, made.form, results, own))
        return Path(path)

    def load_executable(self, path: str | os.PathLike[str]) -> None:
        """Take a program that `compile_and_export` or `save` wrote of a model of such a module, in place of compiling
        it; weights and what the optimizer remembers stay this module's.

        Raises:
            ModelError: the file cannot be read, is damaged or of no module.
            OptionError: it is of another module, or of one with other options or optimizer.
        """
        found = nesting_of(Opened(path))
        self._parameters = list(found.parameters)
        made = self._new(found.form, self._modes())
        made.given = found.results, found.own
        made.model.load_executable(path)
        self._made.append(made)
        self._current = made
        _begun[self if self._optimizer is None else self._optimizer] = True

    def is_compiled(self) -> bool:
        """It was called, or `compile`d, since it was made or destroyed."""
        return self._current is not None

    def _ready(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[_Made, Sequence[torch.Tensor]]:
        """What is compiled for these arguments and the modes of the module's parts, and the tensors among them."""
        current, modes = self._current, self._modes()
        tensors: Sequence[torch.Tensor] = args
        alike = (
            current is not None
            and not kwargs
            and current.plain
            and len(args) == len(current.form.tensors)
            and all(type(a) is torch.Tensor for a in args)
        )
        if current is not None and alike:
            form = current.form
        else:
            form, tensors = flattened(args, kwargs, self._parameters)
            if not tensors and self._parameters:  # a forward() of none has state alone, and one micro-batch
                raise DataError("A call needs at least one tensor, whose rows are divided into micro-batches.")
        if current is None or not alike or current.modes != modes:
            current = next((m for m in self._made if m.modes == modes and not m.form.differs(form)), None)
        if self._homed is not None and not self._homed.look():
            self._forget()
            current, modes = None, self._modes()
        if current is None:
            current = self._make(form, modes)
        self._current = current
        current.source.example = tensors
        again = self._takes_turn()
        if not current.model.is_compiled or self._awaited is not None:
            self._compile(current, tensors)
        elif again and isinstance(current.model, TrainingModel):
            begin(current.model)
            self._take_moments(self._optimizer)
        return current, tensors

    def _modes(self) -> tuple[Any, ...]:
        """What is compiled in besides arguments: the type of PyTorch's autocast around the call, the modes of the
        parts."""
        cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return cast, *map(_MODE, self._modules)

    def _make(self, form: Form, modes: tuple[Any, ...]) -> _Made:
        """A model for one form of calls, not compiled yet, to be kept."""
        made = self._new(form, modes)
        self._made.append(made)
        return made

    def _new(self, form: Form, modes: tuple[Any, ...]) -> _Made:
        """A model for one form of calls."""
        if self._homed is None:
            self._homed = Homed(self.model)
        source = TorchSource(self.model, self.options, self._homed, self.training, self._exporter)
        source.form = form
        if self.training:
            ours, source.trained = None, None
            if self._optimizer is not None:
                ours, source.trained = mapped(self._optimizer, self._trainable())
            model: Model = TrainingModel(source, self.options, ours, "identity")
        else:
            model = InferenceModel(source, self.options)
        model.anchors.names = self.options.anchored_tensors
        return _Made(model, source, form, modes)

    def _compile(self, made: _Made, tensors: Sequence[torch.Tensor]) -> None:
        made.model.compile(*[array_of(t) for t in tensors])
        whose = self if self._optimizer is None else self._optimizer
        if isinstance(made.model, TrainingModel) and whose not in _begun:
            begin(made.model)
        _begun[whose] = True
        if self._awaited is not None and isinstance(made.model, TrainingModel):
            made.model.load_optimizer_state_dict(self._awaited)
            self._awaited = None
        self._take_moments(self._optimizer)

    def _takes_turn(self) -> bool:
        """Whether another optimizer of PyTorch's has updated these weights since: what it remembers is in its own form
        again, as in PyTorch."""
        if not self.training or self._homed is None or self._numbers is None:
            return False
        home = self._homed.home
        last = None if home.trains is None else home.trains()
        if last is self:
            return False
        if another := last is not None and last._optimizer is not self._optimizer:
            assert last is not None
            last._give_back()
        home.trains = weakref.ref(self)
        return another

    def _give_back(self) -> None:
        """Let an optimizer of PyTorch's have what the compiled model remembers for it."""
        if moments := self._shown_moments(self._optimizer):
            for number, p in enumerate(p for group in self._optimizer.param_groups for p in group["params"]):
                if number in moments:
                    self._optimizer.state[p] = moments[number]

    def _trainable(self) -> dict[int, str]:
        """The names of the parameters that require gradients, by identity."""
        assert self._homed is not None
        own, names = {id(p) for p in self.model.parameters() if p.requires_grad}, self._homed.names()
        return {key: name for key, name in names.items() if key in own}

    def destroy(self) -> None:
        """Forget what is compiled, so that the next call may have other shapes. Weights and what the optimizer
        remembers stay."""
        self._give_back()
        self._forget()
        self._current = None

    def _moded(self) -> list[torch.nn.Module]:
        """The parts whose modes say what is compiled: of a program that is there already none do."""
        return [] if isinstance(self.model, ExecutableModule) else list(self.model.modules())

    def _forget(self) -> None:
        for made in self._made:
            made.model.destroy()
        self._made, self._current = [], None
        self._modules = self._moded()
        if self._homed is not None:
            self._homed.renew()

    # ---- the optimizer

    def set_optimizer(self, optimizer: Any) -> None:
        """Update the weights with this optimizer's attributes from the next call on. (Attributes of the optimizer that
        the model has need no call.) Nothing is compiled, and moments go on.

        Raises:
            OptionError: it is of another class, or something that is compiled in differs.
        """
        if not self.training:
            raise OptionError("An inference model has no optimizer.")
        if self._homed is not None and self._made:
            ours = mapped(optimizer, self._trainable()).optimizer
            for made in self._made:
                assert isinstance(made.model, TrainingModel)
                made.model.set_optimizer(ours)
        self._use(optimizer)
        self._take_moments(optimizer)

    def _use(self, optimizer: Any) -> None:
        """Have this optimizer from now on."""
        known = kind_of(optimizer) is not None and self.training
        if known and optimizer is not getattr(self, "_optimizer", None):
            tell(optimizer, self._shown_moments, self._take_moments)
        self._optimizer, self._numbers = optimizer, numbers(optimizer) if known else None

    def _shown_moments(self, optimizer: Any) -> dict[int, dict[str, torch.Tensor]]:
        """What the compiled model remembers for an optimizer of PyTorch's, in its form; nothing before there is one."""
        if not self._serves(optimizer) or self._homed is None:
            return {}
        return shown(optimizer, self._homed.names(), self._trained_model().optimizer_state_dict())

    def _take_moments(self, optimizer: Any) -> None:
        """What an optimizer of PyTorch's remembers is the compiled model's from now on."""
        if self._serves(optimizer) and optimizer.state and self._homed is not None:
            model = self._trained_model()
            model.load_optimizer_state_dict(taken(optimizer, self._homed.names(), model.optimizer_state_dict()))
            optimizer.state.clear()

    def _serves(self, optimizer: Any) -> bool:
        """It is the model's own and PyTorch's, and something is compiled that updates by it."""
        made, homed = self._current, self._homed
        if self._numbers is None or optimizer is not self._optimizer or homed is None:
            return False
        if made is None or not made.model.is_compiled:
            return False
        trains = homed.home.trains
        return trains is None or trains() in (None, self)

    def optimizer_state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all that the optimizer remembers, by name (TileflowError before the model is compiled)."""
        return self._trained_model().optimizer_state_dict()

    def load_optimizer_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Go on from what `optimizer_state_dict` gave; before the first call it is kept until then."""
        if self._current is None:
            self._awaited = {name: np.array(value) for name, value in tensors.items()}
            if self._numbers is not None:
                self._optimizer.state.clear()
        else:
            self._trained_model().load_optimizer_state_dict(tensors)

    def _trained_model(self) -> TrainingModel:
        model = self.compiled
        if not isinstance(model, TrainingModel):
            raise OptionError("An inference model has no optimizer.")
        return model

    @property
    def compiled(self) -> Model:
        """The model behind the last call: its program, plan and engine (TileflowError before the first)."""
        if self._current is None:
            raise TileflowError("The model has not been compiled yet; call it, or call compile() with example tensors.")
        return self._current.model

    @property
    def exported_by(self) -> str:
        """"torch.export", "TorchScript" or "an executable" (TileflowError before the first call)."""
        assert self.compiled
        assert self._current is not None
        made = self._current.source.made
        return "an executable" if made is None else made.by

    # ---- weights and the module

    def copy_weights_to_host(self) -> None:
        """Let the module's tensors show the weights. It has an effect where their types differ only: else they are one
        memory."""
        if self._homed is not None:
            self._homed.to_host()

    def copy_weights_to_device(self) -> None:
        """Take over what the module's tensors hold. Edits are seen by themselves, but for those in place through
        `.data`."""
        if self._homed is not None:
            self._homed.to_device()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The module's."""
        self.copy_weights_to_host()
        found: dict[str, Any] = self.model.state_dict(*args, **kwargs)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """The module's; the next call has the new weights."""
        self.copy_weights_to_host()
        return self.model.load_state_dict(state_dict, strict=strict, assign=assign)

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """The module's."""
        self.copy_weights_to_host()
        return self.model.parameters(recurse)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The module's."""
        self.copy_weights_to_host()
        return self.model.named_parameters(*args, **kwargs)

    def train(self, mode: bool = True) -> Executor:
        """Put the module in its mode for training: dropout drops, batches normalise themselves."""
        self.model.train(mode)
        return self

    def eval(self) -> Executor:
        """Put the module in its mode for inference."""
        return self.train(False)

    def __getattr__(self, name: str) -> Any:
        """What the module has besides."""
        if name.startswith("_") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'training' if self.training else 'inference'} of {type(self.model).__name__})"


def _again(
    module: torch.nn.Module,
    options: Options,
    training: bool,
    optimizer: Any,
    exporter: Exporter | None,
    follows: bool,
    remembered: Mapping[str, Any] | None,
) -> Executor:
    """An executor out of a pickle, or copied."""
    made = Executor(module, options, training, optimizer, exporter)
    made.follows = follows
    if remembered is not None:
        made.load_optimizer_state_dict(remembered)
    return made


class _Made:
    """A model for one form of calls and one set of modes. plain: the form is tensors one after the other."""

    def __init__(self, model: Model, source: TorchSource, form: Form, modes: tuple[Any, ...]) -> None:
        self.model, self.source, self.form, self.modes = model, source, form, modes
        self.plain = (
            not form.constants and form.spec == flattened(tuple(torch.zeros(()) for _ in form.tensors), {}, ())[0].spec
        )
        self.given: tuple[Results, int] | None = None
        """How results are nested, and how many outputs they show, where an executable says it."""

    @property
    def shown(self) -> tuple[Results, int]:
        """How results are nested, and how many of the outputs they show."""
        if self.given is not None:
            return self.given
        made = self.source.made
        assert made is not None
        return made.results, made.own

    def nested(self, arrays: Sequence[Any]) -> Any:
        """Arrays of a call as `forward` returns them."""
        results, own = self.shown
        return results.nested([result_of(a) for a in arrays[:own]])


def _chosen(options: Options | None) -> Options:
    if options is not None and not isinstance(options, Options):
        raise OptionError(f"options must be a tileflow.Options, got {type(options).__name__}.")
    chosen = with_defaults(Options() if options is None else options.clone())
    if options is not None:
        options.freeze()                                  # what is changed now would have no effect on this model
    return chosen


def _module(module: Any) -> torch.nn.Module:
    if not isinstance(module, torch.nn.Module):
        raise OptionError(f"model must be a torch.nn.Module, not {type(module).__name__}.")
    for path, m in module.named_modules():
        if isinstance(m, torch.jit.ScriptModule):
            raise UnsupportedError(f"{path or 'The module'} is compiled by torch.jit, which has no tensors to share; "
                                   "give the module that it was made of.")
    return module


def training_model(
    module: torch.nn.Module, options: Options | None = None, optimizer: Any = None, *, exporter: Exporter | None = None
) -> Executor:
    """A module to train: call it as the module on the rows of whole updates; forward, backward and the optimizer's step
    happen here.

        net = Net()                                             # forward(x, labels) returns (prediction, loss)
        model = tileflow.torch.training_model(net, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-3))
        prediction, loss = model(x, labels)

    The module returns what is minimised: the only tensor of one number, or what `identity_loss` marks. It is exported
    and compared with PyTorch at the first call; parameters and buffers are then views of the memory that is trained.

    Args:
        options: as for `tileflow.training_model`, frozen from now on.
        optimizer: of torch.optim (SGD, Adam, AdamW, RMSprop) or of tileflow.optim; by default what options say.
        exporter: "torch.export" or "TorchScript", where one of them must do it.
    """
    return Executor(_module(module), _chosen(options), True, optimizer, exporter)


def inference_model(
    module: torch.nn.Module | Executor, options: Options | None = None, *, exporter: Exporter | None = None
) -> Executor:
    """A module to run, on the weights that the module has: those that an executor trains, without a copy.

    Args:
        module: the module, or an executor that trains it. It runs in its mode: call `module.eval()` where dropout is
            not to drop.
    """
    given = module.model if isinstance(module, Executor) else module
    return Executor(_module(given), _chosen(options).for_inference(), False, None, exporter)


def load_executable(
    path: str | os.PathLike[str], edit_options: Callable[[Options], Any] | None = None, *, optimizer: Any = None,
    **changes: Any
) -> Executor:
    """What `compile_and_export` or `save` of a module's model wrote, to be called as the module was, which need not be
    there: its `model` is a module of the weights alone, by their names. Arguments and errors are those of
    `tileflow.load_executable`; nothing of the file is executed.

        model = tileflow.torch.load_executable("digits.tileflow")
        prediction, loss = model(x, labels)
    """
    opened = Opened(path)
    nesting_of(opened)
    chosen, homed = optimizer_in(opened, optimizer), module_of(opened)
    made = Executor(homed.module, edited(opened, edit_options, changes), chosen is not None, chosen)
    made._homed = homed
    made.load_executable(path)
    return made
