"""State dicts of models and optimizers: through safetensors files, elsewhere, bit for bit; what is not one is told in a sentence."""
from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import needs

import tileflow
from tileflow import nn, optim
from tileflow.optim import schedules
from tileflow.system.errors import CheckpointError, DataError, OptionError, TileflowError

ROWS = 24
draw = np.random.default_rng(5)
X, Y = draw.standard_normal((8 * ROWS, 6)).astype("f4"), draw.integers(0, 3, 8 * ROWS)


class Net(nn.Module):
    """With dropout, whose numbers follow from the count of micro-batches, and statistics."""

    def __init__(self, width: int = 5) -> None:
        nn.manual_seed(3)
        self.one, self.norm, self.two, self.drop = nn.Linear(6, width), nn.BatchNorm(width), nn.Linear(width, 3), nn.Dropout(0.3)

    def forward(self, x: nn.Tensor) -> nn.Tensor:                  # type: ignore[override]
        return self.two(self.drop(self.norm(self.one(x)).relu()))


def model_of(optimizer: optim.Optimizer, net: nn.Module | None = None, **options: Any) -> Any:
    chosen = dict(micro_batch_size=4, gradient_accumulation=2, device_iterations=3, loss="cross_entropy") | options
    return tileflow.training_model(net or Net(), optimizer=optimizer, **chosen)


def calls(model: Any, first: int, count: int) -> None:
    for i in range(first, first + count):
        model(X[i * ROWS:(i + 1) * ROWS], Y[i * ROWS:(i + 1) * ROWS])


def everything(model: Any) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in {**model.state_dict(), **model.optimizer_state_dict()}.items()}


MADE: dict[str, Callable[[], optim.Optimizer]] = {
    "AdamW": lambda: optim.AdamW(lr=0.01),
    "scheduled": lambda: optim.Adam(lr=schedules.cosine(0.05, 15), weight_decay=schedules.step(0.1, 5, 0.5)),
    "momentum": lambda: optim.SGD(lr=0.02, momentum=0.9, weight_decay=0.1),
    "plain": lambda: optim.SGD(lr=0.1),
    "LAMB": lambda: optim.LAMB(lr=0.01, groups=[{"params": "*.bias", "lr": schedules.plateau(0.02), "weight_decay": 0.0}]),
    "combined": lambda: optim.SGD(lr=0.02, momentum=0.9, weight_decay=0.1, use_combined_accum=True),
    "centered": lambda: optim.RMSprop(lr=0.01, momentum=0.5, centered=True, first_order_momentum_accum_type="bfloat16"),
    "plateau": lambda: optim.AdamW(lr=schedules.warmup(schedules.plateau(0.1, 0.5, 0), 4)),
}


TYPES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in MADE), ("AdamW", dict(precision="16-mixed", loss_scaling=None)),
    ("LAMB", dict(precision="bf16-true", master_weights="remainder")), ("momentum", dict(precision="16-true", stochastic_rounding=True))]


