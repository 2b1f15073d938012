"""The command line: flags from the options' declarations, sentences and exit codes, progress, the doctor, and whole runs."""
from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import tileflow
from tileflow import cli
from tileflow.callbacks import Logs, ProgressBar
from tileflow.cli import examination as doctor
from tileflow.cli.parser import make_parser
from tileflow.kernels.machine.limits import Group, Room
from tileflow.options.needs import With
from tileflow.options.options import Options, declarations
from tileflow.options.verbs import COMMANDS
from tileflow.runtime import progress
from tileflow.runtime.history import Epoch
from tileflow.system.errors import Interrupted, ModelError, OptionError, TrainingError

SAMPLES = {
    "betas": ("0.5,0.9", (0.5, 0.9)), "mean": ("0.5", (0.5,)), "std": ("0.1,0.2", (0.1, 0.2)), "frozen": ("a*,b", ("a*", "b")),
    "trainable": ("c", ("c",)), "gradient_checkpointing": ("layer*", ("layer*",)), "tie": ("d*", ("d*",)), "untie": ("e", ("e",)),
    "inputs": ("u, v", ("u", "v")), "dims": ("batch=4,seq=8", {"batch": 4, "seq": 8}),
    "available_memory_proportion": ("conv*=0.1,*=0.3", {"conv*": 0.1, "*": 0.3}),
    "min_elements_off_chip": ("weights=8", {"weights": 8}), "min_elements_sharded": ("4", 4), "recomputation_checkpoints": ("layer*", ("layer*",)),
    "replica_grouping": ("fc*=consecutive:2", {"fc*": "consecutive:2"}),
    "num_io_tiles": ("64", 64), "overlap_inputs": ("x*=accumulation_loop", {"x*": "accumulation_loop"}),
    "overlap_outputs": ("*=device_iteration_loop", {"*": "device_iteration_loop"}), "io_tiles_for": ("weights=both", {"weights": "both"}),
    "serialized_matmul": ("fc1=output_channels:4", {"fc1": "output_channels:4"}),
    "autocast": ("/head/*=fp32,Conv=off", {"/head/*": "fp32", "Conv": "off"}),
    "no_decay": ("auto,x*", ("auto", "x*")), "max_weight_norm": ("inf", float("inf")),
    "param_groups": ("*.bias|n*:weight_decay=0,learning_rate=0.5;h:0:betas=0.5/0.9,name=head,nesterov=true", (
        {"params": ("*.bias", "n*"), "weight_decay": 0.0, "lr": 0.5}, {"params": ("h:0",), "betas": (0.5, 0.9), "name": "head", "nesterov": True})),
    "learning_rate": ("1e-2", 0.01), "growth_factor": ("3", 3.0), "scale": ("-0.5", -0.5), "validation_split": ("0.25", 0.25),
    "class_weights": ("1,2.5", (1.0, 2.5)), "class_axis": ("-1", -1), "schedule_epochs": ("3", (3,)),
    "stages": ("a+b@0,c@1", ("a+b@0", "c@1")), "pipeline_splits": ("layer3*,l4", ("layer3*", "l4")),
    "keep_float32": ("n*,b", ("n*", "b")), "partials": ("float16", "float16"), "metrics": ("f1,auc", ("f1", "auc")),
    "categories": ("a,b", ("a", "b")), "image_size": ("32,24", (32, 24)), "augment": ("flip,mixup", ("flip", "mixup")),
    "max_time": ("1h30m", 5400.0), "log": ("csv", ("csv",)), "printed_tensors": ("h,conv*", ("h", "conv*")),
}


def sample(name: str) -> tuple[str, object]:
    """A command-line word for an option and the value it stands for."""
    declaration = declarations()[name]
    words = getattr(declaration.kind, "words", None)
    if name in SAMPLES:
        return SAMPLES[name]
    if words:
        return words[-1], words[-1]
    kind = type(declaration.kind).__name__
    return {"Integer": ("3", 3), "Number": ("0.75", 0.75), "Text": ("abc", "abc"), "FilePath": ("a/b", "a/b"), "Machine": ("bow", "bow")}[kind]


def parsed(*words: str, command: str = "train") -> Options:
    return cli.options_of(cli.parse([command, "m.onnx", *words]))


