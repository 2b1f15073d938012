"""Calls with keywords, constants and nested arguments, and what they return: networks of layers and files."""
import copy
import pickle
from typing import NamedTuple

import numpy as np
import pytest

import tileflow
from tileflow import nn, optim
from tileflow.runtime.forms import nesting_data
from tileflow.system.errors import DataError, ModelError, OptionError, ShapeError, TileflowError, TypeMismatchError

DRAW = np.random.default_rng(5)
X = DRAW.standard_normal((12, 4)).astype(np.float32)
MASK = (DRAW.random((12, 5)) < 0.5).astype(np.float32)
Y = np.arange(12) % 3


class Net(nn.Module):
    """Takes a dict, constants of each kind and None, and returns as nested as it takes."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x, batch=None, *, act="relu", turns=1, flip=False):
        h = self.first(x)
        for _ in range(turns):
            h = h.relu() if act == "relu" else h.tanh()
        if batch is not None:
            h = h * batch["mask"] + batch["more"][0]
        y = self.second(-h if flip else h)
        return {"y": y, "hidden": [h, None], "act": act}


class WithLoss(nn.Module):
    def __init__(self) -> None:
        self.net = Net()

    def forward(self, x, labels=None):
        made = self.net(x)
        return {"loss": nn.functional.cross_entropy(made["y"], labels), **made}


class Flat(nn.Module):
    """The same of arrays one after the other."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def forward(self, x, mask, more):
        made = self.net(x, {"mask": mask, "more": (more,)})
        return made["y"], made["hidden"][0]


def fresh() -> Net:
    nn.manual_seed(3)
    return Net()


BATCH = {"mask": MASK, "more": (2 * MASK,)}


def test_arguments_and_results_are_nested_as_forward_has_them() -> None:
    net = fresh()
    model = tileflow.inference_model(net)
    found = model(X, BATCH)
    assert list(found) == ["y", "hidden", "act"]
    assert found["hidden"][1] is None
    assert found["act"] == "relu"
    y, hidden = tileflow.inference_model(Flat(net))(X, MASK, 2 * MASK)
    np.testing.assert_array_equal(found["y"], y)
    np.testing.assert_array_equal(found["hidden"][0], hidden)
    np.testing.assert_array_equal(model(batch=BATCH, x=X)["y"], y)
    assert len(model.programs) == 1                          # one form, however it is written


def test_a_constant_that_changes_is_another_program_compiled_once_and_kept() -> None:
    model = tileflow.inference_model(fresh())
    calls = [{}, {"act": "tanh"}, {"turns": 1}, {"turns": 2}, {"turns": True}, {"flip": True}, {"batch": None}]
    found = [model(X, **named)["y"] for named in calls]
    assert len(model.programs) == 7                          # 1 and True are two constants
    again = [model(X, **named)["y"] for named in calls]
    assert len(model.programs) == 7
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert np.abs(found[0] - found[5]).max() > 1e-3
    with pytest.raises(ShapeError, match="Shape mismatch for x"):      # other sizes are as ever
        model(np.concatenate([X, X]), act="tanh")


@pytest.mark.parametrize(("accumulation", "mode", "rows"),
                         [(1, "final", 12), (3, "all", 12), (3, "final", 4), (2, "sum", 6)])
def test_training_returns_the_form_and_the_loss_last(accumulation: int, mode: str, rows: int) -> None:
    options = {"gradient_accumulation": accumulation, "output_mode": mode}
    nested = tileflow.training_model(fresh(), optimizer=optim.SGD(lr=0.1), **options)
    flat = tileflow.training_model(Flat(fresh()), optimizer=optim.SGD(lr=0.1), **options)
    for step in range(3):
        made, loss = nested(X, batch=BATCH, labels=Y) if step else nested(X, BATCH, Y)
        y, hidden, wanted = flat(X, MASK, 2 * MASK, Y)
        np.testing.assert_array_equal(loss, wanted)
        np.testing.assert_array_equal(made["y"], y)
        np.testing.assert_array_equal(made["hidden"][0], hidden)
        assert made["y"].shape == (rows, 3)
    assert len(nested.programs) == 1


def test_a_loss_that_forward_returns_stands_where_it_does() -> None:
    model = tileflow.training_model(WithLoss(), loss="identity", optimizer=optim.SGD(lr=0.5))
    losses = [float(model(X, labels=Y)["loss"]) for _ in range(4)]          # `labels` is forward's own
    assert losses == sorted(losses, reverse=True)
    assert list(model(X, labels=Y)) == ["loss", "y", "hidden", "act"]


class Pair(NamedTuple):
    y: object
    twice: object


