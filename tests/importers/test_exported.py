"""The table of exported architectures: what is trained is PyTorch's list of parameters, and its updates are PyTorch's; then back to ONNX Runtime.

A row is a network, an exporter and a mode. The engine computes in float64; so does PyTorch (`exported_networks.Double`).
"""
from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from exported_networks import BATCH, EXPORTS, NETWORKS, Called, Double, Network, conv_norm, export, network, torch
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator
from peers import needs

import tileflow
from tileflow import optim
from tileflow.importers.onnx import folded_norms, import_graph, wrap_model

UPDATES, FEW = 20, 10
LONG = "torchscript training"
"""The rows of this export are trained for all updates by AdamW, the others for a few by SGD, which does not blow up what differs because some of
their constants are float32 in a float64 file."""
RATE = 5e-3
CLOSE = 1e-9
SMALL = 1e-2
SAME = 1e-4
"""Largest difference of a trained file's outputs in ONNX Runtime, over the largest output."""
Arrays = dict[str, np.ndarray]


pytestmark = pytest.mark.usefixtures("one_torch_thread")


# ---- PyTorch's side

@functools.cache
def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows for all updates, inputs in float64 where they are not tokens."""
    spec = NETWORKS[name]
    x, _ = spec.data(BATCH, (BATCH, 1))
    with torch.no_grad():
        shape = tuple(network(name)(torch.from_numpy(x)).shape)
    x, y = spec.data(BATCH * UPDATES, shape, seed=1)
    return x.astype(np.float64) if x.dtype == np.float32 else x, y


def optimizers(spec: Network, updates: int) -> tuple[Any, Any]:
    """Ours, and a maker of PyTorch's. AdamW blows up what rounding leaves of gradients that are zero (a bias before batch normalisation),
    which a larger epsilon stops, and constants in float32: there updates are SGD's."""
    if updates == FEW:
        return optim.SGD(lr=RATE, momentum=0.9), functools.partial(torch.optim.SGD, lr=RATE, momentum=0.9)
    eps = 1e-5 if spec.normalised else 1e-8
    return optim.AdamW(lr=1e-3, eps=eps), functools.partial(torch.optim.AdamW, lr=1e-3, eps=eps)


@functools.cache
def peer(name: str, updates: int, perturbed: bool = True, drawn: bytes = b"", lost: tuple[str, ...] = ()) -> Arrays:
    """PyTorch's parameters after so many updates, in which a network that draws random numbers draws these (of float64), without those that match
    `lost`, which stay as they are."""
    spec, (x, y) = NETWORKS[name], data(name)
    net = rounded(network(name, perturbed)).double().train()
    assert all(fnmatch.filter((n for n, _ in net.named_parameters()), pattern) for pattern in lost)
    for n, p in net.named_parameters():
        p.requires_grad_(not any(fnmatch.fnmatchcase(n, pattern) for pattern in lost))
    optimizer = optimizers(spec, updates)[1](net.parameters())
    measure = torch.nn.functional.cross_entropy if spec.loss == "cross_entropy" else torch.nn.functional.mse_loss
    with Double():
        for i in range(updates):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            optimizer.zero_grad()
            with draws(np.frombuffer(drawn).reshape(BATCH * updates, -1)[rows]) if drawn else contextlib.nullcontext():
                measure(net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
            optimizer.step()
    return {n: p.detach().numpy() for n, p in net.named_parameters() if p.grad is not None}


@contextlib.contextmanager
def draws(numbers: np.ndarray) -> Iterator[None]:
    """PyTorch draws these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn_like", lambda like: torch.from_numpy(numbers.copy()).to(like.dtype))
        yield


def rounded(net: Any) -> Any:
    """Files hold the normalisations' epsilons as float32."""
    for module in net.modules():
        for name in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, float(np.float32(getattr(module, name))))
    return net


# ---- ours

@functools.cache
def exported(name: str, how: str, precision: str, perturbed: bool = True) -> ModelProto:
    net = network(name, perturbed)
    with Double() if precision == "float64" and isinstance(net, Called) else contextlib.nullcontext():
        return export(name, net, how, precision)


