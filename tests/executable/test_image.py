"""An image on its way through bytes: another process runs it to the same bits, without graph or compiler; what is not
whole is no image."""
from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import rare
from places import PATH

import tileflow
from tileflow import nn, optim
from tileflow.executable import file, kernels
from tileflow.executable.engine import Engine
from tileflow.executable.image import SEGMENT_BITS, Image
from tileflow.state import Session
from tileflow.system.errors import TrainingError

RUN = r"""
import json, sys
from pathlib import Path
import numpy as np
from tileflow.executable import file, kernels
from tileflow.executable.engine import Engine
from tileflow.state import Session

folder = Path(sys.argv[1])
given = np.load(folder / "given.npz")
told = json.loads((folder / "told.json").read_text())
image = file.read((folder / "image").read_bytes())
session = Session()
session.declare(image.states)
for s in image.states:
    session[s.name][...] = given[f"state {s.name}"].view(s.numpy).reshape(s.shape)
session.updates, session.micro_batches = told["updates"], told["micro_batches"]
engine = Engine(image, session, kernels.addresses(image.kernels), told["seed"])
arrays = [given[f"input {i}"] for i in range(len(image.inputs))]
scalars = (lambda update: told["scalars"][str(update)]) if told["scalars"] else None
found = {f"output {i}": a for i, a in enumerate(engine.call(arrays, scalars=scalars))}
found |= {f"state {s.name}": session[s.name] for s in image.states}
np.savez(folder / "found.npz", **{name: np.frombuffer(a.tobytes(), np.uint8) for name, a in found.items()})
rooms = {m.split(".")[1] for m in sys.modules if m.startswith("tileflow.")}
assert rooms == {"executable", "kernels", "memory", "state", "system", "errors"}, rooms
assert "onnx" not in sys.modules
"""


def network() -> nn.Module:
    """Weights laid out once per update, running statistics, random numbers."""
    nn.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Dropout(0.4), nn.Linear(32, 4))


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    return draw.standard_normal((count, 2, 6, 6)).astype(np.float32), draw.integers(0, 4, count)


