"""What the processes of a run agree on between calls: that they do the same, and what callbacks of the first one have
decided."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..collective import Communicator
from ..state import Session
from .callbacks.run import TrainingRun
from .exchange import same


def same_run(group: Communicator, fingerprint: Mapping[str, Any]) -> None:
    """OptionError, in every process, where runs have other data or options that shape the result."""
    made = json.dumps(fingerprint, sort_keys=True, default=str)
    same(group, {"set of data or options": hashlib.sha256(made.encode()).hexdigest()})


def agree(group: Communicator, run: TrainingRun, session: Session) -> None:
    """Let what callbacks of the first process have decided hold in all: that the run ends, learning rates, other
    weights."""
    told = group.told({"stopped": run.stopped, "by": run.stopped_by, "rates": run.chosen_rates,
                       "states": session.version,
                       "cleared": sorted(session.cleared & session.parts.keys())}, "decisions")
    run.stopped, run.stopped_by = told["stopped"], told["by"]
    for role, rate in told["rates"].items():
        if not group.is_first and run.chosen_rates.get(role) != rate:
            run.model.optimizer.set_number(role, rate)
            run.chosen_rates[role] = rate
    if group.any(session.version != told["states"], "weights that a callback has set"):
        for name, array in session.lasting().items():
            if name in session.parts:
                continue
            flat = array.reshape(-1).view(np.uint8)
            flat[:] = group.allgather(flat, "weights that a callback has set")[0]
        session.clear(told["cleared"])
        session.version = told["states"]
