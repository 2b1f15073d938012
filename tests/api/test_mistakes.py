"""Mistakes that people make at the command line and in Python, and exactly what they are told.

A row of COMMANDS is a command (what stands after `tileflow`), its exit code and its sentence. Every word of the command that is a name in FILES
(`mistake_files.py`) is made in an empty folder first, and the command runs there, so that a row is all there is to write:

    Row(16, "inspect giant.onnx", "giant.onnx: ...", 2)

- Exit code 2: the sentence is all of standard error from `tileflow: error: ` on (notes on data and model may stand before it), without that.
- Other exit codes: the sentence is one whole line of what is printed (standard output or standard error).
- `***` in a sentence stands for any text.
- Commands before the last of `&&` must succeed; `process=True` runs the last one in a process of its own, with `environment`.

A row of CALLS is the same for Python: a function that makes the mistake, the error's type and sentence.
The first column is the point of the list of mistakes ("Right, or said aloud") that the row is about; 0: none of it.
"""
from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from mistake_files import FILES, HOSTILE
from places import ROOT

import tileflow
from tileflow import cli, nn
from tileflow.options.registries import LOSSES, OPTIMIZERS
from tileflow.system.errors import DataError, ModelError, OptionError, ShapeError, TileflowError, TypeMismatchError

# ---- the table


@dataclass(frozen=True)
class Row:
    """One command, what it says and its exit code."""

    point: int
    command: str
    says: str
    code: int = 2
    process: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.point}: {self.command}"


