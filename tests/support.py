"""Writes docs/operators.md from the registries: which operators of ONNX files are served, in which types, with which gradient and tile plan, how many
of ONNX's node tests pass, and why the others do not.

    python tests/support.py             # after operators, forms or the table of node tests changed; a test asks for it
"""
from __future__ import annotations

import functools
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "conformance")]

import table  # noqa: E402
from onnx import NodeProto, defs  # noqa: E402

from tileflow.graph import CODES, FLOATS, OPS, Builder, Graph, Op, TensorType  # noqa: E402
from tileflow.graph.composite import declares  # noqa: E402
from tileflow.graph.sample import Sample  # noqa: E402
from tileflow.importers.onnx import importer  # noqa: E402, F401    (fills the registries)
from tileflow.importers.onnx.declared import DECLARED, ONNX_NAMES  # noqa: E402
from tileflow.importers.onnx.fold import FOLDERS  # noqa: E402
from tileflow.importers.onnx.functions import body_of  # noqa: E402
from tileflow.importers.onnx.hosted import hosted_form  # noqa: E402
from tileflow.importers.onnx.versions import FORMS  # noqa: E402
from tileflow.passes.autograd import gradients  # noqa: E402
from tileflow.system.errors import TileflowError, UnsupportedError  # noqa: E402

PAGE = ROOT / "docs" / "operators.md"
COMMAND = "python tests/support.py"
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")
PARTS = "of its parts"
HOST = "none: Python runs it"
SHORT = {"bool": "b", **{f"{kind}{n}": f"{kind[0]}{n}" for kind in ("int", "uint") for n in (2, 4, 8, 16, 32, 64)},
         **{f"float{n}": f"f{n}" for n in (16, 32, 64)}, "bfloat16": "bf16"}
HEAD = f"""# Operators

Made by `{COMMAND}` from the registries of operators, forms and hosted operators, and from the table of ONNX's node tests; a test holds it to them.

- **opsets**: the versions that ONNX has of the operator, as far as files are read.
- **types**: of the first operand: float (f), bfloat (bf), signed (i) and unsigned (u) integers and bool (b), by bits. In brackets: what ONNX's schema
  allows, of an operator that is taken apart into others.
- **gradient**: yes; why some float operand has none; `{PARTS}`: it stands for others, which have theirs.
- **tile plan**: the kind of work that the tile machine plans; `{PARTS}`: it plans those.
- **tests**: how many of ONNX's node tests of it pass. All others are listed at the end, with reasons. The operators of `com.microsoft` are compared
  with ONNX Runtime, whose they are, or with NumPy where it has them on GPUs only (`tests/test_microsoft*.py`).
"""


# ---- one operator of ours -----------------------------------------------------------------------------------------------

def gradient(kind: type[Op]) -> str:
    """Whether a gradient passes the operator's samples, in float64."""
    if kind.stops_gradient:
        return "none: it counts as a constant"
    refused, found = "", False
    for one in kind.samples():
        try:
            found |= _differentiates(kind, one)
        except UnsupportedError:
            refused = refused or kind.no_gradient or "not through every attribute"
        except (TileflowError, AssertionError, NotImplementedError):
            continue
    if kind.no_gradient:
        return f"{'but for some operands' if found else 'none'}: {kind.no_gradient}"
    return f"none: {refused}" if refused else "yes" if found else "none: no floats in or out"


def _differentiates(kind: type[Op], one: Sample) -> bool:
    """A gradient by all float operands is there; False where there is nothing to differentiate."""
    attributes = dict(one.attributes)
    if "to" in attributes and any(o is not None and o.type.is_float for o in one.operands):
        attributes["to"] = "float64"                            # a change of type is asked between floats
    graph = Graph("one")
    b = Builder(graph)
    inputs = [None if o is None else b.constant(o.array) if o.array is not None and not o.type.is_float else
              b.input(f"x{i}", o.type.with_dtype("float64") if o.type.is_float else o.type) for i, o in enumerate(one.operands)]
    y = b.emit(kind(**attributes), *inputs)[0]
    floats = [v for v in inputs if v is not None and v.type.is_float and v in graph.inputs]
    if not y.type.is_float or not floats:
        return False
    loss = y if y.shape == () else b.ReduceSum(y, keepdims=0)
    gradients(graph, loss, floats)
    return True


def types(kind: type[Op]) -> str:
    """Element types of the first operand, by what inference of some sample takes when all operands of that type are of another."""
    return shortened([dtype for dtype in CODES if any(_takes(kind, one, dtype) for one in kind.samples())])


