"""Calls of a Builder: the stub by which type checkers know them is what the registry says, and they find what is wrong in a call."""
from __future__ import annotations

import builder_stub
import pytest

CALL = """
from tileflow.graph import Builder, Value

def call(b: Builder, x: Value, w: Value) -> Value:
    return b.Conv({})
"""


def test_the_stub_is_current():
    assert builder_stub.STUB.read_text(encoding="utf-8") == builder_stub.stub(), "run python tests/builder_stub.py"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arguments", "message"), [
    ("x, w, pads=(1, 1, 1, 1)", ""), ("x, w, padding=(1, 1)", 'Unexpected keyword argument "padding"'), ("x", "Too few arguments"),
    ("x, w, w, w", "Argument 4"), ("x, w, group='two'", "incompatible type")])
def test_type_checkers_find_what_is_wrong_in_a_call(arguments: str, message: str):
    api = pytest.importorskip("mypy.api", reason="checks types by mypy, which is not installed: pip install mypy")
    out, _, status = api.run(["--ignore-missing-imports", "--follow-imports=silent", "-c", CALL.format(arguments)])
    assert bool(status) == bool(message), out
    assert message in out