COMMANDS = [
    Row(0, "train none.onnx --data flowers.npz",
        "There is no model file none.onnx; give an .onnx file, or one that comes with tileflow: digits_cnn.onnx.", process=True),
    Row(0, "train empty.onnx --data flowers.npz", "empty.onnx is empty: export or download the model again."),
    Row(0, "train text.onnx --data flowers.npz", "text.onnx is not an ONNX model, or it is cut off: export or download it again."),
    Row(0, "train linear.onnx", "There is no data to train on; give data=(x, y), a path, or the name digits."),
    Row(0, "train linear.onnx --data flowers.npz --epohcs 3", "Unknown argument '--epohcs'; did you mean --epochs or --eps?"),
    Row(1, "train linear.onnx --data flowers.npz --untie w", "The pattern 'w' of untie fits no weight that several nodes read; those that several "
        "nodes read are none."),
    Row(1, "train linear.onnx --data flowers.npz --tie w,b", "The pattern 'w' of tie fits no weight that holds the same elements as another one it "
        "fits; the weights are w, b."),
    Row(1, "inspect unscoped.onnx --training", "  The file does not say whether the readers of these share one parameter: w. Each is trained as one; "
        "if it is several, use untie (--untie 'w').", 0),
    Row(4, "train linear.onnx --data flowers.npz --out run && infer run/model.onnx --data far.npz",
        "tileflow: warning: Input x: the data that are fed range from ***, the model was trained on ***; did you forget --scale, --mean or "
        "--std?", 0, process=True),
    Row(4, "train linear.onnx --data flowers.npz --std 2 --out run && infer run/model.onnx --data flowers.npz --std 4",
        "Input x: std 4 from the options that are given, although the model was trained with std 2.", 0),
    Row(13, "train linear.onnx --data flowers.npz --resume far.npz",
        "Checkpoint far.npz is damaged or not a safetensors file: ***; restore it from a copy or train anew."),
    Row(14, "train --resume --out run", "The folder run does not say which model its run began with; name the model."),
    Row(14, "train linear.onnx --data flowers.npz --resume", "To resume a run, name its folder with out."),
    Row(14, "train --data flowers.npz --out run --resume linear.onnx", "There is no checkpoint in run yet: the run begins anew.", 0),
    Row(14, "train linear.onnx --data flowers.npz --resume --out run", "There is no checkpoint in run yet: the run begins anew.", 0),
    Row(14, "train linear.onnx --data flowers.npz --out run && train --resume --out run --epochs 2 --learning-rate 0.01",
        "Going on with lr = 0.01 in place of 0.001.", 0),
    Row(14, "train linear.onnx --data flowers.npz --out run && train --resume --out run --seed 1",
        "run/checkpoint.safetensors was made with seed = 0, this run has 1; resume with the same settings, or start anew in another folder."),
    Row(14, "train linear.onnx --data flowers.npz --out run && train --resume --out run --scale 2",
        "run/checkpoint.safetensors was made with scale 1.0, mean [], std [] for input x, this run has scale 2.0, mean [], std [] for input x; "
        "resume with the same settings, or start anew in another folder."),
    Row(14, "train linear.onnx --data flowers.npz --out run && train --resume --out run --data far.npz",
        "run/checkpoint.safetensors was made with other data (64 rows, this run has 64; shapes, types or values differ); give the data that the run "
        "began with, start anew in another folder, or go on all the same with allow_other_data (--allow-other-data). "
        "See docs/schedules.md."),
    Row(14, "train linear.onnx --data flowers.npz --out run && train unscoped.onnx --resume --out run",
        "run/checkpoint.safetensors belongs to another model: operators, attributes, names or sizes of its graph, or what of it is trained, differ; "
        "give the model that the run began with, or start anew in another folder. See docs/schedules.md."),
    Row(14, "train linear.onnx --data flowers.npz --optimizer sgd --momentum 0.9 --out run && train --resume --out run --momentum 0.8",
        "run/checkpoint.safetensors was made with the optimizer's momentum = 0.9, this run has 0.8; resume with the same settings, or start anew in "
        "another folder."),
    Row(5, "inspect linear.onnx --untie w", "Option untie (--untie) counts for training only; add --training, or leave it out."),
    Row(5, "inspect linear.onnx --training --frozen fc.*", "linear.onnx: the pattern 'fc.*' matches no weight; the weights are w, b."),
    Row(4, "train linear.onnx --data flowers.npz --micro-batch-size 60", "4 of the 64 rows are left out (others each epoch), for they fill no call "
        "of 60. With drop_last off (--no-drop-last) they are trained, too.", 0),
    Row(4, "train linear.onnx --data flowers.npz --micro-batch-size 63 --no-shuffle", "1 of the 64 rows is left out (the same each epoch, without "
        "shuffle), for they fill no call of 63. With drop_last off (--no-drop-last) they are trained, too.", 0),
    Row(6, "train linear.onnx --data five.csv --inputs a,b,c,y",
        "The data have no labels: name them with the option label, or set loss='identity' for a model that computes its loss."),
    Row(6, "train winners.onnx --data flowers.npz",
        "The model's first output, which a loss reads, is best: int64[16], which has no gradient; cut the model so that the output to train comes "
        "first, for example with onnx.utils.extract_model."),
    Row(6, "train column.onnx --data counts.npz",
        "Loss mse: the model gives one number per row and the labels are whole numbers from 0 to 12.", 0),
    Row(6, "train column.onnx --data bits.npz",
        "The loss cannot be decided: the model gives one number per row and the labels are 0 and 1 only, which may be yes and no or numbers. "
        "Choose it with --loss: bce_with_logits for yes or no or mse for numbers to be predicted. See docs/losses.md."),
    Row(6, "train column.onnx --data shares.npz --loss bce",
        "Data shares.npz: the label 1.5 of row 1 is outside of 0..1, which the loss bce takes; for other numbers choose --loss mse."),
    Row(6, "train linear.onnx --data from-one.npz", "Data from-one.npz: the label 3 of row 2 is outside of the model's classes 0..2; classes are "
        "numbered from 0 and these labels from 1: subtract 1."),
    Row(6, "train linear.onnx --data counts.npz --loss cross_entropy", "Data counts.npz: the label 7 of row 0 is outside of the model's classes "
        "0..2; check the label column or the number of classes of the model."),
    Row(6, "train linear.onnx --data words.npz", "Data words.npz: the label 3 of row 1 is outside of the model's classes 0..2; the labels are 4 "
        "different strings: bee, cat, cow, dog."),
    Row(6, "train linear.onnx --data flowers.npz --loss mse",
        "The label takes rows of shape [3] (3 values); the data's rows have shape [] (1 values)."),
    Row(6, "train column.onnx --data counts.npz --loss mse --ignore-index 0",
        "Option ignore_index is for the loss cross_entropy, nll, focal and dice; the loss mse has none."),
    Row(6, "train linear.onnx --data flowers.npz --class-weights 1,2",
        "Option class_weights has 2 numbers; the model has 3 classes."),
    Row(7, "train linear.onnx --data flowers.npz --metrics f2", "There is no metric 'f2'; choose from accuracy, f1, f1_binary, ***"),
    Row(7, "train linear.onnx --data flowers.npz --metrics rmse", "The metric rmse does not fit the loss cross_entropy; those that do are accuracy, "
        "f1, f1_binary, f1_macro, f1_micro, f1_weighted, miou, auc, perplexity."),
    Row(9, "train half.onnx --data flowers.npz --optimizer sgd --learning-rate 1e9",
        "Update 0 would make w infinite or NaN, which 16 bits cannot hold; the weights are kept as they were before that update: lower the "
        "learning rate, or keep them in bfloat16 or float32."),
    Row(9, "train linear.onnx --data flowers.npz --optimizer sgd --learning-rate 1e39",
        "Update 0 made w, b infinite or NaN although loss and gradients were finite, so the weights in memory are of no use any more: go back to "
        "weights that were saved, and lower the learning rate.\nThis run had not written a checkpoint yet (checkpoint_every and save_every_updates "
        "do so on the way): start it anew."),
    Row(11, "compile patches.onnx --machine gc200 --tile-exact", "***0 wrong***", 0),
    Row(2, "inspect scaled.onnx --training", "  constant  1 more, single numbers and results of the exporter (--verbose lists them)", 0),
    Row(2, "inspect scaled.onnx --training --trainable half", "  trained   half  float32[]      one number in Mul; read by Mul node 'scale'", 0),
    Row(3, "inspect modes.onnx --training", "  Dropout in drop", 0),
    Row(3, "train modes.onnx --data flowers.npz --keep-training-mode --out run && inspect run/model.onnx --training", "  Dropout in drop", 0),
    Row(3, "train folded.onnx --data rows.npz",
        "Batch normalisation was folded into the weights of '/conv1/Conv': what is trained is another network, which learns worse; export the "
        "network for training, so that its batch normalisation stays.", 0),
    Row(10, "train linear.onnx --data flowers.npz --lr 0.1", "Unknown argument '--lr'; did you mean --learning-rate?"),
    Row(10, "train linear.onnx --data flowers.npz --patience 3",
        "Unknown argument '--patience'; did you mean --early-stopping?"),
    Row(0, "train linear.onnx --data flowers.npz --early-stopping 3 --monitor val_f1",
        "EarlyStopping monitors val_f1, which this run does not measure and has no test data; "
        "it measures loss, accuracy, learning_rate."),
    Row(10, "train linear.onnx --data flowers.npz --batch-size 8", "Unknown argument '--batch-size'; did you mean --micro-batch-size?"),
    Row(10, "compile open.onnx --training --micro-batch-size 4",
        "open.onnx: the sizes of 'T' (x: float32[N, T, 4]) are open; give them: dims={\"T\": 128}, on the command line --dims T=128."),
    Row(5, "inspect open.onnx --training",
        "train takes these sizes from its data. Whether a gradient reaches every parameter is looked at once they are given here.", 0),
    Row(10, "train open.onnx --dim T=7", "Unknown argument '--dim'; did you mean --dims?"),
    Row(10, "train open.onnx --data sequences.npz --out run && infer run/model.onnx --data sequences.npz", "Outputs are in predictions.npz.", 0),
    Row(10, "train linear.onnx --data parts.npz --validation-split 0.3",
        "Option validation_split has no effect, for data parts.npz have a test part of 32 rows; leave it out."),
    Row(10, "train digits_cnn.onnx --data digits --data-format csv", "Option data_format has no effect on data digits; it is for files and folders."),
    Row(10, "infer digits_cnn.onnx --data digits --data-format csv", "Option data_format has no effect on data digits; it is for files and folders."),
    Row(10, "infer linear.onnx --data flowers.npz --data-format npz --inputs x --label y", "Outputs are in predictions.npz.", 0),
    Row(10, "infer linear.onnx --data parts.npz --validation-split 0.3",
        "Option validation_split has no effect, for data parts.npz have a test part of 32 rows; leave it out."),
    Row(10, "train linear.onnx --data flowers.npz --metrics f1",
        "Option metrics is about test data, and data flowers.npz have none; give test_data, or keep some of the rows with validation_split."),
    Row(10, "compile linear.onnx --micro-batch-size 4 --tile-exact",
        "--tile-exact is about the tile machine; name one, for example --machine gc200, or leave it out."),
    Row(10, "compile linear.onnx --micro-batch-size 4 --machine gc200 --stop-after fold --tile-exact",
        "--stop-after fold ends the compilation before the tile machine, so --tile-exact has no effect; leave one of them out."),
    Row(10, "compile linear.onnx --micro-batch-size 4 --machine gc200 --stop-after fold",
        "stop_after='fold' ends the compilation before the tile machine, so machine has no effect; leave one of them out."),
    Row(10, "compile linear.onnx --micro-batch-size 4 --machine gc200 --seed 3",
        "Option seed (--seed) is for the data of --tile-exact and for --export; add one of them, or leave it out."),
    Row(10, "compile linear.onnx --micro-batch-size 4 --machine gc200 --available-memory-proportion conv*=0.1",
        "available_memory_proportion: 'conv*' matches no operator; the operators are fc."),
    Row(10, "compile linear.onnx --micro-batch-size 4 --machine gc200 --report out && compile open.onnx --micro-batch-size 4 --dims T=3 "
            "--machine gc200 --report other && compile digits_cnn.onnx --machine gc200 --tile-plans out/plans.json",
        "Plans file out/plans.json: none of its plans is for an operator of this program; the operators are ***."),
    Row(10, "tune linear.onnx --micro-batch-size 4 --available-memory-proportion 0.1",
        "tune searches for the available_memory_proportion of all operators, so it cannot be given; operators named by a pattern, as in conv*=0.1, "
        "keep theirs."),
    Row(10, "infer linear.onnx --data bare.npz --metrics f1",
        "Option metrics is about labels, and data bare.npz have none; name them with --label, or leave it out."),
    Row(10, "report folder --verbos", "Unknown argument '--verbos'; did you mean --verbose?"),
    Row(10, "infer linear.onnx --data flowers.npz --epochs 2", "Option epochs (--epochs) has no effect on infer; it is for train."),
    Row(10, "train linear.onnx --data flowers.npz --machine gc200",
        "Option machine (--machine) has no effect on train; it is for compile, tune and explore."),
    Row(10, "train linear.onnx --data flowers.npz --momentum 0.9",
        "Option momentum (--momentum) has no effect with the optimizer adamw; it is for sgd and rmsprop."),
    Row(10, "compile linear.onnx --micro-batch-size 4 --loss mse",
        "Option loss (--loss) counts for training only; add --training, or leave it out."),
    Row(10, "compile linear.onnx --recompute",
        "Option recompute (--recompute) is about the tile machine; name one, for example --machine gc200, or leave it out."),
    Row(15, "doctor", "Problem: the kernel cache open-folder is not used, because ***open-folder may be written by other users (mode 777); kernels "
        "are kept in ***.", 0, process=True, environment={"TILEFLOW_CACHE_DIR": "open-folder", "TMPDIR": "."}),
    Row(16, "train linear.onnx --data claims.npy",
        "Data file claims.npy has shape [100000000, 10000] (4,000,000,000,000 bytes) but stores 128 bytes."),
    Row(16, "inspect giant.onnx", "Note: giant.onnx: the input 'x', float32[1099511627776, 1099511627776]: its sizes come to 4.84e+24 bytes; check "
        "the sizes of the inputs and the weights", 0),
    Row(18, "train giant.onnx --data flowers.npz", "giant.onnx: the input 'x', float32[1099511627776, 1099511627776]: its sizes come to 4.84e+24 "
        "bytes; check the sizes of the inputs and the weights"),
    Row(18, "train outside.onnx --data flowers.npz",
        "outside.onnx: the tensor 'w' points to the external file '../../etc/passwd', which is outside the model's folder; put the data file beside "
        "the model and save it with a relative location."),
    Row(18, "infer nothing.onnx --data flowers.npz", "y: float32[64, 0]", 0),
    Row(18, "train linear.onnx --data ranks-images-idx3-ubyte",
        "IDX file ranks-images-idx3-ubyte has 200 dimensions; tileflow's tensors have up to 32."),
    Row(18, "train linear.onnx --data flowers.npz",
        "The environment sets NUMBA_DISABLE_JIT=1, and tileflow's kernels exist as compiled code only: unset it.", process=True,
        environment={"NUMBA_DISABLE_JIT": "1"}),
    Row(20, f"infer {HOSTILE} --data flowers.npz",
        "There is no model file no [31m such ; give an .onnx file, or one that comes with tileflow: digits_cnn.onnx."),
    Row(20, f"infer {HOSTILE}.onnx --data {HOSTILE}",
        "There are no data at no [31m such ; give a file, a folder or a built-in name (digits)."),
    Row(20, f"infer {HOSTILE}.onnx --data flowers.npz --dims {HOSTILE}=3",
        "dims names 'no [31m such ', which is no open dimension of no [31m such .onnx: it has N."),
    Row(16, "infer outer.onnx --data long.npz --micro-batch-size 400000",
        "The program (outputs of a call 640.0 GB) needs 640.0 GB of memory, and *** can be had (***); lower micro_batch_size, or give the model "
        "smaller inputs."),
    Row(17, "train linear.onnx --data fifo.npz",
        "Data file fifo.npz is not a readable .npz file: it is a fifo (a named pipe), not a regular file; copy its content into one."),
    Row(18, "inspect deep.onnx", "Note: deep.onnx: the input 'x', float32[***]: it has 40 dimensions and tileflow's tensors have up to 32", 0),
    Row(18, "infer deep.onnx --data flowers.npz",
        "deep.onnx: the input 'x', float32[***]: it has 40 dimensions and tileflow's tensors have up to 32"),
    Row(18, "inspect segment.onnx", "segment.onnx: the tensor 'w' is a segment of a larger one, which tileflow does not take; save it in one piece."),
    Row(18, "inspect elsewhere.onnx", "elsewhere.onnx: the tensor 'w' points to the external file 'a b', which is no name of a file; "
        "export the model again."),
    Row(18, "inspect borrowing.onnx", "borrowing.onnx: Add node 'sum' takes its attribute 'alpha' from the caller's 'slope', but it is in no "
        "function; export the model again."),
    Row(18, "inspect mute.onnx", "mute.onnx has no outputs, so there is nothing to compute; export it again."),
    Row(18, "train linear.onnx --data endless.npy",
        "Data file endless.npy claims the shape [0, 99999999999999999999], which no array can have; it is damaged."),
    Row(19, "inspect unfolding.onnx", "unfolding.onnx: its functions unfold into 3,221,225,471 nodes, and the file holds 62; tileflow takes up to "
        "26,200 of such a file: let functions call fewer functions."),
    Row(0, "train linear.onnx --data flowers.npz --out run && infer run/model.onnx --data flowers.npz", "Outputs are in predictions.npz.", 0),
]


