"""The algorithms of convolution, a record each, and the choice among them: the cheapest one that serves, by estimates from measured rates.

An estimate is a function of sizes, type and CPU path, never of a clock, so that bits repeat. Of equal ones the first in the list wins.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..elementwise.epilogue import Epilogue
from ..isa.cpu import Cpu
from ..isa.half import HALVES
from ..machine.call import Call
from . import depthwise, direct, half, planar, stem, tiles, tiles_weights, weights, winograd
from .panels import WeightPanels
from .problem import ConvProblem

FEW = 512
"""Input times output channels from which widening an image part by part is no slower than widening it whole (16 x 16: 0.90, 16 x 32: 0.99)."""
TURN = 0.15
"""Nanoseconds a byte to turn a tensor, as the layout pass counts them."""


@dataclass(frozen=True)
class Algorithm:
    """One way to do a convolution or the input gradient of one: the forward of the turned problem.

    `serves` says whether it can, and is not foolish for sizes like these; `cost` estimates nanoseconds on one core, weights laid out;
    `panels` says how it wants the weights laid out (None: as they are); `calls` reads images as input 0, weights or what panels made of
    them as input 1, a bias as input 2, and writes output 0. Where it `keeps` the weights, it reads them as they are as well.
    """

    name: str
    serves: Callable[[ConvProblem, str, Cpu], bool]
    cost: Callable[[ConvProblem, str, Cpu], float]
    panels: Callable[[ConvProblem, str, Cpu], WeightPanels | None]
    calls: Callable[..., list[Call]]
    keeps: bool = False


@dataclass(frozen=True)
class WeightGradient:
    """One way to do the gradient of the weights of a problem: `calls(problem, dtype, path, biased=...)` read images as input 0 and dy as
    input 1, and write that of the weights and, where `biased`, of the bias. Not every one has the latter (`biases`)."""

    name: str
    serves: Callable[[ConvProblem, str, Cpu], bool]
    cost: Callable[[ConvProblem, str, Cpu], float]
    calls: Callable[..., list[Call]]
    biases: bool = True


def _turned(p: ConvProblem, dtype: str, path: Cpu, *, biased: bool = False, epilogue: Epilogue | None = None,
            packed: int = 0) -> list[Call]:
    x, y = planar.turned.images(p)
    made = planar.turned.around(choose(p, dtype, path).calls(p, dtype, path, biased=biased), dtype, {0: x}, {0: y})
    return [*made, epilogue.after(y, 1)] if epilogue else made


def _turned_weights(p: ConvProblem, dtype: str, path: Cpu, *, biased: bool) -> list[Call]:
    x, y = planar.turned.images(p)
    return planar.turned.around(choose_weights(p, dtype, path, biased=biased).calls(p, dtype, path, biased=biased), dtype, {0: x, 1: y}, {})


def _unlike_blocks(serves: Callable[[ConvProblem, str, Cpu], bool]) -> Callable[[ConvProblem, str, Cpu], bool]:
    """Where each pixel becomes a block of its own, other ways take two to four times as long, which their estimates do not say."""
    return lambda p, dtype, path: serves(p, dtype, path) and not planar.blocks.serves(p, dtype, path)


CHANNELS_LAST = (
    Algorithm("depthwise", depthwise.serves, depthwise.cost, depthwise.panels, depthwise.calls),
    Algorithm("tiles", tiles.serves, tiles.cost, tiles.panels, tiles.calls),
    Algorithm("winograd", winograd.serves, winograd.cost, winograd.panels, winograd.calls, keeps=True),
    Algorithm("half", half.serves, half.cost, half.panels, half.calls),
    Algorithm("direct", direct.serves, direct.cost, direct.panels, direct.calls),
)
"""Images and results with channels last."""
PLANAR = (
    Algorithm("depthwise planes", planar.depthwise.serves, planar.depthwise.cost, planar.depthwise.panels, planar.depthwise.calls),
    Algorithm("pointwise", planar.pointwise.serves, planar.pointwise.cost, planar.pointwise.panels, planar.pointwise.calls),
    Algorithm("framed", planar.framed.serves, planar.framed.cost, planar.framed.panels, planar.framed.calls),
    Algorithm("unfolded", planar.product.serves, planar.product.cost, planar.product.panels, planar.product.calls),
    Algorithm("blocks", planar.blocks.serves, planar.blocks.cost, planar.blocks.panels, planar.blocks.calls),
    Algorithm("folded", _unlike_blocks(planar.transpose.serves), planar.transpose.cost, planar.transpose.panels, planar.transpose.calls),
    Algorithm("turned", _unlike_blocks(lambda p, dtype, _path: planar.turned.serves(p, dtype)), planar.turned.cost, lambda *_: None, _turned),
)
"""Images and results as planes."""
STEM = (Algorithm("stem", stem.serves, stem.cost, stem.panels, stem.calls),)
"""Images as planes, results with channels last."""

CHANNELS_LAST_WEIGHTS = (
    WeightGradient("depthwise", depthwise.serves, depthwise.cost, depthwise.weight_gradient),
    WeightGradient("tiles", tiles_weights.serves, tiles_weights.cost, tiles_weights.calls),
    WeightGradient("direct", weights.serves, weights.cost, weights.calls),
)
"""Gradients of the weights where channels lie last."""
PLANAR_WEIGHTS = (
    WeightGradient("depthwise planes", planar.depthwise.serves, planar.depthwise.cost, planar.depthwise.weight_gradient),
    WeightGradient("pointwise", planar.pointwise.serves_weights, planar.correlate.cost, planar.pointwise.weight_gradient, biases=False),
    WeightGradient("correlated", planar.correlate.serves, planar.correlate.cost, planar.correlate.calls),
    WeightGradient("turned", lambda p, dtype, _path: planar.turned.serves(p, dtype), planar.correlate.cost, _turned_weights),
)
"""Gradients of the weights where images lie as planes."""


def choose(p: ConvProblem, dtype: str, path: Cpu, among: Sequence[Algorithm] = CHANNELS_LAST) -> Algorithm:
    """The cheapest algorithm that serves; at least one does."""
    by = path.yardstick
    return min((a for a in among if a.serves(p, dtype, by)), key=lambda a: a.cost(p, dtype, by))


def choose_weights(p: ConvProblem, dtype: str, path: Cpu, among: Sequence[WeightGradient] = CHANNELS_LAST_WEIGHTS, *,
                   biased: bool = False) -> WeightGradient:
    """Likewise for the gradient of the weights of `p`, and of the bias where `biased`."""
    by = path.yardstick
    return min((a for a in among if a.serves(p, dtype, by) and (a.biases or not biased)),
               key=lambda a: a.cost(p, dtype, by))


def saved(p: ConvProblem, dtype: str, path: Cpu, *, of_weights: bool = False) -> float:
    """Estimated nanoseconds that channels-last images save on one core: of a convolution, an input gradient, or a gradient `of_weights`."""
    if not p.flops:                                          # no batch, no channels or no pixels
        return 0.0
    if dtype in HALVES:                                      # planar images are turned before and after
        return 1.2 * TURN * 2 * (p.elements_in + p.elements_out)
    path = path.yardstick
    pairs: Any = (CHANNELS_LAST_WEIGHTS, PLANAR_WEIGHTS, choose_weights) if of_weights else (CHANNELS_LAST, PLANAR, choose)
    last, planes, cheapest = pairs
    return float(cheapest(p, dtype, path, planes).cost(p, dtype, path) - cheapest(p, dtype, path, last).cost(p, dtype, path))


def saved_by_stem(p: ConvProblem, dtype: str, path: Cpu) -> float:
    """Likewise of a convolution from planes to channels-last results against planar ones."""
    path = path.yardstick
    return choose(p, dtype, path, PLANAR).cost(p, dtype, path) - stem.cost(p, dtype, path) if p.flops else 0.0


def takes_halves(p: ConvProblem, dtype: str, path: Cpu, *, of_weights: bool = False) -> bool:
    """Whether 16-bit floats are read and written as they are.

    With few channels float32 does better, widened before: pairs fill their vectors no better than it, and it skips what
    meets padding. So it does where it needs fewer products (winograd), but not better than products of pairs.
    """
    path = path.yardstick
    if p.depthwise:
        return p.groups >= tiles.NARROWEST
    if of_weights:
        return p.c >= tiles.NARROWEST
    if tiles.serves(p, dtype, path) or (half.in_pairs(p, dtype, path) and min(p.c, p.oc) >= tiles.NARROWEST):
        return True
    return p.c * p.oc >= FEW and p.c >= tiles.NARROWEST and not winograd.serves(p, "f4", path)