def drawing(proto: ModelProto, name: str) -> ModelProto:
    """The file with what it draws as one more output, if it is of a network that does."""
    shown = ModelProto()
    shown.CopyFrom(proto)
    if NETWORKS[name].draws:
        node, = (node for node in proto.graph.node if node.op_type.startswith("Random"))
        shown.graph.output.append(helper.make_empty_tensor_value_info(node.output[0]))
        shown.graph.output[-1].type.tensor_type.elem_type = proto.graph.output[0].type.tensor_type.elem_type
    return shown


def trained(proto: ModelProto, name: str, updates: int) -> tuple[Arrays, bytes]:
    """The parameters after so many updates, and the random numbers drawn, in float64."""
    spec, (x, y) = NETWORKS[name], data(name)
    model = tileflow.training_model(wrap_model(drawing(proto, name)), optimizer=optimizers(spec, updates)[0], loss=spec.loss,
                                    precision="float64", device_iterations=updates, output_mode="all")
    outputs = model(x[:BATCH * updates], y[:BATCH * updates])
    session = model.source.session
    states = [s for graph in model.program.graphs for s in graph.states]
    weights = {s.name: session[s.name].copy() for s in states if s.kind == "parameter" and s.trainable}
    return weights, outputs[1].tobytes() if spec.draws else b""


