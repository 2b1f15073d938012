"""Scripts that others wrote for the reference system: where they are, how they are run here, and what is said of each.

They are no part of the project. `TILEFLOW_SOURCE_DOCS` names the folder of the source documents, or they lie beside the
checkout, in `*/reference/source-docs`; tests of them skip where there are none.
"""
from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

FOLDER = "TILEFLOW_SOURCE_DOCS"
IMPORT = re.compile(r"^import poptorch$", re.MULTILINE)
MISSING = f"needs the source documents of the reference system: {FOLDER} names their folder"


@dataclass(frozen=True)
class Script:
    """A script of the user guide's. says: how it runs here. edits: replaced on reading, besides its import, by regular
    expressions."""

    says: str
    edits: tuple[tuple[str, str], ...] = ()


NEEDS_WEIGHTS = "the pretrained weights that it downloads are replaced by initial ones"
DECLARED = "the compiled C++ that it loads are operators that `tileflow.operator` has declared"
LOADED = ((r"(?m)^myso = .*\nassert myso.*\n(myop = ctypes.*|for single_so.*\n.*LoadLibrary.*)$", ""),)
HELPERS = (r"(?m)^import helpers$",
           "import types\nhelpers = types.SimpleNamespace(assert_allclose=torch.testing.assert_close, "
           "assert_allequal=lambda actual, expected: torch.testing.assert_close(actual, expected, check_dtype=False))")
SCRIPTS: dict[str, Script] = {
    "api.py": Script("As it stands."),
    "autocast.py": Script("As it stands."),
    "buffers.py": Script("Edited: its first class, a counter that is no buffer, is refused with a sentence, where the "
                         "reference counts wrong.",
                         ((r"(?s)(# counter_model_wrong_start.*?)\nmodel = .*?# counter_model_wrong_end", r"\1"),
                          (r"(?m)^torch\.testing\.assert_close\(model\.i, torch\.tensor\(\[1\.\].*$", ""))),
    "debugging.py": Script("As it stands.", ((r"# tensor_retrieve_start",
                                              "before = {n: t.clone() for n, t in model.state_dict().items()}"),)),
    "device_iterations.py": Script("As it stands; the number of its process is taken with a warning."),
    "error_handling.py": Script("As it stands."),
    "inferenceModel.py": Script(f"Edited: {NEEDS_WEIGHTS}."),
    "mnist.py": Script("As it stands, on data of its own kind."),
    "phased_execution.py": Script("As it stands."),
    "pipeline_simple.py": Script(f"Edited: {NEEDS_WEIGHTS}, so that its answers are other ones.",
                                 ((r"(?m)^assert answer_string.*$", ""),)),
    "poptorch_training_simple.py": Script("As it stands."),
    "replica_grouped_weights.py": Script("As it stands."),
    "sumAnchorReturnType.py": Script("As it stands."),
    "trainingModel.py": Script("As it stands."),
    "precompilation.py": Script("Edited: it chooses an IPU by its number, of which there is none; it chooses an output "
                                "mode in its place.",
                                ((r"opts\.useIpuId\(1\)", "opts.outputMode(poptorch.OutputMode.All)"),)),
    "custom_ops_test.py": Script(f"Edited: {DECLARED}.", (*LOADED, HELPERS)),
    "custom_ops_attributes_test.py": Script(f"Edited: {DECLARED}.", (*LOADED, HELPERS)),
}


def folder() -> Path | None:
    """Where the source documents are; None where they are not."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    return next(iter(sorted(ROOT.parent.glob("*/reference/source-docs"))), None)


def source(name: str) -> str:
    """A script's text with its import and what is edited replaced; skips the test where there is none."""
    where = folder()
    if where is None or not (where / "included" / name).is_file():
        pytest.skip(MISSING)
    text = (where / "included" / name).read_text(encoding="utf-8")
    for pattern, instead in SCRIPTS[name].edits:
        text, count = re.subn(pattern, instead, text)
        assert count, f"{name} has nothing that {pattern} fits"
    return replaced(text)


def replaced(text: str) -> str:
    """The import is ours. What asks for hardware goes on: some scripts would leave at once."""
    text = IMPORT.sub("import tileflow.poptorch as poptorch; poptorch.ipuHardwareIsAvailable = lambda num_ipus=1: True",
                      text)
    return text.replace("from poptorch.", "from tileflow.poptorch.")


