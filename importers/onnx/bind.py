"""Fixing the sizes a file leaves open: symbols and the batch, from options or from the first batch of data."""
from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tileflow.graph import CODES, FLOATS, TensorType
from tileflow.system.errors import ModelError, OptionError, ShapeError, TypeMismatchError, UnsupportedError

from .model import OnnxModel, Port

ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Div: operator.floordiv,
}
"""What symbolic dimensions may compute ('past + sequence'); exporters write '/' for exact division."""


class OpenSizesError(ModelError):
    """Sizes of inputs that neither the file nor the options say; data would."""


@dataclass
class Binding:
    """Types of the inputs, the sizes of the symbols, and which inputs have another batch than the file declares."""

    types: dict[str, TensorType] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    declared_batch: int | None = None
    batch: int | None = None
    rebatched: set[str] = field(default_factory=set)

    def as_declared(self) -> Binding:
        """The same sizes, but the batch that the file declares."""
        assert self.declared_batch is not None
        types = {n: t.with_shape((self.declared_batch, *t.shape[1:])) if n in self.rebatched else t for n, t in self.types.items()}
        return Binding(types, self.symbols)


def bind_inputs(model: OnnxModel, dims: Mapping[str, int] | None = None, batch: int | None = None,
                input_types: Mapping[str, TensorType] | None = None, float_dtype: str | None = None, restated: bool = True) -> Binding:
    """Fix every dimension of every input.

    A given type (of the first batch of data) settles its input and the symbols in it. `dims` gives sizes by symbol; a dimension without a
    symbol is called `input[axis]`. What is still open in first place is `batch`; a fixed first dimension gives way to `batch` too if that is to be
    `restated`, in every input that declares the same one as the first such input. Symbols may be sums and products of others ('past + sequence').

    Raises:
        ModelError: dimensions stay open; the message lists them.
        OptionError: `dims` or `batch` is not a positive integer, or names no dimension of the model.
        ShapeError, TypeMismatchError: a given type does not fit the declaration.
    """
    for name, size in [*(dims or {}).items(), *([("batch", batch)] if batch is not None else [])]:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise OptionError(f"The size of '{name}' is {size!r} and must be a positive integer.")
    binding = Binding(symbols=dict(dims or {}), batch=batch)
    given = dict(input_types or {})
    _check_given(model, given, dims or {})
    for port in model.inputs:
        if port.name in given:
            _bind_given(model, port, given[port.name], binding)
    if binding.batch is not None:
        _bind_batch(model, given, binding, restated)
    unbound: dict[str, str] = {}
    for port in model.inputs:
        binding.types[port.name] = given[port.name] if port.name in given else _resolve(model, port, binding, unbound)
    if unbound:
        first = next(iter(unbound))
        raise OpenSizesError(f"{model.where}: the sizes of {', '.join(f'{s!r} ({p})' for s, p in unbound.items())} are open; "
                         f"give them: dims={{\"{first}\": 128}}, on the command line --dims {first}=128"
                         + (", or the batch size." if any(s.endswith("[0]") for s in unbound) or batch is None else "."))
    if float_dtype is not None:
        binding.types = {n: t.with_dtype(float_dtype) if t.is_float else t for n, t in binding.types.items()}
    return binding


def fixed_batch(model: OnnxModel) -> int | None:
    """The first size of the first input that has one, where the file leaves that of no input open."""
    sizes = [port.dims[0] for port in model.inputs if port.dims]
    known = [n for n in sizes if isinstance(n, int)]
    return known[0] if known and len(known) == len(sizes) else None


def check_inputs(model: OnnxModel, types: Mapping[str, TensorType]) -> None:
    """Compare the types of inputs with what the file declares; nothing is restated, so that a batch must be the declared one where it is fixed.

    Raises ShapeError or TypeMismatchError.
    """
    binding = Binding()
    _check_given(model, types, {})
    for port in model.inputs:
        if port.name in types and port.dtype in CODES:
            _bind_given(model, port, types[port.name], binding)
    if binding.rebatched:
        raise ShapeError(f"{model.where} declares batch {binding.declared_batch} for {', '.join(sorted(binding.rebatched))} and got {binding.batch}: "
                         f"sizes in it follow from data, so that it runs in pieces, and those take the batch that the file declares; export it with "
                         f"a symbolic batch")