@pytest.mark.parametrize(("name", "options"), TYPES, ids=str)
def test_training_goes_on_elsewhere_bit_for_bit(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    options = {"loss_scaling": 64.0} | options
    model = model_of(MADE[name](), **options)
    calls(model, 0, 3)
    if name == "plateau":
        for metric in (1.0, 0.9, 1.1):
            model.optimizer.lr.schedule.observe(metric)
        assert model.optimizer.lr.schedule.rate == 0.05
    tileflow.save_state({"model": model.state_dict(), "optimizer": model.optimizer_state_dict()}, tmp_path / "state.safetensors")
    calls(model, 3, 3)
    state = tileflow.load_state(tmp_path / "state.safetensors")
    other = model_of(MADE[name](), **options)
    other.load_state_dict(state["model"])
    other.load_optimizer_state_dict(state["optimizer"])           # before the first call: kept until then
    calls(other, 3, 3)
    assert everything(other) == everything(model)
    assert other.source.session.updates == 18
    calls(other, 0, 1)                                            # and into a model that has run
    other.load_state_dict(state["model"])
    other.load_optimizer_state_dict(state["optimizer"])
    assert other.source.session.updates == 9
    calls(other, 3, 3)
    assert everything(other) == everything(model)


def test_what_is_in_it() -> None:
    model = model_of(optim.AdamW(lr=0.01, weight_decay=lambda t: 0.1), loss_scaling=64.0)
    with pytest.raises(TileflowError, match="has not been compiled yet"):
        model.optimizer_state_dict()
    calls(model, 0, 1)
    state = model.optimizer_state_dict()
    weights = [n for n in model.state_dict() if "running" not in n and "mean" not in n and "var" not in n]
    moments = {f"{n}.exp_avg{s}" for n in weights for s in ("", "_sq")}
    assert moments <= state.keys()
    numbers = {"optimizer.step": 3.0, "optimizer.lr": 0.01, "optimizer.updates": 3, "optimizer.micro_batches": 6, "optimizer.loss_scale": 64.0}
    assert {n: state[n].item() for n in numbers} == numbers
    assert "optimizer.weight_decay" not in state                   # a function, which follows from the count
    assert bytes(state["optimizer.class"]) == b"AdamW"
    state["one.weight.exp_avg"][...] = 7                           # a copy
    assert not (model.optimizer_state_dict()["one.weight.exp_avg"] == 7).any()


def test_the_optimizer_has_it_too(tmp_path: Path) -> None:
    """As in PyTorch and PopTorch: `optimizer.state_dict()`."""
    optimizer, net = optim.AdamW(lr=0.01), Net()
    with pytest.raises(OptionError, match="This AdamW updates no model yet"):
        optimizer.state_dict()
    model = model_of(optimizer, net)
    calls(model, 0, 2)
    tileflow.save_state({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "s.safetensors")
    calls(model, 2, 1)
    again, other = optim.AdamW(lr=0.5), Net()
    elsewhere = model_of(again, other)
    state = tileflow.load_state(tmp_path / "s.safetensors")
    other.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    calls(elsewhere, 2, 1)
    assert everything(elsewhere) == everything(model)
    second = model_of(again)
    with pytest.raises(OptionError, match="This AdamW updates models of 2 networks"):
        again.state_dict()
    del second
    gc.collect()
    assert again.state_dict().keys() == state["optimizer"].keys()


def test_numbers_set_by_hand_are_taken_over() -> None:
    model = model_of(optim.AdamW(lr=0.01, weight_decay=0.2))
    model.optimizer.lr = 0.005
    calls(model, 0, 1)
    other = model_of(optim.AdamW(lr=0.5, weight_decay=0.1))
    other.load_optimizer_state_dict(model.optimizer_state_dict())
    calls(other, 0, 1)
    assert (other.optimizer.lr, other.optimizer.weight_decay) == (0.005, 0.2)


def broken(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Any], Any]:
    def make(state: Any) -> Any:
        return change(dict(state))
    return make


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "empty": (lambda s: {}, r"Cannot load optimizer state dictionary because it is empty\."),
    "list": (lambda s: [1], "An optimizer's state is a table of arrays by name.*not list"),
    "weights": (lambda s: {"one.weight": np.ones((6, 5))}, "Only IPU optimizer states can be loaded onto the IPU: this one does not say"),
    "other optimizer": (lambda s: s | {"optimizer.class": np.frombuffer(b"LAMB", "u1")}, "state is of LAMB, and this model's optimizer is AdamW"),
    "missing": (lambda s: {n: a for n, a in s.items() if n != "two.bias.exp_avg"}, r"not this model's: missing two\.bias\.exp_avg, unexpected none"),
    "unexpected": (lambda s: s | {"three.bias.exp_avg": s["two.bias.exp_avg"]}, r"missing none, unexpected three\.bias\.exp_avg"),
    "shape": (lambda s: s | {"two.bias.exp_avg": np.zeros(4, "f4")}, r"'two\.bias\.exp_avg' is float32\[4\], the model needs float32\[3\]"),
    "type": (lambda s: s | {"two.bias.exp_avg": np.zeros(3, "f2")}, r"is float16\[3\], the model needs float32\[3\]"),
    "count": (lambda s: s | {"optimizer.updates": np.array(-1)}, r"says no number of updates under optimizer\.updates"),
    "lr": (lambda s: s | {"optimizer.lr": np.array(np.nan)}, r"has no number >= 0 under optimizer\.lr"),
}


