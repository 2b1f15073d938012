"""Networks as people export them, in miniature: PyTorch's and transformers' own classes with random weights, and both exporters of PyTorch."""
from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto
from peers import needs

torch = needs("torch")
nn = torch.nn
BATCH, TOKENS, WORDS, CLASSES, SIDE = 4, 6, 37, 5, 32


class Double(torch.overrides.TorchFunctionMode):
    """Everything in float64: transformers computes softmaxes, normalisations and angles in float32 whatever the type of a network is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def double(given: Any) -> Any:
            return torch.float64 if given is torch.float32 else given
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(double, args), **{name: double(given) for name, given in (kwargs or {}).items()})


class Called(nn.Module):
    """A network of transformers as a function of one input with one output."""

    def __init__(self, net: Any, output: str, mask: bool, decodes: bool = False, **arguments: Any) -> None:
        """decodes: a decoder reads the tokens, too."""
        super().__init__()
        self.net, self.output, self.mask, self.decodes, self.arguments = net, output, mask, decodes, arguments

    def forward(self, x: Any) -> Any:
        given = {"attention_mask": torch.ones_like(x)} if self.mask else {}
        given |= {"decoder_input_ids": x} if self.decodes else {}
        y = getattr(self.net(x, **given, **self.arguments), self.output)
        return y.transpose(1, 2) if self.output == "logits" and y.dim() == 3 else y        # cross entropy wants the classes in axis 1


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, activation: Any = None) -> Any:
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def groups() -> Any:
    """Group normalisation with and without numbers per channel."""
    norms = [nn.GroupNorm(4, 8), nn.GroupNorm(1, 8, affine=False), nn.GroupNorm(16, 16)]
    convolutions = [nn.Conv2d(3, 8, 3, 2, bias=False), nn.Conv2d(8, 8, 3, 2), nn.Conv2d(8, 16, 3, 2, bias=False)]
    layers = [part for conv, norm in zip(convolutions, norms, strict=True) for part in (conv, norm, nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Any) -> Any:
        scale = self.fc2(nn.functional.relu(self.fc1(nn.functional.adaptive_avg_pool2d(x, 1))))
        return x * nn.functional.hardsigmoid(scale)


class Inverted(nn.Module):
    """MobileNetV3's block: expand, depthwise, squeeze and excite, project."""

    def __init__(self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, excite: bool, activation: Any) -> None:
        super().__init__()
        self.residual = stride == 1 and inputs == outputs
        self.block = nn.Sequential(conv_norm(inputs, hidden, 1, activation=activation),
                                   conv_norm(hidden, hidden, kernel, stride, hidden, activation),
                                   *([SqueezeExcite(hidden)] if excite else []), conv_norm(hidden, outputs, 1))

    def forward(self, x: Any) -> Any:
        return x + self.block(x) if self.residual else self.block(x)


def mobilenet_v3() -> Any:
    """torchvision's layers, of which it cannot be installed without its own PyTorch."""
    return nn.Sequential(
        conv_norm(3, 8, 3, 2, activation=nn.Hardswish), Inverted(8, 16, 8, 3, 1, True, nn.ReLU), Inverted(8, 24, 16, 5, 2, False, nn.Hardswish),
        conv_norm(16, 32, 1, activation=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 40), nn.Hardswish(), nn.Dropout(0.0), nn.Linear(40, CLASSES))


