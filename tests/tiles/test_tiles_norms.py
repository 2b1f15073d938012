"""Normalisations on the tile machine: cut over every axis, however they are written, so that none costs much more than batch normalisation."""
from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from peers import needs
from tile_models import build

import tileflow
import tileflow.nn as nn
from tileflow.exact import check
from tileflow.nn.tensor import Tensor
from tileflow.program.program import Program
from tileflow.tiles.hardware.chip import chip
from tileflow.tiles.machine import TileProgram, analyze
from tileflow.tiles.plans.plan import TileOptions

CHANNELS = 64


class Written(nn.Module):
    """Group normalisation written out, as exporters without the operator do: means, a square, a square root."""

    def __init__(self, groups: int, channels: int) -> None:
        self.groups, self.weight, self.bias = groups, nn.Parameter(np.ones(channels, np.float32)), nn.Parameter(np.zeros(channels, np.float32))

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        n, c, h, w = x.shape
        y = x.reshape(n, self.groups, -1)
        y = y - y.mean(2, True)
        y = (y / ((y ** 2.0).mean(2, True) + 1e-5).sqrt()).reshape(n, c, h, w)
        return y * self.weight.reshape(1, c, 1, 1) + self.bias.reshape(1, c, 1, 1)


NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "batch": lambda c, size: nn.BatchNorm2d(c), "group": lambda c, size: nn.GroupNorm(4, c), "one group": lambda c, size: nn.GroupNorm(1, c),
    "instance": lambda c, size: nn.InstanceNorm2d(c, affine=True), "layer": lambda c, size: nn.LayerNorm((c, size, size)),
    "written": lambda c, size: Written(4, c)}


def cnn(norm: str, size: int, channels: int = CHANNELS, layers: int = 3) -> nn.Module:
    """Convolutions of 64 channels, each normalised, and a classifier."""
    parts: list[nn.Module] = []
    for i in range(layers):
        parts += [nn.Conv2d(channels if i else 3, channels, 3, padding=1), NORMS[norm](channels, size), nn.ReLU()]
    return nn.Sequential(*parts, nn.GlobalAvgPool(), nn.Flatten(), nn.Linear(channels, 10))


@functools.cache
def tiled(norm: str, batch: int, size: int, precision: str = "32.32", training: bool = True) -> TileProgram:
    return analyze(build(cnn(norm, size), (batch, 3, size, size), training), chip("gc200"), TileOptions(precision=precision), {})


@pytest.mark.parametrize(("batch", "size", "precision"), [
    (2, 32, "32.32"), (8, 32, "32.32"), (2, 64, "32.32"), (16, 16, "32.32"), (8, 32, "16.16"), (2, 32, "16.16"), (2, 64, "16.16")])
@pytest.mark.parametrize("norm", [n for n in NORMS if n != "batch"])
def test_training_costs_what_batch_normalisation_does(norm: str, batch: int, size: int, precision: str) -> None:
    """Nearly its cycles and its memory: no tile holds more than others, and of a layer no more than x and numbers per group are kept."""
    found, batches = tiled(norm, batch, size, precision), tiled("batch", batch, size, precision)
    assert found.cycles_per_update <= 1.12 * batches.cycles_per_update
    assert found.peak.max() <= 1.12 * batches.peak.max()


@pytest.mark.parametrize("norm", NORMS)
def test_no_step_stays_on_the_tiles_of_the_groups(norm: str) -> None:
    """Steps over all elements of an image run on hundreds of tiles, though there are but eight groups, however the norm is written."""
    made = tiled(norm, 2, 32)
    whole = 2 * CHANNELS * 32 * 32
    steps = [s for s in made.steps if s.plan.vertex != "none" and max((v.type.size for v in s.node.operands), default=0) >= whole]
    assert len(steps) >= 20
    assert min(s.plan.tiles for s in steps) >= 128
    assert made.peak.max() <= 1.5 * made.peak.mean()


def test_a_chip_holds_group_normalisation_where_it_holds_batch_normalisation() -> None:
    """Tiles that batch normalisation fills but for a tenth hold group normalisation, too."""
    memory = int(tiled("batch", 2, 64).peak.max() / 0.9)
    small = chip("gc200").variant(bytes_per_tile=memory)
    for norm in ("batch", "group"):
        program = build(cnn(norm, 64), (2, 3, 64, 64))
        assert analyze(program, small, TileOptions(), {}).fits, norm