def run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str,
        before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run a script as a process of its own with these arguments would; its names at the end, and what it printed as
    `printed`."""
    import tileflow.poptorch as poptorch
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script.py", *arguments])
    monkeypatch.setattr(poptorch, "ipuHardwareIsAvailable", poptorch.ipuHardwareIsAvailable)
    names: dict[str, Any] = {"__name__": "__main__", **(before or {})}
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        exec(compile(text, str(tmp_path / "script.py"), "exec"), names)
    return {**names, "printed": printed.getvalue()}


def digits(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Real handwritten digits, enlarged to the size of MNIST's: images [n, 1, 28, 28] from 0 to 1, and labels [n]; four
    fifths are to train with."""
    found = np.load(ROOT / "tileflow" / "data" / "digits.npz")
    images, labels = (found[name] for name in found.files[:2])
    large = np.kron(images.reshape(-1, 8, 8).astype(np.float32) / images.max(), np.ones((1, 3, 3), np.float32))
    large, count = np.pad(large, ((0, 0), (2, 2), (2, 2)))[:, None], len(labels) * 4 // 5
    return (large[:count], labels[:count]) if train else (large[count:], labels[count:])


def stand_in_for_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's names that scripts use: MNIST as our digits, a network with initial weights."""
    import torch

    class MNIST(torch.utils.data.Dataset):
        def __init__(self, root: str, train: bool = True, download: bool = False, transform: Any = None) -> None:
            self.images, self.labels = digits(train)
            self.images = (self.images - 0.1307) / 0.3081

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            return torch.from_numpy(self.images[i]), int(self.labels[i])

    def block(inside: int, outside: int, stride: int) -> torch.nn.Module:
        """A depthwise and a pointwise convolution between normalisations."""
        return torch.nn.Sequential(torch.nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False),
                                   torch.nn.BatchNorm2d(inside),
                                   torch.nn.ReLU6(), torch.nn.Conv2d(inside, outside, 1, bias=False),
                                   torch.nn.BatchNorm2d(outside))

    def mobilenet_v2(pretrained: bool = False) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU6(), block(16, 24, 2),
                                   block(24, 32, 2), block(32, 64, 2),
                                   torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 1000))

    parts = {"datasets": {"MNIST": MNIST}, "models": {"mobilenet_v2": mobilenet_v2},
             "transforms": {"Compose": list, "ToTensor": lambda: None, "Normalize": lambda mean, std: None}}
    top = types.ModuleType("torchvision")
    monkeypatch.setitem(sys.modules, "torchvision", top)
    for name, held in parts.items():
        module = types.ModuleType(f"torchvision.{name}")
        vars(module).update(held)
        setattr(top, name, module)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def stand_in_for_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' names that scripts use, with initial weights and a tokenizer of letters: nothing is downloaded."""
    import torch
    transformers = pytest.importorskip("transformers", reason="builds networks with transformers, which is not "
                                                              "installed: pip install transformers")

    class Tokenizer:
        @classmethod
        def from_pretrained(cls, *_: Any, **__: Any) -> Tokenizer:
            return cls()

        def __call__(self, one: list[str], other: list[str], padding: bool) -> dict[str, list[list[int]]]:
            rows = [([1 + ord(c) % 120 for c in a], [1 + ord(c) % 120 for c in b])
                    for a, b in zip(one, other, strict=True)]
            length = max(len(a) + len(b) for a, b in rows)

            def filled(row: list[int]) -> list[int]:
                return row + [0] * (length - len(row))
            return {"input_ids": [filled(a + b) for a, b in rows],
                    "attention_mask": [filled([1] * len(a + b)) for a, b in rows],
                    "token_type_ids": [filled([0] * len(a) + [1] * len(b)) for a, b in rows]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [chr(i) for i in ids]

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "".join(tokens)

    class Questions(transformers.BertForQuestionAnswering):                          # type: ignore[name-defined,misc]
        @classmethod
        def from_pretrained(cls, *_: Any, **__: Any) -> Any:
            torch.manual_seed(0)
            return transformers.BertForQuestionAnswering(transformers.BertConfig(
                vocab_size=128, hidden_size=32, num_hidden_layers=6, num_attention_heads=2, intermediate_size=48,
                max_position_embeddings=128)).eval()

    module = types.ModuleType("transformers")
    module.BertForQuestionAnswering, module.BertTokenizer = Questions, Tokenizer     # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)
