"""The house's rules that a reader of one file cannot see: which package may import which, and what no file may contain."""
from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from itertools import pairwise
from pathlib import Path

import house
import pointers
import pytest
from house import House, files, imported_names, module_of, tree
from peers import needs
from places import ROOT, TESTS

import tileflow.ops
from tileflow.graph import OPS
from tileflow.kernels.isa.paths import PATHS

PRODUCT = files()
FAST_MATH = {"fastmath", "fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"}
LONGEST = 600
"""Lines of a file."""


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree: many tests go through it."""
    return tuple(ast.walk(tree(path)))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Full names of what a file imports, including inside functions and for type checkers: modules, or members of them."""
    return tuple(f"{module}.{name}" if name else module for module, name in imported_names(path))


def part_of(name: str) -> str:
    """The part of the house that a name of tileflow lies in: `tileflow.ops.conv.Conv` -> ops."""
    return name.split(".")[1] if name.startswith("tileflow.") else ""


def files_of(*parts: str) -> list[Path]:
    return [p for p in PRODUCT if part_of(module_of(p)) in parts]


LOWEST = {"graph", "kernels", "memory", "system"}
ARROWS = {
    "kernels": {"kernels"},
    "system": {"system"},
    "feed": {"feed", "system"},
    "memory": {"kernels", "memory", "system"},
    "graph": LOWEST,
    "options": {"options", "program", "system"},
    "ops": LOWEST | {"ops"},
    "importers": LOWEST - {"kernels"} | {"importers", "ops"},
    "loss": {"graph", "loss", "memory", "metrics", "options", "system"},
    "metrics": {"metrics", "system"},
    "optim": {"graph", "memory", "optim", "options", "system"},
    "passes": {"graph", "passes", "system"},
    "program": LOWEST | {"program"},
    "strategy": {"graph", "options", "program", "strategy", "system"},
    "compiler": {"graph", "optim", "options", "passes", "precision", "program", "strategy", "system"},
    "precision": {"graph", "memory", "ops", "options", "passes", "precision", "system"},
    "host": LOWEST | {"host", "ops"},
    "lower": LOWEST | {"host", "lower", "program", "strategy"},
    "nn": LOWEST - {"kernels"} | {"loss", "nn", "ops", "precision", "state"},
    "tiles": LOWEST - {"kernels"} | {"program", "strategy", "tiles"},
    "exact": LOWEST | {"exact", "program", "tiles"},
    "report": {"program", "report", "system", "tiles"},
    "exploration": {"compiler", "exact", "exploration", "feed", "graph", "options", "program", "report", "state",
                    "strategy", "system", "tiles"},
    "state": {"graph", "memory", "state", "system"},
    "torch": {"compiler", "executable", "graph", "importers", "nn", "ops", "optim", "options", "passes", "precision",
              "program", "runtime", "state", "system", "torch"},
    "custom": LOWEST | {"custom", "ops"},
    "executable": {"executable", "kernels", "memory", "state", "system"},
    "collective": {"collective", "system"},
    "lightning": {"lightning", "poptorch", "system"},
    "poptorch": {"api", "collective", "feed", "graph", "optim", "options", "poptorch", "program", "strategy", "system",
                 "torch"},
}
"""What each part may import of the house, those that are still empty (`EMPTY`) included. Parts above these (runtime,
api, cli) have rules of their own below."""
EMPTY: set[str] = set()
"""Rooms that docs/design.md keeps free for floors to come."""


@pytest.mark.parametrize("part", ARROWS)
def test_arrows_that_may_exist(part: str):
    assert files_of(part) or part in EMPTY, f"there is no {part}"
    found = {(p.name, other) for p in files_of(part) for name in imports(p) if (other := part_of(name)) and other not in ARROWS[part]}
    assert not found, f"{part} must not import these"


FLOORS_OF_TILES = ["hardware", "plans", "program", "placing", "system"]
"""The folders of the tile machine, each built on those before it; what lies beside them (`analyze`, limits) stands on
all."""


