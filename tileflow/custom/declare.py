"""Declaring an operator of one's own: a class becomes an entry of the registry, beside those of tileflow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from .. import ops  # noqa: F401  (fills the registry, so that names of ours are known)
from ..graph import OPS, Op, op
from ..graph.op import qualified
from ..ops.elementwise import Elementwise
from ..system.errors import OptionError
from ..system.text import one_line
from .attributes import annotated
from .code import digest
from .forms import CompiledOperator, Composite, Custom, Opaque, PythonOperator, Scalar
from .marks import UserFunction
from .names import DECLARED

C = TypeVar("C", bound=type)
FORMS: dict[str, type[Custom]] = {
    "expression": Scalar,
    "composition": Composite,
    "compiled": CompiledOperator,
    "python": PythonOperator,
}
_ours: dict[str, type[Op]] = {}
"""Operators of tileflow's own that somebody replaced, by name."""


def operator(domain: str, name: str, *, replace: bool = False) -> Callable[[type], Any]:
    """A class decorator: declare an operator, for layers (`LeakyRelu(alpha=0.1)(x)` in `forward`), for files that have
    it, and for modules of PyTorch (`tileflow.torch.custom_op`). docs/custom-operators.md begins at the beginning.

        @tileflow.operator("com.acme", "LeakyRelu")
        class LeakyRelu:
            alpha: float = 0.01                                       # attributes: int, float, str, tuples of them

            @tileflow.custom.expression
            def forward(self, x):
                return tileflow.custom.functions.where(x < 0, self.alpha * x, x)

    `forward` is marked `expression`, `composition`, `compiled` or `python`, and so is `gradient`, if there is one: it
    is given inputs, outputs and gradients of the outputs, and gives one for each input. `infer(self, *types)` gives the
    outputs' `TensorType`s; expressions and compositions need none; `reference(self, *arrays)` may give them in NumPy,
    for `tileflow.testing.check_operator` to compare. `roles` names what operands are for, should a file store them
    ("data", "weight", "bias").

    Declared again it is replaced; what was compiled with the one before keeps that.

    Args:
        domain: "" is ONNX's own.
        replace: it may take the place of one of tileflow's own, whose attributes it then has.

    Raises:
        OptionError: the class says something else, or the name is one of tileflow's.
    """
    if not all(isinstance(text, str) and text.isascii() and "::" not in text for text in (domain, name)) or not name:
        raise OptionError(
            f"An operator needs a domain and a name, ASCII texts without '::', not {domain!r} and {name!r}."
        )
    called = qualified(domain, name)
    if called in OPS and called not in DECLARED and not replace:
        raise OptionError(
            f"tileflow has an operator {name} of its own; operator({domain!r}, {name!r}, replace=True) puts yours in "
            f"its place."
        )

    def declare(cls: type) -> Any:
        if not isinstance(cls, type) or issubclass(cls, Op):
            raise OptionError(f"{called}: operator() decorates a class with forward(), not {one_line(repr(cls), 80)}.")
        made = _made(cls, domain, name, called)
        made.replaces = replace
        if called in OPS and called not in DECLARED:
            _require_attributes(OPS[called], made, called)
            _ours[called] = OPS[called]
        _register(called, made)
        return made

    return declare


def forget(domain: str, name: str) -> None:
    """Take a declaration back; one of tileflow's own that it replaced is there again (OptionError: there is none)."""
    called = qualified(domain, name)
    if called not in DECLARED:
        raise OptionError(f"No operator {called} is declared; there are {', '.join(sorted(DECLARED)) or 'none'}.")
    for gone in (called, f"{called}.gradient"):
        DECLARED.pop(gone, None)
        OPS.pop(gone, None)
    if called in _ours:
        OPS[called] = _ours.pop(called)


def _register(called: str, made: Any) -> None:
    DECLARED[called] = made.digested
    OPS[called] = made
    OPS.pop(f"{called}.gradient", None)
    if made.companion is not None:
        OPS[f"{called}.gradient"] = made.companion


