"""What the pages take for granted: files and names that their code and commands read, made before they run."""
from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx_models import model_of, node, port

from tileflow.system.packaged import PACKAGED_MODELS, model_path

CHIP = 'name = "{}"\nbase = "gc200"\ntiles = 736\nbytes_per_tile = 1_277_952\n'
"""A machine of one's own, as docs/tiles.md describes one."""


def files(folder: Path) -> None:
    """Models and data sets of every page."""
    with np.load(Path(model_path(next(iter(PACKAGED_MODELS)))).with_name("digits.npz")) as digits:
        images, labels = np.tile(digits["x_train"], (3, 1, 1)) * 15, np.tile(digits["y_train"], 3)
    for name in ("model.onnx", "resnet.onnx", "resnet18.onnx"):
        perceptron(folder / name)
    for data, count in (("mnist", 10), ("mine", 5)):
        (folder / data).mkdir()
        for part in ("train", "t10k"):
            idx(folder / data / f"{part}-images-idx3-ubyte", images[: 4200 if part == "train" else 400])
            idx(folder / data / f"{part}-labels-idx1-ubyte",
                (labels[: 4200 if part == "train" else 400] % count).astype(np.uint8))
    np.savez(folder / "data.npz", x=images[:256, None] / np.float32(255), y=labels[:256])
    pictures(folder, images[:40])
    table(folder)
    for name in ("mine", "half"):
        (folder / f"{name}.toml").write_text(CHIP.format(name))


def pictures(folder: Path, images: np.ndarray) -> None:
    """Images in folders by class and in a list, where there is a package to write them, and a model for them."""
    (folder / "cnn.onnx").write_bytes(Path(model_path(next(iter(PACKAGED_MODELS)))).read_bytes())
    if importlib.util.find_spec("PIL") is None:
        return
    from PIL import Image
    lines = ["file,label"]
    for i, image in enumerate(images):
        for data in ("photos", "new_photos"):
            path = folder / data / ("cat", "dog")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.astype(np.uint8)).save(path)
        lines.append(f"photos/{('cat', 'dog')[i % 2]}/{i}.png,{('cat', 'dog')[i % 2]}")
    (folder / "files.csv").write_text("\n".join(lines) + "\n")


def table(folder: Path) -> None:
    """A table with columns of texts, where there is a package to write it, and a model for it."""
    draw = np.random.default_rng(0)
    weights = {"w": draw.normal(size=(3, 2)).astype(np.float32)}
    onnx.save(model_of([node("MatMul", ["x", "w"], ["y"])], [port("x", ["N", 3])], [port("y", ["N", 2])], weights),
              folder / "table.onnx")
    if importlib.util.find_spec("pyarrow") is None:
        return
    import pyarrow
    from pyarrow import parquet
    rows = {"colour": ["red", "green"] * 20, "price": np.linspace(0, 1, 40),
            "town": ["Oslo", "Rome", "Bonn", "Lima"] * 10, "kind": [0, 1] * 20}
    parquet.write_table(pyarrow.table(rows), folder / "sales.parquet")


def perceptron(path: Path) -> None:
    """Scores of ten classes for images [N, 1, 8, 8], by layers called fc1 and /head/Gemm."""
    draw = np.random.default_rng(0)
    weights = {f"{name}.weight": draw.normal(size=size).astype(np.float32) / 8
               for name, size in (("fc1", (32, 64)), ("head", (10, 32)))}
    nodes = [node("Flatten", ["image"], ["rows"]), node("Gemm", ["rows", "fc1.weight"], ["h"], "/fc1/Gemm", transB=1),
             node("Relu", ["h"], ["r"]), node("Gemm", ["r", "head.weight"], ["logits"], "/head/Gemm", transB=1)]
    onnx.save(model_of(nodes, [port("image", ["N", 1, 8, 8])], [port("logits", ["N", 10])], weights), path)


def idx(path: Path, array: np.ndarray) -> None:
    """A file in the format of MNIST's."""
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def features(path: Path) -> None:
    """A model to fine-tune: a stem, a convolution, an output of features beside the scores."""
    proto = onnx.load(model_path(next(iter(PACKAGED_MODELS))))
    graph = proto.graph
    called = {"conv1.weight": "stem.weight", "conv1.bias": "stem.bias", "conv2.weight": "conv1.weight",
              "conv2.bias": "conv1.bias"}
    flat = next(n for n in graph.node if n.op_type == "Flatten")
    called[flat.output[0]] = "features"
    for n in graph.node:
        n.input[:] = [called.get(name, name) for name in n.input]
        n.output[:] = [called.get(name, name) for name in n.output]
    for weight in graph.initializer:
        weight.name = called.get(weight.name, weight.name)
    graph.output.append(port("features", ["batch", int(graph.initializer[4].dims[1])]))
    onnx.save(proto, path)


