"""Users' operators in every form: from layers and files, replaced, refused, failing."""

from __future__ import annotations

import secrets
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from declared import (  # noqa: F401
    ALPHA,
    F,
    compiled_leaky_relu,
    cube,
    file_with,
    leaky_relu,
    python_leaky_relu,
    taken_back,
)
from paths import rare

import tileflow
from tileflow import custom, nn
from tileflow.graph import OPS
from tileflow.program import file as program_file
from tileflow.system.errors import (
    CheckpointError,
    ModelError,
    OptionError,
    ShapeError,
    TileflowError,
    TrainingError,
    TypeMismatchError,
    UnsupportedError,
)
from tileflow.testing import OperatorFault, check_operator

X = np.random.default_rng(5).normal(size=(8, 3)).astype(np.float32)
Y = np.random.default_rng(6).normal(size=(8, 2)).astype(np.float32)


class Net(nn.Module):
    """An operator between two layers."""

    def __init__(self, op: Any) -> None:
        nn.manual_seed(1)
        self.first, self.last, self.op = nn.Linear(3, 4), nn.Linear(4, 2), op

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.last(self.op(self.first(x)))


def trained(op: Any, threads: int, calls: int = 2, **options: Any) -> tuple[bytes, float]:
    """The weights after some calls, as bytes, and the last loss."""
    chosen = {
        "micro_batch_size": 2,
        "gradient_accumulation": 2,
        "device_iterations": 2,
        "learning_rate": 0.1,
        "optimizer": "sgd",
    } | options
    net = Net(op)
    model = tileflow.training_model(net, loss="mse", threads=threads, **chosen)
    loss = [model(X, Y)[-1] for _ in range(calls)][-1]
    return b"".join(a.tobytes() for a in net.state_dict().values()), float(loss)


def test_one_operator_in_every_form_trains_as_the_layer_does_on_any_number_of_threads():
    """Expression, Numba and Python: their bits are those of nn.LeakyReLU, but for fused rounding of nothing."""
    wanted = trained(nn.LeakyReLU(ALPHA), 1)
    for declare in (leaky_relu, compiled_leaky_relu, python_leaky_relu):
        op = declare()(alpha=ALPHA)
        for threads in (1, 2, 3, 5):
            assert trained(op, threads) == wanted, (declare.__name__, threads)