class Forms(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 3)

    def forward(self, x, form="flat", least=None):
        y = self.layer(x) if least is None else nn.where(self.layer(x) > least, self.layer(x), 0.0)
        return {"flat": (y, y), "list": [y, y], "named": Pair(y, 2 * y), "beside": (y, None), "array": (y, np.zeros(3)),
                "none": None, "deep": {"a": {"b": [y]}}}[form]


def test_forms_of_results() -> None:
    net = Forms()
    model, trained = tileflow.inference_model(net), tileflow.training_model(net)
    assert type(model(X)) is tuple                           # flat ones are as they were
    assert type(model(X, form="list")) is tuple
    assert len(trained(X, Y)) == 3
    found = model(X, form="named")
    np.testing.assert_array_equal(2 * found.y, found.twice)
    assert model(X, form="beside")[1] is None
    (y, nothing), loss = trained(X, Y, form="beside")
    assert nothing is None
    assert (loss.shape, y.shape) == ((), (12, 3))
    np.testing.assert_array_equal(model(X, form="deep")["a"]["b"][0], model(X, form="named").y)
    with pytest.raises(TileflowError,
                       match=r"must return tensors, beside them None, numbers and texts.*output 1 is ndarray"):
        model(X, form="array")
    with pytest.raises(TileflowError, match="must return tensors; output 0 is NoneType"):
        model(X, form="none")


class Two(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 3)

    def forward(self, x, other):
        return self.layer(x) + self.layer(other)


class Open(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 3)

    def forward(self, x, **more):
        return self.layer(x + sum(more.values()))


def test_refusals_say_which_names_there_are() -> None:
    net = Two()
    model, trained = tileflow.inference_model(net), tileflow.training_model(net)
    with pytest.raises(DataError, match=r"Two.forward\(\) takes no input 'z'; there are x, other"):
        model(X, z=X)
    with pytest.raises(DataError, match="got the input 'x' twice: by its place, 0, and by its name"):
        model(X, x=X)
    with pytest.raises(DataError, match="got no input 'other'; there are x, other"):
        model(x=X)
    with pytest.raises(DataError, match="takes no input 'labels'"):
        model(X, X, labels=Y)
    with pytest.raises(DataError, match="needs labels after the model's inputs"):
        trained(X, other=X)
    with pytest.raises(TypeMismatchError, match="element type"):
        model(X, other=object())
    wanted = model(X, 2 * X)
    np.testing.assert_array_equal(model(X, other=2 * X), wanted)           # and what must still work
    np.testing.assert_array_equal(model(other=2 * X, x=X), wanted)
    assert len(model.programs) == 1
    trained(X, Y, other=X)
    trained(other=X, labels=Y, x=X)
    assert len(trained.programs) == 1
    anything = Open()
    np.testing.assert_array_equal(tileflow.inference_model(anything)(X, a=X, b=2 * X),
                                  tileflow.inference_model(anything)(4 * X, c=0 * X))
    looped: list = []
    looped.append(looped)
    with pytest.raises(DataError, match="nested more than 64 deep"):
        tileflow.inference_model(Open())(X, a=looped)


def test_lists_of_numbers_are_arrays_and_tuples_are_not() -> None:
    class Shaped(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 6)

        def forward(self, x, sizes):
            return self.layer(x).reshape(-1, *sizes)
    model = tileflow.inference_model(Shaped())
    assert model(X.tolist(), (2, 3)).shape == (12, 2, 3)
    assert model(X, (3, 2)).shape == (12, 3, 2)


def test_files_take_their_inputs_by_name(tmp_path) -> None:
    model = tileflow.inference_model(fresh())
    found = model(X, BATCH)
    model.save_onnx(tmp_path / "net.onnx")                   # a nested input goes by its path
    ran = tileflow.inference_model(tmp_path / "net.onnx")
    y, hidden = ran(batch_more_0=2 * MASK, x=X, batch_mask=MASK)
    np.testing.assert_allclose(y, found["y"], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ran(X, MASK, batch_more_0=2 * MASK)[1], hidden)
    trained = tileflow.training_model(tmp_path / "net.onnx")
    assert len(trained(X, MASK, labels=Y, batch_more_0=2 * MASK)) == 3
    for call, said in [(lambda: ran(X, MASK, more=MASK),
                        "takes no input 'more'; there are x, batch_mask, batch_more_0"),
                       (lambda: ran(X, MASK, x=X), "'x' twice"),
                       (lambda: ran(X, batch_more_0=MASK), "got no input 'batch_mask'")]:
        with pytest.raises(DataError, match=said):
            call()


