"""How a program runs on this computer, as the options say it, and who is told meanwhile."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..options.options import Options
from ..program.dealing import Share

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total) while kernels are compiled."""


@dataclass(frozen=True)
class Host:
    """What of the options says how a program runs on this computer.

    threads: None: as many workers as can run at once. matmul_precision: how float32 products are computed where the CPU
        has tiles.
    seed: that of random streams. detect_anomaly: the first operator that makes NaN or an infinity ends the call.
    share: which replicas are computed here, where processes train together.
    """

    threads: int | None = None
    matmul_precision: str = "highest"
    seed: int = 0
    detect_anomaly: bool = False
    share: Share | None = None

    @classmethod
    def of(cls, options: Options) -> Host:
        return cls(options.threads, options.matmul_precision, options.seed, options.detect_anomaly)