@pytest.mark.parametrize("folder", FLOORS_OF_TILES)
def test_folders_of_the_tile_machine_import_downwards(folder: str):
    below = FLOORS_OF_TILES[:FLOORS_OF_TILES.index(folder) + 1]
    inside = [p for p in files_of("tiles") if p.parent.name == folder]
    assert inside, f"there is no tiles/{folder}"
    found = {(p.name, name) for p in inside for name in imports(p) if name.startswith("tileflow.tiles.") and name.split(".")[2] not in below}
    assert not found, f"tiles/{folder} must not import these"


KNOT = ["tileflow.graph.builder", "tileflow.graph.graph", "tileflow.graph.op"]
"""The one circle, and for type checkers only: an operator's declaration says what its methods are handed, graphs are made of operators."""


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions count as well, and those for type checkers but for the knot: whoever reads one file of a circle must know all."""
    assert not House(PRODUCT, types=False).circles()
    assert House(PRODUCT).circles() == [KNOT]
    assert not House((ROOT / "bench").rglob("*.py")).circles()


def test_a_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Through a package's face, in a function and for type checkers."""
    monkeypatch.setattr("house.ROOT", tmp_path)
    written = {"__init__": "from .a import A",
               "a": "def f():\n    from .b import B", "b": "if TYPE_CHECKING:\n    from tileflow import A", "c": "from . import A"}
    for name, text in written.items():
        (tmp_path / "tileflow" / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / "tileflow" / f"{name}.py").write_text(text)
    written = list((tmp_path / "tileflow").glob("*.py"))
    assert House(written).circles() == [["tileflow.a", "tileflow.b"]]
    assert not House(written, types=False).circles()


def test_nothing_imports_the_command_line():
    assert not [p for p in PRODUCT if p.name != "__main__.py" and part_of(module_of(p)) != "cli" and any(part_of(n) == "cli" for n in imports(p))]


def test_the_runtime_knows_nothing_above_it():
    above = {"api", "cli", "exploration", "onnx_backend", "poptorch", "torch"}
    assert not [(p.name, n) for p in files_of("runtime") for n in imports(p) if part_of(n) in above]


def test_the_base_of_callbacks_knows_no_trainer():
    """Once there are callbacks: the trainer knows their base, never the other way round."""
    found = [(p.name, n) for p in files_of("runtime") if module_of(p).startswith("tileflow.runtime.callbacks.")
             for n in imports(p)]
    assert not [(name, n) for name, n in found if n.startswith("tileflow.runtime.trainer") and name == "base.py"]


FOR_FRAMEWORKS = {"torch", "poptorch", "lightning"}
"""Rooms for users of PyTorch, which nobody else imports."""


def test_rooms_for_frameworks_are_imported_by_nobody_else():
    found = {(p.name, n) for p in PRODUCT if part_of(module_of(p)) not in FOR_FRAMEWORKS
             for n in imports(p) if part_of(n) in FOR_FRAMEWORKS}
    assert not found


def test_benches_import_no_tests():
    """What both need stands in `bench/`."""
    benches = [*(ROOT / "bench").rglob("*.py")]
    ours = {p.stem for p in TESTS.rglob("*.py")} - {p.stem for p in benches} | {"tests"}
    assert not {(p.name, name) for p in benches for name in imports(p) if name.split(".")[0] in ours}
    assert "bench.two_hosts.TwoHosts" in imports(TESTS / "collective" / "namespaces.py")


def test_nobody_below_imports_frameworks():
    """NumPy, Numba, LLVM, ONNX (with ml_dtypes, its bfloat16), tqdm: no more is needed to run, others in single files
    for who has them; ONNX is for the importers and what wraps them."""
    optional = {"hosted/images.py": {"PIL"}, "api/history.py": {"pandas"}, "callbacks/tensorboard.py": {"tensorboardX"},
                "feed/images.py": {"PIL"}, "data/arrow.py": {"pyarrow"},
                "collective/mpi.py": {"mpi4py"}}
    wanted = {"numpy", "numba", "llvmlite", "onnx", "ml_dtypes", "tqdm", "tileflow", "google"}
    import sys
    for path in PRODUCT:
        if path.parts[-2:] == ("data", "make.py") or path.name == "examination.py":
            continue                                    # the maker of the digits, and what looks at the installation
        if part_of(module_of(path)) in FOR_FRAMEWORKS:
            continue
        roots = {n.split(".")[0] for n in imports(path)} - set(sys.stdlib_module_names)
        assert roots <= wanted | optional.get("/".join(path.parts[-2:]), set()), path
        if part_of(module_of(path)) not in ("importers", "onnx_backend", "api"):
            assert not roots & {"onnx", "google"}, path
        if part_of(module_of(path)) != "kernels" and path.name != "onnx_backend.py":
            assert not roots & {"numba", "llvmlite"}, path


