"""Twelve networks as people write them in PyTorch, small: each returns its outputs and, last, its loss."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Batch = tuple[torch.Tensor, ...]


class WithLoss(nn.Module):
    """A network and its cross entropy."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        scores = self.net(x)
        return scores, F.cross_entropy(scores.flatten(0, -2), y.flatten())


class Sign(torch.autograd.Function):
    """Straight through: the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def images(channels: int = 3, size: int = 12, classes: int = 5, rows: int = 4) -> Callable[[], Batch]:
    return lambda: (torch.randn(rows, channels, size, size), torch.randint(0, classes, (rows,)))


def tokens(length: int = 6, vocabulary: int = 17, rows: int = 3) -> Callable[[], Batch]:
    def draw() -> Batch:
        x = torch.randint(0, vocabulary, (rows, length))
        return x, x.roll(-1, 1)
    return draw


def cnn() -> nn.Module:
    return WithLoss(
        nn.Sequential(
            nn.Conv2d(3, 6, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 5),
        )
    )


class Residual(nn.Module):
    def __init__(self, n: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.down = (
            nn.Sequential(nn.Conv2d(n, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride > 1 or n != out
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.down(x))


def resnet() -> nn.Module:
    return WithLoss(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            Residual(8, 8, 1),
            Residual(8, 12, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(12, 5),
        )
    )


class Inverted(nn.Module):
    """A block of MobileNetV3: expanded, depthwise, squeezed and excited, projected."""

    def __init__(self, n: int, wide: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(n, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 4, 1), nn.ReLU(), nn.Conv2d(4, wide, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(wide, n, 1, bias=False), nn.BatchNorm2d(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.expand(x))
        return x + self.project(y * self.squeeze(y))


def mobilenet() -> nn.Module:
    return WithLoss(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            Inverted(8, 16),
            Inverted(8, 12),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )
    )


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.cls, self.positions = nn.Parameter(torch.randn(1, 1, 16) * 0.1), nn.Parameter(torch.randn(1, 10, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.encoder(x))[:, 0])


class Bert(nn.Module):
    """An encoder of tokens with a mask of padding, and its head tied to the embedding, with a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = (
            nn.Embedding(17, 16, padding_idx=0),
            nn.Embedding(6, 16),
            nn.LayerNorm(16, eps=1e-12),
        )
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 24, 0.0, "gelu", batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 17)
        self.head.weight = self.words.weight
        self.register_buffer("ids", torch.arange(6)[None], persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        h = self.norm(self.words(x) + self.places(self.ids[:, :x.shape[1]]))
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=x == 0)
        scores = self.head(h)
        return {"logits": scores, "loss": F.cross_entropy(scores.transpose(1, 2), y, ignore_index=0)}