def _made(cls: type, domain: str, name: str, called: str) -> Any:
    """The operator of a class."""
    annotated(cls, called)
    forward, gradient = (_written(cls, what, called) for what in ("forward", "gradient"))
    if forward is None:
        raise OptionError(f"{called}: the class needs a forward() marked expression, composition, compiled or python.")
    told = getattr(cls, "infer", None)
    if forward.kind in ("compiled", "python") and told is None:
        raise OptionError(
            f"{called}: a {forward.kind} operator needs infer(self, *types), which gives the outputs' TensorTypes."
        )
    if forward.kind == "expression" and told is not None:
        raise OptionError(f"{called}: the types of an expression's outputs follow from it; leave infer() out.")
    form = FORMS[forward.kind]
    members = [member for c in cls.__mro__[:-1] for name, value in sorted(vars(c).items())
               for member in _read(name, value)]
    own: dict[str, Any] = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "domain": domain,
        "called": name,
        "written": forward,
        "backwards": gradient,
        "told": None if told is None else staticmethod(told),
        "infer": form.infer,
        "forward": staticmethod(forward.function) if forward.kind == "compiled" else forward.function,
        "digested": staticmethod(lambda: digest(members)),
    }
    functions = {"compiled", "python"} & {forward.kind, forward.kind if gradient is None else gradient.kind}
    own["code"] = staticmethod(_untold) if functions else own["digested"]
    reference = getattr(cls, "reference", None)
    if reference is not None:
        own |= {"twin": staticmethod(reference), "reference": Custom.reference_by_user}
    plain: Any = dataclasses.dataclass(frozen=True, repr=False)(cls)
    own |= _backwards(plain, gradient, form, own, called)
    return _declared(type(cls.__name__, (plain, form), own), called, called in OPS and "::" not in called)


def _read(name: str, value: Any) -> list[Any]:
    """What of a member of a class shapes what its operator computes."""
    if name.startswith("__"):
        return []
    if isinstance(value, property):
        return [value.fget, value.fset]
    return [name, value.function if isinstance(value, UserFunction) else getattr(value, "__func__", value)]


def _untold() -> None:
    """Machine code and functions of a process are not kept for the next one."""


def _backwards(
    cls: type, gradient: UserFunction | None, form: type[Custom], own: dict[str, Any], called: str
) -> dict[str, Any]:
    """The members by which gradients come about."""
    if gradient is None:
        return {"gradient": Scalar.gradient} if form is Scalar else {}
    if gradient.kind == "expression":
        return {"gradient": Custom.gradient_by_expression, "vjp": Elementwise.vjp}
    if gradient.kind == "composition":
        return {"vjp": Custom.vjp_by_parts}
    base = FORMS[gradient.kind]
    assert issubclass(base, Opaque)
    fields = {"operands": 1, "__annotations__": {"operands": int}, "gradient": gradient.function, "infer": base.infer}
    made = type(f"{cls.__name__}Gradient", (cls, base), {**own, **fields})
    return {"vjp": Custom.vjp_by_companion, "companion": _declared(made, f"{called}.gradient", False)}


def _declared(cls: type, called: str, onnx: bool) -> Any:
    """A class with its fields, under a name, as `op` makes it; it is registered later."""
    before = OPS.pop(called, None)
    try:
        return op(called, onnx)(cls)
    finally:
        OPS.pop(called, None)
        if before is not None:
            OPS[called] = before


def _written(cls: type, what: str, called: str) -> UserFunction | None:
    found = getattr(cls, what, None)
    if found is not None and not isinstance(found, UserFunction):
        raise OptionError(
            f"{called}: {what}() must say in which form it is written: put @tileflow.custom.expression, .composition, "
            f".compiled or .python above it."
        )
    return found


def _require_attributes(ours: Any, made: Any, called: str) -> None:
    """Raise OptionError where an operator that takes the place of one of ours has other attributes."""
    wanted, given = ({f.name for f in dataclasses.fields(kind)} for kind in (ours, made))
    if wanted != given:
        raise OptionError(
            f"{called}: what takes its place must have its attributes, "
            f"{', '.join(sorted(wanted)) or 'of which there are none'}, and not "
            f"{', '.join(sorted(given)) or 'none'}."
        )
