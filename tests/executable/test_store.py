"""Images in the cache: found where nothing has changed that they depend on, made anew wherever something has, never run
wrongly."""
from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import House, files
from places import PATH, ROOT

import tileflow
from tileflow import nn
from tileflow.executable import store
from tileflow.kernels.isa import cpu
from tileflow.kernels.machine import cache, limits
from tileflow.lower import plan
from tileflow.runtime import code_key, executable, lowering
from tileflow.system.errors import OutOfMemoryError

X = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
Y = np.array([0, 1, 1, 0])


@pytest.fixture
def lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A place of their own for images; what is lowered meanwhile, which is what is not found there."""
    made: list[str] = []
    real = lowering.make_plan

    def noted(*args: Any) -> plan.Plan:
        made.append("a plan")
        return real(*args)
    monkeypatch.setattr(lowering, "make_plan", noted)
    monkeypatch.setattr(store, "enabled", True)
    folder, kind = cache.folder(), f"image-{os.getpid()}-{tmp_path.name}"  # other workers have folders of that name
    monkeypatch.setattr(store, "_name", lambda key: f"{kind}-{key}")
    monkeypatch.setattr(store, "KINDS", (kind,))
    yield made
    for path in folder.glob(f"{kind}-*"):
        path.unlink()


def network(width: int = 5, bias: float = 0.5) -> nn.Module:
    nn.manual_seed(4)
    net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))
    net.load_state_dict({**net.state_dict(), "0.bias": np.full(width, bias, np.float32)})
    return net


def trained(net: nn.Module | None = None, calls: int = 2, **options: Any) -> dict[str, bytes]:
    """Weights and what calls returned."""
    net = net or network()
    model = tileflow.training_model(net, learning_rate=0.1, **{"threads": 1, "gradient_accumulation": 2, **options})
    found = {f"call {i}": b"".join(np.asarray(a).tobytes() for a in model(X, Y)) for i in range(calls)}
    return found | {name: a.tobytes() for name, a in net.state_dict().items()}


def test_the_second_start_lowers_nothing_and_computes_the_same(lowered: list[str]):
    first = trained()
    assert len(lowered) == 1
    assert trained() == first
    assert len(lowered) == 1
    other = trained(network(bias=0.75))                          # weights are the session's, not the image's
    assert len(lowered) == 1
    assert other != first


def test_it_is_the_owners_alone(lowered: list[str]):
    trained()
    path, = store.kept()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


CHANGES: dict[str, Callable[[], Any]] = {
    "two threads": lambda: trained(threads=2),
    "accumulation": lambda: trained(gradient_accumulation=1),
    "another width": lambda: trained(network(6)),
    "another optimizer": lambda: trained(optimizer="sgd"),
    "other outputs": lambda: trained(output_mode="all"),
    "precision": lambda: trained(precision="bf16-mixed"),
    "anomalies": lambda: trained(detect_anomaly=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_made_anew(change: str, lowered: list[str]):
    trained()
    CHANGES[change]()
    assert len(lowered) == 2


@pytest.mark.parametrize("path", cpu.available()[1:])
def test_another_path_has_its_own(path: str, lowered: list[str]):
    trained()
    with cpu.forced(path):
        trained()
    assert len(lowered) == 2


def test_the_seed_is_none_of_its_words(lowered: list[str]):
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    before = net.state_dict()
    found = []
    for seed in (1, 2, 1):
        net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        net.load_state_dict(before)
        found.append(trained(net, seed=seed))
    assert len(lowered) == 1
    assert found[0] == found[2] != found[1]


def test_states_that_lie_otherwise_are_none_of_it(lowered: list[str]):
    """Rows over neighbours are one because of where they lie; a network that inference has met first has other
    neighbours."""
    wanted = trained()
    net = network()
    tileflow.inference_model(net, threads=1)(X)
    assert len(lowered) == 2
    assert trained(net) == wanted
    assert trained() == wanted


def test_lanes_follow_the_memory_of_now(lowered: list[str], monkeypatch: pytest.MonkeyPatch):
    """Two lanes where there was room for them, one where there is not, and the other way round."""
    wanted = trained(threads=2)
    trained(threads=2)
    assert len(lowered) == 1
    monkeypatch.setattr("tileflow.memory.budget.LANE_MEMORY_SHARE", 0.0)
    assert trained(threads=2) == wanted
    assert len(lowered) == 2
    trained(threads=2)
    assert len(lowered) == 2
    monkeypatch.undo()


def test_what_does_not_fit_is_said_before_it_is_taken(lowered: list[str], monkeypatch: pytest.MonkeyPatch):
    models = [tileflow.inference_model(nn.Sequential(nn.Linear(3, 3_000_000)), threads=1) for _ in range(2)]
    models[0](X[:1])
    monkeypatch.setattr(limits, "memory", lambda: limits.Room(150 << 20, "a test"))
    with pytest.raises(OutOfMemoryError, match=r"The program \(.*weights and optimizer states 48 MB"):
        models[1](X[:1])
    assert len(lowered) == 1
    assert models[1].source.session.names() == []


# ---- files

def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def older(path: Path) -> None:
    """Whole for the cache, but written in another form."""
    name = path.name.removesuffix(cache.SUFFIX)
    payload = cache.read(name)
    assert payload is not None
    cache.write(name, payload.replace(b"tileflow image 1", b"tileflow image 0"), store.MODE)


def foreign(path: Path) -> None:
    """Another program's, moved here."""
    trained(network(7))
    shutil.copy(next(p for p in store.kept() if p != path), path)


