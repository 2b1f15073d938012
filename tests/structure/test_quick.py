"""Which tests a change needs, by the imports of product and tests."""
from __future__ import annotations

import ast

import house
import quick
from places import ROOT, TESTS


def names(*files: str) -> set[str]:
    return {path.name for path in quick.needed([ROOT / name for name in files])}


def test_a_changed_file_needs_its_room_and_what_imports_it() -> None:
    found = names("tileflow/lower/widen.py")
    assert {"test_lower.py", "test_anomaly.py"} <= found, "its room"
    assert "test_conv_half.py" in found, "imports it itself"
    assert {"test_random_graphs.py", "test_rules.py"} <= found, "import a helper that imports what imports it"
    assert len(found) < len(list(TESTS.rglob("test_*.py"))) / 4


def test_a_changed_helper_needs_all_that_read_it() -> None:
    assert {"test_random_graphs.py", "test_bits.py"} <= names("tests/oracle/random_graphs.py")
    assert names("tests/optim/test_facts.py") == {"test_facts.py"}
    assert names("README.md") == set()


def test_every_folder_of_tests_is_a_room_or_says_what_it_is() -> None:
    rooms = {house.part_of(module) for module in house.House(house.files()).paths}
    others = {"bench", "conformance", "documents", "models", "oracle", "structure"}
    assert {folder.name.removesuffix(quick.BRIDGE) for folder in quick.FOLDERS if folder != TESTS} <= rooms | others


def test_tests_are_found_by_one_name() -> None:
    """Folders of tests are no packages: what has the name of another file would be imported in its place."""
    every = [p.name for folder in quick.FOLDERS for p in folder.glob("*.py")]
    assert len(every) == len(set(every)), sorted(n for n in every if every.count(n) > 1)
    assert all(ast.get_docstring(house.tree(p)) for folder in quick.FOLDERS for p in folder.glob("*.py"))