@pytest.mark.parametrize("form", ["expression", "composition"])
def test_cube_from_layers_and_from_a_file(form: str, tmp_path: Path):
    """The reference's numbers: 2^3 + 4 and 2^3."""
    made = cube(form)

    class Cubes(nn.Module):
        def forward(self, x: nn.Tensor, bias: nn.Tensor) -> Any:
            return made()(x, bias)

    found = tileflow.inference_model(Cubes())(np.full((1, 8), 2, np.float32), np.full((1, 8), 4, np.float32))
    np.testing.assert_array_equal(found[0], np.full((1, 8), 12))
    np.testing.assert_array_equal(found[1], np.full((1, 8), 8))
    onnx.save(file_with("Cube", 2, 2), tmp_path / "cube.onnx")
    h = X @ np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
    model = tileflow.inference_model(tmp_path / "cube.onnx")
    np.testing.assert_allclose(model(X), h**3 + h, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("declare", [leaky_relu, rare(compiled_leaky_relu), python_leaky_relu])
def test_a_file_trains_and_is_written(declare: Any, tmp_path: Path):
    """The trained file has the operator in it, and is read again."""
    name = declare().called
    onnx.save(file_with(name, alpha=ALPHA), tmp_path / "net.onnx")
    model = tileflow.training_model(tmp_path / "net.onnx", loss="mse", optimizer="sgd", learning_rate=0.1)
    model(X, np.zeros((8, 4), np.float32))
    model.save_onnx(tmp_path / "trained.onnx")
    w = model.state_dict()["w"]
    h = X @ w
    np.testing.assert_allclose(
        tileflow.inference_model(tmp_path / "trained.onnx")(X),
        np.where(h > 0, h, np.float32(ALPHA) * h),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_network_of_layers_becomes_a_file_with_the_operator(tmp_path: Path):
    net = Net(compiled_leaky_relu()(alpha=ALPHA))
    tileflow.save_onnx(net, tmp_path / "net.onnx", X)
    nodes = onnx.load(tmp_path / "net.onnx").graph.node
    assert [(n.domain, n.op_type) for n in nodes][1] == ("com.acme", "LeakyReluCompiled")
    np.testing.assert_array_equal(tileflow.inference_model(tmp_path / "net.onnx")(X), tileflow.inference_model(net)(X))


EVERY = {
    "one": -2.5,
    "whole": -5,
    "floats": (1.0, -2.0),
    "wholes": (1, -2, 3),
    "text": "quotes \" ' \\ end",
    "texts": ("abc", "\x01"),
}


@custom.python
def all_there(self, x):
    return np.full_like(x, {name: getattr(self, name) for name in EVERY} == EVERY)


@custom.compiled
def all_there_compiled(x, y, one, whole, floats, wholes, text, texts):
    right = one == -2.5 and whole == -5 and floats[1] == -2.0 and wholes[2] == 3 and len(floats) == 2
    y[:] = right and text == "quotes \" ' \\ end" and texts[0] == "abc" and texts[1] == "\x01"


@pytest.mark.parametrize("function", [rare(all_there_compiled, id="compiled"), pytest.param(all_there, id="python")])
def test_attributes_of_all_kinds_arrive(function: Any, tmp_path: Path):
    """From a file and from layers, in Numba's code too."""

    @tileflow.operator("com.acme", "Many")
    class Many:
        one: float
        whole: int
        floats: list[float]
        wholes: tuple[int, ...]
        text: str
        texts: list[str]
        forward = function

        def infer(self, x):
            return x

    onnx.save(file_with("Many", **EVERY), tmp_path / "many.onnx")
    assert (tileflow.inference_model(tmp_path / "many.onnx")(X) == 1).all()
    assert (
        tileflow.inference_model(Net(Many(**EVERY)))(X) == tileflow.inference_model(Net(lambda x: x * 0 + 1))(X)
    ).all()


@pytest.mark.parametrize(
    ("attributes", "error", "says"),
    [
        ({"alpha": "x"}, ModelError, "alpha must be a float, not 'x'"),
        ({"alpha": [1.0, 2.0]}, ModelError, "alpha must be a float"),
        ({"beta": 1.0}, UnsupportedError, "beta=1.0, which its declaration lacks"),
        ({"alpha": 1}, None, ""),
    ],
)
def test_attributes_of_a_file_are_those_that_are_declared(
    attributes: dict[str, Any], error: Any, says: str, tmp_path: Path
):
    leaky_relu()
    onnx.save(file_with("LeakyRelu", **attributes), tmp_path / "net.onnx")
    if error is None:
        assert tileflow.inference_model(tmp_path / "net.onnx")(X).shape == (8, 4)
        return
    with pytest.raises(error, match=says):
        tileflow.inference_model(tmp_path / "net.onnx")(X)


def test_an_operator_that_is_not_declared_is_refused_by_name_and_runs_once_it_is(tmp_path: Path):
    onnx.save(file_with("LeakyRelu", alpha=ALPHA), tmp_path / "net.onnx")
    with pytest.raises(UnsupportedError, match=r"com\.acme::LeakyRelu node .*tileflow\.operator"):
        tileflow.inference_model(tmp_path / "net.onnx")(X)
    leaky_relu()
    tileflow.inference_model(tmp_path / "net.onnx")(X)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "needs a forward"),
        ({"forward": lambda self, x: x}, "must say in which form"),
        ({"forward": custom.python(lambda self, x: x)}, "needs infer"),
        ({"forward": custom.expression(lambda self, x: x), "infer": lambda self, x: x}, "leave infer"),
        (
            {"forward": custom.expression(lambda self, x: x), "__annotations__": {"a": dict}},
            "the attribute a is annotated",
        ),
        (
            {"forward": custom.expression(lambda self, x: x), "__annotations__": {"a": int}, "a": 1.5},
            "the default of a must be an int",
        ),
    ],
)
def test_declarations_that_say_too_little_or_something_else(body: dict[str, Any], says: str):
    with pytest.raises(OptionError, match=says):
        tileflow.operator("com.acme", "Wrong")(type("Wrong", (), body))
    assert "com.acme::Wrong" not in OPS


