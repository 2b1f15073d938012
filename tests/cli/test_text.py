"""Names and texts from files: nothing that a terminal or a browser would obey comes out of any verb."""
from __future__ import annotations

import csv
import io
import sys
import unicodedata
import warnings
import zipfile

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, port

import tileflow
from tileflow import cli
from tileflow.system.errors import OptionError
from tileflow.system.terminal import say
from tileflow.system.text import one_line, printable

TAKEN_OUT = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
EVIL = "\x00\x07\x08\x1b[31m\x9b2J\r\x7f\x85\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\ud800\U000e0041"
"""NUL, bell, backspace, escape sequences of 7 and 8 bits, line separators, bidirectional marks, invisible and lone surrogate characters."""


def raw(text: str) -> list[str]:
    """What of a text a terminal would obey: everything that must be taken out, but line feeds."""
    return [f"U+{ord(c):04X}" for c in text if c != "\n" and unicodedata.category(c) in TAKEN_OUT]


def test_every_character_that_is_not_printable_is_taken_out():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert not raw(printable(everything))
    assert not raw(one_line(everything, len(everything)))
    assert "\n" not in one_line(everything, len(everything))
    assert raw(EVIL)


def test_texts_of_ours_keep_their_lines_and_columns():
    text = "name   size\né漢🙂a\x1bb\n"
    assert printable(text) == "name   size\né漢🙂a b\n"
    assert one_line("a  b") == "a  b"
    assert one_line("a\n b\x00") == "a b"
    assert one_line("abc", 2) == "ab ..."


