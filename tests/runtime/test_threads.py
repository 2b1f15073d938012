"""Models shared by threads: whole calls take turns, answers are those of one thread, and no call sees half an update."""
from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from places import ROOT

import tileflow
from tileflow import nn, optim
from tileflow.loss.named import find
from tileflow.onnx_backend import Backend
from tileflow.runtime.evaluate import EvaluationModel
from tileflow.runtime.net_source import NetSource
from tileflow.state import Turn, build
from tileflow.system.errors import TileflowError

THREADS = 8
rng = np.random.default_rng(4)
XS = [rng.standard_normal((8, 16)).astype(np.float32) for _ in range(THREADS)]


class Net(nn.Module):
    def __init__(self, width: int = 32) -> None:
        nn.manual_seed(0)
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.last(self.first(x).relu())


def together(works: list[Callable[[], None]]) -> None:
    """Run all at once; raise what any of them raises."""
    failed: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            ready.wait(60)
            work()
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=guarded, args=(w,), daemon=True) for w in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive(), "a thread hangs"
    if failed:
        raise failed[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_one_model_in_eight_threads_answers_as_in_one(threads: int):
    model = tileflow.inference_model(Net(), threads=threads)
    wanted = [model(x) for x in XS]

    def ask(i: int) -> None:
        for _ in range(150):
            np.testing.assert_array_equal(model(XS[i]), wanted[i])
    together([lambda i=i: ask(i) for i in range(THREADS)])         # type: ignore[misc]


def test_shapes_of_their_own_in_eight_threads():
    """Each first call compiles, and more programs are asked for than are kept."""
    model = tileflow.inference_model(Net(), on_new_shape="compile", threads=1)
    xs = [np.repeat(XS[0], i + 1, axis=0) for i in range(THREADS + 2)]
    wanted = [tileflow.inference_model(Net(), threads=1)(x) for x in xs]

    def ask(first: int) -> None:
        for i in range(2 * len(xs)):
            at = (first + i) % len(xs)
            np.testing.assert_array_equal(model(xs[at]), wanted[at])
    together([lambda i=i: ask(i) for i in range(THREADS)])         # type: ignore[misc]


def test_networks_of_their_own_in_eight_threads():
    """Different sessions compile and open parallel regions at the same time."""
    nets = [Net(16 + i) for i in range(THREADS)]
    wanted = [tileflow.inference_model(Net(16 + i), threads=1)(XS[i]) for i in range(THREADS)]

    def ask(i: int) -> None:
        model = tileflow.inference_model(nets[i], threads=2, device_iterations=4)
        for _ in range(20):
            np.testing.assert_array_equal(model(XS[i]), wanted[i])
    together([lambda i=i: ask(i) for i in range(THREADS)])         # type: ignore[misc]


def measuring(net: Net) -> EvaluationModel:
    options = tileflow.Options(threads=2)
    return EvaluationModel(NetSource(net, options), options, find("cross_entropy"))


def test_no_call_sees_half_an_update():
    """Training in one thread; inference, measuring, weights and checkpoints' tensors in seven: all are those after some whole update."""
    y = np.arange(8) % 4
    updates = 60

    def trainer(net: Net) -> Any:
        return tileflow.training_model(net, optimizer=optim.AdamW(lr=0.003), threads=2)

    net = Net()
    alone, asked, measured = trainer(net), tileflow.inference_model(net, threads=2), measuring(net)
    answers, weights, losses = set(), set(), set()
    for update in range(updates + 1):
        answers.add(asked(XS[0]).tobytes())
        losses.add(measured.measure(XS[0], y)[1].tobytes())
        weights.add(b"".join(a.tobytes() for a in net.state_dict().values()))
        if update < updates:
            alone(XS[0], y)
    assert len(answers) == len(weights) == len(losses) == updates + 1

    net = Net()
    trained, asked, measured = trainer(net), tileflow.inference_model(net, threads=2), measuring(net)
    asked(XS[0])
    trained.compile(XS[0], y)
    over = threading.Event()

    def train() -> None:
        try:
            for _ in range(updates):
                trained(XS[0], y)
        finally:
            over.set()

    def ask(look: Callable[[], bytes], known: set[bytes]) -> Callable[[], None]:
        def asking() -> None:
            while not over.is_set():
                assert look() in known
        return asking

    def snapshot() -> bytes:
        found = net.session.snapshot("parameter")
        return b"".join(found[name].tobytes() for name in dict(net.named_parameters()))
    infer = ask(lambda: asked(XS[0]).tobytes(), answers)
    state = ask(lambda: b"".join(a.tobytes() for a in net.state_dict().values()), weights)
    measure = ask(lambda: measured.measure(XS[0], y)[1].tobytes(), losses)
    together([train, infer, infer, measure, measure, state, state, ask(snapshot, weights)])


def test_one_file_opened_in_threads_has_one_session(tmp_path: Path):
    loaded = tileflow.load(_relu_file(tmp_path))
    found: list[Any] = []
    together([lambda: found.append(tileflow.inference_model(loaded).source.session)] * THREADS)
    assert len({id(s) for s in found}) == 1
    net = Net()
    together([lambda: found.append(net.session)] * THREADS)
    assert len({id(s) for s in found[THREADS:]}) == 1


def _relu_file(folder: Path) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 16]) for n in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "relu.onnx")
    return folder / "relu.onnx"


