"""Reading an ONNX file that may be damaged or hostile: every refusal is one sentence that names the place and the remedy."""
from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto

from tileflow.graph.collector import without_collector
from tileflow.graph.op import plain_domain
from tileflow.memory import budget
from tileflow.system.errors import ModelError
from tileflow.system.reading import open_regular
from tileflow.system.text import one_line

from .checker import check_by_onnx
from .consistent import check_consistent
from .model import OnnxModel, port_of
from .older import converted
from .tensors import check_tensor, folders_of, named_tensors, tensors_of
from .unfold import check_unfolding

OLDEST_OPSET = 7
"""Files with an older version of ONNX's operators are converted to this one before they are read."""
PROTOBUF_LIMIT = 2**31 - 1
"""Bytes: protobuf reads no longer message; larger models keep their weights as external data."""


def load_model(path: str | os.PathLike[str]) -> OnnxModel:
    """Read and validate an ONNX file; its external data must lie in the same folder (`folders_of`).

    Raises:
        ModelError: the file is missing, empty, cut off, not ONNX, too old or too new, or inconsistent.
    """
    path = Path(path)
    if "\0" in str(path):
        raise ModelError(f"{str(path)!r} is not a path: give the path of an ONNX file.")
    return parse_model(_read(path), path)


def parse_model(content: bytes, path: Path) -> OnnxModel:
    """Validate what an ONNX file holds; `path` says where its external data is (ModelError as `load_model`)."""
    _check_size(path, len(content))
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise ModelError(f"{path} is not an ONNX model, or it is cut off: export or download it again.") from None
    return wrap_model(proto, path)


@without_collector
def wrap_model(proto: ModelProto, path: Path | None = None) -> OnnxModel:
    """Validate a ModelProto that is already in memory; `path` tells where it came from and where its external data is."""
    try:
        return _wrapped(proto, path)
    except ModelError as error:
        raise type(error)(one_line(error)) from None


def _wrapped(proto: ModelProto, path: Path | None) -> OnnxModel:
    where = str(path) if path else f"the model '{proto.graph.name}'"
    folders = folders_of(path) if path else ()
    proto = _not_too_old(proto, where)
    opset = _versions(proto, where)
    for tensor in tensors_of(proto):
        check_tensor(tensor, folders, where)
    check_consistent(proto, where)
    check_unfolding(proto, where)
    check_by_onnx(proto, where)
    initializers = {t.name: t for t in proto.graph.initializer}
    skip = initializers.keys() | {s.values.name for s in proto.graph.sparse_initializer}
    return OnnxModel(proto, path, opset, tuple(port_of(v) for v in proto.graph.input if v.name not in skip),
                     tuple(port_of(v) for v in proto.graph.output), initializers,
                     initializers | {name: t for name, t in named_tensors(proto) if name and name not in initializers})


def _check_size(path: Path, nbytes: int) -> None:
    if nbytes > PROTOBUF_LIMIT:
        raise ModelError(f"{path} has {nbytes} bytes and ONNX files end at 2 GiB: save the model with external data.")


def _read(path: Path) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{path} is a folder: give the .onnx file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is not a regular file: give an .onnx file.")
        if status.st_size == 0:
            raise ModelError(f"{path} is empty: export or download the model again.")
        _check_size(path, status.st_size)
        budget.require(2 * status.st_size, str(path), "close other programs, or use a machine with more memory")
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist: check the path of the ONNX file.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from None


def _not_too_old(proto: ModelProto, where: str) -> ModelProto:
    """The model, or where its opset is older than what is read, one of the oldest that is."""
    opset = next((o.version for o in proto.opset_import if plain_domain(o.domain) == ""), OLDEST_OPSET)
    if not 0 < opset < OLDEST_OPSET or not proto.graph.node:
        return proto
    for tensor in tensors_of(proto):
        check_tensor(tensor, (), where)
    check_consistent(proto, where)
    return converted(proto, OLDEST_OPSET, where)


def _versions(proto: ModelProto, where: str) -> dict[str, int]:
    """Opset by domain ('' is ONNX's own), after checking that they can be read at all."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{where} holds no graph: it is not an ONNX model, or it is cut off; export or download it again.")
    if not proto.graph.output:
        raise ModelError(f"{where} has no outputs, so there is nothing to compute; export it again.")
    opset = {plain_domain(o.domain): o.version for o in proto.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if "" in opset and not OLDEST_OPSET <= opset[""] <= newest:
        remedy = "convert it with onnx.version_converter" if opset[""] < OLDEST_OPSET else "install a newer onnx, or export an older opset"
        raise ModelError(f"{where} uses opset {opset['']}, and tileflow reads {OLDEST_OPSET} to {newest} with onnx {onnx.__version__}: "
                         f"{remedy}.")
    if not opset:
        raise ModelError(f"{where} names no opset: it is not an ONNX model, or it is damaged; export it again.")
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(f"{where} has IR version {proto.ir_version} and onnx {onnx.__version__} knows up to {onnx.IR_VERSION}: "
                         f"install a newer onnx.")
    return opset
