"""Tensors of a ModelProto: where they are, what they declare, and their payload, never trusted before it is measured."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from tileflow.graph import CODES, HIGHEST_RANK, NARROW
from tileflow.graph.op import plain_domain
from tileflow.memory import budget
from tileflow.memory.types import packing
from tileflow.system.errors import ModelError, UnsupportedError
from tileflow.system.text import one_line

DTYPES: dict[int, str] = {helper.np_dtype_to_tensor_dtype(np.dtype(name)): name for name in CODES}
"""ONNX element type numbers to the engine's names, for the types the engine has."""

TYPED_FIELDS = {
    "float32": "float_data", "float64": "double_data", "int64": "int64_data", "uint64": "uint64_data", "uint32": "uint64_data",
}
"""The protobuf field that holds a tensor's elements when it has no raw data; int32_data for all others."""


LARGEST = 1 << 40
"""Bytes: a tensor that would be larger is from a damaged or hostile file, not a model."""
LARGEST_SPARSE = 1 << 30
"""Bytes of a sparse tensor, its zeros counted: a small file must not become a large array."""
LONGEST_LOCATION = 4096
SHOWN = 300
"""Characters of a foreign text that a message repeats."""


def dtype_name(number: int) -> str:
    """The name of an ONNX element type, for messages and types: 'float32', or ONNX's own word ('STRING') where the engine has none."""
    if number in DTYPES:
        return DTYPES[number]
    return TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else f"unknown element type {number}"


def is_external(tensor: TensorProto) -> bool:
    """The payload is in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


def describe(tensor: TensorProto) -> str:
    """'float32[64, 3, 7, 7]'."""
    return f"{dtype_name(tensor.data_type)}{list(tensor.dims)}"


def elements_bytes(tensor: TensorProto) -> int:
    """Bytes of a tensor's elements as it declares them; 0 for types the engine does not have."""
    return math.prod(tensor.dims) * np.dtype(DTYPES[tensor.data_type]).itemsize if tensor.data_type in DTYPES else 0