def headed(path: Path) -> None:
    """A model that ends in a Softmax."""
    proto = onnx.load(path)
    proto.graph.node.append(node("Softmax", ["logits"], ["probabilities"], "/Softmax"))
    proto.graph.output[0].name = "probabilities"
    onnx.save(proto, path)


def tagger(path: Path) -> None:
    """Scores [rows, classes, length] of tokens and a mask, for any length."""
    draw = np.random.default_rng(0)
    weights = {"table": draw.normal(size=(20, 6)).astype(np.float32),
               "head": draw.normal(size=(6, 4)).astype(np.float32), "axis": np.array([2])}
    nodes = [node("Gather", ["table", "tokens"], ["rows"]), node("Unsqueeze", ["mask", "axis"], ["kept"]),
             node("Mul", ["rows", "kept"], ["seen"]),
             node("MatMul", ["seen", "head"], ["scores"]), node("Transpose", ["scores"], ["y"], perm=[0, 2, 1])]
    onnx.save(model_of(nodes, [port("tokens", ["N", "L"], "int64"), port("mask", ["N", "L"])],
                       [port("y", ["N", 4, "L"])], weights),
              path)


def graphs(path: Path) -> None:
    """Scores [nodes, classes] of nodes [nodes, 3] and edges [2, edges]: each node hears where its edges begin."""
    draw = np.random.default_rng(0)
    weights = {"w": draw.normal(size=(3, 4)).astype(np.float32), "zero": np.array(0), "one": np.array(1),
               "axis": np.array([1])}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Gather", ["edge_index", "zero"], ["begin"], axis=0),
             node("Gather", ["h", "begin"], ["sent"]),
             node("Gather", ["edge_index", "one"], ["end"], axis=0), node("Unsqueeze", ["end", "axis"], ["ends"]),
             node("Shape", ["sent"], ["size"]),
             node("Expand", ["ends", "size"], ["at"]),
             node("ScatterElements", ["h", "at", "sent"], ["y"], axis=0, reduction="add")]
    onnx.save(model_of(nodes, [port("x", ["N", 3]), port("edge_index", [2, "E"], "int64")], [port("y", ["N", 4])],
                       weights), path)


def detector(path: Path) -> None:
    """Boxes whose scores are above 0.5."""
    weights = {"half": np.array(0.5, np.float32), "axis": np.array([0])}
    nodes = [node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0),
             node("Greater", ["means", "half"], ["good"]),
             node("Flatten", ["good"], ["two"], axis=0), node("Squeeze", ["two", "axis"], ["flags"]),
             node("Compress", ["means", "flags"], ["scores"]),
             node("NonZero", ["good"], ["found"]), node("Transpose", ["found"], ["boxes"])]
    onnx.save(model_of(nodes, [port("image", [1, 8, "H", "W"])],
                       [port("boxes", ["K", 2], "int64"), port("scores", ["K"])], weights),
              path)


def packed(path: Path) -> None:
    """A layer over the rows that a mask keeps."""
    weights = {"w": np.ones((4, 2), np.float32), "axis": np.array([0])}
    nodes = [node("NonZero", ["mask"], ["found"]), node("Squeeze", ["found", "axis"], ["rows"]),
             node("Gather", ["x", "rows"], ["kept"]), node("MatMul", ["kept", "w"], ["y"])]
    onnx.save(model_of(nodes, [port("x", ["N", 4]), port("mask", ["N"])], [port("y", ["K", 2])], weights), path)


MODELS: dict[str, Any] = {"tagger.onnx": tagger, "graphs.onnx": graphs, "detector.onnx": detector,
                          "packed.onnx": packed}
"""Files that single pages name, and who makes them."""
OTHER_MODELS: dict[str, Any] = {"docs/finetuning.md": features, "docs/precision.md": headed}
"""Pages whose model.onnx is another one, and who makes it."""

NAMES = """
import numpy as np
import tileflow
from tileflow import nn, optim

draw = np.random.default_rng(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
with np.load("data.npz") as digits:
    x, y = digits["x"], digits["y"]
x_test, y_test = x[:40], y[:40]
"""
"""Before the code of every page."""