def elsewhere(folder: Path, model: Any, arrays: tuple[np.ndarray, ...]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What a call of a compiled model makes of outputs and states: here, and in another process that has the bytes of
    the image."""
    engine, session = model.engine, model.source.session
    names = [s.name for s in engine.image.states]
    dealt = model.rows.dealt([np.ascontiguousarray(a) for a in arrays])
    scalars = model._scalars()
    numbers = range(session.updates, session.updates + engine.image.iterations)
    updates = {} if scalars is None else {number: scalars(number) for number in numbers}
    told = {"updates": session.updates, "micro_batches": session.micro_batches, "seed": engine.seed, "scalars": updates}
    (folder / "told.json").write_text(json.dumps(told))
    (folder / "image").write_bytes(file.write(engine.image))
    np.savez(folder / "given.npz", **{f"input {i}": a for i, a in enumerate(dealt)},
             **{f"state {n}": np.frombuffer(session[n].tobytes(), np.uint8) for n in names})
    done = subprocess.run([sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": PATH})
    assert done.returncode == 0, done.stderr
    wanted = {f"output {i}": a.tobytes() for i, a in enumerate(engine.call(dealt, scalars=scalars))}
    wanted |= {f"state {n}": session[n].tobytes() for n in names}
    with np.load(folder / "found.npz") as found:
        return wanted, {name: found[name].tobytes() for name in found.files}


SPLIT = {"pipeline_splits": ("1", "6"), "auto_round_num_ipus": True, "gradient_accumulation": 6}
TRAININGS: dict[str, dict[str, Any]] = {
    "one worker": {"threads": 1, "gradient_accumulation": 3, "device_iterations": 2},
    "lanes": {"threads": 2, "gradient_accumulation": 3, "device_iterations": 2},
    "halves": {"threads": 2, "precision": "16-true", "gradient_accumulation": 2},
    "replicas": {"threads": 2, "replication_factor": 2, "replica_grouping": {"*": "no_grouping"},
                 "broadcast_buffers": False},
    "pipelined": {"threads": 2, "strategy": "pipelined", **SPLIT},
    "pipelined, one worker": {"threads": 1, "strategy": "pipelined", **SPLIT},
    "sharded": {"threads": 2, "strategy": "sharded", **SPLIT},
    "serial": {"threads": 2, "strategy": "serial_phased", "tensors_liveness": "off_chip_after_each_phase", **SPLIT},
    "parallel": {"threads": 2, "strategy": "parallel_phased", "separate_backward_phase": True, **SPLIT},
}


ALWAYS = ("lanes", "pipelined")


@pytest.mark.parametrize("name", [*ALWAYS, *(rare(name) for name in TRAININGS if name not in ALWAYS)])
def test_training_goes_on_in_another_process(name: str, tmp_path: Path):
    options = TRAININGS[name]
    optimizer = optim.AdamW(lr=optim.schedules.exponential(0.01, 0.9))
    model = tileflow.training_model(network(), optimizer=optimizer, micro_batch_size=2, **options)
    count = 2 * math.prod(options.get(name, 1)
                          for name in ("gradient_accumulation", "device_iterations", "replication_factor"))
    model(*rows(count))
    wanted, found = elsewhere(tmp_path, model, rows(count))
    assert wanted == found


@pytest.mark.parametrize("iterations", [1, 3])
def test_inference_goes_on_in_another_process(iterations: int, tmp_path: Path):
    net = network()
    model = tileflow.inference_model(net, micro_batch_size=2, device_iterations=iterations)
    x, _ = rows(2 * iterations)
    model(x)
    wanted, found = elsewhere(tmp_path, model, (x,))
    assert wanted == found


# ---- what is no image

def image() -> Image:
    model = tileflow.inference_model(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    model(np.ones((2, 3), np.float32))
    made: Image = model.engine.image
    return made


def test_bytes_are_an_image_as_they_were_written_only():
    data = file.write(image())
    assert file.read(data) is not None
    older = data.replace(b"tileflow image 1", b"tileflow image 0")
    for bad in (b"", data[:10], data[:-1], data + b"\0", older, b"PK\3\4" + data,
                *(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:] for at in range(0, len(data), 97))):
        assert file.read(bad) is None


def test_what_is_read_is_what_was_written():
    made = image()
    again = file.read(file.write(made))
    assert again is not None
    for name, value in vars(made).items():
        if name == "constants":
            assert [a.tobytes() for a in value] == [a.tobytes() for a in again.constants]
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, getattr(again, name))
        else:
            assert value == getattr(again, name), name


def beyond(made: Image) -> None:
    made.words[made.relocations[0]] = (len(made.segments) + 1) << SEGMENT_BITS


def misplaced(made: Image) -> None:
    made.tasks = (replace(made.tasks[0], count=len(made.words)),)


def shorter(made: Image) -> None:
    made.relocations = np.append(made.relocations, len(made.words))


@pytest.mark.parametrize("harm", [beyond, misplaced, shorter])
def test_an_image_that_points_elsewhere_is_none(harm: Callable[[Image], None]):
    """Its digest is right: whoever wrote it was wrong."""
    made = copy.deepcopy(image())
    assert file.read(file.write(made)) is not None
    harm(made)
    assert file.read(file.write(made)) is None


def test_a_kernel_that_the_cache_lacks_is_told():
    names = image().kernels
    assert kernels.addresses(names) is not None
    assert kernels.addresses([*names, "tileflow.kernels.nothing-0-0"]) is None


def test_failures_are_told_without_a_graph():
    """The operator's name and the node's origin are the image's."""
    net = nn.Sequential(nn.Embedding(5, 3))
    model = tileflow.inference_model(net)
    model(np.zeros(2, np.int64))
    made = file.read(file.write(model.engine.image))
    assert made is not None
    session = Session()
    session.declare(made.states)
    found = kernels.addresses(made.kernels)
    assert found is not None
    engine = Engine(made, session, found)
    assert engine.call([np.zeros(2, np.int64)])[0].shape == (1, 2, 3)
    with pytest.raises(TrainingError) as wanted:
        model(np.full(2, 7))
    with pytest.raises(TrainingError) as told:
        engine.call([np.full(2, 7)])
    assert str(told.value) == str(wanted.value)
    assert "an index lies outside of its axis" in str(told.value)
