"""Writes docs/options.md from the options' declarations and docs/poptorch.md from the table of PopTorch's names.

    python tests/options_pages.py       # after an option or an entry changed; tests/options/test_options_pages.py asks for it
"""
from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from tileflow.options.declaration import GROUPS, Declaration  # noqa: E402
from tileflow.options.kinds import Flag  # noqa: E402
from tileflow.options.options import declarations  # noqa: E402
from tileflow.options.reference.table import SECTIONS, Entry  # noqa: E402

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
POPTORCH_HEAD = f"""# PopTorch's options in tileflow

Made by `{COMMAND}` from the table `tileflow/options/reference/table.py`, which reads the files as well; a test holds it to the table.

Options files that end in `.conf` or `.txt` take these names as calls, `Training.gradientAccumulation(8)`, in camelCase or snake_case; TOML and
JSON files as keys, `{{"Training.gradientAccumulation": 8}}` (`docs/options.md`). In Python the option's own name is a keyword or a field. Where
there is none, the sentence says what is done instead; a file that sets it ends with that sentence, or where it says "taken, without effect" goes on
with it as a warning.

| PopTorch | tileflow |
| --- | --- |
| `options = poptorch.Options()` | `options = tileflow.Options()` |
| `options.Training.gradientAccumulation(8)` | `options.gradient_accumulation = 8` |
| `options.loadFromFile("poptorch.conf")` | `options = tileflow.Options.load("poptorch.conf")` |
| `POPTORCH_DEFAULT_OPTIONS`, a `poptorch.conf` | `tileflow.Options.load(path)`, `--options FILE`, `TILEFLOW_DEFAULT_OPTIONS` |

"""


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
            parts.append(f"| {_cell(f'`{e.name}{_arguments(e)}`')} | {', '.join(f'`{n}`' for n in e.options)} | {_cell(says)} |\n")
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    OPTIONS.write_text(options_page(), encoding="utf-8")
    POPTORCH.write_text(poptorch_page(), encoding="utf-8")
