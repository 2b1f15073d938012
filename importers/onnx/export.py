"""Writing trained weights back: the original ModelProto with new initializer payloads, in the form for inference, else unchanged."""
from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from google.protobuf.message import EncodeError
from onnx import ModelProto, StringStringEntryProto, TensorProto

from tileflow.graph import NARROW
from tileflow.system.errors import ModelError, TileflowError
from tileflow.system.files import MODEL, refuse_folder, require_place, sync, sync_folder, temporary_prefix, unwritable

from .checker import check_by_onnx
from .inference_form import to_inference
from .load import PROTOBUF_LIMIT, wrap_model
from .model import OnnxModel
from .parameters.written import tell_apart, with_views
from .tensors import DTYPES, TYPED_FIELDS, describe, external_location, is_external, named_tensors, packed, stored_bytes, tensors_of

ALIGNMENT = 4096
"""Bytes: external payloads start at page boundaries, so that readers can map them."""
INLINE = 1024
"""Bytes: smaller tensors stay in the model file when weights move out."""
MARGIN = 1 << 24
"""Bytes left for everything but weights when it is decided whether they must move out."""
COPIED = 1 << 24
"""Bytes copied at a time."""
TYPED = {*TYPED_FIELDS.values(), "int32_data", "string_data"}


def export_model(model: OnnxModel, weights: Mapping[str, np.ndarray], path: str | os.PathLike[str], *, keep_training_mode: bool = False,
                 metadata: Mapping[str, str | None] | None = None, check: Callable[[Path], None] | None = None) -> None:
    """Write `model` with `weights` (by the names of initializers or Constant nodes' outputs) to `path`.

    A batch normalisation or dropout that the file has in training mode is written as it is for inference, unless `keep_training_mode`.
    `metadata` takes the place of the file's entries with the same keys; None takes one out. Parameters that were told apart become initializers of
    their own (`parameters/written.py`). Everything else stays as it was: names, element types, opset,
    the order of things. Weights that were external data,
    or that make the file longer than 2 GiB, go into `<file name>.data` beside it. onnx.checker, and then `check`, see the new file
    before it takes the place of an older one; `check` raises where it is not to.

    Raises:
        ModelError: a weight is not an initializer of the model or has another shape, or the result is not valid.
        CheckpointError: the file cannot be written; nothing is left behind.
    """
    _check_weights(model, weights)
    proto = _trained(model, keep_training_mode, metadata)
    write_model(proto, with_views(model, weights), Path(path), model, check)


def rehearse_export(model: OnnxModel, path: Path, *, keep_training_mode: bool = False, metadata: Mapping[str, str | None] | None = None) -> OnnxModel:
    """What `export_model` would write to `path`, with the weights that the model has, read again without being written.

    Raises:
        ModelError: what it would write is not valid.
        CheckpointError: it could not be written there.
    """
    require_place(path, 0)                                     # before anything is copied
    proto = _trained(model, keep_training_mode, metadata)
    require_place(path, raw_bytes(proto))
    return wrap_model(proto, model.path)


