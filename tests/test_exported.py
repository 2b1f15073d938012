"""The table of exported architectures: what is trained is PyTorch's list of parameters, and its updates are PyTorch's; then back to ONNX Runtime.

A row is a network, an exporter and a mode. The engine computes in float64; so does PyTorch (`exported_networks.Double`).
"""
from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_networks import BATCH, EXPORTS, MORE, NETWORKS, Called, Double, Network, conv_norm, export, network, torch
from onnx import ModelProto
from peers import needs

import tileflow
from tileflow import optim
from tileflow.importers.onnx import folded_norms, import_graph, wrap_model

UPDATES = 20
LONG = "torchscript training"
"""The rows of this export are trained for all updates, the others for one: some of their constants are float32 in a float64 file."""
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
    which a larger epsilon stops, and constants in float32: there one update is SGD's."""
    if updates == 1:
        return optim.SGD(lr=0.02, momentum=0.9), functools.partial(torch.optim.SGD, lr=0.02, momentum=0.9)
    eps = 1e-5 if spec.normalised else 1e-8
    return optim.AdamW(lr=1e-3, eps=eps), functools.partial(torch.optim.AdamW, lr=1e-3, eps=eps)


@functools.cache
def peer(name: str, updates: int, perturbed: bool = True) -> Arrays:
    """PyTorch's parameters after so many updates."""
    spec, (x, y) = NETWORKS[name], data(name)
    net = rounded(network(name, perturbed)).double().train()
    optimizer = optimizers(spec, updates)[1](net.parameters())
    measure = torch.nn.functional.cross_entropy if spec.loss == "cross_entropy" else torch.nn.functional.mse_loss
    with Double():
        for i in range(updates):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            optimizer.zero_grad()
            measure(net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
            optimizer.step()
    return {n: p.detach().numpy() for n, p in net.named_parameters() if p.grad is not None}


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


def trained(proto: ModelProto, name: str, updates: int) -> Arrays:
    """The parameters after so many updates."""
    spec, (x, y) = NETWORKS[name], data(name)
    model = tileflow.training_model(wrap_model(proto), optimizer=optimizers(spec, updates)[0], loss=spec.loss, precision="float64",
                                    device_iterations=updates, output_mode="all")
    model(x[:BATCH * updates], y[:BATCH * updates])
    session = model.source.session
    states = [s for graph in model.program.graphs for s in graph.states]
    return {s.name: session[s.name].copy() for s in states if s.kind == "parameter" and s.trainable}


def distances(ours: Arrays, theirs: Arrays) -> dict[str, float]:
    """By PyTorch's parameter: the distance of the state that it became, over its norm.

    A state of another name is found by what it is, as it stands or transposed (exporters fold a Transpose and name the result anew).
    """
    found: dict[str, float] = {}
    left = dict(ours)
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


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean squares: of the difference, over the value's. Biases that have just left zero are measured by the size of weights."""
    return float(np.sqrt(np.mean((a - b) ** 2)) / max(np.sqrt(np.mean(b ** 2)), SMALL))


def follows(ours: Arrays, theirs: Arrays, lost: Sequence[str] = ()) -> None:
    """What is trained is PyTorch's list, without what matches `lost`, and has its values."""
    assert all(any(fnmatch.fnmatchcase(n, pattern) for n in theirs) for pattern in lost)
    theirs = {n: a for n, a in theirs.items() if not any(fnmatch.fnmatchcase(n, pattern) for pattern in lost)}
    far = {n: d for n, d in distances(ours, theirs).items() if not d < CLOSE}
    assert not far, f"{len(far)} of {len(theirs)} parameters: {dict(list(far.items())[:5])}"


# ---- the table

FOLDED = "Batch normalisation was folded into the weights of"
COMPUTED = "Not trained, because the exporter computed them, perhaps from parameters: "
KNOWN = "Not trained, because the exporter computed them from parameters: "
AS_WEIGHTS = "Trained as weights of their own, although the exporter computed them from parameters: "
PADDING = "Trained with the row of padding, which PyTorch leaves as it is (padding_idx) and ONNX has no word for: "
OTHER = (FOLDED, AS_WEIGHTS)
"""Sentences about files that hold another network."""
POSITIONS, TABLES = "*position_embeddings.weight", "*relative_position_bias_table"
SAID = {
    **{(name, how): (FOLDED, ("*",)) for name in ("ResNet", "MobileNetV3", "EfficientNet", "U-Net") for how in EXPORTS if how.endswith("evaluation")},
    ("ViT", "dynamo evaluation"): (KNOWN + "expand (net.vit.embeddings.cls_token).", ("*cls_token",)),
    ("Swin", "torchscript evaluation"): (COMPUTED + "onnx::Add_", (TABLES,)), ("Swin", "dynamo evaluation"): (KNOWN + "unsqueeze", (TABLES,)),
    ("BERT", "dynamo training"): (PADDING + "net.bert.embeddings.word_embeddings.weight (row 0).", ()),
    ("BERT", "dynamo evaluation"): (KNOWN + "embedding_1 (net.bert.embeddings.", (POSITIONS, "*token_type_embeddings.weight")),
    ("DistilBERT", "dynamo training"): (PADDING + "net.distilbert.embeddings.word_embeddings.weight (row 0).", ()),
    ("DistilBERT", "dynamo evaluation"): (KNOWN + "embedding_1 (net.distilbert.embeddings.position_embeddings.weight).", (POSITIONS,)),
    ("T5", "dynamo evaluation"): (KNOWN + "unsqueeze_", ("*relative_attention_bias.weight",)),
    ("GPT-2", "torchscript evaluation"): ("One parameter in two tensors, trained as one: ", ()),
    ("GPT-2", "dynamo evaluation"): (KNOWN + "embedding_1 (net.transformer.wpe.weight).", ("*wpe.weight",)),
    ("ArcFace", "dynamo evaluation"): (AS_WEIGHTS + "div_1 (weight).", ()),
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
ROWS = [(name, how) for name in NETWORKS if name not in MORE for how in EXPORTS]
MORE_ROWS = [(name, how) for name, spec in MORE.items() for how in spec.exports]
MERGING = [(name, how) for name, how in ROWS if how.endswith("evaluation") and not NETWORKS[name].normalised]
"""Rows whose exporter writes tensors of equal values once."""


def row_id(name: str, how: str) -> str:
    return f"{name}-{how.replace(' ', '-')}"


IDS = [row_id(*row) for row in ROWS]


def doubts(proto: ModelProto) -> list[str]:
    """What `train` says of a file."""
    model = wrap_model(proto)
    warnings = import_graph(model, training=True).warnings
    return [*warnings, *filter(None, [folded_norms(model)])]


@pytest.mark.parametrize(("name", "how"), ROWS, ids=IDS)
def test_updates(name: str, how: str) -> None:
    proto = exported(name, how, "float64")
    said = doubts(proto)
    beginning, lost = SAID.get((name, how), ("", ()))
    assert [s for s in said if s.startswith(beginning)] if beginning else said == []
    if not beginning.startswith(OTHER):
        updates = UPDATES if how == LONG else 1
        follows(trained(proto, name, updates), peer(name, updates), lost)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "how"), MORE_ROWS, ids=[row_id(*row) for row in MORE_ROWS])
