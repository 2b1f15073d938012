"""Golden lists: every Cast of the training programs of three models in mixed precision, as the files in golden_casts/ have them.

    python tests/oracle/golden_casts.py --write    after a change of the policy or the pass that is meant: look at the
                                                   difference before you commit it
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import places

places.add_to_path()
import tileflow  # noqa: E402
from tileflow import nn  # noqa: E402
from tileflow.graph import FLOATS, Value  # noqa: E402
from tileflow.importers.onnx import wrap_model  # noqa: E402
from tileflow.passes.casts import cast_of  # noqa: E402
from tileflow.program.program import Program  # noqa: E402

FOLDER = Path(__file__).with_name("golden_casts")


class Transformer(nn.Module):
    """Two blocks as in a character model: embedding, causal attention, feed-forward, head."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(11, 16)
        self.blocks = [{"attention": nn.MultiheadAttention(16, 2), "norm": nn.LayerNorm(16), "up": nn.Linear(16, 32), "down": nn.Linear(32, 16),
                        "norm2": nn.LayerNorm(16)} for _ in range(2)]
        self.head = nn.Linear(16, 11)

    def forward(self, ids: nn.Tensor) -> nn.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block["attention"](block["norm"](x), is_causal=True)
            x = x + block["down"](nn.GELU()(block["up"](block["norm2"](x))))
        return self.head(x).transpose(1, 2)


def _exported(name: str) -> Program:
    from exported_networks import export, network
    return tileflow.compile(wrap_model(export(name, network(name), "torchscript training")), training=True, precision="16-mixed", micro_batch_size=4,
                            gradient_accumulation=2).program


def _transformer() -> Program:
    import numpy as np
    return tileflow.compile(Transformer(), training=True, inputs=[np.zeros((4, 6), np.int64)], precision="bf16-mixed", loss="cross_entropy",
                            gradient_accumulation=2).program


CASES: dict[str, Callable[[], Program]] = {
    "digits_cnn": lambda: tileflow.compile("digits_cnn.onnx", training=True, precision="16-mixed", gradient_accumulation=2).program,
    "transformer": _transformer,
    "resnet_exported": lambda: _exported("ResNet"),
    "bert_exported": lambda: _exported("BERT"),
}
EXPORTED = ("resnet_exported", "bert_exported")


def casts(program: Program) -> str:
    """A line for each Cast between floating types: part, what is cast, from which type to which, and who reads it."""
    lines = []
    known: dict[Value, list[str]] = {}
    for part, graph in program.running:
        for node in graph.nodes:
            for v in node.operands:
                source = program.links.get(v, v)
                called = f"{node.op.name} of {node.origin}" if part in ("prologue", "micro") else f"the {part} of {node.origin}"
                if called not in known.setdefault(source, []):
                    known[source].append(called)
    for part, graph in program.running:
        made = {v: f"{n.op.name} of {n.origin}" for n in graph.nodes for v in n.outputs}
        for node in graph.nodes:
            x = cast_of(node)
            if part != "update" and x is not None and x.dtype in FLOATS:
                what = made.get(x, f"%{x.name}")
                readers = ", ".join(known.get(node.outputs[0], ["the results"]))
                lines.append(f"{part:<8} {x.dtype:>8} -> {node.outputs[0].dtype:<8}  {what}  for {readers}")
    return "\n".join(lines) + "\n"



if __name__ == "__main__":
    for case, program in CASES.items():
        text = casts(program())
        if "--write" in sys.argv[1:]:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{case}.txt").write_text(text, encoding="utf-8")
        else:
            print(f"{case}\n{text}")