def test_declared_again_it_is_replaced_and_ours_only_if_asked():
    @tileflow.operator("com.acme", "Twice")
    class First:
        @custom.expression
        def forward(self, x):
            return 2 * x

    before = tileflow.inference_model(Net(First()))

    @tileflow.operator("com.acme", "Twice")
    class Second:
        @custom.expression
        def forward(self, x):
            return 3 * x

    assert OPS["com.acme::Twice"] is Second
    assert not np.allclose(before(X), tileflow.inference_model(Net(Second()))(X))

    relu = OPS["Relu"]
    body = {"forward": custom.expression(lambda self, x: x * 0)}
    with pytest.raises(OptionError, match="replace=True"):
        tileflow.operator("", "Relu")(type("Relu", (), dict(body)))
    with pytest.raises(OptionError, match="must have its attributes, alpha"):
        tileflow.operator("", "LeakyRelu", replace=True)(type("LeakyRelu", (), dict(body)))
    tileflow.operator("", "Relu", replace=True)(type("Relu", (), dict(body)))
    assert not tileflow.inference_model(nn.ReLU())(np.ones((1, 3), np.float32)).any()
    custom.forget("", "Relu")
    assert OPS["Relu"] is relu
    with pytest.raises(OptionError, match="No operator"):
        custom.forget("", "Relu")


def test_given_what_it_does_not_take():
    op, parts = leaky_relu()(), cube("composition")()
    for given, error, says in (
        (lambda x: op(x, x), ShapeError, "given 2 inputs, which its forward"),
        (lambda x: op(x.to("int32")), TypeMismatchError, "must be|does not take|int32"),
        (lambda x: parts(x), ShapeError, "given 1 inputs"),
        (lambda x: op(X), TileflowError, "takes no arrays"),
    ):
        with pytest.raises(error, match=says):
            tileflow.inference_model(Net(given))(X)


# ---- functions that fail