BEFORE: dict[str, dict[str, str]] = {
    "README.md": {
        "micro_batch_size=40": "x, y = np.tile(x, (2, 1, 1, 1)), np.tile(y, 2)",
        "class Net(nn.Module)": """
x, labels, x_test = draw.random((4000, 1, 28, 28), "f4"), draw.integers(0, 10, 4000), draw.random((8, 1, 28, 28), "f4")
""",
    },
    "docs/batching.md": {
        "micro_batch_size=4": "x, labels = draw.random((640, 8), 'f4'), draw.integers(0, 3, 640)",
        "no_grouping": "x, labels, own = x[:32], labels[:32], np.zeros((4, 16, 8), 'f4')",
    },
    "docs/callbacks.md": {
        "tileflow runs runs/a": """
for name in "ab":
    tileflow.train("model.onnx", data=(x, y), epochs=1, out=f"runs/{name}")
""",
    },
    "docs/data-loading.md": {
        "class Photographs": """
from pathlib import Path
for i in range(640):
    path = Path(f"photographs/{i % 10}/{i}.npy")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, draw.random((1, 8, 8), "f4"))
""",
        "def padded": "texts = [(draw.integers(1, 20, n), draw.integers(0, 4, n)) for n in draw.integers(2, 9, 40)]",
        "whole_elements": "graphs = [(draw.random((n, 3), 'f4'), draw.integers(0, n, (2, 6)), draw.integers(0, 4, n)) "
                          "for n in (4, 5, 4)]",
        "loader = tileflow.DataLoader": "net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))",
    },
    "docs/dynamic.md": {
        "detector.onnx": "image = draw.random((1, 8, 4, 4), 'f4')",
        "packed.onnx": "x, mask, targets = draw.random((6, 4), 'f4'), np.array([0, 1, 1, 0, 1, 0], 'f4'), "
                       "draw.random((3, 2), 'f4')",
    },
    "docs/explore.md": {"tileflow.explore(": "net = nn.Sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))"},
    "docs/finetuning.md": {"": "x, y, g = x, y % 5, np.ones((256, 128), 'f4')"},
    "docs/half.md": {
        "": """
class Net(nn.Module):
    def __init__(self):
        self.backbone, self.norm, self.head = nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.backbone(x)))

net, optimizer = Net(), optim.AdamW(lr=1e-3)
""",
    },
    "docs/layers.md": {
        "CrossEntropyLoss(ignore_index": """
class Two(nn.Module):
    def __init__(self):
        self.a, self.b = nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x):
        return self.a(x), self.b(x)

net = Two()
x, labels = draw.random((16, 8), "f4"), draw.integers(0, 3, 16)
anchor, other = draw.random((16, 4), "f4"), draw.random((16, 4), "f4")
""",
        "result.save_onnx": """
net = nn.Sequential(nn.Linear(8, 3))
model = tileflow.training_model(net)
model(x, labels)
result = tileflow.train(net, data=(x, labels), epochs=1)
""",
    },
    "docs/options.md": {
        "anchored_tensors": """
class Net(nn.Module):
    def __init__(self):
        self.conv1, self.head = nn.Linear(8, 4), nn.Sequential(nn.Linear(4, 3))

    def forward(self, x):
        return self.head(self.conv1(x))

net = Net()
x, labels = draw.random((4, 8), "f4"), draw.integers(0, 3, 4)
""",
    },
    "docs/poptorch.md": {
        "import torch": """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 3)

    def forward(self, x, labels):
        y = self.body(x)
        return y, torch.nn.functional.cross_entropy(y, labels)

net = Net()
dataset = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 3, (640,)))
""",
        "import lightning": """
import lightning.pytorch as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net.body

    def training_step(self, batch, index):
        x, labels = batch
        return torch.nn.functional.cross_entropy(self.net(x), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(dataset, batch_size=64)

module = Module()
""",
    },
    "docs/precision.md": {
        "net.autocast(enabled=True)": """
class MyLayer(nn.Linear): ...

class Body(nn.Module):
    def __init__(self):
        self.body, self.head = nn.Linear(8, 4), MyLayer(4, 3)

    def forward(self, x):
        return self.head(self.body(x))

net = Body()
""",
    },
    "docs/report.md": {"report.load": "tileflow.compile('model.onnx', training=True, machine='gc200', report='out')"},
    "docs/schedules.md": {
        "save_state": """
model = tileflow.training_model(net, optimizer=optim.AdamW(lr=1e-3))
model(draw.random((4, 8), "f4"), draw.integers(0, 3, 4))
""",
        "AdamW(lr=1e-3, average": "from tileflow.optim import AdamW",
    },
    "docs/tiles.md": {"tileflow.compile(net": "net = nn.Sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))"},
}
"""By page and by words of a block (none: of the page), code that runs before it."""