def writable(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("harm", [damaged, truncated, older, foreign, writable])
def test_what_is_not_whole_and_ours_is_made_anew(harm: Callable[[Path], None], lowered: list[str]):
    wanted = trained()
    path, = store.kept()
    harm(path)
    before = len(lowered)
    assert trained() == wanted
    assert len(lowered) == before + 1
    assert trained() == wanted
    assert len(lowered) == before + 1, "the file is whole again"


def test_a_kernel_that_is_gone_is_compiled_anew(lowered: list[str], monkeypatch: pytest.MonkeyPatch):
    wanted = trained()
    monkeypatch.setattr(executable, "addresses", lambda names: None)
    assert trained() == wanted
    assert len(lowered) == 2


def test_the_least_recently_used_go(lowered: list[str], monkeypatch: pytest.MonkeyPatch):
    trained()
    size = store.kept()[0].stat().st_size
    monkeypatch.setattr(store, "ROOM", int(2.5 * size))
    trained(network(6))
    time.sleep(0.02)
    trained()                                                       # used again, so that it stays
    time.sleep(0.02)
    trained(network(7))
    assert len(store.kept()) == 2
    before = len(lowered)
    trained()
    assert len(lowered) == before
    trained(network(6))
    assert len(lowered) == before + 1


def test_what_is_too_large_is_not_kept(lowered: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "LARGEST", 1000)
    assert trained() == trained()
    assert store.kept() == []
    assert len(lowered) == 2


KILLED = """
import os, signal, sys
from tileflow.kernels.machine import cache
from tileflow.executable import store
real = os.replace
def dying(source, target):
    if "image-" in str(target):
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.replace = dying
store._name = lambda key: f"{sys.argv[1]}-{key}"
store.KINDS = (sys.argv[1],)
import test_store
test_store.trained()
"""


def test_a_process_killed_while_it_writes_leaves_nothing_that_is_read(lowered: list[str],
                                                                      monkeypatch: pytest.MonkeyPatch):
    """What it has left goes with the next image that is kept, once it is old."""
    kind, = store.KINDS
    done = subprocess.run([sys.executable, "-c", KILLED, kind], env={**os.environ, "PYTHONPATH": PATH},
                          capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left, = cache.folder().glob(f"{kind}-*.tmp")
    trained()
    assert len(lowered) == 1
    assert left.exists(), "somebody may be writing it"
    monkeypatch.setattr(store, "STALE", -1.0)
    trained(network(11))
    assert not left.exists()


# ---- keys

def copied(folder: Path) -> Path:
    for room in code_key.ROOMS:
        shutil.copytree((ROOT / "tileflow" / room).resolve(), folder / room,
                        ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_changed_line_in_any_room_misses(tmp_path: Path):
    package = copied(tmp_path)
    before = code_key.content(package, code_key.ROOMS)
    assert before == code_key.content(ROOT / "tileflow", code_key.ROOMS)
    for room in code_key.ROOMS:
        path = sorted((package / room).rglob("*.py"))[-1]
        text = path.read_text()
        path.write_text(text + "# another line\n")
        assert code_key.content(package, code_key.ROOMS) != before, room
        path.write_text(text)
        assert code_key.content(package, code_key.ROOMS) == before


def test_all_code_between_a_program_and_an_image_is_in_these_rooms():
    """What lowering and assembling import, however far, and the operators, which they know by the registry."""
    graph = House(files(), types=False).imports
    found, waiting = set(), ["tileflow.lower.plan", "tileflow.runtime.assemble", "tileflow.executable.engine"]
    waiting += [module for module in graph if module.startswith("tileflow.ops.")]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph.get(module, ())
    assert {"tileflow.host.rewrite", "tileflow.kernels.gemm.micro"} <= found
    assert {m.split(".")[1] for m in found if m.count(".")} <= {*code_key.ROOMS}
