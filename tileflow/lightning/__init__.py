"""PyTorch Lightning over tileflow: the accelerator `ipu`, and IPUStrategy, under the names that Lightning's own had.

    import lightning.pytorch as pl
    from tileflow.lightning import IPUStrategy

    trainer = pl.Trainer(accelerator="ipu", devices=4, strategy=IPUStrategy(device_iterations=8))
"""
from __future__ import annotations

try:
    import lightning.pytorch as _pl  # noqa: F401
except ImportError:
    raise ImportError("tileflow.lightning needs Lightning: pip install 'tileflow-engine[lightning]'.") from None

from .strategy import IPUAccelerator, IPUStrategy, register

IPUPlugin = IPUStrategy
"""The strategy by the name that it had first."""
__all__ = ["IPUAccelerator", "IPUPlugin", "IPUStrategy"]
register()