def distances(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """By PyTorch's parameter: the distance of the state that it became, over its norm.

    A state of another name is found by what it is, as it stands or transposed (exporters fold a Transpose and name the result anew).
    """
    found: dict[str, float] = {}
    left = dict(ours)
    theirs = packed(theirs, left)
    for name, wanted in theirs.items():
        if name in left and left[name].shape == wanted.shape:
            found[name] = distance(left.pop(name), wanted)
    for name, wanted in theirs.items():
        if name not in found:
            near = [(distance(form, wanted), n) for n, a in left.items() for form in (a, a.T) if form.shape == wanted.shape]
            far, best = min(near, default=(np.inf, ""))
            found[name] = far
            left.pop(best, None)
    assert not left, f"trained, but no parameters of PyTorch's: {', '.join(f'{n} {list(a.shape)}' for n, a in left.items())}"
    return found


def packed(theirs: Arrays, ours: Arrays) -> Arrays:
    """PyTorch's parameters with those of a bidirectional LSTM as ONNX has them where an exporter folded that: both ways in one tensor, the gates
    in ONNX's order, the biases side by side."""
    result = dict(theirs)
    for name in theirs:
        stem, shape = name.removesuffix("weight_ih_l0"), (2, *theirs[name].shape)
        if stem != name and any(a.shape == shape for a in ours.values()):
            def gates(kind: str, way: str, stem: str = stem) -> np.ndarray:
                i, f, c, o = np.split(result.pop(f"{stem}{kind}_l0{way}"), 4)
                return np.concatenate([i, o, f, c])
            ways = "", "_reverse"
            for kind in "weight_ih", "weight_hh":
                result[f"{stem}{kind}"] = np.stack([gates(kind, way) for way in ways])
            result[f"{stem}bias"] = np.stack([np.concatenate([gates(kind, way) for kind in ("bias_ih", "bias_hh")]) for way in ways])
    return result


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean squares: of the difference, over the value's. Biases that have just left zero are measured by the size of weights."""
    return float(np.sqrt(np.mean((a - b) ** 2)) / max(np.sqrt(np.mean(b ** 2)), SMALL))


def follows(ours: Arrays, theirs: Arrays) -> None:
    """What is trained is PyTorch's list, and has its values."""
    far = {n: d for n, d in distances(ours, theirs).items() if not d < CLOSE}
    assert not far, f"{len(far)} of {len(theirs)} parameters: {dict(list(far.items())[:5])}"


# ---- the table

FOLDED = "Batch normalisation was folded into the weights of"
COMPUTED = "Not trained, because the exporter computed them, perhaps from parameters: "
KNOWN = "Not trained, because the exporter computed them from parameters: "
AS_WEIGHTS = "Trained as weights of their own, although the exporter computed them from parameters: "
PADDING = "Trained with the row of padding, which PyTorch leaves as it is (padding_idx) and ONNX has no word for: "
UNREAD = "Nothing in the file reads these parameters of the network: "
IDLE = "Not trained, because no node of the file reads them, nor any like them: "
RESTORED = "2 parameters that the exporter dropped because they are zero, and trained again: "
OTHER = (FOLDED, AS_WEIGHTS)
"""Sentences about files that hold another network."""
FOLDING = ("ResNet", "MobileNetV3", "EfficientNet", "MobileViT", "U-Net")
POSITIONS, TABLES = "*position_embeddings.weight", "*relative_position_bias_table"
STATES = ("*mixer.A_log", "*mixer.D", "*dt_proj.bias")
SAID = {
    **{(name, how): (FOLDED, ("*",)) for name in FOLDING for how in EXPORTS if how.endswith("evaluation")},
    ("ViT", "dynamo evaluation"): (KNOWN + "expand (net.vit.embeddings.cls_token).", ("*cls_token",)),
    ("Swin", "torchscript evaluation"): (COMPUTED + "onnx::Add_", (TABLES,)), ("Swin", "dynamo evaluation"): (KNOWN + "unsqueeze", (TABLES,)),
    ("BERT", "dynamo training"): (PADDING + "net.bert.embeddings.word_embeddings.weight (row 0).", ()),
    ("BERT", "dynamo evaluation"): (KNOWN + "embedding_1 (net.bert.embeddings.", (POSITIONS, "*token_type_embeddings.weight")),
    ("DistilBERT", "dynamo training"): (PADDING + "net.distilbert.embeddings.word_embeddings.weight (row 0).", ()),
    ("DistilBERT", "dynamo evaluation"): (KNOWN + "embedding_1 (net.distilbert.embeddings.position_embeddings.weight).", (POSITIONS,)),
    ("T5", "dynamo evaluation"): (KNOWN + "unsqueeze_", ("*relative_attention_bias.weight",)),
    ("T5 seq2seq", "torchscript evaluation"): ("One parameter in two tensors, trained as one: ", ()),
    ("T5 seq2seq", "dynamo evaluation"): (KNOWN + "unsqueeze_", ("*relative_attention_bias.weight",)),
    ("GPT-2", "torchscript evaluation"): ("One parameter in two tensors, trained as one: ", ()),
    ("GPT-2", "dynamo evaluation"): (KNOWN + "embedding_1 (net.transformer.wpe.weight).", ("*wpe.weight",)),
    ("Mamba", "torchscript evaluation"): (COMPUTED + "onnx::Exp_", STATES), ("Mamba", "dynamo evaluation"): (KNOWN + "unsqueeze_", STATES),
    ("ArcFace", "dynamo evaluation"): (AS_WEIGHTS + "div_1 (weight).", ()),
    ("weight norm", "dynamo evaluation"): (AS_WEIGHTS, ()),
    ("DeBERTa", "torchscript evaluation"): (COMPUTED + "onnx::Add_", ("*q_bias", "*v_bias", "*rel_embeddings.weight")),
    ("DeBERTa", "dynamo training"): (PADDING + "net.deberta.embeddings.word_embeddings.weight (row 0).", ()),
    ("DeBERTa", "dynamo evaluation"): (AS_WEIGHTS + "transpose_1 (net.deberta.encoder.layer.0.attention.self.pos_proj.weight, ", ()),
    ("Gemma", "torchscript evaluation"): (COMPUTED + "onnx::Mul_", ("*norm.weight", "*layernorm.weight")),
    ("Gemma", "dynamo training"): (PADDING + "net.lm_head.weight (row 0).", ()),
    ("Gemma", "dynamo evaluation"): (KNOWN + "add_4 (net.model.layers.0.input_layernorm.weight), ", ("*norm.weight", "*layernorm.weight")),
    ("DeiT", "dynamo evaluation"): (KNOWN + "expand (net.deit.embeddings.cls_token), expand_1 (", ("*_token",)),
    ("wav2vec2", "dynamo evaluation"): (AS_WEIGHTS + "mul (net.wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original0, ", ()),
    ("Whisper", "torchscript evaluation"): (COMPUTED + "onnx::Add_", ("*embed_positions.weight",)),
    ("Whisper", "dynamo evaluation"): (KNOWN + "embedding", ("*embed_positions.weight",)),
}
"""Rows of which `train` says more than nothing: how a sentence of it begins, and the parameters of PyTorch's that the exporter has lost.
The others have their first update all the same; without its batch normalisation a network is another one."""
MADE_ONE = {
    ("GPT-NeoX", "dynamo evaluation"): [f"net.gpt_neox.layers.{i}.post_attention_layernorm.{kind}" for i in range(2) for kind in ("weight", "bias")],
    ("T5 seq2seq", "dynamo evaluation"): ["net.decoder.block.0.layer.0.layer_norm.weight"],
}
"""Parameters of networks as they are initialised whose layer does to the same input what an equal one does."""


OFTEN = ("ResNet", "BERT", "GPT-2", "VAE", "weight norm")
"""Networks of each kind, whose rows run at every change: convolutions with batch normalisation, embeddings with
padding, tied and merged tensors, random numbers, weights that are computed."""


def rows(wanted: Callable[[str, str], bool] = lambda name, how: True) -> list[Any]:
    """The table's rows."""
    return [pytest.param(name, how, id=f"{name}-{how}".replace(" ", "-"),
                         marks=() if name in OFTEN else pytest.mark.exhaustive)
            for name in NETWORKS for how in EXPORTS if wanted(name, how)]


def merges(name: str, how: str) -> bool:
    """The exporter writes tensors of equal values once, and the file holds the same network."""
    return how.endswith("evaluation") and not NETWORKS[name].normalised and not SAID.get((name, how), ("",))[0].startswith(OTHER)


def outputs_of(file: ModelProto, name: str, how: str, inputs: np.ndarray) -> list[np.ndarray]:
    """What ONNX Runtime gives, or ONNX's own evaluator: of the exporter's means of bags, unless optimised, ONNX Runtime dies."""
    if (name, how) == ("DLRM", "dynamo training"):
        evaluator = ReferenceEvaluator(file)
        return list(evaluator.run(None, {evaluator.input_names[0]: inputs}))
    session = needs("onnxruntime").InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: inputs}))


