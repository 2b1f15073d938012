"""Writes docs/options.md from the options' declarations and docs/poptorch.md from the table of PopTorch's options, the
docstrings of `tileflow/poptorch/` and the list of all names of the reference system.

    python tests/options_pages.py       # after an option or an entry changed; tests/options/test_options_pages.py asks
"""
from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from poptorch_names import NAMES  # noqa: E402
from poptorch_scripts import SCRIPTS  # noqa: E402

from tileflow.options.declaration import GROUPS, Declaration  # noqa: E402
from tileflow.options.kinds import Flag  # noqa: E402
from tileflow.options.options import declarations  # noqa: E402
from tileflow.options.reference.enums import ENUMS  # noqa: E402
from tileflow.options.reference.table import ENVIRONMENT, OWN_ENVIRONMENT, SECTIONS, Entry  # noqa: E402

COMMAND = "python tests/options_pages.py"
OPTIONS, POPTORCH = ROOT / "docs" / "options.md", ROOT / "docs" / "poptorch.md"
OPTIONS_HEAD = f"""# Options

Made by `{COMMAND}` from the options' declarations; a test holds it to them.

Every option is a field of `tileflow.Options`, a keyword of the functions that use it, a flag of the commands that do (`micro_batch_size` is
`--micro-batch-size`), and a line of options files. `tileflow train --help` shows the common ones, `tileflow train --help all` every one. A
value is checked where it is set. What is written into a call or behind a command has an effect there or is refused; files may say more than
one verb uses.

```python
a = tileflow.Options(micro_batch_size=32, epochs=3)
b = a.clone(learning_rate=1e-2)         # a copy that can change; what a model or a data loader uses is frozen
a == b, a.diff(b)                       # False, {{'learning_rate': (0.001, 0.01)}}
print(b)                                # Options(micro_batch_size=32, epochs=3, learning_rate=0.01): what is not the default
b.save("run.toml")                      # Options.load("run.toml") == b
```

## Files

`Options.load(path)` and `--options FILE` read options from a file, by its ending; values given beside it go first. Files are parsed, never executed;
what is unknown, wrong or said twice is an error with the file's name, and for lines with the line's number.

```toml
# run.toml: flat, or in tables by group
seed = 1
[training]
epochs = 3
```

```json
{{"epochs": 3, "Training.gradientAccumulation": 8}}
```

```python
# poptorch.conf (or .txt): lines as of a script, with PopTorch's names (docs/poptorch.md) or tileflow's, camelCase or snake_case
deviceIterations(4)
Training.gradientAccumulation(8)
outputMode(poptorch.OutputMode.EveryN, 2)
epochs(3)
```

The environment variable `TILEFLOW_DEFAULT_OPTIONS` names a file of options for every command and function: it says what neither the call nor
its own options file does. `tileflow doctor` shows what it sets.

## Values within a model

```python
model = tileflow.training_model(net, anchored_tensors=("conv1", "head.*"), output_mode="all")
prediction, loss = model(x, labels)
model.anchored("conv1")                 # what the layer gave, of every micro-batch of the call (output_mode), before their update
model.anchored()                        # all of them, by name
```

Names are those of layers, of a file's tensors and of its nodes. What is anchored is computed for its own sake, so nothing is fused over it;
outputs and weights keep their bits, but where attention is no longer one operator.

"""
ROOF = ROOT / "tileflow" / "poptorch"
POPTORCH_HEAD = f"""# PopTorch's names in tileflow

Made by `{COMMAND}` from the table `tileflow/options/reference/table.py`, which reads the files as well, and from
`tileflow/poptorch/`; a test holds it to them.

A script for PopTorch runs with one import changed, where PyTorch is installed (`pip install 'tileflow-engine[torch]'`):

```python
import torch
import tileflow.poptorch as poptorch

opts = poptorch.Options().deviceIterations(10)
opts.Training.gradientAccumulation(4)
loader = poptorch.DataLoader(opts, dataset, batch_size=16, shuffle=True)
model = poptorch.trainingModel(net, opts, poptorch.optim.AdamW(net.parameters(), lr=1e-3))
for x, labels in loader:
    prediction, loss = model(x, labels)
```

Names are in camelCase and in snake_case; an option that has a value is read, and set, by its name in snake_case
(`opts.device_iterations`). What differs on purpose:

- A module's parameters and buffers are always those of now: `copyWeightsToHost` and `copyWeightsToDevice` copy nothing,
  but for edits through `.data` and where precisions differ.
- What is compiled is compared with PyTorch first, and a module that computes something else is refused with both
  numbers.
- Inputs of other shapes or types compile anew, where PopTorch has an error.
- `bias_correction=False` of AdamW is heeded; `maximize=True` is refused. `torch.optim` objects update as PyTorch's do,
  `poptorch.optim` ones as PopTorch's.
- Errors of options are ValueErrors and AssertionErrors at once; what a model raises is a `poptorch.Error`. A
  `RecoverableError` says by its `recovery_action` what to do first: besides PopTorch's words `FREE_MEMORY`,
  `FREE_DISK`, `RESTART_WORKERS`, `RESUME` (the call with resume=True) and `RESTORE` (the last checkpoint).
- Everything is on one IPU until `setExecutionStrategy` says otherwise; blocks then count. What is computed depends on
  neither.
- `ipuHardwareIsAvailable()` is False: everything is computed on this computer.

## Lightning

```python
import lightning.pytorch as pl
from tileflow.lightning import IPUStrategy                  # pip install 'tileflow-engine[lightning]'

trainer = pl.Trainer(accelerator="ipu", devices=4, max_epochs=3, accumulate_grad_batches=2,
                     strategy=IPUStrategy(device_iterations=8))
trainer.fit(module)
```

Devices are replicas, accumulation and iterations are those of a call, and loaders give its rows. `precision` is
Lightning's: mixed ones are the option of that name, others the module's type. Lightning keeps its loops, callbacks,
loggers, schedules and checkpoints, with what the optimizer remembers. A step is exported once, with a `batch_idx` of 0
and the Trainer's numbers (`global_step`) of that moment; `self.log` in it logs what was computed (the mean, where a
call has several values).
There is one optimizer; gradient clipping, a `backward` of the module's own and manual optimization are refused.
`IPUStrategy` also takes `training_opts`, `inference_opts` (`poptorch.Options`), `autoreport` and `autoreport_dir`.
Where scripts write `Trainer(ipus=4)`, which Lightning refuses, write `accelerator="ipu", devices=4`;
`lightning.pytorch.strategies.IPUStrategy` and `IPUPlugin` are imported from here.

## Options files

Options files that end in `.conf` or `.txt` take the options' names as calls, `Training.gradientAccumulation(8)`, in
camelCase or snake_case; TOML and JSON files as keys, `{{"Training.gradientAccumulation": 8}}` (`docs/options.md`). In
tileflow's own `Options` the option's own name is a keyword or a field. Where there is none, the sentence says what is
done instead; a file that sets it ends with that sentence, or where it says "taken, without effect" goes on with it as a
warning.

| PopTorch | tileflow |
| --- | --- |
| `options = poptorch.Options()` | `options = tileflow.Options()` |
| `options.Training.gradientAccumulation(8)` | `options.gradient_accumulation = 8` |
| `options.loadFromFile("poptorch.conf")` | `options = tileflow.Options.load("poptorch.conf")` |
| `POPTORCH_DEFAULT_OPTIONS`, a `poptorch.conf` | `tileflow.Options.load(path)`, `--options FILE`, `TILEFLOW_DEFAULT_OPTIONS` |

"""
CALLED_OTHERWISE = {"poptorch.optim": "optim", "poptorch.profiling": "profiling", "poptorch.testing": "testing",
                    "poptorch.poptorch_core": "errors"}