@pytest.mark.parametrize("part", ["passes", "lower", "runtime", "tiles", "exact", "report"])
def test_no_operator_is_named(part: str):
    """Asking for a class or comparing a name of an operator is how a pass begins to know one."""
    assert tileflow.ops
    for path in files_of(part):
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                constants = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
                assert not [c for c in constants if isinstance(c, str) and c in OPS], f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                assert node.value.id != "OPS", f"{path.name}:{node.lineno}"
        assert not any(n.startswith("tileflow.ops") for n in imports(path)), path.name


def test_kernels_have_one_signature_and_the_cpu_is_handed_down():
    """Who asks for the CPU in the middle of the street compiles for another one than the rest; the plan's maker asks, once."""
    kernels = 0
    for path in files_of("graph", "ops", "host", "lower", "passes"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.name == "kernel" and node.args.args[0].arg == "self":
                kernels += 1
                assert [a.arg for a in node.args.args] == ["self", "inputs", "outputs", "cpu"], f"{path.name}:{node.lineno}"
                given = node.args
                assert not [*given.kwonlyargs, *given.defaults, *filter(None, (given.vararg, given.kwarg))], f"{path.name}:{node.lineno}"
            called = node.func if isinstance(node, ast.Call) else None
            asked = getattr(called, "attr", getattr(called, "id", ""))
            assert asked != "current" or module_of(path) == "tileflow.lower.plan", f"{path.name}:{node.lineno}"
    assert kernels > 50


# ---- kernels

def test_a_cpu_path_is_asked_what_it_can_do_never_its_name():
    """A path is one entry of kernels/isa/paths.py: no comparison with a name and no table by names elsewhere."""
    for path in files_of("kernels", "ops", "lower", "runtime", "exact", "cli"):
        if path.parent.name == "isa":
            continue
        for node in nodes(path):
            asked = [node.left, *node.comparators] if isinstance(node, ast.Compare) else node.keys if isinstance(node, ast.Dict) else ()
            found = [a.value for a in asked if isinstance(a, ast.Constant) and a.value in PATHS]
            assert not found, f"{path.name}:{node.lineno} asks for the path {found[0]!r}"


def test_every_path_is_told_by_features_that_its_processor_has():
    entries = list(PATHS.values())
    for i, entry in enumerate(entries):
        assert entry.needs <= set(entry.features.split())
        for later in entries[i + 1:]:
            assert not entry.needs <= later.needs, f"{later.label} would never be chosen: {entry.label} comes first"


def decorators(node: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        yield (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")), decorator


def compiled_bodies() -> Iterator[tuple[Path, ast.FunctionDef]]:
    """Functions of the kernels that machine code is made of."""
    for path in files_of("kernels"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and {n for n, _ in decorators(node)} & {"leaf", "generic"}:
                yield path, node


def test_kernels_never_raise():
    """A `raise` in a leaf is printed and ignored: leaves return a status."""
    found = list(compiled_bodies())
    assert len(found) > 20
    for path, function in found:
        for node in ast.walk(function):
            assert not isinstance(node, (ast.Raise, ast.Assert, ast.Try)), f"{path.name}:{node.lineno} in {function.name}"


@pytest.mark.parametrize("part", ["api", "runtime", *sorted(ARROWS.keys() - {"compiler", "poptorch"})])
def test_a_class_of_a_room_has_a_name_of_its_own(part: str):
    """`Sizes` of sixteen leaves, or `Kept` of three files, are told apart by nobody who reads one of them. The names in
    `poptorch` are the reference's."""
    found: dict[str, list[str]] = {}
    for path in files_of(part):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module_of(path))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def floats_in_another_order(tree: ast.AST) -> list[int]:
    """Lines that let the compiler compute floats otherwise than they are written: by flags of LLVM's, or Numba's option
    for them."""
    return [node.lineno for node in ast.walk(tree)
            if getattr(node, "arg", None) == "fastmath" or (isinstance(node, ast.Constant) and node.value in FAST_MATH)]


def test_no_flag_lets_the_compiler_reorder_floats():
    """What it makes of such flags follows from its estimates of the one processor that it compiles for: other bits on
    each of a path's. Contraction is among them, for what is fused depends on where loops are unrolled: `Emitter.fma`
    says it. Sums in lanes are in `kernels/sums.py`."""
    assert {path.name: lines for path in PRODUCT if (lines := floats_in_another_order(tree(path)))} == {}


@pytest.mark.parametrize(("text", "found"), [
    ("@leaf('f4[r]', fastmath=True)\ndef f(x): ...", True), ("Leaf(f, 'f4[r]', **{'fastmath': flags})", True),
    ("b.fadd(x, y, flags=['reassoc'])", True), ("FLAGS = {'nsz', 'contract'}", True),
    ("b.add(x, y, flags=['nsw'])", False), ("e.fma(x, y, z)", False), ("Leaf(f, 'f4[r]', error_model='numpy')", False)])
def test_flags_of_floats_are_found(text: str, found: bool):
    assert bool(floats_in_another_order(ast.parse(text))) == found


# ---- every file

OWN_TEXT = {"leaf.py", "foreign.py", "vector.py"}
"""Kernel files that compile lines of their own making (a function whose number of arguments is known at run time only)."""


BETWEEN_OWN_PROCESSES = "tileflow.feed.wire"
"""The one file that may pickle: a user's data set goes to worker processes that this process starts, over a socket pair that nobody else has."""


def test_no_foreign_text_is_run_and_nothing_is_pickled():
    for path in PRODUCT:
        allowed = {"pickle"} if module_of(path) == BETWEEN_OWN_PROCESSES else set()
        assert not {n.split(".")[0] for n in imports(path)} & {"pickle", "marshal", "shelve", "dill", "cloudpickle"} - allowed, path
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "__import__"):
                assert node.func.id == "exec", f"{path.name}:{node.lineno}"
                assert part_of(module_of(path)) == "kernels", f"{path.name}:{node.lineno}"
                assert path.name in OWN_TEXT, f"{path.name}:{node.lineno}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), f"{path.name}:{node.lineno}"
                assert node.value.value is False, f"{path.name}:{node.lineno}"


def test_files_can_be_held_in_mind():
    long = {str(p.relative_to(ROOT)): n for p in PRODUCT if (n := len(p.read_text(encoding="utf-8").splitlines())) > LONGEST}
    assert not long


def test_every_module_says_what_it_is():
    for path in PRODUCT:
        assert ast.get_docstring(tree(path)) or not tree(path).body, path


def test_nothing_is_left_to_do():
    for path in [*PRODUCT, *(ROOT / "tests").glob("*.py"), *(ROOT / "bench").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not [w for w in ("TO" + "DO", "FIX" + "ME", "XX" + "X") if w in text], path


SILENCES = "tileflow.torch.tracing"
"""Holds the loggers of PyTorch's exporters, and nobody else's, down while they work."""
LOGS = "tileflow.system.logs"
"""Hands out loggers, and configures none but where somebody asks to be shown the log."""


def test_nobody_prints_or_configures_logging():
    """What is for the terminal goes through `terminal.say`, which takes out what a terminal would obey."""
    for path in PRODUCT:
        if part_of(module_of(path)) == "data" or module_of(path) == SILENCES:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path.name}:{node.lineno}"
        if module_of(path) != LOGS:
            assert "logging" not in {n.split(".")[0] for n in imports(path)}, path


# ---- what is told

def documented(module: str, name: str) -> bool:
    """A public name has a docstring of its own: not inherited, not made by a dataclass; data and types of types have
    theirs below them."""
    found = getattr(importlib.import_module(module), name)
    if isinstance(found, type):
        return not (found.__dict__.get("__doc__") or f"{name}(").startswith(f"{name}(")
    if inspect.ismodule(found) or inspect.isroutine(found):
        return bool(found.__doc__)
    path = Path(importlib.import_module(module).__file__ or "")
    for before, after in pairwise(tree(path).body):
        targets = (before.targets if isinstance(before, ast.Assign)
                   else [before.target] if isinstance(before, ast.AnnAssign) else [])
        if name in {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}:
            return isinstance(after, ast.Expr) and isinstance(after.value,
                                                              ast.Constant) and isinstance(after.value.value, str)
    imported = ((n, a) for n in ast.walk(tree(path)) if isinstance(n, ast.ImportFrom)
                for a in n.names if name == (a.asname or a.name))
    return any(documented(resolve_name("." * n.level + (n.module or ""), package_of(path)), a.name)
               for n, a in imported)


def package_of(path: Path) -> str:
    return module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]


FACES = [module_of(p) for p in PRODUCT
         if any(isinstance(n, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in n.targets)
                                              for n in tree(p).body) and part_of(module_of(p)) != "kernels"]
"""Modules that say what of them is public, but for kernels, which only the house itself calls."""


@pytest.mark.parametrize("module", FACES)
def test_public_names_say_what_they_are(module: str):
    if part_of(module) in FOR_FRAMEWORKS:
        needs("torch")
        needs("onnxscript")
    if part_of(module) == "lightning":
        needs("lightning.pytorch")
    assert not [name for name in importlib.import_module(module).__all__ if not documented(module, name)]


def test_what_is_pointed_to_is_there():
    """Files, folders, modules and names in docstrings, comments and documents that look like ones of this
    repository."""
    assert not pointers.broken([*pointers.sources(), *pointers.documents()])


def test_pointers_that_lead_nowhere_are_found():
    known, path = pointers.Pointers(), ROOT / "tileflow" / "lower" / "plan.py"
    for gone in ("`kernels.planes`", "`kernels.isa.cpu.gone`", "`lower.gone`", "`fuse.gone`", "`tileflow.nn.Gone`",
                 "`lower/gone.py`", "gone.md", "`importers/gone/`"):
        assert list(known.broken(path, f"See {gone} there.")) == [gone.strip("`")], gone
    for there in ("`kernels.isa.cpu.precision`", "`lower.fuse`", "`fuse.fuse`", "`tileflow.nn.Linear`",
                  "`lower/fuse.py`", "`importers/onnx/`", "`value.name`"):
        assert not list(known.broken(path, f"See {there} there.")), there


# ---- the drawing

def test_the_drawing_is_current():
    """`python tests/house.py` writes it."""
    document = house.DESIGN.read_text(encoding="utf-8")
    assert house.current(document) == house.block(house.drawing())


def test_every_folder_tells_what_is_inside():
    for path in PRODUCT:
        if path.name == "__init__.py":
            assert len(house.first_sentence(path).split()) > 1, path


def test_what_the_drawing_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Floors by the longest way down; arrows that follow from others are left out."""
    monkeypatch.setattr("house.ROOT", tmp_path)
    written = {"__init__": "", "low": '"""Low. More."""', "mid/__init__": '"""Middle."""\nfrom ..low import f', "mid/deep/__init__": '"""Deep."""',
               "top": '"""Top."""\nfrom .low import f\nfrom .mid import g'}
    for name, text in written.items():
        (tmp_path / "tileflow" / f"{name}.py").parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "tileflow" / f"{name}.py").write_text(text)
    lines = house.drawing(House((tmp_path / "tileflow").rglob("*.py"))).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "---- floor 3", "top.py Top", "-> mid", "---- floor 2", "mid/ Middle", "deep/ Deep", "-> low", "---- floor 1", "low.py Low"]


def test_what_is_made_once_for_the_current_path_is_made_once_for_each():
    """A cached function asks for no path: it is given one, or its first use would decide for all later ones."""
    for path in files_of("kernels", "host", "lower"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and {name for name, _ in decorators(node)} & {"cache", "lru_cache"}:
                called = {ast.unparse(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
                assert "cpu.current" not in called, f"{path.name}: {node.name}"
