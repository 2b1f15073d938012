"""The pipelining tutorial, read from its document, import and data's source replaced: whatever runs it, the same bits,
near PyTorch's own."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import poptorch_scripts as scripts
import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")
pytestmark = pytest.mark.exhaustive
SMALLER = {"batch_size = 40": "batch_size = 8", "training_iterations = 10": "training_iterations = 2",
           "inference_iterations = 100":
           "inference_iterations = 5", "epochs = 3": "epochs = 6", "num_workers=16": "num_workers=0"}
"""The set of digits is a fortieth of MNIST."""
HOW = {"one": "train_opts.setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage('B1', 'B2', 'B3', "
              "'B4').ipu(0)))", "four": "",
       "two": "train_opts.setExecutionStrategy(pipelined_strategy)",
       "sharded": "train_opts.setExecutionStrategy(sharded_strategy)"}
"""What is said after the strategies of the document: it makes four stages, and objects for two and for sharded
execution."""


def tutorial(how: str) -> str:
    where = scripts.folder()
    found = [] if where is None else sorted(where.glob("004_*.txt"))
    if not found:
        pytest.skip(scripts.MISSING)
    blocks = re.findall(r"(?m)^```python\n((?s:.*?))^```", found[0].read_text(encoding="utf-8"))
    last = next(i for i, block in enumerate(blocks) if "sharded_strategy = " in block)
    text = "\n".join([*blocks[:last + 1], HOW[how], *blocks[last + 1:]])
    for old, new in SMALLER.items():
        assert old in text
        text = text.replace(old, new)
    return scripts.replaced(text)


def trained(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    scripts.stand_in_for_torchvision(monkeypatch)
    torch.manual_seed(3)
    return scripts.run(tutorial(how), tmp_path, monkeypatch)


def test_the_same_bits(tmp_path, monkeypatch):
    """One IPU, four and two as a pipeline, four one after the other; and the whole of it learns."""
    found = {how: trained(how, tmp_path, monkeypatch) for how in HOW}
    first = found["one"]
    for names in found.values():
        for name, weight in first["model"].state_dict().items():
            assert torch.equal(names["model"].state_dict()[name], weight), name
        assert names["printed"] == first["printed"]
    accuracy = float(first["printed"].rpartition("Accuracy on test set: ")[2].rstrip("%\n"))
    assert accuracy > 92
    assert found["four"]["train_opts"].TensorLocations.optimizer_off_chip is True


def test_it_follows_pytorch(tmp_path, monkeypatch):
    """From the same weights and rows in the same order, a loop in PyTorch with one update for each ten
    micro-batches."""
    names = trained("one", tmp_path, monkeypatch)
    ours = names["model"].state_dict()
    torch.manual_seed(3)
    again = scripts.run(tutorial("one").partition("training_model = get_training_model(")[0], tmp_path, monkeypatch)
    model = again["model"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=names["learning_rate"])
    rows = names["batch_size"] * names["gradient_accumulation"]
    for _ in range(names["epochs"]):
        for images, labels in again["training_data"]:
            for x, y in zip(images.split(rows), labels.split(rows), strict=True):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    for name, weight in model.state_dict().items():
        # a gradient that is nearly 0 may have either sign
        assert (ours[name] - weight).abs().flatten().quantile(0.99) < 1e-3, name
    images = torch.from_numpy(scripts.digits(train=False)[0] - 0.1307) / 0.3081
    other = names["Network"]()
    other.load_state_dict(ours)
    assert (model(images).argmax(1) == other(images).argmax(1)).float().mean() > 0.98