"""Files of the roof that are modules of the reference's."""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _values(d: Declaration) -> str:
    return "true or false" if isinstance(d.kind, Flag) else d.expected.removesuffix(" or None").removeprefix("one of ").replace("'", "")


def _default(d: Declaration) -> str:
    if d.default is None:
        return ""
    if isinstance(d.default, bool):
        return str(d.default).lower()
    return d.kind.text(d.default)


def called(d: Declaration) -> list[str]:
    """PopTorch's names of an option."""
    return [e.name for entries in SECTIONS.values() for e in entries if d.name in e.options]


def options_page() -> str:
    """The page of options: a table for each group."""
    parts = [OPTIONS_HEAD]
    for group, its in GROUPS.items():
        title = its.title.partition(" (")[0]
        parts.append(f"## {title}\n\n| option | values | default | what it says | used by | PopTorch |\n"
                     "| --- | --- | --- | --- | --- | --- |\n")
        for d in declarations().values():
            if d.group == group:
                names = ", ".join(f"`{n}`" for n in called(d))
                cells = (f"`{d.name}`", _values(d), _default(d), d.help, ", ".join(d.verbs), names)
                parts.append(f"| {' | '.join(map(_cell, cells))} |\n")
        parts.append("\n")
    parts.append("## Environment variables\n\nPopTorch's are heeded by `import tileflow.poptorch`.\n\n| variable | "
                 "what it says |\n| --- | --- |\n")
    parts += [f"| `{e.name}` | {_cell(e.says[:1].upper() + e.says[1:])} |\n" for e in (*OWN_ENVIRONMENT, *ENVIRONMENT)]
    return "".join(parts).rstrip() + "\n"


def _arguments(entry: Entry) -> str:
    if entry.take is None:
        return ""
    return f"({', '.join(p.name if p.default is p.empty else f'{p.name}={p.default}' for p in inspect.signature(entry.take).parameters.values())})"


