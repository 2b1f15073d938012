"""Programs as files: written, read and written again to the same bytes; a digest that is the same everywhere; files
that are damaged, foreign or too large are refused with a sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import exhaustive
from places import PATH, ROOT, TESTS
from program_kinds import kinds, sampled, trained
from random_strategies import Images, Tokens
from read_programs import through_a_file
from samples import cases

from tileflow import compiler
from tileflow.graph import Builder, Graph, Hints, TensorType
from tileflow.host.form import HostForm
from tileflow.host.hosted import Hosted
from tileflow.kernels.elementwise.expr import Var
from tileflow.kernels.isa import cpu
from tileflow.lower.passes import PassSetting, host_program
from tileflow.lower.plan import make_plan
from tileflow.program import file
from tileflow.program.batching import Batching
from tileflow.program.program import Program
from tileflow.program.reading import array_types, program_of
from tileflow.program.text import text_of
from tileflow.program.writing import structure_of
from tileflow.runtime.executable import make_engine
from tileflow.runtime.host import Host
from tileflow.state import Session
from tileflow.system.errors import CheckpointError, ModelError, UnsupportedError

KINDS = kinds()
SUITES = (
    "strategy/test_random_strategies.py",
    "graph/test_random_graphs.py",
    "optim/test_optim_runs.py",
    "importers/test_control.py",
    "runtime/test_replicas.py",
    "runtime/test_training.py",
)
"""Tests that run under `read_programs`."""


def small() -> Program:
    """A product with a constant, a branch's worth of bytes."""
    graph = Graph("small")
    b = Builder(graph)
    x = b.input("x", TensorType("float32", (2, 3)))
    graph.outputs = [b.Relu(b.MatMul(x, b.constant(np.arange(30, dtype=np.float32).reshape(3, 10), "table")))]
    return Program.of(graph, Batching(2))


# ---- there and back


@pytest.mark.parametrize("name", KINDS)
def test_a_program_is_what_its_file_holds(name: str, tmp_path: Path) -> None:
    through_a_file(KINDS[name](), tmp_path)


def test_every_sample_of_the_registry_is_what_its_data_hold() -> None:
    for case in cases():
        found = structure_of(sampled(case))
        read = program_of(json.loads(text_of(found.structure)), found.arrays)
        again = structure_of(read)
        assert text_of(again.structure) == text_of(found.structure), case.name
        assert read.micro.nodes[0].op == case.op, case.name
        assert [t for t, _ in array_types(found.structure)] == [TensorType(a.dtype.name, a.shape) for a in again.arrays]


@pytest.mark.parametrize(
    "name", ["adamw", "16-mixed", "pipelined", "replicas", "recurrent", "If-0", "inference Tokens"]
)
def test_the_plan_is_the_same(name: str, tmp_path: Path) -> None:
    program = KINDS[name]()
    plans = [
        [line for line in make_plan(p, 2).to_text().split("\n") if not line.endswith(" ms")]
        for p in (program, through_a_file(program, tmp_path))
    ]
    assert plans[0] == plans[1]
    assert len(plans[0]) > 10


@pytest.mark.parametrize("network", [Images, Tokens])
def test_the_bits_are_the_same(network: type[Images] | type[Tokens], tmp_path: Path) -> None:
    """Two updates, with random numbers, accumulated over micro-batches."""
    program = trained(network, optimizer="adamw", gradient_accumulation=2)
    rng = np.random.default_rng(3)
    initial = {
        s.name: rng.uniform(-0.2, 0.2, s.input.shape).astype(s.input.dtype)
        for s in program.states.values()
        if s.kind in ("parameter", "buffer") and s.input.type.is_float
    }
    feeds = [network.rows(rng, 4), rng.integers(0, 5, 4)]
    found = []
    for p in (program, through_a_file(program, tmp_path)):
        session = Session()
        engine = make_engine(p, session, initial, Host(threads=2, seed=5))
        roles = [s.role for s in p.states.values() if s.kind == "scalar"]
        outputs = [
            a.tobytes() for _ in range(2) for a in engine.call(feeds, scalars=lambda _, r=roles: dict.fromkeys(r, 0.01))
        ]
        found.append((outputs, {name: a.tobytes() for name, a in session.snapshot().items()}))
    assert found[0] == found[1]
    assert found[0][1]["last.bias"] != initial["last.bias"].tobytes()


@exhaustive
@pytest.mark.parametrize("suite", SUITES)
def test_suites_run_what_was_read(suite: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TILEFLOW_PROGRAMS": str(tmp_path), "PYTHONPATH": PATH}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "read_programs",
        "-p",
        "no:cacheprovider",
        "-q",
        str(TESTS / suite),
    ]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:]
    assert len(list(tmp_path.glob("*.program"))) > 3


# ---- the digest