PARTNERS = {d.name: [declarations()[need.option].flag, need.values[0]] for d in declarations().values()
            for need in d.needs if isinstance(need, With) and need.option != "output_mode"}
PARTNERS["nesterov"] += ["--momentum", "0.9"]
PARTNERS |= {"schedule_epochs": ["--schedule", "plateau"], "schedule_gamma": ["--schedule", "plateau"],
             "schedule_end": ["--schedule", "cosine"], "schedule_power": ["--schedule", "polynomial"]}
PARTNERS["broadcast_buffers"] = PARTNERS["replica_grouping"] = ["--replication-factor", "2"]
PARTNERS["input_group_size"] = ["--replication-factor", "3"]
PARTNERS |= {name: ["--replication-factor", "2", "--optimizer-sharded"] for name in ("weights_sharded", "min_elements_sharded")}
PARTNERS["gradient_noise"] = ["--gradient-accumulation", "2"]
PARTNERS["sync_each_batch"] = ["--replication-factor", "2", "--gradient-accumulation", "2"]
PARTNERS["reduce_dtype"] = ["--replication-factor", "2"]
PARTNERS["monitor"] = PARTNERS["monitor_mode"] = ["--keep-best"]
PARTNERS["optimizer_sharded"] = ["--replication-factor", "2"]
"""What else has to be said for an option to have an effect."""


ONE_PARSER = functools.cache(make_parser)
"""To be made for every line that is parsed takes longer than parsing it."""


@pytest.mark.parametrize("name", [d.name for d in declarations().values()])
def test_every_option_has_its_flag_where_it_has_an_effect(name, monkeypatch):
    monkeypatch.setattr("tileflow.cli.parser.make_parser", ONE_PARSER)
    declaration = declarations()[name]
    verbs = declaration.verbs
    assert verbs, "nobody uses it"
    for command in COMMANDS:
        if command not in verbs:
            with pytest.raises(OptionError, match=rf"Option {name} .* has no effect on {command}; it is for "):
                parsed(declaration.flag, command=command)
            continue
        partners = list(PARTNERS.get(name, []))
        if name == "recomputation_checkpoints":
            partners += ["--gradient-checkpointing", "layer*"] if command == "train" else ["--recompute", "--machine=gc200"]
        if command in ("compile", "tune", "explore", "inspect") and declaration.for_training:
            partners.append("--training")
        if declaration.of_machine and name != "machine" and command not in ("train", "infer"):
            partners.append("--machine=gc200")
        if type(declaration.kind).__name__ == "Flag":
            assert getattr(parsed(declaration.flag, *partners, command=command), name) is True
            assert getattr(parsed("--no-" + declaration.flag[2:], *partners, command=command), name) is False
            continue
        text, value = sample(name)
        assert getattr(parsed(f"{declaration.flag}={text}", *partners, command=command), name) == value
    assert parsed() == Options()


@pytest.mark.parametrize(("words", "says"), [
    (["compile", "--epochs", "2"], "Option epochs (--epochs) has no effect on compile; it is for train."),
    (["compile", "--loss", "mse"], "Option loss (--loss) counts for training only; add --training, or leave it out."),
    (["compile", "--recompute"], "Option recompute (--recompute) is about the tile machine; name one, for example --machine gc200, or leave it out."),
    (["compile", "--recompute", "--machine", "gc200"], "Option recompute (--recompute) counts for training only; add --training, or leave it out."),
    (["train", "--momentum", "0.9"], "Option momentum (--momentum) has no effect with the optimizer adamw; it is for sgd and rmsprop."),
    (["train", "--optimizer", "sgd", "--eps", "0.1"],
     "Option eps (--eps) has no effect with the optimizer sgd; it is for adam, adamw, rmsprop and lamb."),
    (["infer", "--seed", "1", "--shuffle"], "Option shuffle (--shuffle) has no effect on infer; it is for train."),
    (["infer", "--output-mode", "sum"], "Option output_mode (--output-mode) has no effect on infer; it is for training_model and inference_model."),
])
def test_flags_without_an_effect_are_refused(words, says):
    with pytest.raises(OptionError) as error:
        parsed(*words[1:], command=words[0])
    assert str(error.value) == says