def doubts(proto: ModelProto) -> list[str]:
    """What `train` says of a file."""
    model = wrap_model(proto)
    warnings = import_graph(model, training=True).warnings
    return [*warnings, *filter(None, [folded_norms(model)])]


@pytest.mark.parametrize(("name", "how"), rows())
def test_updates(name: str, how: str) -> None:
    proto = exported(name, how, "float64")
    said = doubts(proto)
    beginning, lost = SAID.get((name, how), ("", ()))
    assert [s for s in said if s.startswith(beginning)] if beginning else said == []
    if not beginning.startswith(OTHER):
        updates = UPDATES if how == LONG else FEW
        ours, drawn = trained(proto, name, updates)
        follows(ours, peer(name, updates, True, drawn, lost))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "beginning", "wanted"), [
    ("GPT-NeoX", UNREAD, [f"net.gpt_neox.layers.{i}.post_attention_layernorm.{kind}" for i in range(2) for kind in ("weight", "bias")]),
    ("Gemma", UNREAD, [f"net.model.{name}.weight" for name in (
        "layers.0.post_attention_layernorm", "layers.1.input_layernorm", "layers.1.post_attention_layernorm", "norm")]),
    ("T5 seq2seq", UNREAD, ["net.decoder.block.0.layer.0.layer_norm.weight"]),
    ("DeiT", UNREAD, ["net.deit.embeddings.distillation_token"]),
    ("wav2vec2", RESTORED, ["net.wav2vec2.encoder.pos_conv_embed.conv.bias", "net.classifier.bias"])])
