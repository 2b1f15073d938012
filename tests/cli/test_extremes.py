"""Values beyond any use, wherever one is given: a sentence that names the field, at once; the largest that have a use are taken."""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import at_most

import tileflow
from tileflow import cli, nn
from tileflow.options.kinds import (
    LARGEST,
    Counts,
    Integer,
    Kind,
    Machine,
    Number,
    Numbers,
    ParamGroups,
    Proportions,
    Sizes,
)
from tileflow.options.options import Options, declarations
from tileflow.program.staging import SEVERAL
from tileflow.system.errors import OptionError, OutOfMemoryError, ShapeError, TileflowError
from tileflow.system.text import LONGEST_VALUE, shown
from tileflow.tiles.hardware.chip import CHIPS, MOST, MOST_TILES, MOST_WHOLE, Chip

LONG = "9" * 5000
"""A number of more digits than Python reads."""
FEW, MANY = 100_000, 4_000_000
"""Function calls that a sentence about a value, and one about a whole program or its plan, take at most."""
SHORT = 1200
"""Characters that a sentence with a value has at most."""
BIG: dict[str, Any] = {"10**400": 10 ** 400, "5,000 digits": 10 ** 5000, "-10**400": -10 ** 400, "a list": [10 ** 5000], "a table": {"a": 10 ** 5000}}


@pytest.mark.parametrize("value", BIG)
def test_options_of_any_kind_say_no(value: str) -> None:
    """Every option, whatever it takes: the sentence names it, and shows of the value what can be shown."""
    for name, declaration in declarations().items():
        if isinstance(declaration.kind, Machine) and isinstance(BIG[value], dict):
            continue                                    # a chip's table: that is looked at where the chip is made
        with at_most(FEW), pytest.raises(OptionError, match=name) as said:
            Options(**{name: BIG[value]})
        assert len(str(said.value)) < SHORT, name


@pytest.mark.parametrize("word", [LONG, f"a={LONG}", f"*=consecutive:{LONG}", f"*=output_channels:{LONG}"], ids=lambda word: word[:5])
def test_flags_say_no(word: str) -> None:
    """But for those that take texts, which it may be."""
    said: dict[str, str] = {}
    for name, declaration in declarations().items():
        with at_most(FEW):
            try:
                declaration.parse(word)
            except OptionError as error:
                said[name] = str(error)
    assert all(name in sentence and len(sentence) < SHORT for name, sentence in said.items())
    assert {Integer, Number, Numbers, Counts, Proportions} <= {type(declarations()[name].kind) for name in said}


@pytest.mark.parametrize("kind", [Integer(), Number(), Numbers(), Sizes(), Counts(("a",)), Proportions(), ParamGroups()],
                         ids=lambda kind: type(kind).__name__)
def test_kinds_take_the_largest_that_there_is_room_for(kind: Kind) -> None:
    wrap: dict[type, Callable[[Any], Any]] = {Sizes: lambda x: {"a": x}, ParamGroups: lambda x: {"params": "*", "lr": x}}
    of = wrap.get(type(kind), lambda x: x)
    largest = LARGEST if isinstance(kind, (Integer, Sizes, Counts)) else 1 if isinstance(kind, Proportions) else 10 ** 308
    assert kind.check(of(largest)) is not None
    for above in (largest + 1 if largest == LARGEST else 10 * largest + 1, 10 ** 400):
        with pytest.raises(ValueError):
            kind.check(of(above))


