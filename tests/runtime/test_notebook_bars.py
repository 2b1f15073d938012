"""Bars in a notebook: its kernel's streams are no terminals, and bars show all the same, as what is installed there
allows."""
from __future__ import annotations

import subprocess
import sys

import pytest
from peers import needs
from places import ROOT

SCRIPT = """
import io, sys, types, warnings
warnings.simplefilter("error")
sys.modules.setdefault("IPython", types.ModuleType("IPython")).get_ipython = lambda: None
sys.modules["{kernel}"] = types.ModuleType("{kernel}")
from tileflow.callbacks import ProgressBar
bar = ProgressBar(out=io.StringIO())
bar.run = types.SimpleNamespace(epochs=2, batches=3, updates_in_epoch=0)
bar.on_epoch_begin(0, {{}})
bar._bar.update(1)
print(bar.bars, type(bar._bar).__module__, file=sys.__stdout__)
bar.close()
"""


def bars(kernel: str, *before: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", "\n".join(before) + SCRIPT.format(kernel=kernel)], cwd=ROOT,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1].split()


@pytest.mark.parametrize(("kernel", "wanted"),
                         [("ipykernel.zmqshell", ["True", "tqdm.asyncio"]), ("nothing", ["False", "tqdm.std"])])
def test_a_notebook_without_widgets_shows_bars_of_text(kernel: str, wanted: list[str]) -> None:
    """Without a warning; IPython at a terminal is no notebook, and a pipe gets no bars."""
    assert bars(kernel, "import sys", "sys.modules['ipywidgets'] = None") == wanted


@pytest.mark.exhaustive
def test_a_notebook_with_widgets_shows_its_own() -> None:
    needs("ipywidgets")
    assert bars("ipykernel.zmqshell", "import IPython, ipywidgets") == ["True", "tqdm.auto"]
