"""Row kinds on their way out (see `table` for those that stay): what the engine still writes.

CALL     leaf(block, 0, n, worker 0) on this thread
FORK     a LEAF of `table`
WAVE     n lanes side by side, each a table of its own; `block` = lane descriptors (LANE_WORDS each)
PATCH    n patches at `block`: word at address = base + (counter % ring) * stride, counter = control[grain]
LOOP     counter at `block`: one down; not yet 0: jump to `target`; 0: set back to n and go on
ADVANCE  control[grain] += n
HOLD     n = 1: from here on do not return for time; n = 0: do so again
"""
from __future__ import annotations

FORK = 0
CALL, WAVE, PATCH, LOOP, ADVANCE, HOLD = range(16, 22)
ROW_WORDS = 8
LANE_WORDS = 8            # table, rows, pc, patches, number of patches, status, -, -
PATCH_WORDS = 4           # address, base, stride, ring
STOP, MICRO, ITERATION, STATUS, FAILED_PC, DEADLINE, HELD = range(7)
"""Words of the control block: -, micro-batch counter of the call, update counter of the call, status of the failing leaf, -, deadline (ns,
monotonic clock), whether a HOLD is on."""
CONTROL_WORDS = 8
