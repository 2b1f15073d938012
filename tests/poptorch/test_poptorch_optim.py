"""`poptorch.optim`: what tileflow makes of it, what is variable and what constant, states that are saved, copied and
read again."""
from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from paths import exhaustive
from peers import needs

torch = needs("torch")
poptorch = pytest.importorskip("tileflow.poptorch", reason="needs torch, which is not installed: pip install torch")
optim = poptorch.optim


def net() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 4)


def names(module) -> dict:
    return {id(p): name for name, p in module.named_parameters()}


MADE = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD combined": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=2.0,
                                        loss_scaling=4.0),
    "SGD plain": lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True, velocity_accum_type=torch.half),
    "Adam": lambda p: optim.Adam(p, lr=0.1, betas=(0.8, 0.9), accum_type=torch.half),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1, bias_correction=False, max_grad_norm=1.0),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, centered=True, use_tf_variant=True),
    "LAMB": lambda p: optim.LAMB(p, lr=0.1, max_weight_norm=3.0, second_order_momentum_accum_type=torch.float32),
}
SAYS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "SGD combined": {"use_combined_accum": True, "velocity_scaling": 2.0},
    "SGD plain": {"momentum": 0.0}, "Adam": {"betas": [0.8, 0.9], "accum_type": "float16"},
    "AdamW": {"bias_correction": False, "max_grad_norm": 1.0, "weight_decay": 0.01},
    "RMSprop": {"centered": True, "use_tf_variant": True},
    "LAMB": {"max_weight_norm": 3.0, "second_order_momentum_accum_type": "float32"}}


@pytest.mark.parametrize("kind", MADE)
def test_what_tileflow_makes_of_it(kind):
    """And of its copies, whatever made them."""
    module = net()
    made = MADE[kind](module.parameters())
    found = made.tileflow_optimizer(names(module))
    assert SAYS[kind].items() <= found.describe().items()
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        theirs = {id(p): name for name, p in zip(("weight", "bias"), other.param_groups[0]["params"], strict=True)}
        assert other.tileflow_optimizer(theirs).describe() == found.describe()
        for name in ("lr", "weight_decay"):
            assert other.variable_attrs.isConstant(name) == made.variable_attrs.isConstant(name)
    torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5)


def test_groups():
    module = net()
    made = optim.AdamW([{"params": [module.weight], "lr": 0.01}, {"params": [module.bias], "weight_decay": 0.0}],
                       lr=0.1, weight_decay=0.2)
    found = made.tileflow_optimizer(names(module))
    assert [(g["lr"], g["weight_decay"]) for g in found.param_groups] == [(0.01, 0.2), (0.1, 0.0)]
    assert found.param_groups[1].params == ("bias",)
    assert optim.SGD([*net().parameters(), module.bias], lr=1.0).tileflow_optimizer(names(module)).lr == 1.0
    with pytest.raises(ValueError, match="has no parameter of the module"):
        optim.SGD(net().parameters(), lr=1.0).tileflow_optimizer(names(module))


def test_what_is_given_is_variable():
    module = net()
    made = optim.SGD(module.parameters(), lr=0.1, momentum=0.0)
    assert made.tileflow_optimizer(names(module)).variable == ("lr", "momentum")
    made.variable_attrs.markAsVariable("weight_decay")
    made.variable_attrs.mark_as_constant("momentum")
    assert made.tileflow_optimizer(names(module)).variable == ("lr", "weight_decay")
    assert optim.Adam(module.parameters()).tileflow_optimizer(names(module)).variable == ()
    with pytest.raises(AssertionError, match=r"Unknown attribute moment, allowed values: \['lr', "):
        made.variable_attrs.markAsConstant("moment")


@pytest.mark.parametrize(("call", "says"), [
    (lambda p: optim.Adam(p, amsgrad=True), "Only non-amsgrad Adam/AdamW optimizers are supported"),
    (lambda p: optim.SGD(p, lr=0.1, maximize=True), "minimise the negated loss"),
    (lambda p: optim.SGD(p, lr=0.1, accum_type=torch.int8),
     r"Accumulation types must be either torch\.float32 or torch\.float16")])