def _trained(model: OnnxModel, keep_training_mode: bool, metadata: Mapping[str, str | None] | None) -> ModelProto:
    """A copy of the model's file in the form that is written, with the weights that it has."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    tell_apart(proto, model)
    if not keep_training_mode:
        to_inference(proto)
    set_metadata(proto, metadata or {})
    return proto


def open_form(model: OnnxModel, weights: Mapping[str, np.ndarray], *, keep_training_mode: bool = False,
              metadata: Mapping[str, str | None] | None = None) -> tuple[list[bytes], list[str]] | None:
    """The bytes that `export_model` writes, but for the elements of the weights: what stands before each of them, and
    after the last; and their names in the order of the file. None where weights are written otherwise than as they are
    in memory, or lie in another file."""
    proto = _trained(model, keep_training_mode, metadata)
    named = [(name, tensor) for name, tensor in named_tensors(proto) if name in weights and weights[name].size]
    if (with_views(model, weights).keys() != weights.keys() or len(named) != sum(a.size > 0 for a in weights.values())
            or any(is_external(t) for t in tensors_of(proto)) or raw_bytes(proto) > PROTOBUF_LIMIT - MARGIN
            or any(DTYPES.get(t.data_type) != weights[name].dtype.name or weights[name].dtype.name in NARROW
                   for name, t in named)):
        return None

    def marked(seed: int) -> tuple[list[bytes], bytes]:
        """The file with noise in the place of each weight."""
        draw = np.random.default_rng(seed)
        marks = [draw.bytes(weights[name].nbytes) for name, _ in named]
        for (_, tensor), mark in zip(named, marks, strict=True):
            _set_payload(tensor, mark)
        return marks, proto.SerializeToString()
    marks, whole = marked(0)
    fields = [TensorProto(raw_data=mark).SerializeToString() for mark in marks]  # a tag, a length, the elements
    if any(whole.count(field) != 1 for field in fields):
        return None
    places = sorted((whole.find(field) + len(field) - len(mark), len(mark), i)
                    for i, (field, mark) in enumerate(zip(fields, marks, strict=True)))
    ends = [0, *(at + length for at, length, _ in places)]
    parts = [whole[end:at] for end, at in zip(ends, [*(at for at, *_ in places), len(whole)], strict=True)]
    others, again = marked(1)
    filled = [piece for part, (*_, i) in zip(parts, places, strict=False) for piece in (part, others[i])]
    return (parts, [named[i][0] for *_, i in places]) if b"".join([*filled, parts[-1]]) == again else None


def write_model(proto: ModelProto, weights: Mapping[str, np.ndarray], path: Path, model: OnnxModel | None = None,
                check: Callable[[Path], None] | None = None) -> None:
    """Write `proto` with `weights` as the elements of its tensors to `path`, all or nothing; see `export_model`.

    Args:
        model: where tensors that are in other files are.
    """
    path = Path(os.path.realpath(path))
    external = any(is_external(t) for t in tensors_of(proto)) or raw_bytes(proto) > PROTOBUF_LIMIT - MARGIN
    try:
        refuse_folder(path)
        with tempfile.TemporaryDirectory(prefix=temporary_prefix(path), suffix=".tmp", dir=path.parent) as folder:
            new = Path(folder, path.name)
            data = new.with_name(new.name + ".data")
            if external:
                with data.open("wb") as file:
                    _fill_external(model, proto, weights, file, data.name)
                    sync(file)
            else:
                _fill(proto, weights)
            with new.open("wb") as file:
                file.write(proto.SerializeToString())
                sync(file)
            check_by_onnx(proto, f"the model for {path}")
            if check is not None:
                check(new)
            if external:
                os.replace(data, path.with_name(data.name))
            os.replace(new, path)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(MODEL, path, error) from None
    except (EncodeError, ValueError) as error:
        if isinstance(error, TileflowError):
            raise
        raise ModelError(f"The model for {path} is longer than the 2 GiB a protobuf can hold: "
                         f"save the original with external data first.") from None


def _check_weights(model: OnnxModel, weights: Mapping[str, np.ndarray]) -> None:
    for name, array in weights.items():
        if name not in model.tensors:
            raise ModelError(f"{model.where} has no initializer '{name}': export the weights that were imported from it.")
        if model.shape(name) != np.shape(array):
            raise ModelError(f"{model.where}: the initializer '{name}' is {describe(model.tensors[name])}, but the weight has shape "
                             f"{list(np.shape(array))}; export the weights of the same model.")


def set_metadata(proto: ModelProto, metadata: Mapping[str, str | None]) -> None:
    """Put entries in the place of those with the same keys; None takes one out."""
    kept = [entry for entry in proto.metadata_props if entry.key not in metadata]
    added = [StringStringEntryProto(key=key, value=value) for key, value in metadata.items() if value is not None]
    del proto.metadata_props[:]
    proto.metadata_props.extend([*kept, *added])


def raw_bytes(proto: ModelProto) -> int:
    """Bytes of the tensors if all are stored raw."""
    return sum(stored_bytes(t.data_type, math.prod(t.dims)) for t in tensors_of(proto) if t.data_type in DTYPES)


def _payload(tensor: TensorProto, array: np.ndarray) -> bytes:
    """Elements in the declared type, little endian as the format wants them."""
    dtype = np.dtype(DTYPES[tensor.data_type])
    return packed(array) if dtype.name in NARROW else np.ascontiguousarray(array, dtype.newbyteorder("<")).tobytes()


def _fill(proto: ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    """Set the new payloads within the file."""
    for name, tensor in named_tensors(proto):
        if name in weights:
            _set_payload(tensor, _payload(tensor, weights[name]))


def _set_payload(tensor: TensorProto, payload: bytes) -> None:
    for name in TYPED:
        tensor.ClearField(name)                                          # type: ignore[arg-type]
    tensor.raw_data = payload


def _fill_external(model: OnnxModel | None, proto: ModelProto, weights: Mapping[str, np.ndarray], file: BinaryIO, location: str) -> None:
    """Move the large tensors of `proto` and all that were external into `file`, in the model's order."""
    for name, tensor in named_tensors(proto):
        new = weights.get(name)
        if tensor.data_type not in DTYPES and not is_external(tensor):
            continue
        if new is not None:
            _append(tensor, _payload(tensor, new), file, location)
        elif is_external(tensor):
            assert model is not None
            source, offset, length = external_location(tensor, model.folders, model.where)
            start = _align(file)
            _copy(source, offset, length, file)
            _point(tensor, location, start, length)
        elif tensor.HasField("raw_data") and len(tensor.raw_data) >= INLINE:
            _append(tensor, tensor.raw_data, file, location)