def stored_bytes(number: int, count: int) -> int:
    """Bytes of so many elements of an ONNX element type in a file, where elements of 4 and 2 bits are packed."""
    dtype = DTYPES[number]
    return -(-count * np.dtype(dtype).itemsize // packing(dtype))


def named_tensors(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Every tensor of a model. Those that can be weights come with the value's name: initializers of the graph and the tensors of its
    Constant nodes; others ('') are in other attributes, subgraphs and functions."""
    for tensor in model.graph.initializer:
        yield tensor.name, tensor
    for node in model.graph.node:
        constant = node.op_type == "Constant" and plain_domain(node.domain) == "" and len(node.output) == 1
        for attribute in node.attribute:
            for tensor in _attribute_tensors(attribute):
                yield node.output[0] if constant and attribute.name == "value" else "", tensor
    for tensor in _other_tensors(model):
        yield "", tensor


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model."""
    return (tensor for _, tensor in named_tensors(model))


def _other_tensors(model: ModelProto) -> Iterator[TensorProto]:
    for sparse in model.graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("g"):
        yield from _graph_tensors(attribute.g)
    for graph in attribute.graphs:
        yield from _graph_tensors(graph)


def excess(shape: Sequence[int], itemsize: int) -> str | None:
    """Why no tensor can have this shape, in a phrase; None where one can. Empty axes do not excuse the others: products of sizes stay small."""
    if len(shape) > HIGHEST_RANK:
        return f"it has {len(shape)} dimensions and tileflow's tensors have up to {HIGHEST_RANK}"
    nbytes = math.prod(max(n, 1) for n in shape) * itemsize
    return f"its sizes come to {nbytes:.2e} bytes; check the sizes of the inputs and the weights" if nbytes > LARGEST else None


def check_tensor(tensor: TensorProto, folders: Sequence[Path], where: str) -> None:
    """Compare what a tensor declares with the payload that is there, before any memory is taken for it.

    Raises ModelError where sizes disagree. Tensors of types the engine does not have are left for the importer to refuse if they are used.
    """
    if any(n < 0 for n in tensor.dims):
        raise ModelError(f"{where}: the tensor '{tensor.name}' declares the shape {list(tensor.dims)}, and sizes cannot be negative; "
                         f"the file is damaged, so export it again.")
    if tensor.HasField("segment"):
        raise ModelError(f"{where}: the tensor '{tensor.name}' is a segment of a larger one, which tileflow does not take; save it in one piece.")
    if tensor.data_type not in DTYPES:
        return
    dtype = np.dtype(DTYPES[tensor.data_type])
    count = math.prod(tensor.dims)
    if is_external(tensor):
        external_location(tensor, folders, where)
        held, needed, unit = count, count, "elements"
    elif tensor.HasField("raw_data"):
        held, needed, unit = len(tensor.raw_data), stored_bytes(tensor.data_type, count), "bytes"
    else:
        held, needed, unit = len(getattr(tensor, TYPED_FIELDS.get(dtype.name, "int32_data"))), count, "elements"
        if dtype.name in NARROW:
            needed, unit = stored_bytes(tensor.data_type, count), "bytes"
    if held != needed:
        raise ModelError(f"{where}: the tensor '{tensor.name}' declares {describe(tensor)}, which is {needed} {unit}, but holds {held}; "
                         f"the file is damaged or cut off, so export or download it again.")
    if (why := excess(tensor.dims, dtype.itemsize)) is not None:
        raise ModelError(f"{where}: the tensor '{tensor.name}' declares the shape {one_line(list(tensor.dims), SHOWN)}: {why}.")


def folders_of(path: Path) -> tuple[Path, ...]:
    """Where a model's other files may be: its folder, and where `path` is a link (to a cache of downloads, say) the folder of the file itself.

    Whoever made that file a model chose its folder, so what it names there is as much its own as what is beside the link.
    """
    return tuple(dict.fromkeys((path.parent, path.resolve().parent)))


def external_location(tensor: TensorProto, folders: Sequence[Path], where: str) -> tuple[Path, int, int]:
    """(file, offset, length in bytes) of an external payload, checked: in one of the model's folders, links followed, present, and long enough.

    Args:
        folders: in this order; none: the model did not come from a file.
    """
    place = f"{where}: the tensor '{tensor.name}'"
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if len(location) > LONGEST_LOCATION or "\0" in location:
        raise ModelError(f"{place} points to the external file '{one_line(location, SHOWN)}', which is no name of a file; export the model again.")
    if not folders:
        raise ModelError(f"{place} is in an external file '{location}', but the model did not come from a file; load it by its path.")
    if not location or Path(location).is_absolute() or ".." in Path(location).parts:
        raise ModelError(f"{place} points to the external file '{location}', which is outside the model's folder; "
                         f"put the data file beside the model and save it with a relative location.")
    file = next((f for f in (folder / location for folder in folders) if _is_file(f)), None)
    if file is None:
        raise ModelError(f"{place} needs the external file '{location}', which is not in '{folders[0]}'; copy it beside the model.")
    if not any(file.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise ModelError(f"{place} points to the external file '{location}', a link that leaves the model's folder; "
                         f"copy the data file beside the model.")
    needed = stored_bytes(tensor.data_type, math.prod(tensor.dims))
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(needed)))
    except ValueError:
        offset = length = -1
    size = file.stat().st_size
    if offset < 0 or length != needed or offset + length > size:
        raise ModelError(f"{place} declares {describe(tensor)}, {needed} bytes, as offset {entries.get('offset', 0)} length "
                         f"{entries.get('length', 'unset')} of '{location}', which has {size} bytes; "
                         f"the data file does not belong to this model or is cut off, so copy it again.")
    return file, offset, length


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):                            # a part of the path is too long, or links go in a circle
        return False