def make_files(command: str, folder: Path) -> None:
    """Make the files that a command names."""
    for word in shlex.split(command):
        if word in FILES and not (folder / word).exists():
            FILES[word](folder / word)


def fits(sentence: str, line: str) -> bool:
    """The sentence is the whole line; *** stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, sentence.split("***"))), line) is not None


@pytest.mark.parametrize("row", COMMANDS, ids=str)
def test_what_a_command_says(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_files(" ".join([row.command, *row.environment.values()]), tmp_path)
    *before, last = [shlex.split(part) for part in row.command.split("&&")]
    for words in before:
        assert cli.main(words) == 0, capsys.readouterr().err
    capsys.readouterr()
    if row.process:
        done = subprocess.run([sys.executable, "-m", "tileflow", *last], capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "PYTHONPATH": str(ROOT), **row.environment})
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code = cli.main(last)
        out, err = capsys.readouterr()
    assert code == row.code, err
    if row.code == cli.USER_ERROR:
        assert fits(f"tileflow: error: {row.says}\n", err[err.find("tileflow: error: "):]), err
    else:
        assert any(fits(row.says, line) for line in (out + err).splitlines()), out + err


# ---- Python


@dataclass(frozen=True)
class Call:
    """One mistake in Python: what is called, and the error with its sentence."""

    point: int
    mistake: Callable[[], object]
    error: type[TileflowError]
    says: str


def called_within_a_call() -> None:
    """By the function that is asked whether to stop."""
    model = tileflow.inference_model("linear.onnx")
    model.stop = lambda: model(XY[0]) is None
    model(XY[0])


def called_twice(*inputs: np.ndarray) -> None:
    """A model whose micro-batch was set, for one number of rows and then for another."""
    model = tileflow.inference_model("linear.onnx", micro_batch_size=4)
    for x in inputs:
        model(x)


XY = (np.zeros((32, 4), np.float32), np.zeros(32, np.int64))
CALLS = [
    Call(6, lambda: tileflow.training_model(nn.Linear(4, 1))(XY[0], XY[0][:, :1]), TypeMismatchError,
         "Data type mismatch for labels: expected int64 but got float32; the loss cross_entropy takes class numbers. For numbers to be predicted "
         "choose the loss mse, for yes or no bce_with_logits."),
    Call(10, lambda: tileflow.train("linear.onnx", data=XY, optimizer=tileflow.optim.SGD(lr=0.1), learning_rate=0.2), OptionError,
         "The optimizer SGD(...) and the option learning_rate=0.2 contradict each other, for SGD has settings of its own; "
         "give SGD what it should use, or leave one of them out."),
    Call(10, lambda: tileflow.training_model(nn.Linear(4, 3), micro_batch_size=5)(*XY), ShapeError,
         "Invalid batch dimension: the input [32, 4] has 32 rows, but micro_batch_size was set, so that a call takes 5: micro_batch_size (5) * "
         "device_iterations (1) * gradient_accumulation (1); give as many, or leave micro_batch_size out, and it "
         "follows from the first call. See docs/batching.md."),
    Call(10, lambda: tileflow.train("linear.onnx", data=XY, optimizer=tileflow.optim.SGD), OptionError,
         f"optimizer must be a name ({', '.join(OPTIMIZERS)}) or an optimizer such as tileflow.optim.SGD(lr=0.1), "
         "not the class SGD."),
    Call(10, lambda: tileflow.train("linear.onnx", data=XY, optimizer="adamax"), OptionError,
         f"Option optimizer must be one of {', '.join(map(repr, OPTIMIZERS))}, not 'adamax'."),
    Call(10, lambda: tileflow.train("linear.onnx", data=XY, label="y"), OptionError,
         "Option label has no effect on arrays without names; give a dict of arrays, or leave it out."),
    Call(10, lambda: tileflow.infer("linear.onnx", XY[0]), OptionError,
         "options must be a tileflow.Options, got ndarray; data are given as data=..., single options by keyword."),
    Call(10, lambda: tileflow.train("linear.onnx", data=XY, patience=3), OptionError,
         "There is no option 'patience'; did you mean early_stopping?"),
    Call(0, lambda: tileflow.train("linear.onnx", data=XY, callbacks=[print]), OptionError,
         "callbacks takes objects of tileflow.callbacks.Callback, not builtin_function_or_method."),
    Call(10, lambda: called_twice(XY[0][:4], XY[0][:8]), ShapeError,
         "Invalid batch dimension: the input [8, 4] has 8 rows, but micro_batch_size was set, so that a call takes 4: micro_batch_size (4) * "
         "device_iterations (1) * gradient_accumulation (1); give as many, or leave micro_batch_size out, and it "
         "follows from the first call. See docs/batching.md."),
    Call(0, lambda: tileflow.inference_model(nn.Linear), ModelError,
         "A model is the path of an ONNX file, what tileflow.load returns, or a network of layers, not the class Linear."),
    Call(0, lambda: tileflow.train("linear.onnx", data=[*XY]), DataError,
         "Input x of data in memory cannot be made an array (setting an array element with a sequence); inputs and labels together are a tuple "
         "(inputs, labels)."),
    Call(0, lambda: tileflow.training_model("linear.onnx", loss=3), OptionError,
         f"A loss is a name ({', '.join(LOSSES)}) or a function (builder, outputs) -> loss, not int."),
    Call(0, lambda: tileflow.train("linear.onnx", data=XY, reporter=print), OptionError,
         "reporter must have a method say, which builtin_function_or_method has not; callbacks=[...] takes callbacks, "
         "and progress=True shows bars and lines."),
    Call(10, lambda: tileflow.compile("linear.onnx", inputs=[(16, 4)]), OptionError,
         "inputs are for a network of layers; an ONNX file declares its own: give micro_batch_size, and dims for open sizes."),
    Call(10, lambda: tileflow.compile("linear.onnx", allow_out_of_memory=True), OptionError,
         "allow_out_of_memory is about the tile machine; name one, for example machine='gc200', or leave it out."),
    Call(10, lambda: tileflow.train("linear.onnx", data=XY, lr=0.1), OptionError, "There is no option 'lr'; did you mean learning_rate?"),
    Call(10, lambda: tileflow.infer("linear.onnx", data=XY, out="p.npz"), OptionError,
         "Option out has no effect on the function infer, which returns its results; it is for train and the command line."),
    Call(10, lambda: tileflow.train("linear.onnx", data=XY, output_mode="sum"), OptionError,
         "Option output_mode has no effect on train; it is for training_model and inference_model."),
    Call(12, lambda: called_within_a_call(), TileflowError,
         "A model is called, or its weights are set, from within a call of its own network (by a progress or stop function, a loss, or forward()); "
         "do that when the call has returned."),
    Call(6, lambda: tileflow.train("linear.onnx", data=(XY[0], np.full(32, 2)), ignore_index=2), DataError,
         "Data in memory: every label is 2, the ignore_index, so that there is nothing to learn."),
    Call(16, lambda: tileflow.inference_model("linear.onnx")(np.full((2, 4), 1e300)), TypeMismatchError,
         "input 0 holds 1e+300, which is beyond the reach of float32; scale it (options scale, mean and std)."),
    Call(16, lambda: tileflow.inference_model("bytes.onnx")(np.full((2, 4), 300)), TypeMismatchError,
         "input 0 holds 300, which is beyond the reach of uint8."),
    Call(0, lambda: tileflow.train("linear.onnx"), DataError, "There is no data to train on; give data=(x, y), a path, or the name digits."),
    Call(0, lambda: tileflow.Options(epohcs=3), OptionError, "There is no option 'epohcs'; did you mean epochs or eps?"),
    Call(0, lambda: tileflow.compile(nn.Linear(4, 3)), DataError,
         "A network of layers does not say what it takes; give inputs, for example inputs=[(16, 784)]."),
    Call(0, lambda: tileflow.compile(nn.Linear(4, 3), inputs=[((2, 4), "float32")]), DataError,
         "Input 0 is ((2, 4), 'float32'); give a shape, a tuple of whole numbers from 0 on, or an array of the type that it has."),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.point}: {call.says[:50]}")
def test_what_a_call_says(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("linear.onnx", "bytes.onnx", "flowers.npz"):
        FILES[name](tmp_path / name)
    with pytest.raises(call.error) as caught:
        call.mistake()
    assert fits(call.says, str(caught.value)), caught.value


def test_what_the_sentences_advise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest calls that must still work."""
    monkeypatch.chdir(tmp_path)
    FILES["linear.onnx"](tmp_path / "linear.onnx")
    result = tileflow.train("linear.onnx", tileflow.Options(), data=([*XY[0]], XY[1]), loss=nn.CrossEntropyLoss(), out="run", epochs=2)
    assert len(result.history["loss"]) == 2
    assert tileflow.train("linear.onnx", data=XY, loss=nn.CrossEntropyLoss(), out="run", epochs=3, resume=True).epochs[-1].epoch == 3
    model = tileflow.inference_model("linear.onnx", on_new_shape="compile")
    assert [len(model(XY[0][:n])) for n in (4, 8)] == [4, 8]


def test_every_point_that_can_be_seen_has_a_row():
    """Of the twenty, the eighth alone says nothing: a rule that no longer fires leaves right numbers
    (tests/host/test_rules.py)."""
    assert {r.point for r in (*COMMANDS, *CALLS)} >= set(range(1, 21)) - {8}
