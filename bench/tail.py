"""`python -m bench.tail DIR`: ONNX files of the classes of models that run slowest beside peers, two of each, for
`python -m bench models DIR`.

PyTorch's exporter writes them from modules with random weights, ONNX Runtime's tools put 8-bit integers into the
encoders; both are needed. A file is called CLASS_NAME.onnx, so that `--only loop` measures a class.
"""
from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from .peer_modules import Bert, Vit, _conv, mobilenet_v2

OPSET = 17
Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


# ---- loops over small bodies -----------------------------------------------------------------------------------------

class Viterbi(nn.Module):
    """The best path's score at each step of a conditional random field: scores [steps, tags]."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.randn(tags, tags))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        best = scores[0]
        for t in range(1, scores.shape[0]):
            best = (best.unsqueeze(1) + self.transitions).max(0)[0] + scores[t]
        return best


class Decoder(nn.Module):
    """A recurrent cell that reads its own choices: state [1, width] -> tokens [1, up to `steps`], the last one `end`
    where there is one."""

    def __init__(self, width: int, vocabulary: int, steps: int) -> None:
        super().__init__()
        self.steps, self.end = steps, vocabulary  # a token that no choice gives: random weights would end anywhere
        self.tokens, self.mix = nn.Embedding(vocabulary, width), nn.Linear(2 * width, width)
        self.gate = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        token = self.head(state).argmax(1)
        chosen = [token]
        while len(chosen) < self.steps and int(token) != self.end:
            seen = torch.cat([self.tokens(token), state], 1)
            keep = torch.sigmoid(self.gate(seen))
            state = keep * state + (1 - keep) * torch.tanh(self.mix(seen))
            token = self.head(state).argmax(1)
            chosen.append(token)
        return torch.stack(chosen, 1)


class Caching(nn.Module):
    """A decoder that attends to its own keys and values: those of a beginning, [rows, width] each -> tokens
    [1 + `steps`]."""

    def __init__(self, width: int, vocabulary: int, steps: int) -> None:
        super().__init__()
        self.steps, self.end = steps, vocabulary
        self.tokens, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.scale = width ** -0.5

    def forward(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        token = torch.zeros(1, dtype=torch.int64)
        tokens, turn = token, 0
        while turn < self.steps and int(token) != self.end:
            x = self.tokens(token)
            keys, values = torch.cat([keys, self.key(x)], 0), torch.cat([values, self.value(x)], 0)
            shares = torch.softmax(self.query(x) @ keys.t() * self.scale, -1)
            token = self.head(shares @ values + x).argmax(1)
            tokens = torch.cat([tokens, token], 0)
            turn += 1
        return tokens


# ---- recurrent layers of one row -------------------------------------------------------------------------------------

class Gru(nn.Module):
    """Frames [1, steps, features] to masks of the same shape, as denoisers have it."""

    def __init__(self, features: int, width: int, layers: int, both: bool) -> None:
        super().__init__()
        self.enter, self.cells = nn.Linear(features, width), nn.GRU(width, width, layers, batch_first=True,
                                                                    bidirectional=both)
        self.leave = nn.Linear(width * (1 + both), features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.leave(self.cells(torch.relu(self.enter(x)))[0]))


# ---- small images ----------------------------------------------------------------------------------------------------

class Excited(nn.Module):
    """An inverted residual with a squeeze and hard swish (Howard et al., 2019)."""

    def __init__(self, width: int, middle: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.wide = _conv(width, middle, 1, act=nn.Hardswish)
        self.deep = _conv(middle, middle, kernel, stride, middle, nn.Hardswish)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(middle, middle // 4, 1), nn.ReLU(),
                                     nn.Conv2d(middle // 4, middle, 1), nn.Hardsigmoid())
        self.narrow, self.residual = _conv(middle, outputs, 1, act=None), stride == 1 and width == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.deep(self.wide(x))
        y = self.narrow(y * self.squeeze(y))
        return x + y if self.residual else y


def _excited() -> nn.Sequential:
    return nn.Sequential(_conv(3, 16, 3, 2, act=nn.Hardswish), Excited(16, 48, 24, 3, 2), Excited(24, 72, 24, 3, 1),
                         Excited(24, 96, 40, 5, 2),
                         Excited(40, 160, 40, 5, 1), Excited(40, 160, 48, 5, 1), Excited(48, 240, 96, 5, 2),
                         Excited(96, 480, 96, 5, 1))


# ---- spectral front ends ---------------------------------------------------------------------------------------------

def _fourier(size: int) -> torch.Tensor:
    """Rows of cosines, then of sines, under Hann's window."""
    angle = 2 * math.pi / size * torch.outer(torch.arange(size // 2 + 1), torch.arange(size))
    return torch.cat([angle.cos(), -angle.sin()]) * torch.hann_window(size)


class LogMel(nn.Module):
    """Samples [1, n] to logarithms of `mels` bands; frames by a strided convolution, or gathered. `cepstra`: of their
    cosine transform, so many."""

    def __init__(self, size: int, hop: int, mels: int, samples: int, gathered: bool, cepstra: int = 0) -> None:
        super().__init__()
        self.hop, self.gathered, self.bins = hop, gathered, size // 2 + 1
        self.register_buffer("table", _fourier(size))
        self.register_buffer("bands", torch.rand(self.bins, mels))
        self.register_buffer("places", torch.arange(0, samples - size + 1, hop)[:, None] + torch.arange(size))
        self.register_buffer("cosines",
                             torch.cos(math.pi / mels * torch.outer(torch.arange(mels) + 0.5, torch.arange(cepstra))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gathered:
            frames = x[:, self.places] @ self.table.T
        else:
            frames = functional.conv1d(x[:, None], self.table[:, None], stride=self.hop).transpose(1, 2)
        power = frames[..., :self.bins] ** 2 + frames[..., self.bins:] ** 2
        found = torch.log(torch.clamp(power @ self.bands, min=1e-10))
        return found @ self.cosines if self.cosines.shape[1] else found


# ---- recognisers of wide, low images ---------------------------------------------------------------------------------

class Crnn(nn.Module):
    """Images [1, 1, 32, w] to scores of characters (Shi et al., 2015)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.seen = nn.Sequential(_conv(1, 64), nn.MaxPool2d(2), _conv(64, 128), nn.MaxPool2d(2), _conv(128, 256),
                                  _conv(256, 256),
                                  nn.MaxPool2d((2, 1)), _conv(256, 512), nn.MaxPool2d((2, 1)),
                                  nn.Conv2d(512, 512, (2, 1)), nn.ReLU())
        self.cells, self.head = nn.LSTM(512, 256, bidirectional=True), nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.seen(x).squeeze(2).permute(2, 0, 1))[0]).softmax(-1)


class Svtr(nn.Module):
    """Images [1, 3, 48, w]: separable convolutions, then attention along the width (Du et al., 2022, in small)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.seen = nn.Sequential(_conv(3, 32, 3, 2, act=nn.Hardswish), *(
            layer for a, b, stride in ((32, 64, 1), (64, 128, (2, 1)), (128, 128, 1), (128, width, (2, 1)))
            for layer in (_conv(a, a, 3, stride, a, nn.Hardswish), _conv(a, b, 1, act=nn.Hardswish))))
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.seen(x).mean(2).transpose(1, 2))).softmax(-1)


# ---- detectors -------------------------------------------------------------------------------------------------------

class Split(nn.Module):
    """Half of the channels go through bottlenecks (Wang et al., 2019)."""

    def __init__(self, width: int, outputs: int, count: int) -> None:
        super().__init__()
        half = outputs // 2
        self.one, self.two, self.out = (_conv(a, b, 1, act=nn.SiLU)
                                        for a, b in ((width, half), (width, half), (outputs, outputs)))
        self.inner = nn.Sequential(*(nn.Sequential(_conv(half, half, 1, act=nn.SiLU), _conv(half, half, act=nn.SiLU))
                                     for _ in range(count)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.inner(self.one(x)), self.two(x)], 1))


class Detector(nn.Module):
    """Three scales, joined from the coarsest to the finest, and a head for each: boxes and classes [1, places, 5 +
    classes]."""

    def __init__(self, stages: list[nn.Module], widths: list[int], join: Callable[[int, int], nn.Module],
                 classes: int) -> None:
        super().__init__()
        self.stages, outputs = nn.ModuleList(stages), 5 + classes
        self.joins = nn.ModuleList(join(a + b, a) for a, b in zip(widths, [*widths[1:], 0], strict=True))
        self.heads = nn.ModuleList(nn.Conv2d(width, outputs, 1) for width in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        found, coarse = [], None
        for scale, join, head in reversed(list(zip(kept, self.joins, self.heads, strict=True))):
            coarse = join(scale if coarse is None
                          else torch.cat([scale, functional.interpolate(coarse, scale_factor=2.0)], 1))
            found.append(head(coarse).flatten(2))
        return torch.cat(found, 2).transpose(1, 2).sigmoid()


def _silu_detector() -> nn.Module:
    def stage(a: int, b: int, count: int) -> nn.Module:
        return nn.Sequential(_conv(a, b, 3, 2, act=nn.SiLU), Split(b, b, count))
    first = nn.Sequential(_conv(3, 16, 3, 2, act=nn.SiLU), stage(16, 32, 1), stage(32, 64, 2))
    return Detector([first, stage(64, 128, 2), stage(128, 256, 1)], [64, 128, 256], lambda a, b: Split(a, b, 1), 20)


def _separable_detector() -> nn.Module:
    def separable(a: int, b: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(_conv(a, a, 5, stride, a, nn.Hardswish), _conv(a, b, 1, act=nn.Hardswish))
    first = nn.Sequential(_conv(3, 16, 3, 2, act=nn.Hardswish), separable(16, 32, 2), separable(32, 64, 2),
                          separable(64, 64))
    return Detector([first, nn.Sequential(separable(64, 128, 2), separable(128, 128)),
                     nn.Sequential(separable(128, 256, 2), separable(256, 256))],
                    [64, 128, 256], separable, 10)


# ---- the files -------------------------------------------------------------------------------------------------------

def _normal(*shape: int) -> tuple[torch.Tensor]:
    return (torch.randn(*shape),)


def _pixels(side: int, width: int = 0, channels: int = 3) -> tuple[torch.Tensor]:
    return _normal(1, channels, side, width or side)


FILES: dict[str, Callable[[], Made]] = {
    "loop_viterbi": lambda: (torch.jit.script(Viterbi(24)), _normal(128, 24)),
    "loop_decoder": lambda: (torch.jit.script(Decoder(128, 500, 40)), _normal(1, 128)),
    "cache_short": lambda: (torch.jit.script(Caching(64, 100, 40)), (*_normal(2, 64), *_normal(2, 64))),
    "cache_long": lambda: (torch.jit.script(Caching(96, 500, 120)), (*_normal(8, 96), *_normal(8, 96))),
    "gru_denoiser": lambda: (Gru(65, 256, 2, False), _normal(1, 100, 65)),
    "gru_both": lambda: (Gru(80, 128, 1, True), _normal(1, 200, 80)),
    "small_mobilenet_v2": lambda: (mobilenet_v2(), _pixels(64)),
    "small_excited": lambda: (nn.Sequential(_excited(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 100)),
                              _pixels(96)),
    "spectral_convolved": lambda: (LogMel(400, 160, 80, 16000, False), _normal(1, 16000)),
    "spectral_gathered": lambda: (LogMel(512, 160, 40, 16000, True, 13), _normal(1, 16000)),
    "int8_encoder": lambda: (Bert(3, 256, 4, 2000, 64), (torch.ones(1, 32, dtype=torch.int64),)),
    "int8_qdq_encoder": lambda: (Vit(3, 192, 3, 10), _pixels(32)),
    "wide_crnn": lambda: (Crnn(37), _pixels(32, 200, 1)),
    "wide_svtr": lambda: (Svtr(192, 97), _pixels(48, 320)),
    "detector_silu": lambda: (_silu_detector(), _pixels(320)),
    "detector_separable": lambda: (_separable_detector(), _pixels(416)),
}
"""By name: the class, then what it is."""


def write(name: str, folder: Path) -> Path:
    """The file of this name."""
    torch.manual_seed(0)
    # the exporter does not know the operator of PyTorch's encoder layers
    torch.backends.mha.set_fastpath_enabled(False)
    module, arguments = FILES[name]()
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        torch.onnx.export(module.eval(), arguments, str(path), opset_version=OPSET, dynamo=False, input_names=["x"],
                          output_names=["y"])
    if name.startswith("int8"):
        _quantised(path, arguments[0] if "qdq" in name else None)
    return path


def _quantised(path: Path, calibration: torch.Tensor | None) -> None:
    """The file with products of 8-bit integers: scales of its data found at each call or, from such data,
    beforehand."""
    from onnxruntime import quantization
    wide = path.rename(path.with_suffix(".wide"))
    try:
        if calibration is None:
            quantization.quantize_dynamic(wide, path)
        else:
            reader = _Calibration([{"x": calibration.numpy()}])
            quantization.quantize_static(wide, path, reader, quant_format=quantization.QuantFormat.QDQ)
    finally:
        wide.unlink()


class _Calibration:
    """What ONNX Runtime asks for data: one row after the other, then None."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self._rows = iter(rows)

    def get_next(self) -> dict[str, object] | None:
        return next(self._rows, None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tail", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files are written")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        print(write(name, folder), flush=True)


if __name__ == "__main__":
    main()