def test_the_backend_in_eight_threads(tmp_path: Path):
    prepared = Backend.prepare(_relu_file(tmp_path), threads=2)

    def ask(i: int) -> None:
        for rows in range(1, 9):
            np.testing.assert_array_equal(prepared.run([XS[i][:rows]])[0], np.maximum(XS[i][:rows], 0))
    together([lambda i=i: ask(i) for i in range(THREADS)])         # type: ignore[misc]


# ---- calls within calls

def test_a_call_within_a_call_is_a_sentence():
    model = tileflow.inference_model(Net(), threads=1)
    model(XS[0])

    def again() -> bool:
        model(XS[0])
        return False
    model.stop = again
    with pytest.raises(TileflowError, match="from within a call of its own network"):
        model(XS[0])
    model.stop = lambda: bool(model.source.session.set("first.weight", np.zeros((32, 16))))
    with pytest.raises(TileflowError, match="its weights are set, from within a call"):
        model(XS[0])
    model.stop = lambda: not model.source.session.snapshot()          # looking is allowed
    np.testing.assert_array_equal(model(XS[0]), tileflow.inference_model(Net(), threads=1)(XS[0]))


def test_calls_of_two_networks_within_each_other_cannot_wait_for_each_other():
    """Each thread is in a call of one network, whose stop function calls the other one."""
    models = [tileflow.inference_model(Net(), threads=1) for _ in range(2)]
    for m in models:
        m(XS[0])
    both = threading.Barrier(2)

    def crossed(own: int) -> Callable[[], None]:
        def work() -> None:
            both.wait(60)
            with pytest.raises(TileflowError, match="while another thread uses it"):
                models[1 - own](XS[0])
            both.wait(60)
        return lambda: models[own].source.session.turn.call(work)
    together([crossed(0), crossed(1)])
    np.testing.assert_array_equal(models[0].source.session.turn.call(lambda: models[1](XS[0])), models[1](XS[0]))      # nobody else uses it


def test_a_copied_network_has_a_turn_of_its_own():
    net = Net()
    tileflow.inference_model(net, threads=1)(XS[0])
    twin = copy.deepcopy(net)
    assert twin.session.turn is not net.session.turn
    assert net.session.turn.call(lambda: twin.session.turn.call(lambda: 7)) == 7


WAITING = """
import threading, time
from tileflow.state import Turn
turn, there, over = Turn(), threading.Event(), threading.Event()
def work():
    there.set()
    over.wait(60)
thread = threading.Thread(target=turn.call, args=(work,))
thread.start()
there.wait()
try:
    print("waiting", flush=True)
    turn.call(lambda: print("no"))
except KeyboardInterrupt:
    print("interrupted")
over.set()
thread.join()
print(turn.call(lambda: "mine"))
"""


def test_waiting_for_a_turn_can_be_interrupted():
    process = subprocess.Popen([sys.executable, "-c", WAITING], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\nmine\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: a POSIX system makes it run")
def test_a_child_forked_in_the_middle_of_anothers_call_gets_a_sentence():
    turn = Turn()
    assert "forked while another thread was in a call" in said_in_a_child(turn.call, lambda: turn.call(lambda: None))
    assert turn.call(lambda: 3) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: a POSIX system makes it run")
def test_such_a_child_does_as_the_sentence_says():
    """A model of the same path shares the weights that another thread was changing; one that is loaded has weights of its own."""
    used = tileflow.inference_model("digits_cnn.onnx", threads=1)
    x = np.zeros((1, 1, 8, 8), np.float32)
    wanted = used(x)

    def again() -> None:
        with pytest.raises(TileflowError, match=r"load the model anew in the new process \(tileflow\.load "):
            tileflow.inference_model("digits_cnn.onnx", threads=1)(x)
        loaded = tileflow.inference_model(tileflow.load("digits_cnn.onnx"), threads=1)
        raise TileflowError("the same" if np.array_equal(loaded(x), wanted) else "others")
    assert said_in_a_child(used.source.session.turn.call, again) == "the same"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: a POSIX system makes it run")
def test_a_child_forked_in_the_middle_of_anothers_compiling_gets_a_sentence():
    assert "forked while another thread compiled a model" in said_in_a_child(build, lambda: build(lambda: None))
    assert build(lambda: 3) == 3


def said_in_a_child(hold: Callable[[Callable[[], None]], None], mistake: Callable[[], None]) -> str:
    """What a child is told that is forked while another thread is in `hold`."""
    there, over = threading.Event(), threading.Event()

    def work() -> None:
        there.set()
        over.wait(60)
    thread = threading.Thread(target=hold, args=(work,))
    thread.start()
    there.wait(60)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)          # newer Pythons warn of just what is tried here
        child = os.fork()
    if child == 0:
        try:
            mistake()
        except TileflowError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    over.set()
    thread.join()
    return said


def test_calls_of_several_threads_share_the_helpers(monkeypatch: pytest.MonkeyPatch):
    """Networks of their own, every row split: no call waits for another's, and all get their own answers."""
    monkeypatch.setattr("tileflow.kernels.machine.table.FORK_NS", 0.0)
    models = [tileflow.inference_model(Net(), threads=2, device_iterations=k) for k in (1, 4, 1, 4)]
    xs = [XS[0], np.concatenate(XS[:4]), XS[1], np.concatenate(XS[4:])]
    wanted = [model(x) for model, x in zip(models, xs, strict=True)]

    def ask(i: int) -> None:
        for _ in range(100):
            np.testing.assert_array_equal(models[i](xs[i]), wanted[i])
    together([lambda i=i: ask(i) for i in range(len(models))])     # type: ignore[misc]
