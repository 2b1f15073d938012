"""Helpers of the operator tests: run a graph by its references, run one operator's kernel calls, check gradients.

    y, = run_kernel(Relu(), x)                   # the operator's Calls on NumPy arrays, one worker
    check_kernel(Relu(), x, rtol=1e-6)           # kernel against reference; the same bits however the range is cut
    check_gradient(Relu(), x64)                  # vjp against finite differences, float64
    evaluate(graph, {"x": x})["y"]               # a whole graph by its references; run=run_kernel: by its kernels
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import tileflow.ops  # noqa: F401  (fills the registry)
from tileflow.graph import Builder, Graph, Op, Value, type_of, verify
from tileflow.testing.calls import KernelFailed as KernelFailed
from tileflow.testing.calls import call_leaf as call_leaf
from tileflow.testing.calls import run_kernel

Array = np.ndarray


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def root_mean_square_error(found: Array, exact: Array) -> float:
    """Of the difference, over the root mean square of the value."""
    return float(np.sqrt(np.mean((found.astype(np.float64) - exact) ** 2) / np.mean(exact.astype(np.float64) ** 2)))


def run_reference(op: Op, *arrays: Array | None, seed: int = 0, micro: int = 0) -> tuple[Array, ...]:
    """The operator's NumPy twin; random operators also get `seed` and `micro`."""
    streams = {"seed": seed, "micro": micro} if "seed" in inspect.signature(op.reference).parameters else {}
    return op.reference(*arrays, **streams)


def evaluate(graph: Graph, feeds: Mapping[str, Array], run: Callable[..., tuple[Array, ...]] = run_reference) -> dict[str, Array]:
    """All values of `graph` by name, given those of its inputs and states.

    `run(op, *arrays)` computes one node: `run_reference`, or `run_kernel` for the compiled kernels.
    """
    verify(graph)
    values: dict[Value, Array] = dict(graph.constants)
    for value in [*graph.inputs, *(s.input for s in graph.states)]:
        if value.name in feeds:
            values[value] = feeds[value.name]
            assert type_of(values[value]) == value.type, f"{value!r} was fed {type_of(values[value])}"
    for node in graph.nodes:
        arrays = run(node.op, *[None if v is None else values[v] for v in node.inputs])
        for value, array in zip(node.outputs, arrays, strict=True):
            assert type_of(array) == value.type, f"{node!r} computed {type_of(array)}"
            values[value] = array
    return {value.name: array for value, array in values.items()}


def check_kernel(op: Op, *arrays: Array | None, rtol: float = 0.0, atol: float = 0.0, **streams: int) -> tuple[Array, ...]:
    """Compare the kernels' outputs with the reference's (NaN equals NaN) and require the same bits from 1, 2 and 5 workers.

    Returns the kernels' outputs.
    """
    got = run_kernel(op, *arrays, **streams)
    for workers in (2, 5):
        for a, b in zip(got, run_kernel(op, *arrays, workers=workers, **streams), strict=True):
            assert a.tobytes() == b.tobytes(), f"{op}: the result depends on where {workers} workers cut the range"
    with np.errstate(all="ignore"):
        wanted = run_reference(op, *arrays, **streams)
    for a, b in zip(got, wanted, strict=True):
        assert type_of(a) == type_of(b), f"{op}: the reference gives {type_of(b)}, the kernel {type_of(a)}"
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=str(op))
    return got


def check_gradient(op: Op, *arrays: Array | None, wrt: Sequence[int] | None = None, outputs: Sequence[int] | None = None,
                   step: float = 1e-6, rtol: float = 1e-6, atol: float = 1e-7) -> list[Array | None]:
    """Compare the graph that `op.vjp` builds with central differences of `op.reference`, in float64.

    Args:
        wrt: inputs to differentiate (default: all float inputs). The vjp must give each of them a gradient.
        outputs: outputs that have a gradient (default: all float outputs); the others get None.

    Returns the gradients of all inputs for random output gradients (seed 0), None where the vjp gives none.
    """
    present = [a is not None and a.dtype == np.float64 for a in arrays]
    wrt = [i for i, p in enumerate(present) if p] if wrt is None else wrt
    graph, grads, results = gradient_graph(op, arrays, outputs)
    values = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays) if a is not None})
    found = [None if g is None else values[g.name] for g in results]

    def loss(*inputs: Array | None) -> float:
        return sum(float(np.sum(np.asarray(y, np.longdouble) * g)) for y, g in
                   zip(run_reference(op, *inputs), grads, strict=True) if g is not None)

    for i in wrt:
        gradient = found[i]
        assert gradient is not None, f"{op}: input {i} has no gradient"
        np.testing.assert_allclose(gradient, _differences(loss, arrays, i, step), rtol=rtol, atol=atol,
                                   err_msg=f"{op}: gradient of input {i}")
    return found


def gradient_graph(op: Op, arrays: Sequence[Array | None],
                   outputs: Sequence[int] | None = None) -> tuple[Graph, list[Array | None], list[Value | None]]:
    """A graph (inputs x0, x1 …) that computes `op` and its vjp; the output gradients (random constants); the results."""
    graph = Graph(f"gradient of {op.name}")
    b = Builder(graph)
    inputs = [None if a is None else b.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]
    made = b.emit(op, *inputs)
    rng = np.random.default_rng(0)
    grads = [rng.standard_normal(v.shape).astype(v.type.numpy) if v.type.is_float and (outputs is None or i in outputs) else None
             for i, v in enumerate(made)]
    results = list(op.vjp(b, [None if g is None else b.constant(g, "gradient") for g in grads], inputs, made))
    assert len(results) == len(inputs), f"{op}: {len(results)} gradients for {len(inputs)} inputs"
    for value, g in zip(inputs, results, strict=True):
        assert g is None or (value is not None and g.type == value.type), f"{op}: gradient {g!r} of {value!r}"
    graph.outputs = list(dict.fromkeys(g for g in results if g is not None))
    return graph, grads, results


def check_gradient_kernels(op: Op, *arrays: Array | None, outputs: Sequence[int] | None = None,
                           rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Run the graph of `op` and its vjp once by the kernels and once by the references; compare the gradients."""
    graph, _, results = gradient_graph(op, arrays, outputs)
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    kernels, references = evaluate(graph, feeds, run_kernel), evaluate(graph, feeds)
    for g in results:
        if g is not None:
            np.testing.assert_allclose(kernels[g.name], references[g.name], rtol=rtol, atol=atol, err_msg=f"{op}: {g!r}")


def _differences(loss: Callable[..., float], arrays: Sequence[Array | None], i: int, step: float) -> Array:
    """Central differences of `loss` for each element of `arrays[i]`."""
    inputs = [None if a is None else a.copy() for a in arrays]
    x = inputs[i]
    assert x is not None
    result = np.empty_like(x)
    for at in np.ndindex(x.shape):
        value = x[at]
        x[at] = value + step
        above = loss(*inputs)
        x[at] = value - step
        below = loss(*inputs)
        x[at] = value
        result[at] = (above - below) / ((value + step) - (value - step))
    return result