def test_errors_are_one_line():
    error = OptionError(f"There is no {EVIL}\nname.")
    error.add_note(f"Saved in {EVIL}.")
    assert not raw(str(error))
    assert str(error).count("\n") == 0
    assert not raw("".join(error.__notes__))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_stream_gets_what_it_can_take(encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    say("漢 ü " + EVIL, stream)
    stream.seek(0)
    text = stream.read()
    assert not raw(text)
    assert text.startswith({"utf-8": "漢 ü ", "latin-1": "\\u6f22 ü "}.get(encoding, "\\u6f22 \\xfc "))


# ---- a model, data and paths whose every name is hostile

NAME = "\x00\x07\x1b[31m\x9b2J\r\n\x7f\u200b\u200e\u2028\u202e\u2066\ufeff\U000e0041"
"""What a name in a file may hold and a terminal, an editor or a browser would obey."""
FILE_NAME = NAME.replace("\x00", "") + "\udcff"
"""What a file's name may hold: no NUL, but bytes that are no text."""
CELL = NAME.replace("\r\n", "")


def hostile(path, classes=3, channels=4):
    """A model of two layers in which every name, symbol, comment and entry of metadata holds what it should not."""
    rng = np.random.default_rng(0)

    def name(word):
        return f"{word}{NAME}"
    weights = {name("w1"): rng.standard_normal((4, 5)), name("b1"): np.zeros(5), name("w2"): rng.standard_normal((5, classes))}
    nodes = [node("Gemm", [name("x"), name("w1"), name("b1")], [name("h")], name("fc1"), doc_string=name("note")),
             node("Relu", [name("h")], [name("r")], name("relu")), node("MatMul", [name("r"), name("w2")], [name("y")], name("fc2"))]
    ports = [port(name("x"), [name("N"), channels]), port(name("y"), [name("N"), classes])]
    model = model_of(nodes, ports[:1], ports[1:], {n: a.astype(np.float32) for n, a in weights.items()})
    model.graph.name, model.graph.doc_string, model.producer_name, model.producer_version = name("graph"), name("doc"), name("maker"), name("1")
    model.doc_string, model.domain = name("doc"), name("domain")
    for thing in (model, *model.graph.node):
        thing.metadata_props.add(key=name("key"), value=name("value"))
    onnx.save(model, path)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile(MODEL)
    hostile(OPEN, channels=f"C{NAME}")
    chip_file(tmp_path / "chip.toml", tiles=8)
    chip_file(tmp_path / "little.toml", tiles=2, bytes_per_tile=600)
    x, y = np.random.default_rng(1).standard_normal((32, 4)).astype(np.float32), np.arange(32) % 3
    with zipfile.ZipFile(f"data{FILE_NAME}.npz", "w") as archive:
        for key, array in ((f"x{NAME}", x), ("y", y), (f"spare{NAME}", x)):
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{key.replace(chr(0), '')}.npy", buffer.getvalue())
    with open(f"table{FILE_NAME}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"column {i}{CELL}" for i in range(4)), f"label{CELL}"])
        writer.writerows([*row, f"class {label}{CELL}"] for row, label in zip(x.tolist(), y.tolist(), strict=True))
    return tmp_path


def chip_file(path, **constants):
    """A chip of one's own with a hostile name: TOML has escapes for any character."""
    name = "".join(f"\\U{ord(c):08X}" for c in NAME)
    path.write_text(f'base = "gc200"\nname = "chip{name}"\n' + "".join(f"{k} = {v}\n" for k, v in constants.items()), encoding="utf-8")


MODEL, DATA, TABLE = f"model{FILE_NAME}.onnx", f"data{FILE_NAME}.npz", f"table{FILE_NAME}.csv"
OPEN, RUN = f"open{FILE_NAME}.onnx", f"run{FILE_NAME}"
INPUT = "x" + NAME.replace("\x00", "")


@pytest.mark.parametrize("words", [
    ["inspect", MODEL, "--verbose"],
    ["inspect", MODEL, "--training", "--verbose"],
    ["inspect", OPEN],
    ["compile", OPEN],
    ["compile", MODEL, "--training"],
    ["compile", MODEL, "--training", "--machine", "gc200", "--report", "report", "--verbose", "&&", "report", "report", "--render", "--verbose"],
    ["compile", MODEL, "--training", "--machine", "chip.toml", "--tile-exact", "--report", "report", "--verbose", "&&", "report", "report"],
    ["compile", MODEL, "--training", "--machine", "little.toml"],
    ["tune", MODEL, "--machine", "gc200", "--evaluations", "2", "--report", "report", "--progress"],
    ["train", MODEL, "--data", DATA, "--out", RUN, "--progress", "--inputs", INPUT, "&&",
     "infer", f"{RUN}/model.onnx", "--data", DATA, "--inputs", INPUT, "&&",
     "train", MODEL, "--data", DATA, "--out", RUN, "--inputs", INPUT, "--resume", "--epochs", "2"],
    ["train", MODEL, "--data", TABLE, "--out", "run", "&&", "infer", "run/model.onnx", "--data", TABLE],
    ["train", MODEL, "--data", DATA, "--label", f"none{FILE_NAME}"],
    ["train", MODEL, "--data", TABLE, "--inputs", f"none{FILE_NAME}"],
    ["train", MODEL, "--data", DATA, "--frozen", f"none{FILE_NAME}"],
    ["train", f"none{FILE_NAME}", "--data", DATA],
    ["train", MODEL, "--data", f"none{FILE_NAME}"],
    ["train", MODEL, "--data", DATA, "--dims", f"none{FILE_NAME}=3"],
    ["train", MODEL, "--data", DATA, "--loss", f"none{FILE_NAME}"],
    ["train", MODEL, "--data", DATA, f"--none{FILE_NAME}"],
    ["train", MODEL, "--data", DATA, "--options", f"none{FILE_NAME}.toml"],
    ["infer", MODEL, "--data", DATA, "--out", f"none{FILE_NAME}/p.npz"],
    ["report", f"none{FILE_NAME}"],
    ["compile", MODEL, "--machine", f"none{FILE_NAME}"],
    [f"none{FILE_NAME}"],
], ids=lambda words: " ".join(w for w in words if w.isprintable()))
def test_nothing_of_it_comes_out_of_any_verb(files, capsys, words):
    joined = "\x01".join(words).split("\x01&&\x01")
    for part in joined:
        code = cli.main(part.split("\x01"))
        out, err = capsys.readouterr()
        assert code in (cli.OK, cli.USER_ERROR), err
        assert len(joined) == 1 or code == cli.OK, err
        assert out or err
        bars = err.replace("\r", "") if "--progress" in words else err          # bars go back to the start of their line
        assert not raw(out), out
        assert not raw(bars), bars
    for path in files.rglob("*"):
        if path.suffix in (".json", ".html", ".toml", ".txt", ".css", ".js"):
            assert not raw(path.read_text(encoding="utf-8")), path.name


def test_nothing_of_it_comes_out_of_python(files):
    model = tileflow.load(MODEL)
    compiled = tileflow.compile(model, training=True, machine="gc200")
    result = tileflow.train(model, data=DATA, out=RUN, inputs=[INPUT])
    shown = [repr(model), *map(str, model.inputs), *map(repr, model.inputs), compiled.to_text(), repr(compiled.program), repr(result),
             result._repr_html_(), repr(compiled.program.micro), repr(compiled.program.micro.nodes[0]), repr(result.model),
             repr(tileflow.Options(out=RUN))]
    for text in shown:
        assert not raw(text), text
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tileflow.infer(result.folder / "model.onnx", data={INPUT: np.full((8, 4), 1e6, np.float32)}, inputs=[INPUT])
        again = [tileflow.training_model(MODEL) for _ in range(2)]
        again[0](np.zeros((3, 4), np.float32), np.zeros(3, np.int64))
        tileflow.training_model(MODEL)
    assert len(warned) >= 2
    assert not [raw(str(w.message)) for w in warned if raw(str(w.message))]
    with pytest.raises(tileflow.TileflowError) as caught:
        tileflow.training_model(model)(np.zeros((3, 5), np.float32), np.zeros(3, np.int64))
    assert not raw(str(caught.value))