class UNet(nn.Module):
    """Two ways down and two up again, one by a transposed convolution and one by resizing; an output for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv_norm(3, 8, 3, activation=nn.ReLU), conv_norm(8, 12, 3, activation=nn.SiLU)
        self.bottom = conv_norm(12, 16, 3, activation=nn.LeakyReLU)
        self.up = nn.ConvTranspose2d(16, 12, 2, 2)
        self.third, self.fourth = conv_norm(24, 12, 3, activation=nn.ReLU), conv_norm(20, 8, 3, activation=nn.ReLU)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Any) -> Any:
        one = self.first(x)
        two = self.second(nn.functional.max_pool2d(one, 2))
        below = self.bottom(nn.functional.avg_pool2d(two, 2))
        two = self.third(torch.cat([two, self.up(below)], 1))
        wide = nn.functional.interpolate(two, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.head(self.fourth(torch.cat([one, wide], 1)))


class Recurrent(nn.Module):
    """Recurrent layers of PyTorch's over tokens, a head on the last step and one on the last state."""

    def __init__(self, kind: str, **arguments: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 12)
        self.layers = getattr(nn, kind)(12, 8, batch_first=True, **arguments)
        ways = 2 if arguments.get("bidirectional") else 1
        self.head, self.state = nn.Linear(8 * ways, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        y, state = self.layers(self.embedding(x))
        return self.head(y[:, -1]) + self.state((state[0] if isinstance(state, tuple) else state)[-1])


class Encoder(nn.Module):
    """PyTorch's own transformer layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(self.embedding(x))[:, 0])


class Vae(nn.Module):
    """A variational autoencoder: what its latent numbers are drawn from is a mean and a logarithm of a variance."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.spread = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12))

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.encoder(x))
        mean, spread = self.mean(y), self.spread(y)
        return self.decoder(mean + torch.exp(0.5 * spread) * torch.randn_like(spread))


class ArcFace(nn.Module):
    """A head of cosines: features and weights are normalised, and the angle between them gets a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 16), nn.PReLU(), nn.Linear(16, 8, bias=False))
        self.weight = nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, x: Any) -> Any:
        normalize = nn.functional.normalize
        cosine = nn.functional.linear(normalize(self.features(x)), normalize(self.weight))
        sine = torch.sqrt((1.0 - cosine ** 2).clamp(min=2.0 ** -20))
        return 16.0 * (cosine * 0.875 - sine * 0.5)


class NormedRecurrent(nn.Module):
    """A convolution and a layer with weight norm, and a bidirectional LSTM between them."""

    def __init__(self) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm
        self.convolution, self.head = normed(nn.Conv1d(6, 8, 3, padding=1)), normed(nn.Linear(12, CLASSES))
        self.layers = nn.LSTM(8, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Any) -> Any:
        y, _ = self.layers(torch.relu(self.convolution(x)).transpose(1, 2))
        return self.head(y[:, -1])


class Dlrm(nn.Module):
    """A recommender: bags of embeddings and a bottom net, their products with each other, and a top net. A row is six tokens, two for each bag."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(WORDS, 8, mode=mode) for mode in ("sum", "mean", "max"))
        self.bottom = nn.Sequential(nn.Linear(TOKENS, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, x: Any) -> Any:
        dense = self.bottom(torch.log1p(x.to(self.bottom[0].weight.dtype)))
        rows = torch.stack([dense, *(bag(x[:, 2 * i:2 * i + 2]) for i, bag in enumerate(self.bags))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        first, second = zip(*((i, j) for i in range(4) for j in range(i)), strict=True)
        return self.top(torch.cat([dense, products[:, list(first), list(second)]], 1))


class GraphNet(nn.Module):
    """Two layers of messages along the edges of one graph, the mean of its neighbours for each node; an output for every node."""

    EDGES = ((0, 1, 2, 3, 4, 5, 1, 3), (1, 2, 3, 4, 5, 0, 4, 0))

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 8)]), nn.ModuleList([nn.Linear(5, 8, False), nn.Linear(8, 8, False)])
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("edges", torch.tensor(self.EDGES))

    def forward(self, x: Any) -> Any:
        source, target = self.edges[0], self.edges[1][None, :, None]
        for own, other in zip(self.own, self.other, strict=True):
            messages = x[:, source]
            places, zeros = target.expand(messages.shape), torch.zeros_like(x)
            count = zeros.scatter_add(1, places, torch.ones_like(messages)).clamp(min=1)
            x = torch.relu(own(x) + other(zeros.scatter_add(1, places, messages) / count))
        return self.head(x).transpose(1, 2)


