"""The tests that a change needs: `make quick` runs them.

    python tests/quick.py                        # for what differs from the last commit
    python tests/quick.py origin/main -- -x      # for what differs from another one; pytest's own words after --
    python tests/quick.py --list                 # says which files that are, and runs nothing

Of a changed file of the product these run: the tests in the folder of its room; and all that import it, themselves,
through another test or helper, or through one file of the product more (`STEPS`). Further away all of the product is
reached, which is what `make test` is for. Beside them always what holds the house together and the product on one
screen.
"""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import house
from places import FOLDERS, ROOT

ALWAYS = ("tests/structure", "tests/test_tiny.py")
BRIDGE = "_bridge"
"""What the folder of a room is called behind the room's name, where that is a package of others, too."""
STEPS = 2
"""Imports from a test, or what helps it, to a changed file of the product."""


def changed(since: str) -> set[Path]:
    """Python files that differ from a commit, and new ones."""
    told = [subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
            for words in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"])]
    return {ROOT / name for names in told for name in names if name.endswith(".py")}


def test_imports() -> dict[Path, set[Path]]:
    """By file under tests/, the files under tests/ that it imports."""
    files = {p.stem if p.name != "__init__.py" else p.parent.name: p for folder in FOLDERS
             for p in [*folder.glob("*.py"), *folder.glob("*/__init__.py")]}
    return {p: {files[name.split(".")[0]] for name, _ in house.imported_names(p) if name.split(".")[0] in files} - {p}
            for p in files.values()}


def needed(files: Iterable[Path]) -> list[Path]:
    """Test files for changed files of the product or of the tests."""
    files = set(files)
    product = house.House(house.files())
    names = {path: name for name, path in product.paths.items()}
    near = {names[p] for p in files if p in names}
    rooms = {house.part_of(name) for name in near}
    for _ in range(STEPS - 1):
        near |= {name for name, targets in product.imports.items() if targets & near and name.count(".") > 1}
    helpers = test_imports()
    touched = {p for p in helpers if p in files or _of_the_product(product, p) & near}
    found = {p for p in _reaching(helpers, touched) if p.name.startswith("test_")}
    found |= {p for p in helpers if p.name.startswith("test_") and p.parent.name.removesuffix(BRIDGE) in rooms}
    return sorted(found)


def _of_the_product(product: house.House, path: Path) -> set[str]:
    """The files of the product that a test imports by name; what it takes from the face of all, `tileflow`, does not
    count."""
    found = {product.definer(module, name) for module, name in house.imported_names(path) if module != "tileflow"}
    return {name for name in found if name is not None}


def _reaching(imports: Mapping[Path, set[Path]], touched: set[Path]) -> set[Path]:
    """What imports one of these, however far away, and they themselves."""
    found = set(touched)
    while more := {p for p, targets in imports.items() if targets & found} - found:
        found |= more
    return found


def main(arguments: list[str]) -> int:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, words = arguments[:end], arguments[end + 1:]
    since = [word for word in own if word != "--list"] or ["HEAD"]
    chosen = [str(p.relative_to(ROOT)) for p in needed(changed(since[0]))]
    if "--list" in own:
        print("\n".join(chosen))
        return 0
    command = [sys.executable, "-m", "pytest", *ALWAYS, *chosen, *words]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