class Counting:
    """What a Python operator does at its calls."""

    def __init__(self, at: int = 1 << 30, error: BaseException | None = None) -> None:
        self.at, self.error, self.seen = at, error, []

    def __call__(self, x: np.ndarray) -> np.ndarray:
        assert not x.flags.writeable
        self.seen.append(x.copy())
        if len(self.seen) == self.at:
            if isinstance(self.error, KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert self.error is not None
            raise self.error
        return x * 2


def counting(does: Counting) -> Any:
    @tileflow.operator("com.acme", "Counting")
    class CountingOp:
        def infer(self, x):
            return x

        @custom.python
        def forward(self, x):
            return does(x)

        @custom.python
        def gradient(self, x, y, g):
            return 2 * g

    return CountingOp()


@pytest.mark.parametrize("threads", [1, 2])
def test_python_is_called_in_program_order(threads: int):
    """Of two updates of two micro-batches each, whatever runs side by side."""
    does = Counting()
    trained(counting(does), threads, calls=1, learning_rate=0.0)
    first = Net(None).first
    wanted = X @ first.weight.data.T + first.bias.data
    np.testing.assert_allclose(np.concatenate(does.seen), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("of the user's"), KeyboardInterrupt()], ids=["exception", "Ctrl-C"]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_python_raises_is_the_users_and_leaves_whole_updates(error: BaseException, threads: int):
    """At the first micro-batch of the second update: the weights are those after the first, and training goes on."""
    again = Net(counting(Counting()))
    options = dict(
        loss="mse", threads=threads, micro_batch_size=2, gradient_accumulation=2, optimizer="sgd", learning_rate=0.1
    )
    tileflow.training_model(again, device_iterations=1, **options)(X[:4], Y[:4])
    does = Counting(3, error)
    net = Net(counting(does))
    model = tileflow.training_model(net, device_iterations=2, **options)
    with pytest.raises(type(error)) as raised:
        model(X, Y)
    if not isinstance(error, KeyboardInterrupt):
        assert raised.value is error
        assert "com.acme::Counting" in "".join(error.__notes__)
        assert "micro-batch 2" in "".join(error.__notes__)
    for name, array in again.state_dict().items():
        assert net.state_dict()[name].tobytes() == array.tobytes(), name
    does.at = 1 << 30
    assert np.isfinite(model(X, Y)[-1])


def test_two_threads_share_a_model_with_python_in_it():
    does = Counting()
    model = tileflow.inference_model(Net(counting(does)), threads=2)
    wanted = model(X)
    found: list[Any] = [None, None]

    def call(i: int) -> None:
        found[i] = [model(X) for _ in range(5)]

    calls = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()
    assert len(does.seen) == 11
    assert all(a.tobytes() == wanted.tobytes() for made in found for a in made)


def test_an_exception_in_compiled_code_is_a_sentence_and_loses_nothing():
    @tileflow.operator("com.acme", "Picky")
    class Picky:
        def infer(self, x):
            return x

        @custom.compiled
        def forward(x, y):
            kept = np.empty(x.shape)  # memory of its own is allowed
            for i in range(x.shape[0]):
                if x[i, 0] > 1e6:
                    raise ValueError("too large")
                kept[i] = x[i]
            y[:] = kept

    net = Net(Picky())
    model = tileflow.inference_model(net)
    assert np.isfinite(model(X)).all()
    with pytest.raises(
        TrainingError, match=r"com\.acme::Picky \(Net\): its compiled code raised an exception at micro-batch 0"
    ):
        model(X * np.float32(1e9))
    assert np.isfinite(model(X)).all()
    with pytest.raises(UnsupportedError, match="declared without gradient"):
        tileflow.training_model(net, loss="mse")(X, Y)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (np.zeros((8, 5)), ShapeError, r"where float32\[8, 4\] is wanted"),
        (np.zeros((8, 4), complex), TypeMismatchError, "gave complex128"),
        ((1, 2), ShapeError, "gave 2 arrays"),
    ],
)
def test_what_python_gives_must_be_what_infer_says(given: Any, error: type[Exception], says: str):
    @tileflow.operator("com.acme", "Gives")
    class Gives:
        def infer(self, x):
            return x

        @custom.python
        def forward(self, x):
            return given

    with pytest.raises(error, match=says):
        tileflow.inference_model(Net(Gives()))(X)


def test_a_call_runs_forward_and_neither_infer_nor_the_reference():
    """Types are known by then; and the reference is for whoever compares."""
    asked: list[int] = []

    @tileflow.operator("com.acme", "Doubled")
    class Doubled:
        def infer(self, x):
            asked.append(1)
            return x

        @custom.python
        def forward(self, x):
            return 2 * x

        def reference(self, x):
            return 3 * x

    class Only(nn.Module):
        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return Doubled()(x)

    model = tileflow.inference_model(Only())
    model(X)
    before = len(asked)
    assert model(X).tobytes() == (2 * X).tobytes()
    assert len(asked) == before
    with pytest.raises(OperatorFault, match="where the reference has"):
        check_operator(Doubled(), ((3, 5),))


def test_what_numba_does_not_compile_is_a_sentence():
    @tileflow.operator("com.acme", "Odd")
    class Odd:
        def infer(self, x):
            return x

        @custom.compiled
        def forward(x, y):
            y[:] = np.no_such_function(x)

    with pytest.raises(
        UnsupportedError, match=r"com\.acme::Odd: Numba does not compile its function for \(f4\[:,:\], f4\[:,:\]\)"
    ):
        tileflow.inference_model(Net(Odd()))(X)


# ---- what is kept