@pytest.mark.parametrize("precision", ["32.32", "16.16"])
@pytest.mark.parametrize("norm", ["group", "written"])
def test_tiles_compute_the_planned_split(norm: str, precision: str) -> None:
    """Statistics of groups that several tiles hold come together in partials, forward and backward."""
    machine = chip("gc200").variant(tiles=32)
    made = analyze(build(cnn(norm, 32, 8, 1), (1, 3, 32, 32)), machine, TileOptions(precision=precision), {})
    assert any(s.plan.reduce_stages and "GroupNormalization" in s.node.op.name for s in made.steps)
    report = check(made)
    assert report.ok, report.to_text()


FORMS = ["torchscript training", "torchscript evaluation", "dynamo training", "dynamo evaluation"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["32.32", "16.16"])
@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize(("network", "norms"), [("small", 3), ("resnet_50", 53)])
def test_groups_as_exporters_write_them(network: str, norms: int, how: str, precision: str) -> None:
    """Groups of channels in place of batches, in the files of both exporters of PyTorch, in training and by their defaults."""
    found, batches = of_file(network, "group", how, precision), of_file(network, "batch", "torchscript training", precision)
    assert [sum(s.node.op.name == f"GroupNormalization{form}" for s in found.steps) for form in ("Training", "Grad")] == [norms, norms]
    assert found.cycles_per_update <= 1.3 * batches.cycles_per_update
    assert found.peak.max() <= 1.1 * batches.peak.max()


@functools.cache
def of_file(network: str, norm: str, how: str, precision: str) -> TileProgram:
    return analyze(exported(network, norm, how), chip("gc200"), TileOptions(precision=precision))


@functools.cache
def exported(network: str, norm: str, how: str) -> Program:
    """The training program of a network of PyTorch's in the file of one of its exporters, two images a micro-batch."""
    torch = needs("torch")
    make, size, groups = {"small": (torch_small, 32, 4), "resnet_50": (torch_resnet, 224, 32)}[network]
    net = make(torch.nn.BatchNorm2d if norm == "batch" else lambda c: torch.nn.GroupNorm(groups, c)).train(how.endswith("training"))
    trains, modes = net.training, torch.onnx.TrainingMode
    file, image = io.BytesIO(), torch.zeros(2, 3, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how.startswith("torchscript"):
            torch.onnx.export(net, (image,), file, dynamo=False, training=modes.TRAINING if trains else modes.EVAL, do_constant_folding=not trains)
        else:
            needs("onnxscript")
            torch.onnx.export(net, (image,), file, dynamo=True, external_data=False, verbose=False, optimize=not trains)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(file.getvalue())
        made = tileflow.compile(path, training=True, machine="gc200", micro_batch_size=2, allow_out_of_memory=True)
    assert made.tiled is not None
    return made.tiled.program


def torch_small(norm: Callable[[int], Any]) -> Any:
    """PyTorch's form of `cnn`."""
    nn_ = needs("torch").nn
    layers: list[Any] = []
    for i in range(3):
        layers += [nn_.Conv2d(CHANNELS if i else 3, CHANNELS, 3, padding=1), norm(CHANNELS), nn_.ReLU()]
    return nn_.Sequential(*layers, nn_.AdaptiveAvgPool2d(1), nn_.Flatten(), nn_.Linear(CHANNELS, 10))


def torch_resnet(norm: Callable[[int], Any]) -> Any:
    """ResNet-50 (He et al., 2016; stride in the 3x3 convolution) with a norm of one's choice."""
    nn_ = needs("torch").nn

    class Bottleneck(nn_.Module):                              # type: ignore[name-defined,misc]
        def __init__(self, inputs: int, middle: int, stride: int) -> None:
            super().__init__()
            outputs, conv = 4 * middle, functools.partial(nn_.Conv2d, bias=False)
            self.body = nn_.Sequential(conv(inputs, middle, 1), norm(middle), nn_.ReLU(), conv(middle, middle, 3, stride, 1), norm(middle),
                                       nn_.ReLU(), conv(middle, outputs, 1), norm(outputs))
            self.short = nn_.Sequential(conv(inputs, outputs, 1, stride), norm(outputs)) if stride > 1 or inputs != outputs else nn_.Identity()

        def forward(self, x: Any) -> Any:
            return nn_.functional.relu(self.body(x) + self.short(x))

    layers, width = [nn_.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), nn_.ReLU(), nn_.MaxPool2d(3, 2, 1)], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for i in range(count):
            layers.append(Bottleneck(width, 64 << stage, 2 if stage and not i else 1))
            width = 256 << stage
    return nn_.Sequential(*layers, nn_.AdaptiveAvgPool2d(1), nn_.Flatten(), nn_.Linear(width, 1000))
