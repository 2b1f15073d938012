"""Networks of the tile machine's benchmarks, built with tileflow.nn: ResNets and ResNeXts, EfficientNets, BERTs,
ViT-base.

    program = resnet_program(50, micro_batch=20, gradient_accumulation=6)        # planned, not run: takes no memory for weights
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import tileflow
from tileflow import compiler, nn
from tileflow.graph import Builder, Graph, TensorType, Value
from tileflow.nn import Tensor
from tileflow.nn.init import kaiming_normal, normal
from tileflow.nn.module import record
from tileflow.nn.tensor import cat
from tileflow.optim import Optimizer
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.strategy.mark import Marking

VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2
"""Of BERT (Devlin et al., 2019), uncased."""
MASKED = -10000.0
"""Added to attention scores of positions that must not be seen."""


# ---- residual networks (He et al., 2016; stride in the 3x3 convolution of a bottleneck) -------------------------------------

class Pixels(nn.Module):
    """Images of bytes become numbers, less the mean and over the deviation of all pixels (ImageNet's, about)."""

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return (x.float() - 118.0) * (1 / 58.0)


@dataclass(frozen=True)
class Norm:
    """What follows a convolution: normalisation over the batch, of groups of channels, or a bias into which it was
    folded."""

    groups: int = 0
    folded: bool = False

    def of(self, channels: int) -> nn.Module:
        return nn.Identity() if self.folded else nn.GroupNorm(self.groups,
                                                              channels) if self.groups else nn.BatchNorm2d(channels)


BATCH, FOLDED = Norm(), Norm(folded=True)


class ConvBlock(nn.Module):
    """Convolution, normalisation and, unless it closes a residual branch, a ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, relu: bool = True, groups: int = 1,
                 norm: Norm = BATCH) -> None:
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=norm.folded)
        self.conv.weight = nn.Parameter(kaiming_normal(self.conv.weight.shape, outputs // groups * kernel * kernel))
        self.norm = norm.of(outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y: Tensor = self.norm(self.conv(x))
        return y.relu() if self.relu else y


class Residual(nn.Module):
    """A residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 with a fourth of the channels in the middle
    (`bottleneck`; a half where those are in `groups`)."""

    def __init__(self, inputs: int, outputs: int, stride: int, bottleneck: bool, groups: int = 1,
                 norm: Norm = BATCH) -> None:
        if bottleneck:
            middle = outputs // (4 if groups == 1 else 2)
            self.branch = nn.Sequential(ConvBlock(inputs, middle, 1, norm=norm),
                                        ConvBlock(middle, middle, 3, stride, groups=groups, norm=norm),
                                        ConvBlock(middle, outputs, 1, relu=False, norm=norm))
        else:
            self.branch = nn.Sequential(ConvBlock(inputs, outputs, 3, stride, norm=norm),
                                        ConvBlock(outputs, outputs, 3, relu=False, norm=norm))
        widens = stride > 1 or inputs != outputs
        self.shortcut = ConvBlock(inputs, outputs, 1, stride, relu=False, norm=norm) if widens else None

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y: Tensor = self.branch(x)
        return (y + (x if self.shortcut is None else self.shortcut(x))).relu()


class ResNet(nn.Module):
    """ResNet of 18, 50 or 101 layers, with groups a ResNeXt: images [N, 3, 224, 224] -> scores of 1,000 classes."""

    BLOCKS: ClassVar = {18: (False, (2, 2, 2, 2)), 50: (True, (3, 4, 6, 3)), 101: (True, (3, 4, 23, 3))}

    def __init__(self, layers: int, classes: int = 1000, groups: int = 1, norm: Norm = BATCH,
                 pixels: bool = False) -> None:
        bottleneck, counts = self.BLOCKS[layers]
        self.pixels = Pixels() if pixels else nn.Identity()
        self.stem = ConvBlock(3, 64, 7, 2, norm=norm)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        width = 64
        for stage, count in enumerate(counts):
            for i in range(count):
                outputs = 64 * 2 ** stage * (4 if bottleneck else 1)
                blocks.append(Residual(width, outputs, 2 if stage and not i else 1, bottleneck, groups, norm))
                width = outputs
        self.blocks = nn.Sequential(*blocks)
        self.mean = nn.GlobalAvgPool()
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y: Tensor = self.mean(self.blocks(self.pool(self.stem(self.pixels(x)))))
        return self.head(y.flatten())


# ---- EfficientNets (Tan and Le, 2019) with convolutions in groups of several channels (Masters et al., 2021) ---------

class Squeeze(nn.Module):
    """Each channel times a number from 0 to 1, by a small network of the means of all channels."""

    def __init__(self, channels: int, reduced: int) -> None:
        self.mean = nn.GlobalAvgPool()
        self.narrow, self.wide = nn.Conv2d(channels, reduced, 1), nn.Conv2d(reduced, channels, 1)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        return x * self.wide(self.activation(self.narrow(self.mean(x)))).sigmoid()


class Inverted(nn.Module):
    """1x1 to more channels, k x k in groups of `dim` channels, squeezed, 1x1 back; added to its input where shapes
    agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int, dim: int, norm: Norm) -> None:
        middle = inputs * expand
        self.expand = ConvBlock(inputs, middle, 1, relu=False, norm=norm) if expand > 1 else None
        self.inside = ConvBlock(middle, middle, kernel, stride, relu=False, groups=max(1, middle // dim), norm=norm)
        self.squeeze = Squeeze(middle, max(1, inputs // 4))
        self.project = ConvBlock(middle, outputs, 1, relu=False, norm=norm)
        self.activation, self.added = nn.SiLU(), stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = x if self.expand is None else self.activation(self.expand(x))
        y = self.project(self.squeeze(self.activation(self.inside(y))))
        return x + y if self.added else y


class EfficientNet(nn.Module):
    """EfficientNet of a size: images of bytes [N, 3, S, S] -> scores of 1,000 classes. `dim`: channels of a group."""

    STAGES: ClassVar = ((3, 1, 16, 1), (3, 2, 24, 2), (5, 2, 40, 2), (3, 3, 80, 2), (5, 3, 112, 1), (5, 4, 192, 2),
                        (3, 1, 320, 1))
    """Kernel, blocks, channels and stride."""
    SIZES: ClassVar = {0: (1.0, 1.0, 224), 4: (1.4, 1.8, 380)}
    """Width, depth and pixels a side."""

    def __init__(self, size: int, expand: int, dim: int, norm: Norm) -> None:
        wider, deeper, _ = self.SIZES[size]

        def channels(n: float) -> int:
            rounded = max(8, int(n * wider + 4) // 8 * 8)
            return rounded + 8 if rounded < 0.9 * n * wider else rounded
        width = channels(32)
        self.pixels, self.stem = Pixels(), ConvBlock(3, width, 3, 2, relu=False, norm=norm)
        self.stages: list[nn.Module] = []
        for i, (kernel, count, outputs, stride) in enumerate(self.STAGES):
            blocks: list[nn.Module] = []
            for j in range(math.ceil(count * deeper)):
                blocks.append(Inverted(width, channels(outputs), kernel, 1 if j else stride, expand if i else 1, dim,
                                       norm))
                width = channels(outputs)
            self.stages.append(nn.Sequential(*blocks))
        self.top = ConvBlock(width, channels(1280), 1, relu=False, norm=norm)
        self.activation, self.mean, self.head = nn.SiLU(), nn.GlobalAvgPool(), nn.Linear(channels(1280), 1000)

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = self.activation(self.stem(self.pixels(x)))
        for stage in self.stages:
            y = stage(y)
        return self.head(self.mean(self.activation(self.top(y))).flatten())


# ---- BERT (Devlin et al., 2019), normalisation after each block ------------------------------------------------------------

class EncoderLayer(nn.Module):
    """Self-attention and a two-layer network with GELU, each added to its input and normalised."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        self.attention = nn.MultiheadAttention(hidden, heads)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:      # type: ignore[override]
        y = self.norm1(x + self.dropout(self.attention(x, x, x, mask)))
        out: Tensor = self.norm2(y + self.dropout(self.narrow(self.activation(self.wide(y)))))
        return out


class Bert(nn.Module):
    """BERT with the heads of pre-training.

    Inputs: token, position and segment numbers [N, S] (the `masked` tokens to predict come first), visible [N, S] (1 or 0).
    Outputs: scores of the vocabulary for the first `masked` tokens [N * masked, vocabulary] through the token table, and
    scores of "is the next sentence" [N, 2].

    checkpoints: what each encoder layer gives is kept where the rest of a stage is computed again.
    """

    def __init__(self, layers: int, hidden: int, heads: int, masked: int = 20, vocabulary: int = VOCABULARY, dropout: float = 0.1) -> None:
        self.checkpoints = False
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(POSITIONS, hidden)
        self.segments = nn.Embedding(SEGMENTS, hidden)
        for table in (self.tokens, self.positions, self.segments):
            table.weight = nn.Parameter(normal(table.weight.shape, 0.02))
        self.norm, self.dropout = nn.LayerNorm(hidden), nn.Dropout(dropout)
        self.layers = [EncoderLayer(hidden, heads, dropout) for _ in range(layers)]
        self.transform, self.activation, self.transform_norm = nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden)
        self.bias = nn.Parameter(np.zeros(vocabulary, np.float32))
        self.pooler, self.next_sentence = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        self.masked = masked

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:   # type: ignore[override]
        x = self.dropout(self.norm(self.tokens(tokens) + self.positions(positions) + self.segments(segments)))
        mask = ((1.0 - visible) * MASKED).reshape(visible.shape[0], 1, 1, visible.shape[1])
        for layer in self.layers:
            x = layer(x, mask)
            if self.checkpoints:
                nn.recomputation_checkpoint(x)
        hidden = x.shape[2]
        chosen = x.apply("Slice", starts=(0,), ends=(self.masked,), axes=(1,), steps=(1,)).reshape(-1, hidden)
        chosen = self.transform_norm(self.activation(self.transform(chosen)))
        scores = chosen.apply("Gemm", self.tokens.weight, self.bias, transB=1)
        first = x.apply("Slice", starts=(0,), ends=(1,), axes=(1,), steps=(1,)).reshape(-1, hidden)
        return scores, self.next_sentence(self.pooler(first).tanh())


BERT_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16), "mini": (4, 256, 4)}
"""Layers, hidden size and heads."""


def pretraining_loss(b: Builder, outputs: Sequence[Value]) -> Value:
    """Cross entropies of the masked tokens (labels `words`) and of the next sentence (labels `follows`), added."""
    losses = [b.SoftmaxCrossEntropyLoss(scores, b.input(name, TensorType("int64", scores.shape[:1])), reduction="mean")
              for scores, name in zip(outputs, ("words", "follows"), strict=True)]
    return b.Add(*(v[0] if isinstance(v, tuple) else v for v in losses))


# ---- vision transformers (Dosovitskiy et al., 2021), normalisation before each block ----------------------------------------

class ViTLayer(nn.Module):
    """Self-attention and a two-layer network with GELU, each of what is normalised, added to what was."""

    def __init__(self, hidden: int, heads: int, dropout: float = 0.0) -> None:
        self.norm1, self.attention = nn.LayerNorm(hidden), nn.MultiheadAttention(hidden, heads)
        self.norm2, self.wide, self.narrow = nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, y))
        out: Tensor = x + self.dropout(self.narrow(self.activation(self.wide(self.norm2(x)))))
        return out


class ViT(nn.Module):
    """ViT with patches of 16x16: images [N, 3, image, image] -> scores [N, classes], from a token of its own before the patches.

    checkpoints: what each layer gives is kept where the rest of a stage is computed again.
    """

    def __init__(self, layers: int, hidden: int, heads: int, classes: int, image: int = 224, patch: int = 16,
                 dropout: float = 0.0) -> None:
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.token = nn.Parameter(normal((1, 1, hidden), 0.02))
        self.positions = nn.Parameter(normal((1, 1 + (image // patch) ** 2, hidden), 0.02))
        self.layers = [ViTLayer(hidden, heads, dropout) for _ in range(layers)]
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, classes)
        self.checkpoints = False

    def forward(self, x: Tensor) -> Tensor:                    # type: ignore[override]
        y = self.patches(x)
        rows, hidden = y.shape[0], y.shape[1]
        y = y.reshape(rows, hidden, -1).transpose(1, 2)
        y = cat([self.token.expand(rows, 1, hidden), y], 1) + self.positions
        for layer in self.layers:
            y = layer(y)
            if self.checkpoints:
                nn.recomputation_checkpoint(y)
        first = self.norm(y).apply("Slice", starts=(0,), ends=(1,), axes=(1,), steps=(1,)).reshape(rows, hidden)
        return self.head(first)


VIT_SIZES = {"base": (12, 768, 12), "mini": (2, 32, 2)}
"""Layers, hidden size and heads."""


# ---- programs ---------------------------------------------------------------------------------------------------------------

Stages = Sequence[tuple[nn.Module, int]]
"""The layers with which a stage begins, and its IPU; what comes before the first is stage 0, on IPU 0."""


def training_program(net: nn.Module, inputs: Sequence[tuple[str, TensorType]], loss: Any, optimizer: Optimizer, batching: Batching,
                     stages: Stages = ()) -> Program:
    """The training Program of a network for inputs of these types; with stages, marked for a pipeline that recomputes."""
    for layer, ipu in stages:
        nn.begin_block(layer, ipu_id=ipu)
    marking = Marking("pipelined", auto_stage="auto_increment") if stages else None
    return compiler.training(record(net, inputs, training=True, dtype="float32"), loss, optimizer, batching,
                             compiler.CompileOptions(marking=marking)).program


def resnet_program(layers: int, micro_batch: int, gradient_accumulation: int = 1, image: int = 224,
                   optimizer: Optimizer | None = None,
                   groups: int = 1, norm: Norm = BATCH, pixels: bool = False, cuts: Sequence[int] = ()) -> Program:
    """Training of a ResNet with momentum SGD and weight decay, cross entropy; weights take no memory.

    Args:
        groups: of the convolutions in the middle of a block (a ResNeXt). pixels: images come as bytes. cuts: in a
            pipeline, the blocks with which IPU 1, 2 ... begin.
    """
    from tileflow.loss import find
    with nn.skip_init():
        net = ResNet(layers, groups=groups, norm=norm, pixels=pixels)
    images = TensorType("uint8" if pixels else "float32", (micro_batch, 3, image, image))
    return training_program(net, [("image", images)], find("cross_entropy"),
                            optimizer or tileflow.optim.SGD(lr=2.0, momentum=0.9, weight_decay=1e-4),
                            Batching(micro_batch, gradient_accumulation),
                            [(net.blocks[block], 1 + i) for i, block in enumerate(cuts)])


def resnet_inference(layers: int, micro_batch: int, device_iterations: int) -> Program:
    """A ResNet whose normalisations were folded into its convolutions; weights take no memory."""
    with nn.skip_init():
        net = ResNet(layers, norm=FOLDED)
    graph = record(net, [("image", TensorType("float32", (micro_batch, 3, 224, 224)))], training=False, dtype="float32")
    return compiler.inference(graph, Batching(micro_batch, device_iterations=device_iterations)).program


def efficientnet_program(size: int, micro_batch: int, gradient_accumulation: int, expand: int, dim: int, norm: Norm,
                         cuts: Sequence[int] = ()) -> Program:
    """Training of an EfficientNet with momentum SGD, cross entropy; weights take no memory. `cuts`: in a pipeline, the
    stages with which IPU 1, 2 ... begin."""
    from tileflow.loss import find
    with nn.skip_init():
        net = EfficientNet(size, expand, dim, norm)
    side = EfficientNet.SIZES[size][2]
    return training_program(net, [("image", TensorType("uint8", (micro_batch, 3, side, side)))], find("cross_entropy"),
                            tileflow.optim.SGD(lr=1.0, momentum=0.885), Batching(micro_batch, gradient_accumulation),
                            [(net.stages[stage], 1 + i) for i, stage in enumerate(cuts)])


def bert_program(size: str, micro_batch: int, gradient_accumulation: int = 1, sequence: int = 128, masked: int = 20,
                 dropout: float = 0.1, layers: int | None = None, optimizer: Optimizer | None = None, cuts: Sequence[int] = (),
                 checkpoints: bool = False) -> Program:
    """Pre-training of a BERT with AdamW; weights take no memory. `layers` overrides the number of encoder layers. `cuts`: in a pipeline, the encoder
    layers with which IPU 1, 2 ... begin; embeddings, heads and what is before are on IPU 0. `checkpoints`: kept behind each encoder layer."""
    count, hidden, heads = BERT_SIZES[size]
    with nn.skip_init():
        net = Bert(count if layers is None else layers, hidden, heads, masked, dropout=dropout)
    net.checkpoints = checkpoints
    numbers = TensorType("int64", (micro_batch, sequence))
    inputs = [(name, numbers) for name in ("tokens", "positions", "segments")]
    return training_program(net, [*inputs, ("visible", numbers.with_dtype("float32"))], pretraining_loss,
                            optimizer or tileflow.optim.AdamW(lr=6e-3, weight_decay=0.01), Batching(micro_batch, gradient_accumulation),
                            [*((net.layers[layer], 1 + i) for i, layer in enumerate(cuts)), (net.transform, 0)] if cuts else [])


def vit_program(size: str, micro_batch: int, gradient_accumulation: int = 1, classes: int = 1000, image: int = 224,
                optimizer: Optimizer | None = None, cuts: Sequence[int] = (), checkpoints: bool = False,
                dropout: float = 0.0) -> Program:
    """Training of a ViT, cross entropy; weights take no memory. `cuts`: in a pipeline, the layers with which IPU 1, 2 ... begin; the patches'
    embedding is on the first IPU, the head on the last. `checkpoints`: kept behind each layer."""
    from tileflow.loss import find
    count, hidden, heads = VIT_SIZES[size]
    with nn.skip_init():
        net = ViT(count, hidden, heads, classes, image, dropout=dropout)
    net.checkpoints = checkpoints
    return training_program(net, [("image", TensorType("float32", (micro_batch, 3, image, image)))], find("cross_entropy"),
                            optimizer or tileflow.optim.AdamW(lr=2e-4, weight_decay=0.01), Batching(micro_batch, gradient_accumulation),
                            [(net.layers[layer], 1 + i) for i, layer in enumerate(cuts)])


def matmul_program(m: int, n: int, k: int) -> Program:
    """A [m, k] times B [k, n], both inputs."""
    graph = Graph("matmul")
    b = Builder(graph)
    a, c = b.input("a", TensorType("float32", (m, k))), b.input("b", TensorType("float32", (k, n)))
    graph.outputs.append(b.MatMul(a, c))
    return compiler.inference(graph, Batching(1)).program


def triad_program(elements: int) -> Program:
    """b + q c of vectors of so many elements."""
    graph = Graph("triad")
    b = Builder(graph)
    x, y = (b.input(name, TensorType("float32", (elements,))) for name in ("b", "c"))
    graph.outputs.append(b.Add(x, b.Mul(y, b.constant(np.float32(3)))))
    return compiler.inference(graph, Batching(1)).program


def parameters(program: Program) -> int:
    """Number of trained weights."""
    return sum(math.prod(s.input.shape) for s in program.micro.parameters)
