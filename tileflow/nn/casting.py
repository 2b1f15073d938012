"""Automatic mixed precision as a network's code asks for it: for a module and all in it, a function, a block of code."""
from __future__ import annotations

from contextlib import AbstractContextManager, ContextDecorator
from types import TracebackType

from ..graph import Casting, Hints
from ..precision.policy import Policy
from ..system.errors import OptionError
from .trace import current_trace

LOW = ("float16", "bfloat16")


def casting(enabled: bool, dtype: str | None, policy: Policy | None) -> Casting:
    """What is asked, checked; OptionError."""
    if not isinstance(enabled, bool):
        raise OptionError(f"autocast: enabled must be true or false, not {enabled!r}.")
    if dtype is not None and dtype not in LOW:
        raise OptionError(f"autocast: dtype must be float16 or bfloat16, not {dtype!r}.")
    if policy is not None and not isinstance(policy, Policy):
        raise OptionError(f"autocast: policy must be a tileflow.Policy, not {type(policy).__name__}.")
    return Casting(enabled, dtype, policy)


class autocast(ContextDecorator):
    """Operators recorded in the block, or by the function, are cast as the policy says; with enabled=False they stay as they are written.

        class Net(Module):
            @tileflow.autocast(enabled=True)
            def forward(self, x):
                x = self.conv(x)
                with tileflow.autocast(enabled=False):
                    x = self.head(x)
                return x

    The innermost module, function or block that says something counts, for each argument. The option autocast_enabled=False turns all of them off.

    Args:
        dtype: "float16" or "bfloat16"; by default what surrounds it has, at the top the option precision's type, else float16.
        policy: which operators are cast to what; by default what surrounds it has, at the top the default policy.

    Raises:
        OptionError: a value is none of these. TileflowError: no network is being recorded.
    """

    def __init__(self, enabled: bool = True, dtype: str | None = None, policy: Policy | None = None) -> None:
        self._casting, self._policy = casting(enabled, dtype, policy), policy
        self._entered: list[AbstractContextManager[None]] = []

    def _recreate_cm(self) -> autocast:
        """One for each call of a function: threads may record at once."""
        return autocast(self._casting.enabled is not False, self._casting.low, self._policy)

    def __enter__(self) -> autocast:
        scope = current_trace("autocast").builder.scope(Hints(casting=self._casting))
        scope.__enter__()
        self._entered.append(scope)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._entered.pop().__exit__(kind, error, where)