def test_a_file_of_options_may_hold_more_than_a_command_uses(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("epochs = 3\nmomentum = 0.9\nmachine = 'gc200'\noutput_mode = 'sum'\n")
    for command in ("train", "infer", "compile"):
        options = parsed("--options", str(path), command=command)
        assert (options.epochs, options.momentum, options.machine) == (3, 0.9, "gc200")
        assert options.given("epochs")
        assert not options.given("epochs", files=False)
    assert parsed("--options", str(path), "--epochs", "5").given("epochs", files=False)


def test_resume_with_and_without_a_path():
    assert parsed("--resume").resume is True
    assert parsed("--resume", "a").resume == "a"


def test_an_options_file_and_flags_over_it(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("epochs = 3\nseed = 4\n")
    assert parsed("--options", str(path), "--epochs", "5") == Options(epochs=5, seed=4)
    assert parsed("--options", str(path)) == Options(epochs=3, seed=4)


@pytest.fixture
def fake_api(monkeypatch):
    """A stand-in for tileflow.api: what the commands do with its results and errors."""
    import tileflow
    fake = types.ModuleType("tileflow.api")
    monkeypatch.setitem(sys.modules, "tileflow.api", fake)
    monkeypatch.setattr(tileflow, "api", fake, raising=False)
    return fake


def run(*words: str) -> int:
    return cli.main(list(words))


@pytest.mark.parametrize(("words", "says"), [
    ([], "The following arguments are required: COMMAND"),
    (["fly"], "invalid choice: 'fly'"),
    (["train"], "required: MODEL"),
    (["train", "m.onnx", "--epohcs", "3"], "Unknown argument '--epohcs'; did you mean --epochs"),
    (["train", "m.onnx", "extra"], "Unknown argument 'extra'; see tileflow train --help."),
    (["train", "m.onnx", "--epochs"], "--epochs: expected one argument"),
    (["train", "m.onnx", "--epochs", "x"], "Option epochs (--epochs) must be a whole number, at least 0, not 'x'."),
    (["train", "m.onnx", "--epochs", "-1"], "Option epochs must be a whole number, at least 0, not -1."),
    (["train", "m.onnx", "--loss", "hinge"], "Option loss must be one of 'auto', 'cross_entropy'"),
    (["train", "m.onnx", "--dims", "batch"], "(--dims) must be a table of dimension names"),
    (["train", "m.onnx", "--options", "none.toml"], "Options file none.toml cannot be read: No such file or directory."),
    (["train", "none.onnx"], "There is no model file none.onnx"),
    (["infer", "m.onnx", "--epochs", "3"], "Option epochs (--epochs) has no effect on infer; it is for train."),
    (["infer", "digits_cnn.onnx", "--out", "a.csv"], "Option out must end in .npz, not 'a.csv'"),
    (["inspect", "none.onnx"], "There is no model file none.onnx"),
    (["inspect", "digits_cnn.onnx", "--dims", "batch"], "(--dims) must be a table of dimension names"),
    (["inspect", "digits_cnn.onnx", "--micro-batch-size", "x"], "Option micro_batch_size (--micro-batch-size) must be a whole number"),
])
def test_errors_are_one_sentence_and_exit_with_2(capsys, words, says):
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tileflow: error: ")
    assert err.count("\n") == 1
    assert says in err


def test_help_and_version(capsys):
    for words in (["--help"], ["train", "--help"], ["infer", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            run(*words)
        assert stop.value.code == 0
    assert "tileflow 0." in capsys.readouterr().out


def test_help_is_quick():
    code = ("import sys\nfrom tileflow.cli import main\ntry:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
            "assert not {'numba', 'numpy', 'onnx', 'tqdm'} & set(sys.modules), sorted(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "tileflow", "train", "none.onnx"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("tileflow: error: There is no model file")


def test_python_dash_m_beside_modules_of_somebody_else(tmp_path):
    """Python puts the current folder first, where a random.py is the user's."""
    for name in ("json", "random", "copy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    done = subprocess.run([sys.executable, "-m", "tileflow", "inspect", "digits_cnn.onnx"], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")


def test_train_prints_epochs_and_the_folder(fake_api, capsys):
    def train(path, options, callbacks):
        assert path.name == "digits_cnn.onnx"
        assert options.epochs == 2
        bar, = callbacks
        bar.on_message("a note")
        bar.on_compile("relu", 1, 1)
        for epoch in (1, 2):
            one_epoch(bar, epoch, 2)
        best = types.SimpleNamespace(epoch=2, model=Path("runs/1/best.onnx"))
        return types.SimpleNamespace(folder=Path("runs/1"), options=options, best=best)
    fake_api.train = train
    assert run("train", "digits_cnn.onnx", "--epochs", "2") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:3] == ["epoch 1/2  loss 0.2500  accuracy 75.00%  test accuracy 80.00%  1,000 samples/s",
                                    "epoch 2/2  loss 0.2500  accuracy 75.00%  test accuracy 80.00%  1,000 samples/s",
                                    "Trained model, metrics and checkpoint are in runs/1; best.onnx is the model after "
                                    "epoch 2; a browser shows the run in report.html. Try next:"]
    assert "  tileflow train --resume --out runs/1 --epochs 4    # go on from here\n" in out
    assert err == "a note\n"


def one_epoch(bar: ProgressBar, epoch: int, epochs: int) -> None:
    """What a bar is told of an epoch (from 1) with one call."""
    history = [Epoch(epoch, 0.25, 0.75, None, 0.8, 1000, 1.0)]
    bar.run = types.SimpleNamespace(epochs=epochs, batches=3, history=history, updates_in_epoch=0, partial=None)
    bar.on_epoch_begin(epoch - 1, Logs())
    bar.on_train_batch_end(0, Logs(loss=0.5, losses=np.full(1, 0.5), learning_rates=np.full(1, 0.1), samples=4))
    bar.on_epoch_end(epoch - 1, Logs())


def noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


@pytest.mark.parametrize(("error", "code", "says"), [
    (noted(TrainingError("The loss is not finite."), "Saved in a."), 2, "tileflow: error: The loss is not finite.\nSaved in a.\n"),
    (Interrupted("Stopped after 3 updates."), 130, "\ntileflow: Stopped after 3 updates.\n"),
    (KeyboardInterrupt(), 130, "\ntileflow: Interrupted.\n"),
    (MemoryError(), 2, "tileflow: error: There is not enough memory"),
])
def test_how_a_run_ends(fake_api, capsys, error, code, says):
    def train(*_args, **_more):
        raise error
    fake_api.train = train
    assert run("train", "digits_cnn.onnx") == code
    assert says in capsys.readouterr().err


def test_infer_writes_outputs_and_says_the_accuracy(fake_api, tmp_path, capsys):
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "d.npz", x=x, y=y)
    scores = np.eye(2, dtype=np.float32)[[0, 1, 0, 0]]
    fake_api.infer = lambda model, options, data, progress, say: {"logits": scores, "file/0": x}
    fake_api.agreement = lambda data, output: None
    fake_api.measure = lambda model, options, data, output: {"accuracy": float(np.mean(output.argmax(1) == data.labels)), "auc": None, "f1": 0.5}
    out = tmp_path / "p.npz"
    assert run("infer", "digits_cnn.onnx", "--data", str(tmp_path / "d.npz"), "--out", str(out)) == 0
    with np.load(out) as saved:
        assert sorted(saved) == ["file/0", "logits"]
        assert np.array_equal(saved["logits"], scores)
    assert capsys.readouterr().out.splitlines() == ["logits: float32[4, 2]", "file/0: float32[4, 2]", "accuracy 75.00% of 4 rows",
                                                    "f1 0.5 of 4 rows", f"Outputs are in {out}."]
    assert run("infer", "digits_cnn.onnx") == 2
    assert "no data to run on" in capsys.readouterr().err
    assert run("infer", "digits_cnn.onnx", "--data", "digits", "--out", str(tmp_path / "d.npz" / "p.npz")) == 2
    assert "must be a folder" in capsys.readouterr().err


def test_models_that_come_with_tileflow(tmp_path, monkeypatch):
    assert cli.model_path("digits_cnn.onnx").parent.name == "data"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits_cnn.onnx").write_bytes(b"own")
    assert cli.model_path("digits_cnn.onnx") == Path("digits_cnn.onnx")          # a file of that name goes first
    with pytest.raises(ModelError):
        cli.model_path("other.onnx")


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal_only():
    out, plain, terminal = io.StringIO(), io.StringIO(), Terminal()
    for err in (plain, terminal):
        bar = ProgressBar(out=out, err=err)
        one_epoch(bar, 1, 1)
        bar.close()
    assert plain.getvalue() == ""
    assert "Epoch 1/1" in terminal.getvalue()
    assert out.getvalue().count("epoch 1/1") == 2
    assert not ProgressBar(bars=False, err=terminal).bars


def test_the_compile_bar_says_what_was_compiled(monkeypatch):
    from tileflow.kernels.machine import cache
    monkeypatch.setattr(progress, "BAR_DELAY", 0)
    before, err = list(cache.on_compile), io.StringIO()
    bar = progress.CompileBar(True, err)
    for done, name in enumerate(("relu", "gemm", "done")):
        bar(name, done, 2)
        if done < 2:
            for listener in cache.on_compile:
                listener(name)
    assert "Compiled 2 kernels in" in err.getvalue()
    assert cache.on_compile == before
    quiet = progress.CompileBar(True, io.StringIO())
    quiet("relu", 0, 1)
    quiet.close()
    quiet.close()
    assert cache.on_compile == before
    assert quiet.stream is not None
    assert "Compiled" not in quiet.stream.getvalue()          # type: ignore[attr-defined]


# What should never happen


def test_the_last_resort_is_one_line(monkeypatch, capsys):
    """A mistake of tileflow's own: a line that says what and where, another exit code, the traceback only with --debug."""
    def broken(*_: object, **__: object) -> None:
        raise KeyError("two\nlines")
    monkeypatch.setattr("tileflow.importers.onnx.load_model", broken)
    assert run("inspect", "digits_cnn.onnx") == cli.INTERNAL_ERROR == 70
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert shown.startswith("tileflow: internal error KeyError('two\\nlines') (cli/inspect.py, line ")
    assert shown.endswith("): please report it; run with --debug for the traceback.\n")
    for words in (("inspect", "digits_cnn.onnx", "--debug"), ("--debug", "inspect", "digits_cnn.onnx")):
        assert run(*words) == 70
        shown = capsys.readouterr().err
        assert "Traceback (most recent call last)" in shown
        assert shown.endswith("): please report it.\n")


def test_without_a_compiler_a_sentence_at_the_start(monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    says = "The environment sets NUMBA_DISABLE_JIT=1, and tileflow's kernels exist as compiled code only: unset it."
    for words in (("train", "digits_cnn.onnx", "--data", "digits"), ("infer", "digits_cnn.onnx", "--data", "digits")):
        assert run(*words) == 2
        assert capsys.readouterr().err == f"tileflow: error: {says}\n"
    assert run("doctor") == 2
    assert f"Broken: the environment keeps kernels from being compiled.\n  Mend it: {says}" in capsys.readouterr().out
    with pytest.raises(OptionError, match="unset it"):
        tileflow.inference_model(ROOT / "tileflow" / "data" / "digits_cnn.onnx")(np.zeros((1, 1, 8, 8), np.float32))


# The doctor


def test_the_doctor_finds_this_machine_working():
    found = doctor.examine()
    assert not found.broken
    titles = [title for title, _ in found.facts]
    assert {"numba", "kernels", "processors", "workers", "kernel cache", "compiler", "memory"} <= set(titles)
    assert ("compiler", "works") in found.facts


def test_the_doctor_tells_of_little_common_memory(monkeypatch):
    for free, told in ((64 << 20, True), (1 << 30, False)):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, free=free: type("Usage", (), {"free": free}))
        found = doctor.Examination()
        doctor._common(found)
        assert ("--shm-size" in found.facts[0][1]) is told
        assert not found.problems


def test_the_doctor_names_problems_first(monkeypatch, tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setenv("TILEFLOW_CACHE_DIR", str(blocked))
    monkeypatch.setattr("tileflow.kernels.machine.limits.Processors.tightest", lambda self: (1.0, Group(tmp_path, False, "/a/b")))
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    monkeypatch.setattr("tileflow.kernels.machine.limits.memory", lambda: Room(1000, "a test"))
    found = doctor.examine()
    text = found.text()
    assert not found.broken
    assert text.startswith("Problem: 2 threads (NUMBA_NUM_THREADS) would share the 1 processors this container may use.\n"
                           "  Mend it: unset NUMBA_NUM_THREADS, or set it or the option threads to 1.")
    assert "2 by default (NUMBA_NUM_THREADS)" in text
    assert "the control group /a/b (version 1) allows 1 of their time" in text
    assert "cannot be written (Not a directory), so every start compiles anew" in text
    assert "only 1 KB of memory" in text
    assert run("doctor") == 0
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "numba" else "1")
    assert run("doctor") == 2
    assert capsys.readouterr().out.count("Broken: the package numba is missing.\n  Mend it: python -m pip install numba") == 1


# Whole runs


@pytest.mark.parametrize(("words", "shape"), [([], "[batch, 1, 8, 8]"), (["--micro-batch-size", "5"], "[5, 1, 8, 8]"),
                                              (["--dims", "batch=3"], "[3, 1, 8, 8]")])
def test_inspect_shows_the_shapes_that_follow(capsys, words, shape):
    assert run("inspect", "digits_cnn.onnx", "--verbose", *words) == 0
    out = capsys.readouterr().out
    assert f"input       image: float32{shape}\n" in out
    assert f"output      logits: float32{shape.split(',')[0]}, 10]\n" in out
    rows = shape[1:].split(",")[0] if words else "1"
    assert f"%c1: float32[{rows}, 16, 8, 8]" in out

def test_train_infer_inspect_compile(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("train", "digits_cnn.onnx", "--data", "digits", "--epochs", "1", "--out", "run", "--micro-batch-size", "32") == 0
    out = capsys.readouterr().out
    assert "epoch 1/1  loss " in out
    assert (tmp_path / "run" / "model.onnx").exists()
    assert run("infer", "run/model.onnx", "--data", "digits", "--micro-batch-size", "32") == 0
    out = capsys.readouterr().out
    assert "logits: float32[359, 10]" in out
    assert float(out.split("accuracy ")[1].split("%")[0]) > 50
    assert (tmp_path / "predictions.npz").exists()
    assert run("inspect", "run/model.onnx", "--training") == 0
    assert "Every operator is supported." in capsys.readouterr().out
    assert run("compile", "run/model.onnx", "--training") == 0
    assert "autograd" in capsys.readouterr().out
    (tmp_path / "file").write_bytes(b"")
    assert run("train", "digits_cnn.onnx", "--data", "digits", "--out", "file/run") == 2
    assert "file/run" in capsys.readouterr().err


def test_the_command_imports_nothing_that_only_numba_knows_a_use_for(tmp_path):
    """SciPy costs most of a second; a kernel that is compiled would make Numba import it where it is installed."""
    for name in ("scipy", "coverage"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'imported {__name__}')\n")
    script = ("import contextlib, sys\n"
              "from tileflow.__main__ import command\n"
              "sys.argv[1:] = ['--version']\n"
              "with contextlib.suppress(SystemExit):\n    command()\n"
              "from tileflow.kernels.machine.guard import clear\n"
              "clear['u8'].compile()\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["train", "infer", "compile", "tune", "explore"])
def test_help_shows_the_common_flags_and_help_all_the_rest(command, capsys):
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            cli.parse([command, *words])
        assert end.value.code == 0
        return capsys.readouterr().out

    short, every = shown("--help"), shown("--help", "all")
    assert shown("-h") == short
    used = [d for d in declarations().values() if command in d.verbs]
    for d in used:
        assert f" {d.flag} " in every or f" {d.flag},"  in every or f"\n  {d.flag}" in every
        assert (f"\n  {d.flag} " in short or f"\n  {d.flag}\n" in short or f"\n  {d.flag}," in short) == d.common
    hidden = sum(not d.common for d in used)
    assert hidden > 5
    assert f"{hidden} more options: tileflow {command} --help all." in " ".join(short.split())
    assert len(short.splitlines()) < 0.6 * len(every.splitlines())


def test_help_of_commands_without_options(capsys):
    for command in ("inspect", "report", "doctor"):
        with pytest.raises(SystemExit):
            cli.parse([command, "--help"])
        assert "more options" not in capsys.readouterr().out
