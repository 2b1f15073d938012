"""The page of a run and `tileflow runs`: what they tell, whatever names and files would like to be more than texts."""
from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser as chromium
import numpy as np
import pytest

import tileflow
from tileflow import cli, nn
from tileflow.report.curves import Line, curves
from tileflow.report.run_page import MOST, Example, RunPage, render
from tileflow.runtime.runs import read_run
from tileflow.system.errors import CheckpointError

EVIL = "</style></script><img src=x onerror=document.title='hacked'>\x1b[31m\udcff\u202e"
DRAW = np.random.default_rng(0)


class Parsed(HTMLParser):
    """The elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def harmless(text: str) -> Parsed:
    """No script, nothing from elsewhere, and no element that only a name could have made."""
    page = Parsed(text)
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert all(value.startswith("data:image/png;base64,") for name, value in page.attributes if name in ("src", "href"))
    assert "default-src 'none'" in text
    assert text.count("</style>") == 1
    return page


def page(**more: Any) -> RunPage:
    history = {"epoch": [1.0, 2.0], "loss": [1.0, 0.5], "test_loss": [1.1, float("nan")], f"test_{EVIL}": [0.1, 0.2]}
    return RunPage(**dict(title=EVIL, said=EVIL, history=history, losses=Line(EVIL, range(5000), [1.0] * 5000),
                          rates=Line("rate", [], []),
                          facts={EVIL: EVIL}, settings={EVIL: [EVIL] * 1000}, confusion=np.array([[3, 1], [0, 4]]),
                          classes=[EVIL, "b"],
                          worst=[Example(3, float("inf"), EVIL, EVIL, np.zeros((1, 8, 8)))]) | more)


def test_names_only_become_texts() -> None:
    found = harmless(render(page()))
    assert found.tags.count("img") == 1
    assert len(render(page())) < 200_000


def test_a_page_has_a_limit() -> None:
    """Of pictures as many are shown as there is room for; names and settings are cut, rows of long runs left out."""
    noise = [Example(i, 1.0, "a", "b", DRAW.random((3, 256, 256))) for i in range(200)]
    history = {name: np.arange(100_000.0).tolist() for name in ("epoch", "loss", "test_loss")}
    long = page(worst=noise, history=history, settings={f"s{i}": "x" * 10_000 for i in range(5000)},
                facts={"a": "y" * 10 ** 6})
    text = render(long)
    assert 2_000_000 < len(text.encode()) <= MOST
    assert 3 < harmless(text).tags.count("img") < 200


@pytest.mark.parametrize("ys", [[], [float("nan")] * 3, [float("inf"), 1.0, 2.0], [5.0] * 3, [-1.0, 0.0, 1.0],
                                [1e-300, 1e300, 1.0]])
def test_curves_of_anything(ys: list[float]) -> None:
    text = curves("t", [Line("a", list(range(len(ys))), ys)], "x")
    assert "nan" not in text.lower().replace("nan 0", "")
    assert (text == "") == (not any(np.isfinite(ys)))


# ---- of a run

@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tileflow.TrainResult:
    """A run on pictures whose classes have names."""
    x, y = DRAW.random((60, 1, 6, 6)).astype(np.float32), np.array([EVIL, "cat", "dog"])[DRAW.integers(0, 3, 60)]
    nn.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    return tileflow.train(net, data=((x, y), (x[:20], y[:20])), epochs=3, micro_batch_size=4,
                          out=str(tmp_path_factory.mktemp("runs") / "first"),
                          keep_best=True, monitor="val_accuracy", learning_rate=0.02)


def test_the_page_of_a_run(result: tileflow.TrainResult) -> None:
    text = (result.folder / "report.html").read_text()
    found = harmless(text)
    assert "data:image/png" in text
    assert found.tags.count("img") == 20
    for figure in (result.history["loss"][-1], result.history["test_loss"][-1]):
        assert f"<b>{figure:.4f}</b>" in text
    counts = [int(n) for n in re.findall(r'<td class="s\d+">(\d+)</td>', text)]
    assert sum(counts) == 20
    assert f"{result.evaluate()['accuracy']:.2%}" in text


def test_what_a_result_holds(result: tileflow.TrainResult, tmp_path: Path) -> None:
    """The best, the curves, predictions scaled as the data were; the best checkpoint's weights are those that were
    best."""
    best = result.best
    assert best is not None
    column = result.history["test_accuracy"]
    assert (best.epoch, best.value) == (int(np.argmax(column)) + 1, column.max())
    assert best.checkpoint == result.folder / "best.safetensors"
    assert best.model is None                                              # of a network of layers, which is no file
    picture = result.plot()
    assert picture.save(tmp_path / "curves.svg").read_text() == picture == picture._repr_svg_()
    assert picture.startswith("<svg xmlns=")
    x = DRAW.random((7, 1, 6, 6)).astype(np.float32)
    wanted = tileflow.inference_model(result.model.source.net)(x)          # type: ignore[attr-defined]
    np.testing.assert_array_equal(result.predict(x), wanted)


def test_predictions_are_scaled_as_in_training(tmp_path: Path) -> None:
    result = tileflow.train("digits_cnn.onnx", data="digits", epochs=1, out=str(tmp_path / "run"), max_batches=5)
    x = DRAW.integers(0, 17, (9, 8, 8)).astype(np.uint8)
    name, wanted = next(iter(tileflow.infer(tmp_path / "run" / "model.onnx", data=x).items()))
    assert name
    np.testing.assert_allclose(result.predict(x), wanted, rtol=1e-5, atol=1e-6)
    assert result.best is not None
    assert (result.best.monitor, result.best.checkpoint) == ("val_loss", None)


@pytest.mark.exhaustive
def test_in_a_browser(result: tileflow.TrainResult) -> None:
    """Nothing is logged or asked for from elsewhere, no name does anything, and a phone shows all of it without
    scrolling sideways."""
    if chromium.found() is None:
        pytest.skip("needs a browser: apt-get install chromium (or CHROMIUM=its path)")
    with chromium.Browser() as running:
        for width in (1280, 400):
            shown = running.open(result.folder / "report.html", width, 900)
            assert shown("document.documentElement.scrollWidth") <= width
            assert "hacked" not in shown("document.title")
            assert shown.said == []
            assert not [url for url in shown.asked if not url.startswith("data:")]


# ---- tileflow runs

def test_runs_are_listed_and_compared(result: tileflow.TrainResult, tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "second"
    tileflow.train(nn.Linear(4, 2), data=(np.zeros((8, 4), np.float32), np.zeros(8, np.int64)), epochs=2,
                   micro_batch_size=4, out=str(other), max_updates=3)
    assert cli.main(["runs", str(result.folder.parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["run", "epochs", "updates", "loss"]
    assert lines[1].split()[:4] == ["first", "3", "45", f"{result.history['loss'][-1]:.4f}"]
    assert cli.main(["runs", str(result.folder), str(other)]) == 0
    out = capsys.readouterr().out
    assert "ended early: 3 updates are done" in out
    assert re.search(r"^max_updates +None +3$", out, re.MULTILINE)
    assert cli.main(["runs", str(other)]) == 0
    capsys.readouterr()
    assert cli.main(["runs", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["runs", str(tmp_path / "empty")]) == 2
    assert "There are no runs in" in capsys.readouterr().err


@pytest.mark.parametrize("content",
                         ["", "[]", "{}", '{"epochs": 3}', '{"epochs": [3]}', "[" * 100_000, '{"epochs": "x"}', "\x00"])
def test_forged_metrics_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"metrics\.json"):
        read_run(tmp_path)


def test_a_forged_run_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever stands in it: what terminals obey is taken out, and what is no figure is none."""
    for name, epochs in (("a", [{"loss": EVIL, "accuracy": True, EVIL: 1.0}]),
                         ("b", [{"loss": 0.5, "test_loss": 1e999, "seconds": None}])):
        folder = tmp_path / f"{name}\x1b[2J"
        folder.mkdir()
        (folder / "metrics.json").write_text(json.dumps({"epochs": epochs, "updates": "x", "ended_early": EVIL,
                                                         "options": {EVIL: EVIL, name: name}}))
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert cli.main(["runs", *(str(p) for p in sorted(tmp_path.iterdir()))]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "0.5000" in out
