"""docs/exporting.md is true: its code runs as it stands, and the files that it makes train as it says."""
from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from peers import needs
from places import ROOT

from tileflow.importers.onnx import folded_norms, import_graph, load_model

PAGE = (ROOT / "docs/exporting.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def run(section: str, folder: Path) -> str:
    """Run a section's Python as one program, then its commands; what they print."""
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)
    program = "\n".join(code for language, code in blocks if language == "python")
    lines = [line.split() for language, code in blocks if language == "sh" for line in code.splitlines()]
    commands = [["-W", "ignore", "-c", program], *(["-m", *line] for line in lines)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    printed = ""
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{' '.join(command)[:200]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed += done.stdout
    return printed


def parameters(path: Path) -> set[str]:
    return {s.name for s in import_graph(load_model(path), batch=2, training=True).graph.parameters}


def test_pytorch(tmp_path: Path) -> None:
    needs("torch")
    needs("onnxscript")
    printed = run("PyTorch", tmp_path)
    for name in ("net.onnx", "older.onnx"):
        model = load_model(tmp_path / name)
        assert parameters(tmp_path / name) == {"0.weight", "1.weight", "1.bias", "5.weight", "5.bias"}
        assert {"BatchNormalization", "Dropout"} <= {n.op_type for n in model.proto.graph.node}
        assert folded_norms(model) is None
    assert "In training mode" in printed
    written = load_model(tmp_path / "runs/net/model.onnx").proto.graph.node
    assert [list(n.output)[1:] for n in written if n.op_type in ("BatchNormalization", "Dropout")] == [[], []]


def test_sklearn(tmp_path: Path) -> None:
    needs("sklearn")
    needs("skl2onnx")
    printed = run("scikit-learn", tmp_path)
    assert parameters(tmp_path / "mlp.onnx") == {"coefficient", "intercepts", "coefficient1", "intercepts1"}
    assert parameters(tmp_path / "logistic.onnx") == {"coef", "intercept"}
    assert min(float(a) for a in re.findall(r"'accuracy': ([0-9.]+)", printed)) > 0.9


def test_keras(tmp_path: Path) -> None:
    needs("torch")
    if importlib.util.find_spec("keras") is None:              # importing it here would choose its backend
        needs("keras")
    run("Keras", tmp_path)
    assert len(parameters(tmp_path / "keras.onnx")) == 4


def test_the_page_has_every_section() -> None:
    assert list(SECTIONS) == ["PyTorch", "scikit-learn", "Keras", "After training"]


@pytest.mark.parametrize("option", ["--tie", "--untie", "--trainable", "--keep-training-mode"])
def test_options_exist(option: str) -> None:
    from tileflow.options.options import declarations
    assert option in {d.flag for d in declarations().values()}
    assert f"`{option}`" in PAGE
