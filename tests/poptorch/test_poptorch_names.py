"""Every public name of the reference system's last release works, or says in one sentence what to do instead; the page
has each."""
from __future__ import annotations

import importlib
import inspect

import options_pages
import pytest
from peers import needs
from poptorch_names import NAMES

from tileflow.options.reference.enums import ENUMS
from tileflow.options.reference.table import find

needs("torch")
from tileflow.poptorch.spelling import snake_case  # noqa: E402

poptorch = importlib.import_module("tileflow.poptorch")
MODULES = {"poptorch": poptorch, "earlier": poptorch, "poptorch.optim": poptorch.optim,
           "poptorch.profiling": poptorch.profiling,
           "poptorch.testing": poptorch.testing, "poptorch.poptorch_core": poptorch.poptorch_core}
CALLS = [(owner, name) for owner, names in NAMES.items() for name in names]


def owner_of(name: str):
    if name in MODULES:
        return MODULES[name]
    if name.startswith("Options"):
        made = poptorch.Options()
        return made if name == "Options" else getattr(made, name.partition(".")[2])
    return next(getattr(m, name) for m in (poptorch, poptorch.optim, poptorch.profiling) if hasattr(m, name))


@pytest.mark.parametrize(("owner", "name"), CALLS, ids=[f"{o}.{n}" for o, n in CALLS])
def test_name(owner, name):
    """It is there and documented, or AttributeError has a sentence with a way out."""
    holder = owner_of(owner)
    try:
        found = getattr(holder, name)
    except AttributeError as error:
        said = str(error)
        assert said.endswith("."), said
        assert f"poptorch.{name} is not there: " in said, said
        assert options_pages.roof_sentence(owner, name) == f"Not there: {said.partition(' is not there: ')[2]}"
        return
    if owner.startswith("Options"):
        entry = find(f"{owner.partition('.')[2]}.{name}".lstrip("."))
        assert entry is not None or inspect.getdoc(found) or not callable(found), name
        assert hasattr(holder, snake_case(name)), f"{name} in snake_case"
        return
    if owner in ENUMS or name == "BlockId":
        return
    said = options_pages.roof_sentence(owner, name)
    assert said, "the page says nothing of it"
    assert said.endswith((".", ")", '"', "`")), said
    if inspect.isclass(holder) and snake_case(name) != name and owner != "ICustomArgParser":
        assert hasattr(holder, snake_case(name)), f"{name} in snake_case"


def test_enums_have_the_references_numbers():
    """They are part of saved options."""
    for name, enum in ENUMS.items():
        assert [m.name for m in enum] == NAMES[name]
        assert getattr(poptorch, name) is getattr(poptorch.enums, name) is enum
    assert [m.value for m in poptorch.OutputMode] == [0, 1, 2, 3, 4]
    assert [m.value for m in poptorch.VariableRetrievalMode] == [0, 2]
    assert poptorch.MatMulSerializationMode.InputChannels.value == "input_channels"


@pytest.mark.parametrize(("call", "says"), [
    (lambda: poptorch.fps(None, []), "choose them where the model is called")])
def test_what_is_not_there_says_what_to_do(call, says):
    with pytest.raises(NotImplementedError, match=says):
        call()


def test_names_that_are_none():
    with pytest.raises(AttributeError, match=r"has no attribute 'trainModel'; docs/poptorch\.md lists all names"):
        poptorch.trainModel  # noqa: B018
    with pytest.raises(AttributeError,
                       match=r"Invalid attribute gradientAccumulation\. Did you mean Training\.gradientAccumulation\?"):
        poptorch.Options().gradientAccumulation(4)