def open_sizes(model: OnnxModel, samples: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Sizes of open dimensions behind the batch, by symbol, that rows of these shapes (by input) settle.

    A row may have its channels last where the file declares them first, and sizes of 1 more or less; what then does not fit settles nothing.
    """
    batches = {_symbol(port, 0, port.dims[0]) for port in model.inputs if port.dims}
    sizes: dict[str, int] = {}
    for port in model.inputs:
        if port.name not in samples or not port.dims:
            continue
        named = [(dim, _symbol(port, axis, dim)) for axis, dim in enumerate(port.dims)][1:]
        for sample in _arrangements(samples[port.name], len(named)):
            dims = named if len(named) == len(sample) else [(dim, symbol) for dim, symbol in named if dim != 1]
            if len(dims) == len(sample) and all(symbol is not None or dim == size for (dim, symbol), size in zip(dims, sample, strict=True)):
                for (_, symbol), size in zip(dims, sample, strict=True):
                    if symbol is not None and symbol not in batches and size > 0:
                        sizes.setdefault(symbol, size)
                break
    return sizes


def _arrangements(sample: tuple[int, ...], rank: int) -> list[tuple[int, ...]]:
    """A row's shape as it is; with its channels moved to the front; without sizes of 1 where the rank is another."""
    if len(sample) != rank:
        return [tuple(n for n in sample if n != 1)]
    return [sample, (sample[-1], *sample[:-1])] if rank == 3 else [sample]


def _check_given(model: OnnxModel, given: Mapping[str, TensorType], dims: Mapping[str, int]) -> None:
    ports = {p.name for p in model.inputs}
    for name in given:
        if name not in ports:
            raise OptionError(f"{model.where} has no input '{name}': its inputs are {', '.join(map(str, model.inputs))}.")
    symbols = {s for p in model.inputs for i, d in enumerate(p.dims or ()) for s in _words(_symbol(p, i, d))}
    for name in dims:
        if name not in symbols:
            raise OptionError(f"dims names '{name}', which is no open dimension of {model.where}: "
                              f"{'it has ' + ', '.join(sorted(symbols)) if symbols else 'all its sizes are fixed'}.")


def _symbol(port: Port, axis: int, dim: int | str | None) -> str | None:
    """The symbol of a dimension, or None where its size is fixed."""
    return dim if isinstance(dim, str) else f"{port.name}[{axis}]" if dim is None else None


def _words(symbol: str | None) -> set[str]:
    """A symbol and the names in it, if it is an expression."""
    if symbol is None:
        return set()
    try:
        return {symbol} | {n.id for n in ast.walk(ast.parse(symbol, mode="eval")) if isinstance(n, ast.Name)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {symbol}


def _bind_given(model: OnnxModel, port: Port, type: TensorType, binding: Binding) -> None:
    """Check a given type against the declaration and learn the symbols from it."""
    _check_dtype(model, port)
    both_float = type.dtype in FLOATS and port.dtype in FLOATS
    if type.dtype != port.dtype and not both_float:
        raise TypeMismatchError(f"{model.where}: the input '{port.name}' is {port.dtype}, but the data is {type.dtype}; "
                                f"convert the data to {port.dtype}.")
    if port.dims is None:
        return
    if len(port.dims) != type.rank:
        raise ShapeError(f"{model.where}: the input '{port}' has {len(port.dims)} dimensions, but the data has shape {list(type.shape)}; "
                         f"give data with {len(port.dims)} dimensions.")
    for axis, (dim, size) in enumerate(zip(port.dims, type.shape, strict=True)):
        symbol = _symbol(port, axis, dim)
        if symbol is not None:
            if binding.symbols.setdefault(symbol, size) != size:
                raise ShapeError(f"{model.where}: the dimension '{symbol}' is {binding.symbols[symbol]}, but the data for '{port.name}' "
                                 f"has shape {list(type.shape)}, so it would be {size}; give data of one size.")
        elif dim != size:
            if axis > 0 or binding.declared_batch not in (None, dim) or binding.batch not in (None, size):
                raise ShapeError(f"{model.where}: the input '{port}' cannot take data of shape {list(type.shape)}; "
                                 f"only the first dimension, the batch, may differ from the declared one, in all inputs alike.")
            assert isinstance(dim, int)
            binding.declared_batch, binding.batch = dim, size
            binding.rebatched.add(port.name)


def _bind_batch(model: OnnxModel, given: Mapping[str, TensorType], binding: Binding, restated: bool) -> None:
    """Let the batch take the open first dimensions, and where it is restated the fixed ones that are alike."""
    assert binding.batch is not None
    for port in model.inputs:
        if port.name in given or not port.dims:
            continue
        dim = port.dims[0]
        symbol = _symbol(port, 0, dim)
        if symbol is not None:
            if dim is None or (_words(symbol) == {symbol} and evaluate(symbol, {}) is None):        # a name, whatever it holds
                binding.symbols.setdefault(symbol, binding.batch)
            continue
        assert isinstance(dim, int)
        if not restated:
            continue
        if binding.declared_batch is None:
            binding.declared_batch = dim
        if dim == binding.declared_batch and dim != binding.batch:
            binding.rebatched.add(port.name)


def _check_dtype(model: OnnxModel, port: Port) -> None:
    if port.dtype not in CODES:
        raise UnsupportedError(f"{model.where}: the input '{port}' has a type that tileflow does not have; "
                               f"it takes tensors of {', '.join(CODES)}.")


def _resolve(model: OnnxModel, port: Port, binding: Binding, unbound: dict[str, str]) -> TensorType:
    _check_dtype(model, port)
    if port.dims is None:
        raise ModelError(f"{model.where}: the input '{port.name}' declares no shape; give its type, for example by a first batch of data.")
    shape = []
    for axis, dim in enumerate(port.dims):
        symbol = _symbol(port, axis, dim)
        if symbol is None:
            assert isinstance(dim, int)
            shape.append(binding.batch if axis == 0 and port.name in binding.rebatched and binding.batch is not None else dim)
            continue
        size = binding.symbols.get(symbol)
        if size is None:
            size = evaluate(symbol, binding.symbols)
        if size is None:
            unbound[symbol] = str(port)
        elif size < 0:
            raise ShapeError(f"{model.where}: the dimension '{symbol}' of the input '{port.name}' comes to {size}; choose larger sizes.")
        shape.append(size or 0)
    return TensorType(port.dtype, tuple(shape))


def evaluate(expression: str, symbols: Mapping[str, int]) -> int | None:
    """The value of a sum, difference, product or quotient of symbols and integers; None where it is no such thing or has open symbols."""
    def visit(node: ast.expr) -> int | None:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return symbols.get(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                a, b = visit(left), visit(right)
                if a is None or b is None or (b == 0 and isinstance(op, ast.FloorDiv | ast.Div)):
                    return None
                return ARITHMETIC[type(op)](a, b)
        return None
    try:
        return visit(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