FILES = {
    "options.toml": (f"epochs = {LONG}", "not valid TOML: epochs = 99999999999999999999... has 5,000 digits, more than a number may have."),
    "inner.toml": (f"[training]\nclass_weights = [1.0, {LONG}]", "class_weights = [1.0, 99999999999999999999... has 5,000 digits"),
    "big.toml": (f"epochs = 1{'0' * 400}", "Option epochs must be a whole number, at least 0, not 1000"),
    "float.toml": ("learning_rate = 1e999", "Option learning_rate must be a number, at least 0, not inf."),
    "options.json": (f'{{"seed": 1, "epochs": {LONG}}}', 'not valid JSON: {"seed": 1, "epochs": 99999999999999999999... has 5,000 digits'),
    "big.json": (f'{{"epochs": 1{"0" * 400}}}', "Option epochs must be"),
    "options.conf": (f"seed(1)\ndeviceIterations({LONG})", "line 2:"),
    "list.toml": (f"epochs = {'[' * 10_000}", "epochs = [[[[[[[[[[[[[[[[[[[[... is nested too deeply."),
    "list.json": (f'{{"epochs": {"[" * 100_000}', 'nested too deeply.'),
    "table.json": ('{"a":' * 100_000, "what it holds is nested too deeply."),
    "some.toml": (f"epochs = {'[' * 300}{']' * 300}", "Option epochs must be a whole number, at least 0, not [[[["),
    "dots.toml": (f"epochs{'.a' * 50_000} = 1", "has too many parts."),
    "header.toml": (f"[epochs{' . a' * 50_000}]", "has too many parts."),
    "quoted.toml": ("epochs" + '."a"' * 50_000, "has too many parts."),
    "deep.conf": (f"deviceIterations({'[' * 3000}", "line 1:"),
}


@pytest.mark.parametrize("name", FILES)
def test_options_files_say_no(name: str, tmp_path: Path) -> None:
    text, says = FILES[name]
    (tmp_path / name).write_text(text)
    with at_most(FEW), pytest.raises(OptionError, match=re.escape(says)) as said:
        Options.load(tmp_path / name)
    assert len(str(said.value)) < SHORT


def test_options_files_that_only_look_so_are_taken(tmp_path: Path) -> None:
    """Texts of digits, long lists, and names of many parts."""
    names = ["9" * 3000, "a." * 60 + "weight", *("x" for _ in range(1000))]
    (tmp_path / "a.toml").write_text(f"epochs = {LARGEST}\nlearning_rate = 1e308\nfrozen = {json.dumps(names)}\nclass_weights = [{'0.5, ' * 5000}]\n")
    with at_most(MANY):
        options = Options.load(tmp_path / "a.toml")
    assert (options.epochs, options.learning_rate, options.frozen, len(options.class_weights)) == (LARGEST, 1e308, tuple(names), 5000)


CHIP_FILES = [
    ("tiles = 100000000", "tiles must be a whole number of at most 100,000, not 100000000."),
    (f"tiles = 1{'0' * 400}", "tiles must be a whole number of at most 100,000, not 1000"),
    (f"tiles = {LONG}", "tiles = 99999999999999999999... has 5,000 digits"),
    (f"tiles = {'[' * 100_000}", "tiles = [[[[[[[[[[[[[[[[[[[[... is nested too deeply."),
    (f"tiles = {'[' * 300}{']' * 300}", "tiles must be a whole number of at least 1, not [[[["),
    (f"tiles{'.a' * 90} = 1", "tiles must be a whole number of at least 1, not {'a': {'a'"),
    (f"tiles{'.a' * 50_000} = 1", "tiles.a.a.a.a.a.a.a.... has too many parts."),
    ("clock_hz = 1e308", "clock_hz must be a number of at most 1,000,000,000,000,000,000, not 1e+308."),
    ("clock_hz = 1e999", "clock_hz must be a number of at most 1,000,000,000,000,000,000, not inf."),
    (f"clock_hz = 1{'0' * 400}", "clock_hz must be a number of at most 1,000,000,000,000,000,000, not 1000"),
    ("clock_hz = nan", "clock_hz must be a number above 0, not nan."),
    (f"bytes_per_tile = {MOST_WHOLE + 1}", "bytes_per_tile must be a whole number of at most 1,000,000,000,000, not 1000000000001."),
    ("[matrix.float16.float32]\nmacs_per_cycle = 99999999999999999999\nunits = 1\nk_grain = 1", "macs_per_cycle must be a whole number of at most"),
    (f"name = {'[' * 300}{']' * 300}", "name must be a text that is not empty, not [[[["),
]


