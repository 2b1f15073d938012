"""Which module of the exported network a node comes from, as far as the file says: PyTorch's metadata, or names such as '/layer.0/MatMul'."""
from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from onnx import NodeProto

from tileflow.graph import FLOATS, MOVED

from ..model import OnnxModel
from ..tensors import DTYPES
from .uses import declared_role

SCOPES, NAMESPACE = "pkg.torch.onnx.name_scopes", "namespace"
"""Keys of the metadata that PyTorch's exporter gives nodes."""
QUOTED = re.compile(r"'([^']*)'")
CALL = re.compile(r"(.+)_\d+")
"""TorchScript names the second call of a module 'module_1'."""
MADE_UP = re.compile(r"onnx::.*|_?val_\d+|_?\d+|/.*|.*::.*|(c_)?_?(lifted_)?tensor(_constant)?_?\d*|scalar_tensor.*|_to_copy.*|"
                     r"_inlfunc_.*|ortshared_.*")
"""Names that an exporter, or ONNX Runtime's optimiser, numbered: of transposed weights, of constants, of results it computed."""

DEEPEST = 64
"""Modules within each other that are looked at."""

Path = tuple[str, ...]


def metadata(node: NodeProto, key: str) -> str | None:
    """What a node's metadata say under `key`."""
    return next((str(entry.value) for entry in node.metadata_props if entry.key == key), None)


def is_made_up(name: str) -> bool:
    """The exporter numbered this tensor; no module calls it so."""
    return MADE_UP.fullmatch(str(name)) is not None


def parent(name: str) -> str:
    """'encoder.fc.bias' -> 'encoder.fc'."""
    return str(name).rpartition(".")[0]


def last_word(name: str) -> str:
    """'encoder.fc.bias' -> 'bias'."""
    return str(name).rpartition(".")[2]


def flattened(name: str) -> str:
    """A parameter's name as torch.export writes it: 'encoder.LayerNorm.bias' -> 'encoder_layernorm_bias'."""
    return re.sub(r"\W", "_", str(name)).lower()


class Scopes:
    """The modules of one file's nodes."""

    def __init__(self, model: OnnxModel) -> None:
        nodes = model.proto.graph.node
        stored = (n for n, t in model.initializers.items() if DTYPES.get(t.data_type) in FLOATS)
        aliases = (n.output[0] for n in nodes if n.op_type == "Identity" and n.output)
        self.named = {module for name in (*stored, *aliases) if not is_made_up(name) for module in _modules_in(name)}
        """Modules that have parameters in the file by name, in them or below."""
        self._paths = self._canonical({path for node in nodes if (path := _path(node)) is not None})
        self._behind: dict[str, str] = {}
        self._merged: set[str] = set()
        self._ask_readers(model)

    def module(self, node: NodeProto) -> str | None:
        """'encoder.layer.0.attention'; '' is the network itself, None where the file does not say.

        A node that only moves elements, and has lost its scope to an optimizer, belongs to its readers.
        """
        own = self._own(node)
        return own if own is not None or not node.output else self._behind.get(node.output[0])

    def is_merged(self, node: NodeProto) -> bool:
        """Several modules read what this node moves: an optimizer made one node of equal ones."""
        return bool(node.output) and node.output[0] in self._merged

    def _ask_readers(self, model: OnnxModel) -> None:
        """Find the modules of nodes without a scope by their outputs' first readers."""
        readers: dict[str, dict[str, None]] = {}
        for node in reversed(model.proto.graph.node):
            module = self._own(node)
            if module is None and node.input and declared_role(node, 0, model.opset) == MOVED:
                found = list(dict.fromkeys(m for output in node.output for m in readers.get(output, ())))
                if found:
                    module = self._behind[node.output[0]] = found[-1]
                if len(found) > 1:
                    self._merged.add(node.output[0])
            if module is not None:
                for name in node.input:
                    readers.setdefault(name, {})[module] = None

    def _own(self, node: NodeProto) -> str | None:
        scopes = metadata(node, SCOPES)
        if scopes is not None:
            found = QUOTED.findall(scopes)
            return found[-2] if len(found) > 1 else ""
        namespace = metadata(node, NAMESPACE)
        if namespace is not None:
            levels = [level.partition(":")[0].strip() for level in namespace.split("/")]
            return levels[-2] if len(levels) > 1 else ""
        path = _path(node)
        return None if path is None else _dotted(self._paths.get(path, path))

    def _canonical(self, paths: Iterable[Path]) -> dict[Path, Path]:
        """Each path with the numbers of calls taken off."""
        every = {path[:n] for path in paths for n in range(len(path) + 1)}
        result: dict[Path, Path] = {(): ()}
        by_depth: dict[int, list[Path]] = {}
        for path in every:
            by_depth.setdefault(len(path), []).append(path)
        for depth in range(1, len(by_depth)):
            siblings: dict[Path, set[str]] = {}
            for path in by_depth[depth]:
                siblings.setdefault(result[path[:-1]], set()).add(path[-1])
            for path in by_depth[depth]:
                above = result[path[:-1]]
                result[path] = (*above, self._called(above, path[-1], siblings[above]))
        return result

    def _called(self, above: Path, name: str, siblings: set[str]) -> str:
        """The module's own name: 'fc' for 'fc_1' where there is an 'fc' beside it, and no module called 'fc_1' has parameters."""
        match = CALL.fullmatch(name)
        if match is None or match[1] not in siblings or _dotted((*above, name)) in self.named:
            return name
        return match[1]


def _path(node: NodeProto) -> Path | None:
    """The scopes in a node's name; None where it has none."""
    name = str(node.name)                                          # protobuf gives bytes where the text is damaged
    if not 0 < name.count("/") <= DEEPEST:
        return None
    return tuple(filter(None, name.split("/")[:-1]))


def _modules_in(name: str) -> Iterable[str]:
    """The modules in a parameter's name: 'a' and 'a.b' of 'a.b.weight', and 'a.b' of TensorFlow's 'a/b/kernel'."""
    name = str(name)
    if "/" in name:
        path = tuple(filter(None, name.split("/")[:DEEPEST]))
        yield from (_dotted(path[:n]) for n in range(1, len(path)))
    dots = [i for i, c in enumerate(name) if c == "."][:DEEPEST]
    yield from (name[:i] for i in dots)


@functools.lru_cache(1 << 14)
def _dotted(path: Path) -> str:
    """('classifier', 'classifier.1') -> 'classifier.1': a container's child repeats the container's name."""
    parts: list[str] = []
    for name in path:
        if parts and name.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(name)
    return ".".join(parts)