def test_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call(net().parameters())
    optim.Adam(net().parameters(), amsgrad=False, maximize=False, foreach=True)


@exhaustive
def test_lambs_own_step_is_tileflows():
    """`step` in PyTorch beside the compiled update."""
    module = net()
    x = torch.randn(6, 3)
    native, mine = copy.deepcopy(module), copy.deepcopy(module)

    class Loss(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return poptorch.identity_loss(self.inner(x) ** 2, reduction="mean")
    made = optim.LAMB(native.parameters(), lr=0.1, weight_decay=0.05)
    model = poptorch.trainingModel(Loss(mine), optimizer=optim.LAMB(mine.parameters(), lr=0.1, weight_decay=0.05))
    for _ in range(4):
        made.zero_grad()
        Loss(native)(x).backward()
        made.step()
        model(x)
    torch.testing.assert_close(mine.weight, native.weight, rtol=1e-5, atol=1e-6)


def squares(module, made):
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return poptorch.identity_loss(self.inner(x) ** 2, reduction="mean")
    return poptorch.trainingModel(Loss(), optimizer=made)


def test_states_go_on(tmp_path):
    """Two calls, saved with torch.save and read by a new optimizer for a new model, then two calls: as four calls."""
    x = torch.randn(6, 3)
    whole = net()
    model = squares(whole, optim.Adam(whole.parameters(), lr=0.1))
    for _ in range(4):
        model(x)
    first = net()
    made = optim.Adam(first.parameters(), lr=0.1)
    assert made.state_dict()["ipu_state"] is None
    model = squares(first, made)
    model(x)
    model(x)
    torch.save({"optimizer": made.state_dict(), "model": first.state_dict()}, tmp_path / "state.pt")
    model.destroy()
    saved = torch.load(tmp_path / "state.pt")
    assert {name.rpartition(".")[2] for name in saved["optimizer"]["ipu_state"]} == {"exp_avg", "exp_avg_sq"}
    again = net()
    again.load_state_dict(saved["model"])
    other = optim.Adam(again.parameters(), lr=0.1)
    other.load_state_dict(saved["optimizer"])
    assert other.has_state()
    model = squares(again, other)
    model(x)
    model(x)
    assert torch.equal(again.weight, whole.weight)
    for wrong, says in (({}, "because it is empty"),
                        (torch.optim.Adam(again.parameters()).state_dict(), "Only IPU optimizer states")):
        with pytest.raises(RuntimeError, match=says):
            other.load_state_dict(wrong)


def test_attributes_change_by_setOptimizer():
    """A scheduler's rate holds from there on; a constant that changes, or another class, is refused."""
    x, module = torch.randn(6, 3), net()
    made = optim.SGD(module.parameters(), lr=0.1)
    model = squares(module, made)
    model(x)
    scheduler = torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.0)
    made.step()  # PyTorch wants it before the scheduler's; there are no gradients
    scheduler.step()
    model.setOptimizer(made)
    before = module.weight.detach().clone()
    model(x)
    assert torch.equal(module.weight, before)
    with pytest.raises(poptorch.Error, match="Can not replace optimizer of type SGD with new optimizer of type Adam"):
        model.setOptimizer(optim.Adam(module.parameters(), lr=0.1))
    made.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(poptorch.Error, match="Values are constant but do not match"):
        model.setOptimizer(made)


@exhaustive
def test_the_velocity_begins_at_zero():
    """As the reference's, and otherwise than PyTorch's, where dampening is not 0."""
    x = torch.randn(6, 3)
    moved = {}
    for kind, make in (("ours", optim.SGD), ("torch", torch.optim.SGD)):
        module = net()
        before = module.weight.detach().clone()
        model = squares(module, make(module.parameters(), lr=0.1, momentum=0.5, dampening=0.5))
        model(x)
        moved[kind] = (module.weight.detach() - before).numpy()
    np.testing.assert_allclose(moved["ours"], 0.5 * moved["torch"], rtol=1e-4, atol=1e-6)
    assert math.isinf(optim.SGD(net().parameters(), lr=0.1).max_grad_norm)