def poptorch_page() -> str:
    """The dictionary: a table for each of PopTorch's groups."""
    parts = [POPTORCH_HEAD]
    for title, entries in SECTIONS.items():
        parts.append(f"## {title}\n\n| PopTorch | option | |\n| --- | --- | --- |\n")
        for e in entries:
            says = f"Taken, without effect: {e.says}" if e.idle else e.says[:1].upper() + e.says[1:]
            says += f" In `tileflow.poptorch`: {e.script}." if e.script else ""
            parts.append(f"| {_cell(f'`{e.name}{_arguments(e)}`')} | {', '.join(f'`{n}`' for n in e.options)} | {_cell(says)} |\n")
        parts.append("\n")
    parts += _names_of_the_roof()
    parts.append("\n## Scripts of the user guide\n\nTests run each where it is at hand, with its import replaced.\n\n| "
                 "script | |\n| --- | --- |\n")
    parts += [f"| `{name.removesuffix('.py')}` | {_cell(script.says)} |\n" for name, script in sorted(SCRIPTS.items())]
    return "".join(parts).rstrip() + "\n"


@functools.cache
def _docstrings() -> tuple[dict[str, str], Mapping[str, str]]:
    """Docstrings of `tileflow/poptorch/` by name (`Block`, `Block.start`, `poptorch.optim.SGD`), and what is said of
    names that are not there."""
    found: dict[str, str] = {}
    instead: Mapping[str, str] = {}
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOF.glob("*.py"))}
    classes = {name: node for tree in trees.values() for name, node in _classes(tree).items()}
    for path, tree in trees.items():
        module = next((m for m, name in CALLED_OTHERWISE.items() if name == path.stem), None)
        for where, node in _defined(tree, classes):
            found.setdefault(where, _first(node))
            if module is not None:
                found.setdefault(f"{module}.{where}", _first(node))
        found.setdefault(path.stem, _first(tree))
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "INSTEAD":
                instead = ast.literal_eval(statement.value)
    return found, instead


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}


def _defined(tree: ast.Module, others: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, ast.AST]]:
    """Functions and classes of a file, and what is in its classes and their bases, which may be `others`."""
    classes = {**others, **_classes(tree)}

    def members(node: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef):
                yield inner.name, inner
            elif isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Name):
                alias = next(m for n, m in members(node) if n == inner.value.id)
                yield inner.targets[0].id, alias       # type: ignore[attr-defined]
        for base in node.bases:
            if getattr(base, "id", "") in classes:
                yield from members(classes[base.id])  # type: ignore[attr-defined]
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
            for name, inner in members(node) if isinstance(node, ast.ClassDef) else ():
                yield f"{node.name}.{name}", inner


def _first(node: ast.AST) -> str:
    """The first paragraph of a docstring, without what the reader of a table needs not."""
    text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())             # type: ignore[arg-type]
    return text.rstrip(":") + "." if text.endswith(":") else text


def roof_sentence(owner: str, name: str) -> str | None:
    """What the page says of a name of the reference's: its docstring, or why it is not there; None where there is
    neither."""
    found, instead = _docstrings()
    if owner in ENUMS:
        return f"A member of `poptorch.{owner}`."
    if owner in ("poptorch", "earlier"):
        if name in ENUMS:
            members_of = ", ".join(m.name for m in ENUMS[name])                      # type: ignore[attr-defined]
            return " ".join((ENUMS[name].__doc__ or "").split()) + f" {members_of}."
        if name in instead:
            return f"Not there: {instead[name]}."
        return found.get(name) or {"enums": "The enums, also under `poptorch`.",
                                   "poptorch_core": "The errors, also under `poptorch`.",
                                   "BlockId": "Names of blocks are texts.",
                                   "identity_loss": "Mark what training minimises: the mean or the sum of a "
                                   "tensor, or the tensor itself."}.get(name)
    return found.get(f"{owner}.{name}") or found.get(name if owner in CALLED_OTHERWISE else "")


def _names_of_the_roof() -> list[str]:
    """A table of the names of the module, and one of the methods of its classes; options are in tables of their own."""
    parts = ["\n## All names of `poptorch`\n\nOf the last release, 3.4; those of earlier ones at the end. `Options` "
             "are above, by group.\n\n| PopTorch | in `tileflow.poptorch` |\n| --- | --- |\n"]
    for owner, names in NAMES.items():
        if owner in ENUMS or owner.startswith("Options"):
            continue
        for name in names:
            shown = name if owner in ("poptorch", "earlier") else f"{owner.removeprefix('poptorch.')}.{name}"
            parts.append(f"| `{shown}` | {_cell(roof_sentence(owner, name) or '')} |\n")
    return parts


if __name__ == "__main__":
    OPTIONS.write_text(options_page(), encoding="utf-8")
    POPTORCH.write_text(poptorch_page(), encoding="utf-8")
