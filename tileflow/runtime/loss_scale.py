"""The loss scale of a training model: as it was asked for, as it has become, and the updates that were skipped."""
from __future__ import annotations

from ..optim.scaling import IN_A_ROW, LOSS_SCALE, SKIPPED, LossScaling
from ..options.options import Options
from ..state import Session
from .failure import stuck
from .model_optimizer import ModelOptimizer


class LossScale:
    """scaling: how the scale changes by itself, and whether updates that are not finite are skipped."""

    def __init__(self, options: Options, optimizer: ModelOptimizer, session: Session) -> None:
        self.scaling = LossScaling.of(options, optimizer.current.loss_scaling is not None)
        self._option, self._optimizer, self._session = options.loss_scaling, optimizer, session

    @property
    def asked(self) -> float:
        """The scale that was asked for: the optimizer's, else that of the options."""
        chosen = (self._optimizer.current.loss_scaling, self._option, self.scaling.first)
        return self.scaling.check(next(x for x in chosen if x is not None))

    @property
    def now(self) -> float:
        """The scale as the session has it."""
        return float(self._session[LOSS_SCALE]) if LOSS_SCALE in self._session else self.asked

    @property
    def skipped(self) -> int:
        """Updates that were skipped, since their loss or gradients were not finite."""
        return self._counted(SKIPPED)

    def first(self) -> float:
        """What it begins with in a session that has none."""
        return self._session.assigned.setdefault(LOSS_SCALE, self.asked)

    def assign(self) -> None:
        """Another one that was asked for takes effect."""
        self._session.assign(LOSS_SCALE, self.asked)

    def require_progress(self) -> None:
        """Raise TrainingError where no further update will be good."""
        if self.scaling.skip and self.scaling.stuck(self.now, bad := self._counted(IN_A_ROW)):
            raise stuck(self.scaling.automatic, self.now, bad, self._session.updates)

    def _counted(self, name: str) -> int:
        return int(self._session[name]) if self.scaling.skip and name in self._session else 0
