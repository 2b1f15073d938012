"""How a program runs on this computer, as the options say it, and who is told meanwhile."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kernels.isa import cpu
from ..options.options import Options
from ..program.dealing import ReplicaShare
from ..system.errors import UnsupportedError

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total) while kernels are compiled."""


@dataclass(frozen=True)
class Host:
    """What of the options says how a program runs on this computer.

    threads: None: as many workers as can run at once. arithmetic: how float32 products are computed where the CPU has
        tiles, or cpu.PORTABLE.
    seed: that of random streams. detect_anomaly: the first operator that makes NaN or an infinity ends the call.
    share: which replicas are computed here, where processes train together. owner: whose slices of optimizer states
        are kept here; None: all states are here, whole.
    """

    threads: int | None = None
    arithmetic: str = "highest"
    seed: int = 0
    detect_anomaly: bool = False
    share: ReplicaShare | None = None
    owner: ReplicaShare | None = None

    @property
    def is_alone(self) -> bool:
        """Its programs are those of one process."""
        return self.share is None and self.owner is None

    @classmethod
    def of(cls, options: Options) -> Host:
        """As the options have it. Raises UnsupportedError where bits are to be portable and this CPU has none that
        are."""
        if options.bits == "portable" and not (path := cpu.current()).fma:
            raise UnsupportedError("Option bits 'portable' needs fused multiply-adds, and of this CPU only the "
                                   f"{path.label} kernels can run, which do without; "
                                   "leave it out, or use a CPU with AVX2.")
        arithmetic = options.matmul_precision if options.bits == "path" else options.bits
        return cls(options.threads, arithmetic, options.seed, options.detect_anomaly)
