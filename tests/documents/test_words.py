"""The tables of other packages' words and ours: each of ours is there and takes the values that stand there, and so is
each of theirs where their package is installed."""
from __future__ import annotations

import ast
import importlib
import inspect
import re
from typing import Any

import pages
import pytest
from peers import needs

import tileflow
from tileflow import cli
from tileflow.api.history import History
from tileflow.options.options import declarations
from tileflow.runtime.callbacks import TrainingRun
from tileflow.runtime.training_model import TrainingModel

TABLES = {
    "docs/from-onnxruntime.md": ("onnxruntime.training.api", "onnxruntime.training"),
    "docs/from-keras.md": ("keras",),
    "docs/from-lightning.md": ("lightning.pytorch",),
    "docs/from-huggingface.md": ("transformers",),
}
"""Pages, and the modules in which their words are looked up."""
ELSEWHERE = {"layer.trainable": "Layer.trainable", "TrainerState.log_history": "TrainerState"}
"""Words of objects, and the names by which their classes are found: a field of a dataclass without a default is none of
its class."""
OURS: dict[str, Any] = {"tileflow": tileflow, "result": tileflow.TrainResult, "model": TrainingModel,
                        "run": TrainingRun}
PROPERTIES: dict[str, Any] = {"result.history": History, "model.optimizer": tileflow.optim.AdamW(lr=1e-3)}
"""What properties give."""
ARGUMENTS = {*inspect.signature(tileflow.train).parameters, *inspect.signature(tileflow.training_model).parameters}


def rows(page: str) -> list[tuple[str, str]]:
    """The cells of the table `there | here`."""
    table = pages.PAGES[page].read_text("utf-8").partition("| there | here |\n|---|---|\n")[2].partition("\n\n")[0]
    return [(theirs, ours) for theirs, ours in re.findall(r"^\| (.*?) \| (.*?) \|$", table, re.MULTILINE)]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def reached(root: Any, path: list[str]) -> Any:
    """What a path of attributes leads to; of a class also what its annotations, or the source of its constructor,
    name."""
    for i, part in enumerate(path):
        if not hasattr(root, part) and isinstance(root, type) and i == len(path) - 1:
            assert part in root.__annotations__ or f"self.{part}" in inspect.getsource(root), \
                f"{root.__name__} has no {part}"
            return None
        is_room = inspect.ismodule(root) and not hasattr(root, part)
        root = importlib.import_module(f"{root.__name__}.{part}") if is_room else getattr(root, part)
    return root


def check_ours(word: str) -> None:
    """A command, a flag, an option with a value, or a name with or without arguments."""
    if word.startswith("tileflow "):
        cli.parse([*word.split()[1:2], "model.onnx", *word.split()[2:]])
    elif word.startswith("--"):
        cli.parse(["train", "model.onnx", *word.split()])
    elif match := re.fullmatch(r"(\w+)=(.+)", word):
        name, value = match[1], match[2]
        assert name in ARGUMENTS or name in declarations(), f"{name} is no option"
        tree = ast.parse(value, mode="eval").body
        if isinstance(tree, ast.Call):
            check_ours(value)
        elif name in declarations() and not any(isinstance(n, ast.Name) for n in ast.walk(tree)):
            declarations()[name].check(ast.literal_eval(tree))
    elif re.fullmatch(r"[\w.]+(?:\(.*\))?", word) and (word.partition(".")[0] in OURS):
        name, _, rest = word.partition("(")
        start = next((prop for prop in PROPERTIES if name.startswith(f"{prop}.")), name.partition(".")[0])
        found = reached((OURS | PROPERTIES)[start], name.removeprefix(start).split(".")[1:])
        if rest and found is not None and not isinstance(found, property):
            call = ast.parse(word, mode="eval").body
            assert isinstance(call, ast.Call)
            bound = inspect.signature(found)
            known = bound.parameters
            takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
            assert takes_any or all(k.arg in known for k in call.keywords), word
    else:
        name = word.partition("(")[0].partition("[")[0]
        others = ("forward", "log.jsonl", "test_loss", "val_loss", "data[i]", "len(data)")
        assert name in declarations() or name in ARGUMENTS or word in others, word


def check_theirs(word: str, homes: list[Any]) -> None:
    """A name, or a keyword: `keyword=` of some of the table's functions, `Name(keyword=)` of that one."""
    match = re.fullmatch(r"([\w.]*)(?:\((\w+)=\))?(=?)", ELSEWHERE.get(word, word))
    assert match, word
    if match[3]:
        return                                             # a keyword of a function that another row names
    first = match[1].partition(".")[0]
    home = next((h for h in homes if hasattr(h, first) or _submodule(h, first)), None)
    assert home is not None, f"{word}: none of {[h.__name__ for h in homes]} has {first}"
    found = reached(home, match[1].split("."))
    if match[2]:
        assert match[2] in inspect.signature(found).parameters, word


def _submodule(home: Any, name: str) -> bool:
    try:
        return importlib.util.find_spec(f"{home.__name__}.{name}") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("page", TABLES)
def test_our_words_are_there(page: str) -> None:
    found = rows(page)
    assert len(found) > 10
    for theirs, ours in found:
        assert words(theirs), theirs
        for word in words(ours):
            check_ours(word)


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", TABLES)
def test_their_words_are_there(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")                       # else it wants TensorFlow
    homes = [pytest.importorskip(module, reason="looks up names of onnxruntime-training")
             if "training" in module else needs(module)
             for module in TABLES[page]]
    for theirs, _ in rows(page):
        for word in words(theirs):
            check_theirs(word, homes)


def test_words_that_are_not_there_are_found() -> None:
    for bad in ("tileflow.train_model", "gone=1", "--gone 3", "epochs=-1", "tileflow.callbacks.Gone", "result.gone(x)",
                "max_grad_norm='much'",
                "tileflow gone", "tileflow.callbacks.EarlyStopping(gone=1)", "optimizer=tileflow.optim.Gone(lr=1)",
                "gone"):
        with pytest.raises((AssertionError, AttributeError, ImportError, ValueError, SystemExit)):
            check_ours(bad)
    for bad in ("loads", "JSONDecoder(gone=)", "decoder.Gone"):
        importlib.import_module("json")
        if bad != "loads":
            with pytest.raises((AssertionError, AttributeError, ImportError)):
                check_theirs(bad, [importlib.import_module("json")])
        else:
            check_theirs(bad, [importlib.import_module("json")])


def test_every_table_of_words_is_checked() -> None:
    of_words = {page for page, path in pages.PAGES.items() if "| there | here |\n" in path.read_text("utf-8")}
    assert of_words - {"docs/callbacks.md", "docs/distributed.md"} == {*TABLES}