def test_the_digest_is_the_same_in_other_processes() -> None:
    names = ["adamw", "replicas", "If-0", "graph 3", "inference Tokens"]
    code = f"""from program_kinds import kinds
from tileflow.program import file
print(*[file.digest(kinds()[name]()) for name in {names}])"""
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": PATH, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1] == [file.digest(KINDS[name]()) for name in names]
    assert len({*found[0]}) == len(names)


def test_the_digest_does_not_know_in_which_order_dictionaries_were_filled() -> None:
    program = KINDS["replicas"]()
    assert len(program.links) > 1
    assert len(program.own) > 1
    wanted = file.digest(program)
    turned = {
        name: dataclasses.replace(g, constants=dict(reversed(g.constants.items()))) for name, g in program.parts.items()
    }
    assert max(len(g.constants) for g in turned.values()) > 1
    assert (
        file.digest(
            dataclasses.replace(
                program,
                parts=turned,
                links=dict(reversed(program.links.items())),
                own=dict(reversed(program.own.items())),
            )
        )
        == wanted
    )


def _hint(program: Program) -> None:
    program.micro.nodes[0].ask(Hints(stage=1))


def _state(**changes: Any) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        program.micro.states[0] = dataclasses.replace(program.micro.states[0], **changes)

    return change


def _constant(program: Program) -> None:
    graph = next(g for g in program.graphs if any(a.size for a in g.constants.values()))
    value = next(v for v, a in graph.constants.items() if a.size)
    array = np.array(graph.constants[value])
    array.reshape(-1).view(np.uint8)[0] ^= 1
    graph.constants[value] = array


def _attribute(program: Program) -> None:
    node = next(n for n in program.micro.nodes if n.op.name == "MaxPool")
    node.op = dataclasses.replace(node.op, strides=(1, 1))  # type: ignore[type-var]


CHANGES: dict[str, Callable[[Program], Any]] = {
    "hint": _hint,
    "fill": _state(fill=1.0),
    "group": _state(group="other"),
    "when": _state(when="micro"),
    "constant": _constant,
    "attribute": _attribute,
    "order of outputs": lambda p: p.micro.outputs.reverse(),
    "skips": lambda p: setattr(p, "skips", True),
    "name": lambda p: setattr(p.micro.inputs[0], "name", "other"),
    "link": lambda p: p.links.popitem(),
    "batching": lambda p: setattr(p, "batching", dataclasses.replace(p.batching, device_iterations=2)),
    "loss": lambda p: setattr(p, "loss", None),
    "returned": lambda p: setattr(p, "returned", 1),
    "source": lambda p: setattr(
        p.micro.nodes[0], "origin", dataclasses.replace(p.micro.nodes[0].origin, sources=("other",))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_knows(change: str) -> None:
    program = trained(gradient_accumulation=2)
    before = file.digest(program)
    assert file.digest(trained(gradient_accumulation=2)) == before
    CHANGES[change](program)
    assert file.digest(program) != before


# ---- tensors of the model's file


def referring() -> tuple[Program, dict[str, np.ndarray]]:
    """A program with constants that are tensors of a file: one as it is, one cast, one turned; and one that is none."""
    rng = np.random.default_rng(0)
    tensors = {
        "plain": rng.standard_normal((8, 8)).astype(np.float32),
        "wide": rng.standard_normal((4, 16)),
        "turned": rng.random((5, 7)),
    }
    graph = Graph("refers")
    b = Builder(graph)
    held = [
        tensors["plain"],
        tensors["wide"].astype(np.float16).reshape(8, 8),
        np.ascontiguousarray(tensors["turned"].T),
        rng.standard_normal(40),
    ]
    graph.outputs = [b.Neg(b.constant(a)) for a in held]
    return Program.of(graph, Batching(1)), tensors


def test_tensors_of_the_models_file_are_named_and_not_stored(tmp_path: Path) -> None:
    program, tensors = referring()
    whole, path = tmp_path / "whole", tmp_path / "refers"
    assert file.save(whole, program) == file.save(path, program, tensors) == file.digest(program)
    assert whole.stat().st_size - path.stat().st_size > 256 + 128 + 280 - 3 * 64
    for given in (tensors, tensors.__getitem__):
        read = file.load(path, given)
        assert [a.tobytes() for a in read.micro.constants.values()] == [
            a.tobytes() for a in program.micro.constants.values()
        ]
        assert file.digest(read) == file.digest(program)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "wide"}, "'wide' of the model's file is needed"),
        (lambda t: {**t, "plain": t["plain"] + 1}, "'plain' of the model's file is not the one"),
        (lambda t: {**t, "turned": t["turned"].reshape(-1)}, "'turned' of the model's file is not the one"),
        (lambda t: {**t, "plain": t["plain"][:4]}, "'plain' of the model's file is not the one"),
    ],
)
def test_another_model_file_is_refused(given: Any, said: str, tmp_path: Path) -> None:
    program, tensors = referring()
    file.save(tmp_path / "p", program, tensors)
    with pytest.raises(ModelError, match=said):
        file.load(tmp_path / "p", given(tensors))
    file.load(tmp_path / "p", tensors)


