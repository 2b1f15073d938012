"""Which kernels serve a convolution over channels-last images, and what that form saves against planar images."""
from __future__ import annotations

from typing import Any

from ..gemm import tiles as tile_products
from ..isa.cpu import Cpu
from ..isa.half import HALVES
from . import depthwise, direct, half, stem, tiles, tiles_weights, weights, winograd
from .brgemm import width as panel_width
from .indirection import Sites

PLANAR = {"forward": 0.8, "input": 0.85, "weights": 0.9}
CHANNELS_LAST = {"forward": 1.4, "input": 1.35, "weights": 1.25}
"""Speed of the two forms, as parts of the path's rate: ResNet's shapes on one AVX2 core."""
POINTWISE = {"forward": 1.2, "input": 1.2, "weights": 0.9}
"""Likewise of planar 1x1 convolutions without strides whose rows of pixels fill whole vectors."""
FEW = 512
"""Input times output channels from which widening an image part by part is no slower than widening it whole (16 x 16: 0.90, 16 x 32: 0.99)."""
TURN = 0.15
"""Nanoseconds a byte to turn a tensor, as the layout pass counts them."""
DEPTHWISE = (0.45, 0.4)
STRIDED = {"forward": (0.25, 0.22), "input": (0.05, 0.22), "weights": (0.25, 0.22)}
"""Likewise of depthwise convolutions and their gradients, planar and channels-last, without and with strides."""


def way(s: Sites, what: str, code: str, path: Cpu) -> Any:
    """The kernels of a convolution (`forward`) and of its input gradient (`input`)."""
    if s.depthwise:
        return depthwise
    if _in_tiles(s, what, code, path):
        return tiles
    if code in HALVES:
        return half
    return winograd if winograd.pays(s if what == "forward" else s.gradient, code, path) else direct


def weights_way(s: Sites, code: str, path: Cpu) -> Any:
    """The kernels of a convolution's weight gradient."""
    if s.depthwise:
        return depthwise
    return tiles_weights if _in_tiles(s, "weights", code, path) else weights


def _in_tiles(s: Sites, what: str, code: str, path: Cpu) -> bool:
    """Whether the channels-last form of a `forward`, `input` or `weights` is done in bfloat16 tiles."""
    if s.depthwise:
        return False
    if what == "weights":
        return tiles_weights.pays(s, code, path)
    return tiles.pays(s if what == "forward" else s.gradient, code, path)


def takes_halves(s: Sites, what: str, code: str, path: Cpu) -> bool:
    """Whether a `forward`, `input` or `weights` of 16-bit floats reads and writes these itself.

    With few channels float32 does better, widened before, and so it does where it needs fewer products (winograd.py).
    """
    if s.depthwise or what == "weights":
        return (s.groups if s.depthwise else s.c) >= tiles.NARROWEST
    problem = s if what == "forward" else s.gradient
    if _in_tiles(s, what, code, path):
        return True
    return s.c * s.oc >= FEW and problem.c >= tiles.NARROWEST and not winograd.pays(problem, "f4", path)


def gain(s: Sites, what: str, code: str, path: Cpu) -> float:
    """Estimated nanoseconds that the channels-last form of a `forward`, `input` or `weights` saves on one core, from measured rates.

    Tiles have no planar form; 16-bit floats have none either, planar images are turned before and after. Register blocks lose what `oc`
    (or, for `weights`, `c`) lacks to whole panels, and a little per tap.
    """
    if not s.flops:                                          # no batch, no channels or no pixels
        return 0.0
    if code in HALVES:
        return 1.2 * TURN * 2 * s.n * s.groups * (s.c * s.pixels_in + s.oc * s.pixels_out)
    speed = path.rates.convolutions * 4 / int(code[1:])
    if s.depthwise:
        planar, last = STRIDED[what] if any(a.in_step > 1 for a in s.axes) else DEPTHWISE
        if s.axes[0].taps > 1:                               # planar volumes are turned
            planar = STRIDED["input"][0]
        return s.flops / speed * (1 / planar - 1 / last)
    if what == "weights":
        used, rows = s.c, s.oc
    else:
        used, rows = (s.oc, s.c) if what == "forward" else (s.c, s.oc)
    wide = panel_width(code, path)
    planar = PLANAR[what]
    if s.taps == s.groups == 1 and s.pixels_in == s.pixels_out:
        planar = max(0.5, POINTWISE[what] * s.pixels_out / (-(-s.pixels_out // wide) * wide))
    if _in_tiles(s, what, code, path):
        return s.flops * (1 / (speed * planar) - 1 / tile_products.FLOPS_PER_NS[tile_products.products(code, path)])
    problem = s.gradient if what == "input" else s
    if what != "weights" and winograd.pays(problem, code, path):
        return s.flops / speed / planar - winograd.cost(problem, code, path)
    return s.flops / speed * (1 / planar - 1 / (CHANNELS_LAST[what] * filled(used, rows, code, path)))


def filled(used: int, rows: int, code: str, path: Cpu) -> float:
    """How much of the register blocks' work is not lost, where `used` is what fills panels and `rows` are summed for a tap."""
    wide = panel_width(code, path)
    return used / (-(-used // wide) * wide) * (rows / (rows + 3))


def stem_gain(s: Sites, code: str, path: Cpu) -> float:
    """Estimated nanoseconds that this form saves on one core against planar results, from measured rates."""
    if not s.flops:
        return 0.0
    speed, inner = path.rates.convolutions * 4 / int(code[1:]), stem.gathered(s)
    copied = s.n * s.pixels_in * s.c * stem.MOVE
    return s.flops / speed * (1 / PLANAR["forward"] - 1 / (CHANNELS_LAST["forward"] * filled(inner.oc, inner.c, code, path))) - copied