def _append(tensor: TensorProto, payload: bytes, file: BinaryIO, location: str) -> None:
    if len(payload) < INLINE and not is_external(tensor):
        _set_payload(tensor, payload)
        return
    start = _align(file)
    file.write(payload)
    _point(tensor, location, start, len(payload))


def _align(file: BinaryIO) -> int:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))
    return file.tell()


def _copy(source: Path, offset: int, length: int, file: BinaryIO) -> None:
    with source.open("rb") as old:
        old.seek(offset)
        while length > 0:
            block = old.read(min(length, COPIED))
            if not block:
                raise ModelError(f"{source} became shorter while it was read; leave the original model alone during the export.")
            file.write(block)
            length -= len(block)


def _point(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    for name in (*TYPED, "raw_data"):
        tensor.ClearField(name)                                          # type: ignore[arg-type]
    del tensor.external_data[:]
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    tensor.external_data.extend(StringStringEntryProto(key=k, value=v) for k, v in entries.items())
    tensor.data_location = TensorProto.EXTERNAL


def whole_bytes(model: OnnxModel) -> bytes:
    """The file of a model in one piece: as it is, with its external data inside.

    Raises:
        ModelError: it has more than the 2 GiB that a message may have, or its external data cannot be read.
    """
    proto = model.proto
    if any(is_external(t) for t in tensors_of(proto)):
        proto = ModelProto()
        proto.CopyFrom(model.proto)
        for tensor in tensors_of(proto):
            if is_external(tensor):
                path, offset, length = external_location(tensor, model.folders, model.where)
                try:
                    with path.open("rb") as file:
                        file.seek(offset)
                        tensor.raw_data = file.read(length)
                except OSError as error:
                    raise ModelError(f"{model.where}: its external data {path} cannot be read "
                                     f"({error.strerror or error}).") from None
                tensor.ClearField("external_data")
                tensor.data_location = TensorProto.DEFAULT
    try:
        return proto.SerializeToString()
    except (EncodeError, ValueError):
        raise ModelError(f"{model.where} with its external data is longer than the 2 GiB that an ONNX message may "
                         f"have: write the executable with export_model=False.") from None