class CausalBlock(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8, dtype=torch.bool))[None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            t.view(rows, length, self.heads, -1).transpose(1, 2) for t in self.attn(self.ln_1(x)).split(width, 2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~self.mask[:, :, :length, :length], float("-inf")).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(rows, length, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(17, 16), nn.Embedding(8, 16)
        self.h, self.ln_f = nn.ModuleList(CausalBlock() for _ in range(2)), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            h = block(h)
        scores = self.ln_f(h) @ self.wte.weight.T
        return (
            scores
            if labels is None
            else (scores, F.cross_entropy(scores[:, :-1].reshape(-1, 17), labels[:, :-1].reshape(-1)))
        )


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class LlamaBlock(nn.Module):
    """Rotary positions, two keys for four queries, a gated product."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, n, bias=False) for n in (16, 8, 8, 16))
        self.gate, self.up, self.down = (
            nn.Linear(16, 24, bias=False),
            nn.Linear(16, 24, bias=False),
            nn.Linear(24, 16, bias=False),
        )
        self.norm1, self.norm2 = RmsNorm(16), RmsNorm(16)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat([-t[..., 2:], t[..., :2]], -1) * sin for t in (q, k))
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(17, 16), RmsNorm(16)
        self.layers = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.head = nn.Linear(16, 17, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, 4, 2) / 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).to(self.inv_freq.dtype), self.inv_freq)
        angles = torch.cat([angles, angles], -1)
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, angles.cos(), angles.sin())
        return self.head(self.norm(h))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(17, 8), nn.LSTM(8, 10, 2, batch_first=True), nn.Linear(10, 17)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        def two(n: int, m: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(n, m, 3, padding=1),
                nn.GroupNorm(2, m),
                nn.LeakyReLU(0.1),
                nn.Conv2d(m, m, 3, padding=1),
                nn.ELU(),
            )
        self.down1, self.down2, self.middle = two(3, 6), two(6, 8), two(8, 12)
        self.up2, self.back2 = nn.ConvTranspose2d(12, 8, 2, 2), two(16, 8)
        self.back1, self.last = two(14, 6), nn.Conv2d(6, 1, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.back2(torch.cat([b, self.up2(c)], 1))
        scores = self.last(self.back1(torch.cat([a, F.interpolate(b, scale_factor=2, mode="nearest")], 1)))
        return torch.sigmoid(scores), F.binary_cross_entropy_with_logits(scores, y)


class Vae(nn.Module):
    """Its noise is an input, for draws are the engine's own."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.log_var = (
            nn.Sequential(nn.Linear(20, 16), nn.Softplus()),
            nn.Linear(16, 4),
            nn.Linear(16, 4),
        )
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 20))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> Any:
        h = self.encode(x)
        mean, log_var = self.mean(h), self.log_var(h)
        made = self.decode(mean + noise * torch.exp(0.5 * log_var))
        divergence = -0.5 * torch.sum(1 + log_var - mean ** 2 - log_var.exp(), 1).mean()
        return made, F.mse_loss(made, x) + 0.1 * divergence


class TwoInputs(nn.Module):
    """Numbers and categories; outputs in a dict, nested, with what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.category, self.bilinear = nn.Linear(7, 6), nn.Embedding(9, 6), nn.Bilinear(6, 6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, numbers: torch.Tensor, category: torch.Tensor, target: torch.Tensor) -> Any:
        a, b = self.numbers(numbers).sigmoid(), self.category(category).relu()
        h = self.bilinear(a, b)
        y = self.head(h)
        return {"hidden": (a, [h, None]), "y": y, "kind": "two"}, F.smooth_l1_loss(y, target)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 12), nn.LeakyReLU(0.2), nn.Linear(12, 8), nn.Tanh())

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class GanStep(nn.Module):
    """The discriminator's loss, through which no gradient reaches the generator, and then the generator's."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = Generator(), Discriminator()

    def forward(self, z: torch.Tensor, real: torch.Tensor) -> Any:
        made = self.g(z)
        yes, no = self.d(real), self.d(made.detach())
        with torch.no_grad():
            fooled = self.d(made).sigmoid().mean(1)
        loss = F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes)) + F.binary_cross_entropy_with_logits(
            no, torch.zeros_like(no)
        )
        return made, fooled, loss - 0.01 * (made ** 2).mean()


def sevens(rows: int = 5) -> Callable[[], Batch]:
    return lambda: (torch.randn(rows, 7), torch.randint(0, 9, (rows,)), torch.randn(rows, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "cnn": (cnn, images()),
    "resnet": (resnet, images()),
    "mobilenet": (mobilenet, images()),
    "vit": (lambda: WithLoss(Vit()), images()),
    "bert": (Bert, tokens()),
    "gpt2": (Gpt2, tokens()),
    "llama": (lambda: WithLoss(Llama()), tokens()),
    "lstm": (lambda: WithLoss(Lstm()), tokens()),
    "unet": (Unet, lambda: (torch.randn(2, 3, 8, 8), torch.rand(2, 1, 8, 8).round())),
    "vae": (Vae, lambda: (torch.randn(6, 20), torch.randn(6, 4))),
    "two_inputs": (TwoInputs, sevens()),
    "gan": (GanStep, lambda: (torch.randn(6, 4), torch.randn(6, 8))),
}
"""By name: what makes the network, and what draws a micro-batch for it."""