@pytest.mark.parametrize(("text", "says"), CHIP_FILES, ids=lambda text: text[:12])
def test_chip_files_say_no(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "bow"\n{text}\n')
    with at_most(FEW), pytest.raises(OptionError, match=re.escape(says)) as said:
        Chip.load(path)
    assert len(str(said.value)) < SHORT


@pytest.mark.parametrize("base", ["base.a.b = 1", "base = 4", "base = []", 'base = "itself.toml"'])
def test_a_base_is_a_built_in_chip(base: str, tmp_path: Path) -> None:
    path = tmp_path / "itself.toml"
    path.write_text(base.replace("itself", str(tmp_path / "itself")))
    with pytest.raises(OptionError, match=r"there is no machine .* to be the base; choose one of gc2, gc200, bow, c600"):
        Chip.load(path)


WHOLE = ("bytes_per_tile", "workers", "vector_bytes", "coefficient_bytes_per_cycle", "tiles_per_bus", "copy_call_cycles", "sync_cycles",
         "launch_cycles", "piece_cycles", "link_sync_cycles")
REAL = ("clock_hz", "bank_conflict_factor", "exchange_bytes_per_cycle", "copy_bytes_per_cycle", "link_bytes_per_second",
        "host_bytes_per_second", "streaming_bytes_per_second")


@pytest.mark.parametrize(("name", "value"), [("tiles", MOST_TILES), *((name, MOST_WHOLE) for name in WHOLE), *((name, float(MOST)) for name in REAL)])
def test_the_largest_constants_of_a_chip_have_reports(name: str, value: float) -> None:
    # Where a barrier costs all there is, the plans of fewest steps use few tiles and more memory than one has.
    chip = CHIPS["gc200"].variant(**{"bytes_per_tile": 2**20, name: value})
    found = tileflow.compile("digits_cnn.onnx", Options(machine=chip), training=True)
    json.dumps(found.report, allow_nan=False)
    assert found.to_text()


COMMANDS = [
    ("explore digits_cnn.onnx --machines gc200 --ipus 1{zeros}", "ipus must be a whole number, at least 1, not 1000"),
    ("explore digits_cnn.onnx --machines gc200 --ipus {long}", "--ipus must be whole numbers of at least 1, joined by commas, not '9999"),
    ("explore digits_cnn.onnx --machines gc200 --micro-batch-size 4,{long}", "Option micro_batch_size (--micro-batch-size) must be a whole number"),
    ("compile digits_cnn.onnx --machine gc200 --strategy pipelined --auto-pipeline 1000000000000", "Option auto_pipeline: "),
    ("compile digits_cnn.onnx --machine gc200 --strategy sharded --auto-pipeline 9223372036854775807", "cannot be 9223372036854775807 stages."),
    ("compile digits_cnn.onnx --machine {long}", "There is no machine '9999"),
    ("train digits_cnn.onnx --data digits --num-classes 9223372036854775807", "of 9,223,372,036,854,775,807 classes (num_classes) needs"),
    ("train digits_cnn.onnx --data digits --learning-rate 1{zeros}", "Option learning_rate must be a number, at least 0, not inf."),
    ("train digits_cnn.onnx --data digits --epochs {long}", "Option epochs (--epochs) must be a whole number, at least 0, not '9999"),
]


@pytest.mark.parametrize(("words", "says"), COMMANDS)
def test_commands_say_no(words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with at_most(FEW):
        assert cli.main(words.format(zeros="0" * 400, long=LONG).split()) == cli.USER_ERROR
    assert says in capsys.readouterr().err


STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {}, "pipelined": {"auto_pipeline": 2}, "1f1b": {"strategy": "pipelined", "auto_pipeline": 2, "pipeline_schedule": "1f1b"},
    "sharded": {"auto_pipeline": 2}, "serial_phased": {"auto_pipeline": 2}, "parallel_phased": {"auto_pipeline": 2},
}
CALLS: list[dict[str, Any]] = [
    *({"training": False, "device_iterations": n} for n in (1_000_000, 10 ** 9, LARGEST)),
    *({"training": True, "gradient_accumulation": n} for n in (10 ** 9, LARGEST)),
    {"training": True, "gradient_accumulation": 1_000_000, "device_iterations": 1_000_000},
]


@pytest.fixture(scope="module")
def imported() -> None:
    """What a first compilation brings in, which is not what is measured."""
    tileflow.compile("digits_cnn.onnx", Options(machine="gc200"), training=True)


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_calls_of_any_length_compile_at_once(strategy: str, call: dict[str, Any], imported: None) -> None:
    """A schedule's Repeats are looked at, not unrolled: for this computer, for the machine, with replicas and without."""
    given = {"strategy": strategy, **STRATEGIES[strategy], **call}
    for more in ({}, {"machine": "gc200"}, {"machine": "gc200", "replication_factor": 2}):
        with at_most(MANY):
            assert tileflow.compile("digits_cnn.onnx", **given, **more).to_text()


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_calls_of_any_length_run_tile_by_tile_for_a_few_turns(strategy: str, call: dict[str, Any], tmp_path: Path, imported: None) -> None:
    """As many operators are compared as of a call of a few micro-batches."""
    class Net(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.b(self.a(x).relu())

    given = {"strategy": strategy, **STRATEGIES[strategy], "machine": "gc200", "inputs": [np.zeros((2, 4), np.float32)]}
    short = {name: min(n, 4) for name, n in call.items() if name != "training"}
    wanted = tileflow.compile(Net(), **given, training=call["training"], **short).tile_exact()
    found = tileflow.compile(Net(), **given, **call)
    with at_most(MANY):
        compared = found.tile_exact()
    assert compared.ok
    assert [s.name for s in compared.steps] == [s.name for s in wanted.steps]


TRAININGS = [
    *(f"{words} --strategy {s} --auto-pipeline 2" for s in SEVERAL
      for words in ("--gradient-accumulation 1000000000", "--gradient-accumulation 8 --device-iterations 1000000")),
    "--gradient-accumulation 9223372036854775807", "--device-iterations 9223372036854775807", "--replication-factor 1000000000",
]


@pytest.mark.parametrize("words", TRAININGS)
def test_trainings_of_more_rows_than_there_are_say_no(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], imported: None) -> None:
    with at_most(MANY):
        assert cli.main(f"train digits_cnn.onnx --data digits --out {tmp_path / 'run'} {words}".split()) == cli.USER_ERROR
    said = capsys.readouterr().err
    assert "have 1,438 rows, fewer than one batch of " in said
    for option, value in zip(words.split()[::2], words.split()[1::2], strict=True):
        name = option[2:].replace("-", "_").replace("replication_factor", "replicas")
        assert f"{name} {value}" in said or name in ("strategy", "auto_pipeline")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_calls_of_more_rows_than_memory_say_no(strategy: str, imported: None) -> None:
    """Rows that no memory could hold, of which only views are given."""
    given = {"strategy": strategy, **STRATEGIES[strategy], "micro_batch_size": 1}
    count = 10 ** 12
    images, labels = (np.broadcast_to(np.zeros((1, *shape), kind), (count, *shape)) for shape, kind in (((1, 8, 8), np.float32), ((), np.int64)))
    with at_most(MANY), pytest.raises(OutOfMemoryError, match=r"needs 256\.0 TB of memory"):
        tileflow.training_model("digits_cnn.onnx", gradient_accumulation=count, **given)(images, labels)
    with at_most(MANY), pytest.raises(OutOfMemoryError, match=r"needs 256\.0 TB of memory"):
        tileflow.inference_model("digits_cnn.onnx", device_iterations=count, **given)(images)
    with at_most(MANY), pytest.raises(ShapeError, match=r"has 4 rows, but .* gradient_accumulation \(1000000000000\)"):
        tileflow.training_model("digits_cnn.onnx", gradient_accumulation=count, **given)(np.zeros((4, 1, 8, 8), "f4"), np.zeros(4, "i8"))


def test_explorations_of_more_stages_than_nodes_end_at_once(tmp_path: Path) -> None:
    with at_most(MANY):
        found = tileflow.explore("digits_cnn.onnx", machine=["gc200"], ipus=[10 ** 12])
    assert [p.state for p in found.points] == ["failed"]
    with pytest.raises(OptionError, match="ipus must be a whole number"):
        tileflow.explore("digits_cnn.onnx", machine=["gc200"], ipus=[10 ** 5000])


def test_values_are_shown_shortened() -> None:
    assert [shown(x) for x in (4, "a", [1.5], {"a": None})] == ["4", "'a'", "[1.5]", "{'a': None}"]
    assert shown(10 ** 5000) == "a number of 16,610 bits"
    assert shown([10 ** 5000]) == "a list that is too large to be shown"
    assert len(shown("x" * 10 ** 6)) < LONGEST_VALUE + 10
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a list that is too large to be shown"
    assert issubclass(OptionError, TileflowError)
