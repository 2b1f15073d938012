"""docs/pytorch.md and the README's script, run as they stand."""
from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from peers import needs
from places import ROOT

torch = needs("torch")
needs("onnxscript")


def blocks(page: str, language: str) -> list[str]:
    """The code of a page in a language."""
    parts = (ROOT / page).read_text(encoding="utf-8").split("```")
    return [part.removeprefix(language + "\n") for part in parts[1::2] if part.startswith(language + "\n")]


def run(code: str, **names: Any) -> tuple[dict[str, Any], str]:
    """What the code defines, and what it prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, names)
    return names, said.getvalue()


def test_the_readmes_script_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Three lines differ, and the files that they write hold the same weights."""
    monkeypatch.chdir(tmp_path)
    script, = (block for block in blocks("README.md", "diff") if "tileflow.torch" in block)
    files = []
    for other in "-+":
        lines = [line[1:] for line in script.splitlines() if line[:1] != other]
        run("\n".join(lines))
        files.append(torch.load("net.pt"))
    bias_before_a_norm = "body.0.bias"  # has the gradient 0, and Adam makes steps of its rounding
    for name, tensor in files[0].items():
        if name not in (bias_before_a_norm, "body.1.running_mean"):
            torch.testing.assert_close(files[1][name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    assert len(script.splitlines()) < 30


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*legacy TorchScript-based")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    first, second = blocks("docs/pytorch.md", "python")
    torch.manual_seed(0)
    names, said = run(first)
    assert names["loss"] < 0.5
    found, expected = said.split("tensor(")[1:]
    assert found.strip() == expected.strip()
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    torch.onnx.export(net, (torch.randn(3, 4),), "backbone.onnx", dynamo=False)
    before = net[0].weight.detach().clone()
    names, _ = run(second, **names)
    after = dict(names["backbone"].named_parameters())["0.weight"]
    assert after.grad.abs().max() > 0
    assert not torch.equal(after, before)