def hugging(kind: str, output: str, sizes: dict[str, Any], config: str | None = None, mask: bool = False, **arguments: Any) -> Callable[[], Any]:
    """A class of transformers from a configuration, with random weights."""
    def make() -> Any:
        transformers = needs("transformers")
        made = getattr(transformers, config or f"{kind.partition('For')[0]}Config")(**sizes)
        made._attn_implementation = "eager"
        return Called(getattr(transformers, kind)(made), output, mask, **arguments)
    return make


@dataclass(frozen=True)
class Network:
    """What there is to know of one architecture."""

    make: Callable[[], Any]
    tokens: bool = False
    shape: tuple[int, ...] = (3, SIDE, SIDE)
    """Of a row, where it is not tokens."""
    normalised: bool = False
    """By the batch."""
    loss: str = "cross_entropy"
    draws: bool = False
    """Random numbers, by `torch.randn_like`."""
    dear: bool = False
    """Exports of it take seconds."""

    def data(self, rows: int, output: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels for an output of this shape."""
        rng = np.random.default_rng(seed)
        x = rng.integers(1, WORDS, (rows, TOKENS)) if self.tokens else rng.standard_normal((rows, *self.shape)).astype(np.float32)
        if self.loss == "mse":
            return x, rng.standard_normal((rows, *output[1:]))
        return x, rng.integers(0, output[1], (rows, *output[2:]))


LABELS = {"num_labels": CLASSES}
BERT = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **LABELS}
VISION = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": SIDE, "patch_size": 16,
          "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **LABELS}
NETWORKS = {
    "ResNet": Network(hugging("ResNetForImageClassification", "logits", {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", **LABELS}), normalised=True),
    "MobileNetV3": Network(mobilenet_v3, normalised=True),
    "EfficientNet": Network(hugging("EfficientNetForImageClassification", "logits", {
        "image_size": SIDE, "width_coefficient": 0.25, "depth_coefficient": 0.3, "kernel_sizes": [3, 5], "in_channels": [32, 16],
        "out_channels": [16, 24], "depthwise_padding": [], "strides": [1, 2], "num_block_repeats": [1, 2], "expand_ratios": [1, 2],
        "hidden_dim": 320, "dropout_rate": 0.0, "drop_connect_rate": 0.0, **LABELS}), normalised=True),
    "ConvNeXt": Network(hugging("ConvNextForImageClassification", "logits", {
        "hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "image_size": SIDE, "drop_path_rate": 0.0, **LABELS})),
    "ViT": Network(hugging("ViTForImageClassification", "logits", VISION)),
    "Swin": Network(hugging("SwinForImageClassification", "logits", {
        "image_size": SIDE, "patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4, "drop_path_rate": 0.0,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **LABELS})),
    "TransformerEncoder": Network(Encoder, tokens=True),
    "BERT": Network(hugging("BertForSequenceClassification", "logits", BERT), tokens=True),
    "DistilBERT": Network(hugging("DistilBertForSequenceClassification", "logits", {
        "vocab_size": WORDS, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 16, "dropout": 0.0,
        "attention_dropout": 0.0, "seq_classif_dropout": 0.0, **LABELS}), tokens=True),
    "T5": Network(hugging("T5EncoderModel", "last_hidden_state", {
        "vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}, "T5Config"),
        tokens=True, loss="mse"),
    "GPT-2": Network(hugging("GPT2LMHeadModel", "logits", {
        "vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, "GPT2Config", mask=True, use_cache=False), tokens=True),
    "Llama": Network(hugging("LlamaForCausalLM", "logits", {
        "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 16}, mask=True, use_cache=False), tokens=True),
    "Whisper": Network(hugging("WhisperForAudioClassification", "logits", {
        "vocab_size": WORDS, "num_mel_bins": 8, "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
        "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32, "max_source_positions": 10, "max_target_positions": 8,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "dropout": 0.0, "classifier_proj_size": 12, **LABELS},
        "WhisperConfig"), shape=(8, 20)),
    "DeBERTa": Network(hugging("DebertaForSequenceClassification", "logits", {
        **BERT, "pooler_dropout": 0.0, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 8,
        "position_biased_input": False, "pooler_hidden_size": 16}, mask=True), tokens=True, dear=True),
    "Gemma": Network(hugging("GemmaForCausalLM", "logits", {
        "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 16}, mask=True, use_cache=False), tokens=True, dear=True),
    "GPT-NeoX": Network(hugging("GPTNeoXForCausalLM", "logits", {
        "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "max_position_embeddings": 16, "hidden_dropout": 0.0, "attention_dropout": 0.0}, "GPTNeoXConfig", mask=True, use_cache=False),
        tokens=True, dear=True),
    "Mamba": Network(hugging("MambaForCausalLM", "logits", {
        "vocab_size": WORDS, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "time_step_rank": 2}, "MambaConfig", use_cache=False),
        tokens=True, dear=True),
    "T5 seq2seq": Network(hugging("T5ForConditionalGeneration", "logits", {
        "vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "dropout_rate": 0.0,
        "decoder_start_token_id": 0}, "T5Config", decodes=True, use_cache=False), tokens=True, dear=True),
    "wav2vec2": Network(hugging("Wav2Vec2ForSequenceClassification", "logits", {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "conv_dim": [8, 8], "conv_kernel": [4, 3],
        "conv_stride": [2, 2], "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "layerdrop": 0.0,
        "final_dropout": 0.0, "apply_spec_augment": False, "mask_time_prob": 0.0, **LABELS}), shape=(64,), dear=True),
    "DeiT": Network(hugging("DeiTForImageClassificationWithTeacher", "logits", VISION, "DeiTConfig"), dear=True),
    "ConvNeXt-V2": Network(hugging("ConvNextV2ForImageClassification", "logits", {
        "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": SIDE, "drop_path_rate": 0.0, **LABELS}), dear=True),
    "MobileViT": Network(hugging("MobileViTForImageClassification", "logits", {
        "image_size": SIDE, "patch_size": 2, "hidden_sizes": [8, 8, 8], "neck_hidden_sizes": [4, 4, 4, 4, 4, 4, 16], "num_attention_heads": 2,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.0, **LABELS}), normalised=True, dear=True),
    "VAE": Network(Vae, shape=(12,), loss="mse", draws=True),
    "ArcFace": Network(ArcFace, shape=(12,)),
    "weight norm": Network(NormedRecurrent, shape=(6, 5)),
    "DLRM": Network(Dlrm, tokens=True),
    "graph network": Network(GraphNet, shape=(6, 5)),
    "U-Net": Network(UNet, normalised=True),
    "Groups": Network(groups),
}
EXPORTS = ("torchscript training", "torchscript evaluation", "dynamo training", "dynamo evaluation")


def network(name: str, perturbed: bool = True) -> Any:
    """The network with random weights; `perturbed`: no two of its tensors alike, and no branch without effect, as after some training."""
    torch.manual_seed(sum(name.encode()))
    net = NETWORKS[name].make().requires_grad_(True)         # files do not say what was frozen
    if perturbed:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 0.1 * torch.randn(parameter.shape)
            for buffer_name, buffer in net.named_buffers():
                if buffer_name.endswith(("running_mean", "running_var")):
                    buffer += torch.rand(buffer.shape)
    return net


def export(name: str, net: Any, how: str, precision: str = "float32") -> ModelProto:
    """The file that one of PyTorch's exporters makes of a network, as a page about training would have it made, or by its defaults."""
    exporter, mode = how.split()
    training = mode == "training"
    x = torch.from_numpy(NETWORKS[name].data(BATCH, (BATCH, 1))[0])
    net, x = net.to(getattr(torch, precision)), x.to(getattr(torch, precision)) if x.is_floating_point() else x
    file = io.BytesIO()
    modes = torch.onnx.TrainingMode
    net = net.train(training)
    with quiet():
        if exporter == "torchscript":
            torch.onnx.export(net, (x,), file, dynamo=False, training=modes.TRAINING if training else modes.EVAL,
                              do_constant_folding=not training)
        else:
            needs("onnxscript")
            torch.onnx.export(net, (x,), file, dynamo=True, external_data=False, verbose=False, optimize=not training)
    proto = ModelProto()
    proto.ParseFromString(file.getvalue())
    return proto


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn of their own insides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