@pytest.fixture(scope="module")
def trained() -> Any:
    model = model_of(optim.AdamW(lr=0.01))
    calls(model, 0, 1)
    return model


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_state_of_this_optimizer_is_refused_whole(name: str, trained: Any) -> None:
    make, says = REFUSED[name]
    before = everything(trained)
    with pytest.raises(CheckpointError, match=says):
        trained.load_optimizer_state_dict(make(trained.optimizer_state_dict()))
    assert everything(trained) == before


def test_states_of_others(trained: Any) -> None:
    torch = needs("torch")
    native = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))]).state_dict()
    with pytest.raises(CheckpointError, match=r"Only IPU optimizer states can be loaded onto the IPU: this one is PyTorch's own; give what"):
        trained.load_optimizer_state_dict(native)
    other = model_of(optim.SGD(lr=0.1, momentum=0.9))
    other.load_optimizer_state_dict(trained.optimizer_state_dict())
    before = other.state_dict()
    for _ in range(2):                                            # it cannot be told before the model is compiled; nothing is trained then
        with pytest.raises(CheckpointError, match="This optimizer state is of AdamW, and this model's optimizer is SGD"):
            calls(other, 0, 1)
    assert all(np.array_equal(w, before[n]) for n, w in other.state_dict().items())
    wider = model_of(optim.AdamW(), Net(7))
    calls(wider, 0, 1)
    with pytest.raises(CheckpointError, match=r"'norm\..*' is float32\[5\], the model needs float32\[7\]|is float32"):
        wider.load_optimizer_state_dict(trained.optimizer_state_dict())
    with pytest.raises(DataError, match="do not fit"):
        wider.load_state_dict(trained.state_dict())


# ---- files

def test_one_table_or_several(tmp_path: Path, trained: Any) -> None:
    path = tileflow.save_state(trained.state_dict(), tmp_path / "w.safetensors")
    flat = tileflow.load_state(path)
    assert {n: a.tobytes() for n, a in flat.items()} == {n: a.tobytes() for n, a in trained.state_dict().items()}
    reference = needs("safetensors.numpy")
    assert reference.load_file(path).keys() == flat.keys()         # other tools read it by the same names
    tileflow.save_state({"model": {"a/b": np.ones(2)}, "nothing": {}}, path)
    again = tileflow.load_state(path)
    assert again.keys() == {"model", "nothing"}
    assert again["model"]["a/b"].tolist() == [1, 1]


@pytest.mark.parametrize(("state", "says"), [
    ([1], "A state is a table of arrays by name"),
    ({"a": np.ones(2), "b": {"c": np.ones(2)}}, "'a' is no table, 'b' is one"),
    ({"a/b": {"c": np.ones(2)}}, "without '/'"),
    ({3: np.ones(2)}, "Names in a state are texts, not 3"),
    ({"a": None}, "element type object"),
    ({"a": "text"}, "element type <U4"),
])
def test_what_no_file_can_hold(state: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    tileflow.save_state({"a": np.ones(1)}, path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=says):
        tileflow.save_state(state, path)
    assert path.read_bytes() == before


def test_damaged_files(tmp_path: Path) -> None:
    path = tileflow.save_state({"m": {"a": np.ones(3)}}, tmp_path / "s.safetensors")
    whole = path.read_bytes()
    for bad in (whole[:-3], whole[:40], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"s\.safetensors"):
            tileflow.load_state(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        tileflow.load_state(tmp_path / "none")
    from tileflow.runtime.checkpoint import save_tensors
    for parts in ("{", "3", '["x"]', "[[]]"):
        save_tensors(path, {"m/a": np.ones(1)}, {"tileflow.parts": parts})
        with pytest.raises(CheckpointError, match="does not hold the tables that it names"):
            tileflow.load_state(path)
