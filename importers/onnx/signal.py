"""Tables of signal processing, which are known at import."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileflow.ops.signal import mel_weights
from tileflow.system.errors import ModelError

from .fold import fits
from .site import Site
from .versions import form


@form("MelWeightMatrix")
def mel_weight_matrix(site: Site) -> Sequence[np.ndarray]:
    """Weights from the bins of a transform to bands of the mel scale."""
    bands, length, rate = (int(site.scalar(i)) for i in range(3))
    low, high = (float(site.scalar(i)) for i in (3, 4))
    if min(bands, length, rate) < 1 or not 0 <= low < high <= rate / 2:
        raise ModelError(f"{site.title} asks for {bands} bands of {low} to {high} Hz from {length} samples at {rate} Hz; there must be one of each "
                         "at least, and frequencies from 0 to half the rate")
    dtype = np.dtype(site.dtype(site.attrs.get("output_datatype", 1)))
    fits(site, (length // 2 + 1, bands), dtype)
    return [mel_weights(bands, length, rate, low, high).astype(dtype)]