def test_copies_pickles_and_executables_have_the_form(tmp_path) -> None:
    model = tileflow.training_model(fresh(), optimizer=optim.AdamW(lr=1e-2))
    model.compile_and_export(tmp_path / "net.tileflow", X, batch=BATCH, labels=Y)
    loaded = tileflow.load_executable(tmp_path / "net.tileflow")
    other = tileflow.training_model(fresh(), optimizer=optim.AdamW(lr=1e-2))
    other.load_executable(tmp_path / "net.tileflow")
    wanted = [model(X, BATCH, Y) for _ in range(2)]
    for made in (loaded, other):
        for form, loss in wanted:
            again, own = made(X, Y, batch=BATCH)
            assert own == loss
            np.testing.assert_array_equal(again["y"], form["y"])
            assert (again["hidden"][1], again["act"]) == (None, "relu")
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    following = model(X, BATCH, Y)[1]
    assert [twin(X, BATCH, Y)[1] for twin in twins] == [following, following]
    with pytest.raises(DataError, match="one program: its arguments are nested"):
        loaded(X, Y)
    with pytest.raises(DataError, match=r"compiled for the arguments \(x, batch_mask, batch_more_0\) and got"):
        loaded(X, Y, batch={"mask": MASK})
    with pytest.raises(OptionError, match=r"has the parameter first\.weight"):
        tileflow.training_model(Flat(fresh()),
                                optimizer=optim.AdamW(lr=1e-2)).load_executable(tmp_path / "net.tileflow")
    constant = tileflow.inference_model(fresh())
    constant.compile_and_export(tmp_path / "tanh.tileflow", X, act="tanh")
    tanh = tileflow.load_executable(tmp_path / "tanh.tileflow")
    np.testing.assert_array_equal(tanh(X, act="tanh")["y"], constant(X, act="tanh")["y"])
    with pytest.raises(DataError, match="compiled in as 'tanh'"):
        tanh(X, act="relu")
    for number in (np.nan, -np.inf, np.inf, 0.1):
        bounded = tileflow.inference_model(Forms())
        bounded.compile_and_export(tmp_path / "bound.tileflow", X, least=number)
        np.testing.assert_array_equal(tileflow.load_executable(tmp_path / "bound.tileflow")(X, least=number)[0],
                                      bounded(X, least=number)[0])
        assert len(bounded.programs) == 1
    constant.load_executable(tmp_path / "tanh.tileflow")
    # a program of another constant is not taken
    assert np.abs(constant(X)["y"] - constant(X, act="tanh")["y"]).max() > 1e-3


def test_a_damaged_nesting_is_refused(tmp_path) -> None:
    model = tileflow.inference_model(fresh())
    model.compile(X, BATCH)
    good = nesting_data(model.source.parameters, model.programs.current.form, model.programs.current.results)
    for wrong in [{**good, "names": ["x"]}, {**good, "arguments": good["arguments"][:1]},
                  {**good, "returned": {"members": 3}}, {"names": None},
                  {**good, "arguments": [["tuple", 0, 1, 99], {"members": {}}]}, {**good, "parameters": [1]}]:
        model.save_nested(tmp_path / "bad.tileflow", True, wrong)
        with pytest.raises(ModelError, match="its arguments"):
            tileflow.load_executable(tmp_path / "bad.tileflow")
    model.save_nested(tmp_path / "good.tileflow", True, good)
    assert tileflow.load_executable(tmp_path / "good.tileflow")(X, BATCH)["act"] == "relu"


class Simple(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(4, 3)

    def forward(self, x, scale=None):
        y = self.layer(x)
        return {"y": y if scale is None else y * scale, "sum": y.sum(1)}


def test_runs_by_name_measure_and_anchor(tmp_path) -> None:
    nn.manual_seed(1)
    scale = 1 + MASK[:, :1]
    result = tileflow.train(Simple(), data={"scale": scale, "x": X, "label": Y},
                            test_data={"x": X, "scale": scale, "label": Y}, epochs=2,
                            micro_batch_size=3, out=tmp_path / "run")
    assert result.evaluate({"x": X, "scale": scale, "label": Y})["loss"] > 0
    model = tileflow.training_model(Simple(), anchored_tensors=("layer*",))
    form, _ = model(X, scale=scale, labels=Y)
    assert any(np.array_equal(kept * scale, form["y"]) for kept in model.anchored().values())


def test_gradients_by_keyword() -> None:
    model = tileflow.gradient_model(Two(), wrt=["x"])
    np.testing.assert_array_equal(model(x=X, other=2 * X)["x"], model(X, 2 * X)["x"])