def test_the_first_update(name: str, how: str) -> None:
    proto = exported(name, how, "float64")
    said = doubts(proto)
    beginning, lost = SAID.get((name, how), ("", ()))
    assert [s for s in said if s.startswith(beginning)] if beginning else said == []
    if not beginning.startswith(OTHER):
        follows(trained(proto, name, 1), peer(name, 1), lost)


@pytest.mark.parametrize(("name", "how"), MERGING, ids=[row_id(*row) for row in MERGING])
def test_equal_values_at_first(name: str, how: str) -> None:
    """Networks as they are initialised."""
    follows(trained(exported(name, how, "float64", False), name, 1), peer(name, 1, False), SAID.get((name, how), ("", ()))[1])


@pytest.mark.parametrize(("name", "how"), ROWS, ids=IDS)
def test_round_trip(name: str, how: str, tmp_path: Path) -> None:
    """From the exporter's file to the trained one in ONNX Runtime, against our inference and, where the names are PyTorch's, its own."""
    ort = needs("onnxruntime")
    spec, (x, y) = NETWORKS[name], data(name)
    model = wrap_model(exported(name, how, "float32"))
    rows = 3 * BATCH
    result = tileflow.train(model, data=(x[:rows], y[:rows]), optimizer=optimizers(spec, UPDATES)[0], loss=spec.loss, precision="float64",
                            micro_batch_size=BATCH, out=str(tmp_path))
    inputs = x[:BATCH].astype(np.float32) if x.dtype == np.float64 else x[:BATCH]
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    found, = session.run(None, {session.get_inputs()[0].name: inputs})
    close(found, tileflow.inference_model(model, precision="float64")(x[:BATCH]))
    if how == LONG:
        net = network(name).eval()
        assert {n for n, _ in net.named_parameters()} <= result.weights.keys()
        net.load_state_dict({n: torch.from_numpy(a) for n, a in result.weights.items()}, strict=False)
        with torch.no_grad():
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