# ---- what a file cannot hold


def test_what_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    program = small()
    node = program.micro.nodes[1]
    op, node.op = node.op, Hosted(node.op, HostForm())
    with pytest.raises(UnsupportedError, match=r"micro.nodes\[1\] .*operator that is not in the registry"):
        file.save(tmp_path / "p", program)
    node.op = op
    program.micro.constants[next(iter(program.micro.constants))] = np.array([object()])
    with pytest.raises(UnsupportedError, match="element type object"):
        file.digest(program)
    assert not list(tmp_path.iterdir())


def test_python_functions_in_attributes_are_named() -> None:
    graph = Graph("g")
    b = Builder(graph)
    graph.outputs = [b.Map(b.input("x", TensorType("float32", (3,))), exprs=(Var(0, "float32"),))]
    program = Program.of(graph, Batching(1))
    file.digest(program)
    node = program.micro.nodes[0]
    node.op = dataclasses.replace(node.op, exprs=(len,))  # type: ignore[type-var]
    with pytest.raises(UnsupportedError, match=r"micro.nodes\[0\] Map .*exprs\[0\]"):
        file.digest(program)


def test_a_program_that_is_cut_is_not_written() -> None:
    program = KINDS["pipelined"]()
    file.digest(program)
    cut = host_program(program, PassSetting(cpu.current()))
    assert cut.caller is not None
    with pytest.raises(UnsupportedError, match="cut into stages; write the one that it was made of"):
        file.digest(cut)


# ---- damage


def test_any_byte_that_changes_is_found(tmp_path: Path) -> None:
    path = tmp_path / "p"
    file.save(path, small())
    whole = path.read_bytes()
    step = 7
    for at in [*range(0, 64), *range(64, len(whole), step)]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(ModelError, match="cannot be used"):
            file.load(path)
    for length in [*range(0, 64), *range(64, len(whole), step)]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="cannot be used"):
            file.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ModelError, match="need a file of"):
        file.load(path)
    path.write_bytes(whole)
    assert file.load(path).micro.nodes


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "is no program"),
        (b"\x08\x07\x12\x07pytorch", "is no program"),
        (b"tflprog0", "has version '0' of the format, and this tileflow reads '1'"),
        (b"tflprog1" + (1 << 40).to_bytes(8, "little"), "claims 1,099,511,627,776 bytes"),
    ],
)
def test_files_that_are_something_else(start: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(start + bytes(100 if start else 0))
    with pytest.raises(ModelError, match=said):
        file.load(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ModelError, match="cannot be read"):
            file.load(path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ModelError, match="it is a fifo"):
        file.load(tmp_path / "fifo")


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The file with another header, which has its digest."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[8:16], "little")
    header = json.loads(whole[file.START : file.START + length])
    change(header)
    text = text_of(header)
    text += b" " * (-(file.START + len(text)) % file.ALIGNMENT)
    path.write_bytes(
        file.MAGIC
        + len(text).to_bytes(8, "little")
        + hashlib.sha256(text).digest()
        + text
        + whole[file.START + length :]
    )


def _claim(header: dict[str, Any]) -> None:
    header["program"]["arrays"][0][1] = [1 << 20, 1 << 20]
    header["program"]["values"][1][2] = [1 << 20, 1 << 20]


def test_a_file_that_claims_more_than_it_has_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "p"
    file.save(path, small())
    rewritten(path, lambda header: None)
    file.load(path)
    rewritten(path, _claim)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"need a file of 4,398,0"):
            file.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("dtype", "bad"), [("bool", 2), ("int4", 0x0F), ("uint4", 0x10), ("int2", 3), ("uint2", 4)])
def test_bytes_that_are_no_elements(dtype: str, bad: int, tmp_path: Path) -> None:
    for byte, fine in ((1, True), (bad, False)):
        array = np.full(70, byte, np.uint8).view(dtype)
        graph = Graph("g")
        b = Builder(graph)
        graph.outputs = [b.Reshape(b.constant(array), shape=(7, 10))]
        file.save(tmp_path / "p", Program.of(graph, Batching(1))) if fine else None
        if fine:
            file.load(tmp_path / "p")
        else:
            with pytest.raises(CheckpointError, match="read back differs"):
                file.save(tmp_path / "p", Program.of(graph, Batching(1)))


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "p"
    file.save(path, small())
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="Cannot write"):
        file.save(tmp_path / "none" / "p", small())
    program = compiler.inference(small().micro, Batching(2)).program
    program.notes.append("a lone surrogate \ud800")
    with pytest.raises(UnsupportedError, match="notes"):
        file.save(path, program)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
