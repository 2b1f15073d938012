"""BERT and GPT-2 as the optimizer for transformers of ONNX Runtime writes them: outputs and a training step are those of the plain files."""
from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from microsoft import DOMAIN
from peers import needs

import tileflow

pytestmark = pytest.mark.exhaustive
IDS = np.random.default_rng(0).integers(0, 50, (2, 8))
MASK = np.array([[1] * 8, [1] * 5 + [0] * 3])
FUSED = {"bert": {"Attention": 2, "SkipLayerNormalization": 4, "BiasGelu": 2}, "gpt2": {"SkipLayerNormalization": 4, "FastGelu": 2}}


def exported(kind: str, path: Path) -> dict[str, np.ndarray]:
    """A small model of two layers, no two of its weights equal, as a file; gives inputs for it."""
    torch, transformers = needs("torch"), needs("transformers")
    torch.manual_seed(0)
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                                         max_position_embeddings=32, attn_implementation="eager")
        inner, feeds = transformers.BertModel(config, add_pooling_layer=False).eval(), {"input_ids": IDS, "attention_mask": MASK}
    else:
        config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=None, eos_token_id=None,
                                         attn_implementation="eager", use_cache=False)
        inner, feeds = transformers.GPT2Model(config).eval(), {"input_ids": IDS}
    with torch.no_grad():
        for p in inner.parameters():
            p.add_(0.05 * torch.randn_like(p))

    class Plain(torch.nn.Module):                                      # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *tensors: Any) -> Any:
            return self.inner(**dict(zip(feeds, tensors, strict=True))).last_hidden_state

    needs("onnxscript")
    torch.onnx.export(Plain().eval(), tuple(map(torch.tensor, feeds.values())), str(path), input_names=list(feeds), output_names=["y"],
                      dynamo=kind == "gpt2", opset_version=18 if kind == "gpt2" else 17)
    return feeds


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_optimised_transformers(kind: str, tmp_path: Path) -> None:
    """gpt2 by the fusions for BERT: those for GPT-2 fail on products without a bias, which PyTorch's newer exporter writes."""
    optimizer = needs("onnxruntime.transformers.optimizer")
    plain, fused = tmp_path / "plain.onnx", tmp_path / "fused.onnx"
    feeds = exported(kind, plain)
    optimizer.optimize_model(str(plain), model_type="bert", num_heads=4, hidden_size=32, opt_level=0).save_model_to_file(str(fused))
    assert Counter(n.op_type for n in onnx.load(fused).graph.node if n.domain == DOMAIN) == FUSED[kind]
    wanted, = needs("onnxruntime").InferenceSession(str(plain), providers=["CPUExecutionProvider"]).run(None, feeds)
    labels = np.random.default_rng(1).standard_normal(wanted.shape).astype(np.float32)
    found = []
    for path in (plain, fused):
        np.testing.assert_allclose(tileflow.inference_model(path)(*feeds.values()), wanted, rtol=1e-4, atol=1e-5)
        model = tileflow.training_model(path, loss="mse", optimizer="sgd", learning_rate=0.1)
        first = model(*feeds.values(), labels)[-1]
        found.append((first, model(*feeds.values(), labels)[0], model.state_dict()))
    (loss, after, weights), (loss_fused, after_fused, weights_fused) = found
    np.testing.assert_allclose(loss_fused, loss, rtol=1e-5)
    assert np.abs(after - wanted).max() > 1e-3
    np.testing.assert_allclose(after_fused, after, rtol=1e-4, atol=1e-5)
    both = [n for n in weights if n in weights_fused and weights[n].shape == weights_fused[n].shape]
    assert len(both) >= 25
    for name in both:
        np.testing.assert_allclose(weights_fused[name], weights[name], rtol=1e-5, atol=1e-6, err_msg=name)