def test_edited_code_is_never_stale(kept: None, tmp_path: Path):
    """A kept Image and a note are found by the operator's code; what Python or Numba's own compiler runs is made at
    every start."""
    onnx.save(file_with("Edited"), tmp_path / "net.onnx")

    def declare(factor: float, form: str = "expression") -> np.ndarray:
        body: dict[str, Any] = {"forward": getattr(custom, form)(lambda self, x: x * factor)}
        if form == "python":
            body["infer"] = lambda self, x: x
        tileflow.operator("com.acme", "Edited")(type("Edited", (), body))
        found: np.ndarray = tileflow.inference_model(tmp_path / "net.onnx")(X)
        return found

    one = declare(2.0)
    for form in ("expression", "python"):
        np.testing.assert_array_equal(declare(4.0, form), 2 * one)
        np.testing.assert_array_equal(declare(2.0, form), one)
        np.testing.assert_array_equal(declare(2.0, form), one)


def test_a_second_start_finds_what_an_expression_came_to(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the same code nothing is lowered again; where code reads what nobody can tell, all is made anew. (The slope
    is one that no earlier run of these tests had.)"""
    onnx.save(file_with("LeakyRelu", alpha=secrets.randbelow(1 << 24) / (1 << 24)), tmp_path / "net.onnx")
    lowered = []
    from tileflow.runtime import lowering

    whole = lowering.lowered_engine
    monkeypatch.setattr(lowering, "lowered_engine", lambda *a: lowered.append(1) or whole(*a))
    for _ in range(2):
        leaky_relu()
        tileflow.inference_model(tmp_path / "net.onnx")(X)
    assert len(lowered) == 1

    class Untold:
        factor = 2.0

    for _ in range(2):
        tileflow.operator("com.acme", "LeakyRelu")(
            type(
                "LeakyRelu",
                (),
                {"__annotations__": {"alpha": float}, "forward": custom.expression(lambda self, x: x * Untold.factor)},
            )
        )
        tileflow.inference_model(tmp_path / "net.onnx")(X)
    assert len(lowered) == 3


def test_members_of_the_class_and_what_is_read_by_name_are_part_of_the_code():
    """Constants, helpers and what these read; what nobody can tell is told as that."""

    def code(factor: float = 2.0, helper: Any = None, **more: Any) -> str | None:
        body = {"factor": factor, "helper": helper or (lambda self, x: x), **more}
        body["forward"] = custom.expression(lambda self, x: self.helper(x) * self.factor)
        found = tileflow.operator("com.acme", "Coded")(type("Coded", (), body)).code()
        assert found is None or isinstance(found, str)
        return found

    one = code()
    assert one is not None
    assert one == code()
    scale = [3.0]
    others = [
        code(3.0),
        code(helper=lambda self, x: x + 1),
        code(helper=lambda self, x: x * scale[0]),
        code(more=property(lambda self: 1)),
        code(more=staticmethod(lambda: 2)),
    ]
    scale[0] = 4.0
    others.append(code(helper=lambda self, x: x * scale[0]))
    assert None not in others
    assert len({one, *others}) == 7
    assert code(helper=lambda self, x: x * len(file_with.__name__ and onnx.__name__)) is None, (
        "of a package without a version here"
    )
    assert code(more=object()) is None


def test_a_run_goes_on_only_with_the_same_code(tmp_path: Path):
    """A resumed run asks the operator's code, too."""
    data = (X, np.zeros((8, 2), np.float32))
    options = {"data": data, "loss": "mse", "micro_batch_size": 4, "out": str(tmp_path / "run"), "progress": False}

    def declare(factor: float) -> Any:
        return tileflow.operator("com.acme", "Coded")(
            type("Coded", (), {"forward": custom.expression(lambda self, x: x * factor)})
        )

    tileflow.train(Net(declare(2.0)()), epochs=1, **options)
    tileflow.train(Net(declare(2.0)()), epochs=2, resume=True, **options)
    with pytest.raises(CheckpointError, match="model"):
        tileflow.train(Net(declare(3.0)()), epochs=3, resume=True, **options)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and notes are kept."""
    from tileflow.executable import store

    monkeypatch.setattr(store, "enabled", True)


def test_a_program_is_a_file_whose_operators_are_declared_on_loading(tmp_path: Path):
    net = Net(leaky_relu()(alpha=ALPHA))
    model = tileflow.inference_model(net)
    model(X)
    digest = program_file.save(tmp_path / "net.program", model.program)
    custom.forget("com.acme", "LeakyRelu")
    with pytest.raises(
        TileflowError, match=r"'com\.acme::LeakyRelu', an operator that is not declared; declare it with tileflow"
    ):
        program_file.load(tmp_path / "net.program")
    leaky_relu()
    assert program_file.digest(program_file.load(tmp_path / "net.program")) == digest


@pytest.mark.parametrize("declare", [leaky_relu, compiled_leaky_relu, rare(python_leaky_relu)])
def test_an_executable_trains_on_once_its_operators_are_declared(declare: Any, tmp_path: Path, recwarn: Any):
    """To the same bits; with other code it warns."""
    net = Net(declare()(alpha=ALPHA))
    model = tileflow.training_model(net, loss="mse", optimizer="adam")
    model(X, Y)
    path = model.save(tmp_path / "net.tileflow")
    wanted = [a.tobytes() for _ in range(2) for a in model(X, Y)]
    called = type(net.op).name
    custom.forget(*called.split("::"))
    with pytest.raises(ModelError, match=f"'{called}', an operator that is not declared; declare it with tileflow"):
        tileflow.load_executable(path)
    declare()
    loaded = tileflow.load_executable(path)
    assert [a.tobytes() for _ in range(2) for a in loaded(X, Y)] == wanted
    assert not recwarn.list
    if declare is leaky_relu:
        steeper = custom.expression(lambda self, x: F.where(x < 0, 3 * self.alpha * x, x))
        body = {"alpha": 0.01, "forward": steeper, "__annotations__": {"alpha": float}}
        tileflow.operator(*called.split("::"))(type("LeakyRelu", (), body))
        with pytest.warns(UserWarning, match=f"compiled with other code of {called} than is declared now"):
            tileflow.load_executable(path)


def test_what_of_python_no_executable_holds(tmp_path: Path):
    """A bare function; and an operator that was declared again since. A declared one is in the test before this."""
    model = tileflow.inference_model(Net(nn.cpu(lambda x: x)))
    model(X)
    with pytest.raises(UnsupportedError, match="a function of Python's, which is no data; a file names an operator"):
        model.save(tmp_path / "net.tileflow")
    model = tileflow.inference_model(Net(leaky_relu()()))
    model(X)
    leaky_relu()
    with pytest.raises(UnsupportedError, match="was declared again since this was compiled"):
        model.save(tmp_path / "net.tileflow")
    assert not list(tmp_path.iterdir())


# ---- the simulated machine


@pytest.mark.parametrize(
    ("declare", "planned"),
    [
        (lambda: cube("composition"), {"Mul", "Add"}),
        (compiled_leaky_relu, {"com.acme::LeakyReluCompiled"}),
        (python_leaky_relu, {"com.acme::LeakyReluPython"}),
    ],
)
def test_tiles_plan_parts_exactly_and_functions_by_an_estimate(declare: Any, planned: set[str], tmp_path: Path):
    """Rows of a compiled function are shared out; a Python function is on one tile."""
    from tileflow.exact.check import check

    op = declare()
    onnx.save(
        file_with(op.called, 2 if op.called == "Cube" else 1, 2 if op.called == "Cube" else 1), tmp_path / "net.onnx"
    )
    tiled = tileflow.compile(tmp_path / "net.onnx", machine="gc200", micro_batch_size=64).tiled
    plans = {step.node.op.name: step.plan.tiles for step in tiled.steps}
    assert planned <= plans.keys()
    assert (plans[next(iter(planned))] == 1) == (op.called == "LeakyReluPython")
    assert check(tiled).ok
