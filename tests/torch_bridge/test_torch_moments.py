"""What optimizers of PyTorch's remember and say: their `state_dict` and `load_state_dict`, steps of their own,
attributes that change."""
from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from peers import needs

torch = needs("torch")
needs("onnxscript")

import tileflow  # noqa: E402
from tileflow.system.errors import OptionError  # noqa: E402
from tileflow.torch import training_model  # noqa: E402

nn = torch.nn
KINDS = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "AdamW": lambda p: torch.optim.AdamW([{"params": [q]} for q in p], lr=0.05),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.05, momentum=0.5, centered=True)}
EACH = [k if k == "Adam" else pytest.param(k, marks=pytest.mark.exhaustive) for k in KINDS]


class Squared(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Any) -> Any:
        return self.net(x).square().mean()


def rows() -> Any:
    torch.manual_seed(1)
    return torch.randn(6, 4)


def steps(module: Any, optimizer: Any, count: int) -> None:
    """PyTorch's own."""
    for _ in range(count):
        optimizer.zero_grad()
        module(rows()).backward()
        optimizer.step()


def through_a_file(*states: Any) -> Any:
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file)


def near(one: Any, other: Any) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", EACH)
def test_checkpoints_are_pytorchs_both_ways(kind: str):
    """Two updates here, two by PyTorch from the file of those, two here again: as six by PyTorch."""
    whole = Squared()
    wholes = KINDS[kind](whole.parameters())
    steps(whole, wholes, 6)
    first = Squared()
    optimizer = KINDS[kind](first.parameters())
    compiled = training_model(first, optimizer=optimizer)
    for _ in range(2):
        compiled(rows())
    saved = through_a_file(first.state_dict(), optimizer.state_dict())
    assert not optimizer.state                                            # the model has it
    native = Squared(5)
    theirs = KINDS[kind](native.parameters())
    native.load_state_dict(saved[0])
    theirs.load_state_dict(saved[1])
    steps(native, theirs, 2)
    near(native, steps_of(Squared(), kind, 4))
    model = training_model(native, optimizer=theirs)                      # with steps of its own
    for _ in range(2):
        model(rows())
    near(native, whole)
    first.load_state_dict(native.state_dict())
    optimizer.load_state_dict(through_a_file(theirs.state_dict())[0])     # for the first model, which is compiled
    for now in (compiled, training_model(first, optimizer=optimizer)):    # and one that goes on with this optimizer
        now(rows())
        steps(whole, wholes, 1)
    near(first, whole)


def steps_of(module: Any, kind: str, count: int) -> Any:
    steps(module, KINDS[kind](module.parameters()), count)
    return module


@pytest.mark.exhaustive
def test_a_new_optimizer_begins_anew_and_a_destroyed_model_goes_on():
    module, twin = Squared(), Squared()
    for _ in range(2):
        optimizer, theirs = (KINDS["Adam"](m.parameters()) for m in (module, twin))
        model = training_model(module, optimizer=optimizer)
        for turn in range(3):
            model(rows())
            if turn == 1:
                model.destroy()
                assert len(optimizer.state) == 4                          # as PyTorch would have it
        steps(twin, theirs, 3)
    near(module, twin)
    mine, its = optimizer.state_dict()["state"], theirs.state_dict()["state"]
    assert mine.keys() == its.keys()
    for number, states in its.items():
        assert float(mine[number]["step"]) == float(states["step"]) == 3
        torch.testing.assert_close(mine[number]["exp_avg"], states["exp_avg"], rtol=1e-4, atol=1e-6)
    other = copy.deepcopy(model)
    other(rows())
    steps(twin, theirs, 1)
    near(other.model, twin)


@pytest.mark.parametrize("kinds", [("Adam", "SGD"), pytest.param(("AdamW", "Adam"), marks=pytest.mark.exhaustive)])
def test_two_optimizers_that_take_turns_remember_each_its_own(kinds: tuple[str, str]):
    module, twin = Squared(), Squared()
    made = [KINDS[kind](module.parameters()) for kind in kinds]
    theirs = [KINDS[kind](twin.parameters()) for kind in kinds]
    models = [training_model(module, optimizer=optimizer) for optimizer in made]
    for turn in (0, 1, 0, 0, 1, 0, 1, 1):
        models[turn](rows())
        steps(twin, theirs[turn], 1)
    near(module, twin)
    for mine, its in zip(made, theirs, strict=True):
        own, wanted = mine.state_dict()["state"], its.state_dict()["state"]
        assert own.keys() == wanted.keys()
        for number, states in wanted.items():
            for name, value in states.items():
                torch.testing.assert_close(own[number][name], value, rtol=1e-4, atol=1e-5)


def test_attributes_hold_from_the_next_call_on():
    """A scheduler needs no further word."""
    module, twin = Squared(), Squared()
    made = [torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9) for m in (module, twin)]
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=6) for o in made]
    model = training_model(module, optimizer=made[0])
    for _ in range(5):
        model(rows())
        steps(twin, made[1], 1)
        for schedule in schedules:
            schedule.step()
    near(module, twin)
    made[0].param_groups[0]["weight_decay"] = 0.5                         # which was compiled in
    with pytest.raises(OptionError, match=r"weight_decay was compiled as 0\.0"):
        model(rows())
    made[0].param_groups[0]["weight_decay"] = 0
    model(rows())


@pytest.mark.exhaustive
def test_what_cannot_be_taken_over_is_refused():
    module = Squared()
    optimizer = KINDS["Adam"](module.parameters())
    steps(module, optimizer, 2)
    optimizer.state[module.net[0].weight]["step"] = torch.tensor(1.0)
    with pytest.raises(OptionError, match=r"different numbers of steps \(1, 2\)"):
        training_model(module, optimizer=optimizer)(rows())
    optimizer.state[module.net[0].weight]["step"] = torch.tensor(2.0)
    training_model(module, tileflow.Options(threads=1), optimizer)(rows())
