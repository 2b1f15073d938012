"""Networks of PyTorch's trained by the bridge, beside PyTorch: 20 updates, two groups, a scheduler, both exporters."""
from __future__ import annotations

import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")

from beside import OPTIMIZERS, by_pytorch, drawn, far, here, loss_of, twins  # noqa: E402
from torch_networks import NETWORKS, GanStep  # noqa: E402

import tileflow.torch  # noqa: E402

UPDATES = 20
SMALL = ("lstm", "vae", "two_inputs", "gan")
ONE = [(name, list(OPTIMIZERS)[i % len(OPTIMIZERS)]) for i, name in enumerate(NETWORKS)]
EACH = [*ONE, *((name, optimizer) for name in SMALL for optimizer in OPTIMIZERS if (name, optimizer) not in ONE)]
TORCHSCRIPT = [pair for pair in ONE if pair[0] not in ("bert", "two_inputs")]
"""Without what that exporter has no words for: a mask of booleans for attention in evaluation's form, Bilinear."""


def in_float64(name: str, optimizer: str, exporter: str, near: float = 1e-9) -> None:
    make, draw = NETWORKS[name]
    ours, theirs = twins(make, torch.float64)
    batches = drawn(draw, torch.float64, UPDATES)
    losses, expected = here(ours, batches, optimizer, exporter=exporter), by_pytorch(theirs, batches, optimizer)
    assert losses == pytest.approx(expected, rel=near)
    assert far(ours, theirs) < near
    assert expected[-1] != expected[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "optimizer"), EACH)
def test_float64_by_torch_export(name: str, optimizer: str):
    in_float64(name, optimizer, "torch.export")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "optimizer"), TORCHSCRIPT)
def test_float64_by_torchscript(name: str, optimizer: str):
    """Which writes numbers of forward() in float32."""
    in_float64(name, optimizer, "TorchScript", 1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "optimizer"), ONE)
def test_float32_is_as_near_to_float64_as_pytorch_is(name: str, optimizer: str):
    make, draw = NETWORKS[name]
    ours, theirs, exact = twins(make, torch.float32, 3)
    batches = drawn(draw, torch.float32, UPDATES)
    wide = [tuple(t.double() if t.is_floating_point() else t for t in batch) for batch in batches]
    here(ours, batches, optimizer)
    by_pytorch(theirs, batches, optimizer)
    by_pytorch(exact.double(), wide, optimizer)
    assert far(ours, exact) <= 3 * far(theirs, exact)


@pytest.mark.exhaustive
def test_two_executors_train_two_halves_of_one_network():
    """A discriminator's step and a generator's, in turns, over one set of weights: as people train such networks."""
    class GeneratorStep(torch.nn.Module):
        def __init__(self, whole: GanStep) -> None:
            super().__init__()
            self.g, self.d = whole.g, whole.d

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            scores = self.d(self.g(z))
            return torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))

    ours, theirs = twins(GanStep, torch.float64)
    batches = drawn(NETWORKS["gan"][1], torch.float64, 8)

    def optimizers(net: torch.nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        return torch.optim.Adam(net.d.parameters(), lr=2e-3), torch.optim.Adam(net.g.parameters(), lr=1e-3)

    of_d, of_g = optimizers(ours)
    step_d = tileflow.torch.training_model(ours, optimizer=of_d)
    step_g = tileflow.torch.training_model(GeneratorStep(ours), optimizer=of_g)
    found = [(loss_of(step_d(z, real)).item(), step_g(z).item()) for z, real in batches]
    of_d, of_g = optimizers(theirs)
    whole, expected = GeneratorStep(theirs), []
    for z, real in batches:
        of_d.zero_grad()
        loss = loss_of(theirs(z, real))
        loss.backward()
        of_d.step()
        of_g.zero_grad()
        other = whole(z)
        other.backward()
        of_g.step()
        expected.append((loss.item(), other.item()))
    assert found == [pytest.approx(pair, rel=1e-9) for pair in expected]
    assert far(ours, theirs) < 1e-9


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama"])
def test_models_of_transformers(name: str):
    """As they are: keywords, an output object, their own loss."""
    library = needs("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32, "max_position_embeddings": 32}
    kind, config = {
        "Bert": ("BertForMaskedLM", library.BertConfig(**sizes, hidden_dropout_prob=0, attention_probs_dropout_prob=0)),
        "GPT2": ("GPT2LMHeadModel", library.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32,
                                                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
                                                       bos_token_id=1, eos_token_id=2)),
        "Llama": ("LlamaForCausalLM", library.LlamaConfig(**sizes, num_key_value_heads=1, use_cache=False)),
    }[name]
    ours, theirs = twins(lambda: getattr(library, kind)(config), torch.float64)
    first, second = (torch.optim.AdamW(net.parameters(), lr=1e-3) for net in (ours, theirs))
    model = tileflow.torch.training_model(ours, optimizer=first)
    for _ in range(3):
        ids, mask = torch.randint(0, 50, (2, 8)), torch.ones(2, 8, dtype=torch.int64)
        mask[0, 6:] = 0
        found, expected = (f(input_ids=ids, attention_mask=mask, labels=ids) for f in (model, theirs))
        assert type(found) is type(expected)
        second.zero_grad()
        expected.loss.backward()
        second.step()
        torch.testing.assert_close(found.loss, expected.loss.detach(), rtol=1e-6, atol=0)
        torch.testing.assert_close(found.logits, expected.logits.detach(), rtol=1e-5, atol=1e-7)
    assert far(ours, theirs) < 1e-5