def test_equal_layers_made_one_are_said(name: str, beginning: str, wanted: list[str]) -> None:
    """As they are initialised: the exporter's optimiser merges what computes the same, and drops zeros. Tied names are not among them."""
    said, = [text.removeprefix(beginning) for text in doubts(exported(name, "dynamo evaluation", "float32", False)) if text.startswith(beginning)]
    names = said.partition(". ")[0].removesuffix(".").split(", ")
    assert [n for n in names if n in wanted] == wanted
    assert beginning == RESTORED or names == wanted
    others = exported(name, "dynamo training", "float32", False), exported(name, "dynamo evaluation", "float32")
    assert not [text for proto in others for text in doubts(proto) if text.startswith((beginning, IDLE))]


@pytest.mark.parametrize(("name", "how"), rows(merges))
def test_equal_values_at_first(name: str, how: str) -> None:
    """Networks as they are initialised. Layers made one are another network: what is gone is named."""
    proto = exported(name, how, "float64", False)
    gone = MADE_ONE.get((name, how), ())
    said, = [s for s in doubts(proto) if s.startswith("Nothing in the file reads these parameters of the network: ")] if gone else [""]
    assert all(parameter in said for parameter in gone)
    if not gone:
        ours, drawn = trained(proto, name, FEW)
        follows(ours, peer(name, FEW, False, drawn, SAID.get((name, how), ("", ()))[1]))


@pytest.mark.parametrize(("name", "how"), rows())
def test_round_trip(name: str, how: str, tmp_path: Path) -> None:
    """From the exporter's file to the trained one in ONNX Runtime, against our inference and, where the names are PyTorch's, its own."""
    needs("onnxruntime")
    spec, (x, y) = NETWORKS[name], data(name)
    model = wrap_model(exported(name, how, "float32"))
    rows = 3 * BATCH
    result = tileflow.train(model, data=(x[:rows], y[:rows]), optimizer=optimizers(spec, UPDATES)[0], loss=spec.loss, precision="float64",
                            micro_batch_size=BATCH, out=str(tmp_path))
    inputs = x[:BATCH].astype(np.float32) if x.dtype == np.float64 else x[:BATCH]
    file = drawing(onnx.load(tmp_path / "model.onnx"), name)
    found, *drawn = outputs_of(file, name, how, inputs)
    if not drawn:
        close(found, tileflow.inference_model(model, precision="float64")(x[:BATCH]))
    if how == LONG or drawn:
        net = network(name).eval()
        assert {n for n, _ in net.named_parameters()} <= result.weights.keys()
        net.load_state_dict({n: torch.from_numpy(a) for n, a in result.weights.items()}, strict=False)
        with torch.no_grad(), draws(*drawn) if drawn else contextlib.nullcontext():
            close(found, net(torch.from_numpy(inputs)).numpy())


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert np.abs(found - wanted).max() <= SAME * np.abs(wanted).max()


@pytest.mark.parametrize("how", ["torchscript training", "dynamo training"])
def test_dropout_and_the_batch_stay_behind(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks exported for training: the trained file drops nothing and normalises by the running statistics, in every run."""
    ort = needs("onnxruntime")

    def make() -> Any:
        return torch.nn.Sequential(conv_norm(3, 4, 3, 4, activation=torch.nn.ReLU), torch.nn.Dropout(0.3), torch.nn.Flatten(),
                                   torch.nn.Dropout(0.5), torch.nn.Linear(256, 5))
    monkeypatch.setitem(NETWORKS, "small", Network(make))
    proto = export("small", network("small"), how)
    assert {n.op_type for n in proto.graph.node} >= {"BatchNormalization", "Dropout"}
    x, y = NETWORKS["small"].data(16, (16, 5))
    tileflow.train(wrap_model(proto), data=(x, y), micro_batch_size=BATCH, out=str(tmp_path))
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    first, again = (session.run(None, {session.get_inputs()[0].name: x[:BATCH]})[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    found, = tileflow.infer(tmp_path / "model.onnx", data=x[:BATCH], micro_batch_size=BATCH).values()
    close(first, found)