def _takes(kind: type[Op], one: Sample, dtype: str) -> bool:
    first = next((o.type.dtype for o in one.operands if o is not None), None)
    given: list[TensorType | None] = [o if o is None else replace(o, type=o.type.with_dtype(dtype)).type if o.type.dtype == first else o.type
                                      for o in one.operands]
    if first is None:
        return False
    try:
        with np.errstate(all="ignore"):
            kind(**one.attributes).infer(*given)
    except (TileflowError, AssertionError, NotImplementedError, KeyError, TypeError, ValueError):
        return False
    return True


def shortened(names: list[str]) -> str:
    """'f32 f64 i64', whole families as one word."""
    if set(names) >= set(CODES):
        return "all"
    floats = "floats" if set(names) >= set(FLOATS) else ""
    return " ".join(filter(None, [floats, *(SHORT.get(n, n) for n in names if not (floats and n in FLOATS))])) or "-"


def plan(kind: type[Op]) -> str:
    """What the tile machine sees of the operator."""
    one = kind.samples()[0]
    op = kind(**one.attributes)
    if not declares(op, "work"):
        return PARTS
    return type(op.work(one.types, op.infer(*one.types))).__name__


# ---- operators of files -------------------------------------------------------------------------------------------------

@functools.cache
def schemas() -> dict[tuple[str, str], list[defs.OpSchema]]:
    """All versions of the operators of the domains that are served, the oldest first."""
    found: dict[tuple[str, str], list[defs.OpSchema]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain in DOMAINS:
            found[schema.domain, schema.name].append(schema)
    for key, schema in DECLARED.items():
        found.setdefault(key, [schema])
    return {key: sorted(versions, key=lambda s: s.since_version) for key, versions in sorted(found.items())}


def served(domain: str, name: str) -> tuple[str, str, str] | None:
    """Types, gradient and tile plan of an operator; None where it is none that files may have."""
    newest = schemas()[domain, name][-1]
    allowed = f"({_allowed(newest)})"
    kind = OPS.get(name) if domain == "" else None
    if kind is not None and kind.onnx:
        return types(kind), gradient(kind), plan(kind)
    node, opsets = NodeProto(op_type=name, domain=domain), {domain: newest.since_version, "": defs.onnx_opset_version()}
    if (domain, name) in FORMS or body_of(node, opsets, {}, None) is not None:
        return allowed, PARTS, PARTS
    hosted = hosted_form(name, domain)
    if domain == "" and name in FOLDERS and (hosted is None or hosted.others):
        return allowed, "none: known at import", "none"
    return (allowed, HOST, "none") if hosted is not None else None


def _allowed(schema: defs.OpSchema) -> str:
    if not schema.inputs:
        return "-"
    spelled = {f"tensor({ONNX_NAMES.get(name, name)})": name for name in CODES}
    return shortened([name for text, name in spelled.items() if text in schema.inputs[0].types])


def page() -> str:
    """The text of the page."""
    rows = table.read().values()
    total, passing = Counter(r.operator for r in rows), Counter(r.operator for r in rows if r.passes)
    lines, missing = [HEAD], []
    for domain in DOMAINS:
        lines += [f"## {domain or 'ai.onnx'}", "", "| operator | opsets | types | gradient | tile plan | tests |", "|---|---|---|---|---|---|"]
        for (of, name), versions in schemas().items():
            if of != domain:
                continue
            found = served(domain, name)
            if found is None:
                missing.append(f"{domain or 'ai.onnx'} {name}")
                continue
            counted = f"{passing[name]}/{total[name]}" if total[name] and (domain != "com.microsoft") else ""
            lines.append(f"| {name} | {' '.join(str(s.since_version) for s in versions)} | {' | '.join(found)} | {counted} |")
        lines.append("")
    lines += ["## Operators of tileflow's own", "", "Gradients, fused forms and what others are taken apart into.", "",
              "| operator | types | gradient | tile plan |", "|---|---|---|---|"]
    lines += [f"| {name} | {types(kind)} | {gradient(kind)} | {plan(kind)} |" for name, kind in sorted(OPS.items()) if not kind.onnx]
    lines += ["", "## Operators that ONNX has and tileflow does not", "", f"{', '.join(missing) or 'None'}.", "",
              "## Node tests that do not pass", "", f"{sum(r.passes for r in rows)} of {len(rows)} pass. The others:", ""]
    lines += [f"- `{row.name}` ({row.operator}): {row.outcome}" for row in rows if not row.passes]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