def tensor_array(tensor: TensorProto, folders: Sequence[Path], where: str) -> np.ndarray:
    """The tensor's elements as a read-only array. Raises UnsupportedError for element types the engine does not have."""
    if tensor.data_type not in DTYPES:
        raise UnsupportedError(f"{where}: the tensor '{tensor.name}' has the element type {dtype_name(tensor.data_type)}, "
                               f"which tileflow does not have; convert it to one of {', '.join(CODES)}.")
    check_tensor(tensor, folders, where)
    if is_external(tensor):
        file, offset, length = external_location(tensor, folders, where)
        dtype = np.dtype(DTYPES[tensor.data_type])
        if dtype.name in NARROW:
            array = _unpacked(np.fromfile(file, np.uint8, length, offset=offset), dtype, tuple(tensor.dims))
        else:
            array = np.fromfile(file, dtype.newbyteorder("<"), length // dtype.itemsize, offset=offset)
            array = array.reshape(tuple(tensor.dims)).astype(dtype, copy=False)
    elif DTYPES[tensor.data_type] in NARROW:
        held = tensor.raw_data if tensor.HasField("raw_data") else bytes(n & 0xFF for n in tensor.int32_data)
        array = _unpacked(np.frombuffer(held, np.uint8), np.dtype(DTYPES[tensor.data_type]), tuple(tensor.dims))
    else:
        array = numpy_helper.to_array(tensor)
    array.flags.writeable = False
    return array


def _unpacked(data: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The narrow elements that bytes of a file hold, one byte each: the first is in the lowest bits."""
    if (count := packing(dtype.name)) > 1:
        bits = 8 // count
        data = ((data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)).reshape(-1)[:math.prod(shape)]
    return np.ascontiguousarray(data).view(dtype).reshape(shape)


def packed(array: np.ndarray) -> bytes:
    """The bytes of an array of narrow elements in a file."""
    count, data = packing(array.dtype.name), np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if count > 1:
        bits = 8 // count
        padded = np.pad(data & np.uint8((1 << bits) - 1), (0, -data.size % count)).reshape(-1, count)
        data = np.bitwise_or.reduce(padded << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
    return data.tobytes()


def declared_dtype(name: str) -> np.dtype:
    """NumPy's type for a declared element type; texts are objects."""
    return np.dtype(object) if name == "STRING" else np.dtype(name)


def text_array(tensor: TensorProto) -> np.ndarray:
    """A tensor of texts as an array of `str`."""
    texts = [raw.decode("utf-8", "replace") for raw in tensor.string_data]
    if len(texts) != math.prod(tensor.dims):
        raise ModelError(f"the tensor '{tensor.name}' declares the shape {one_line(list(tensor.dims), SHOWN)} and holds {len(texts)} texts; "
                         f"export the model again")
    return np.array(texts, object).reshape(tuple(tensor.dims))


def sparse_array(sparse: SparseTensorProto, folders: Sequence[Path], where: str) -> np.ndarray:
    """A sparse tensor's elements with all zeros, as a read-only array: its indices are [count] into the flat tensor, or [count, rank].

    Raises ModelError where indices, values and sizes do not fit together.
    """
    name, dims = f"{where}: the sparse tensor '{sparse.values.name}'", tuple(sparse.dims)
    values, indices = tensor_array(sparse.values, folders, where), tensor_array(sparse.indices, folders, where)
    if any(n < 0 for n in dims) or excess(dims, values.itemsize) or math.prod(dims) * values.itemsize > LARGEST_SPARSE:
        raise ModelError(f"{name} declares the shape {one_line(list(dims), SHOWN)}; "
                         f"tileflow takes sparse tensors of up to {LARGEST_SPARSE >> 20} MiB")
    count = values.size
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(dims))):
        raise ModelError(f"{name} has values of shape {list(values.shape)} and indices {indices.dtype}{list(indices.shape)}, which do not fit "
                         f"together; export the model again")
    limits = np.array(dims if indices.ndim == 2 else (math.prod(dims),), np.int64)
    if ((indices.reshape(count, -1) < 0) | (indices.reshape(count, -1) >= limits)).any():
        raise ModelError(f"{name} has indices outside of its shape {list(dims)}; export the model again")
    budget.require(math.prod(dims) * values.itemsize, name, "use a smaller model, or a machine with more memory")
    dense = np.zeros(dims, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    dense.flags.writeable = False
    return dense
