"""`check_operator` over operators of ours, of which nothing is wrong, and over ten broken ones, each of which is
found."""

from __future__ import annotations

from typing import Any

import pytest
from declared import F, compiled_leaky_relu, cube, leaky_relu, python_leaky_relu, taken_back  # noqa: F401
from numpy.lib.stride_tricks import as_strided
from paths import exhaustive, rare

import tileflow
from tileflow import custom
from tileflow.system.errors import OptionError
from tileflow.testing import OperatorFault, check_operator


@pytest.mark.parametrize(
    "name",
    [
        "Gemm",
        "Gather",
        rare("Relu"),
        rare("Softmax"),
        rare("Conv"),
        rare("LayerNormalization"),
        rare("ReduceMean"),
        rare("MaxPool"),
        rare("Concat"),
        rare("Where"),
        rare("Mul"),
        rare("Div"),
        rare("PrintTensor"),
        rare("Erf"),
    ],
)
def test_nothing_is_wrong_with_ours(name: str):
    found = check_operator(name)
    assert found.samples
    assert found.gradients


@pytest.mark.parametrize(
    "declare", [leaky_relu, rare(cube), rare(lambda: cube("composition")), rare(python_leaky_relu)]
)
def test_nothing_is_wrong_with_the_references_examples(declare: Any):
    """On odd shapes that are chosen by themselves."""
    found = check_operator(declare()())
    assert len(found.samples) == 10
    assert found.gradients == 8 * (2 if "Cube" in found.operator else 1)
    assert str(found).endswith("nothing is wrong")


@exhaustive
def test_nothing_is_wrong_with_a_compiled_one():
    assert (
        check_operator(compiled_leaky_relu()(alpha=0.1), ((3, 5),), ((17, 1),), (("float64", (2, 3)),)).gradients == 3
    )


def same(self, x):  # type: ignore[no-untyped-def]
    return x


def made(forward: Any, gradient: Any = None, **more: Any) -> Any:
    """An operator with the type of its input, or what `more` says."""
    body = {"forward": forward} | ({} if gradient is None else {"gradient": gradient}) | more
    if forward.kind in ("compiled", "python"):
        body.setdefault("infer", same)
    return tileflow.operator("com.acme", "Broken")(type("Broken", (), body))()


def beyond(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0] + 1):
        y[i] = x[i]


def unwritten(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0] - 1):
        y[i] = x[i]


def into_input(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        y[i] = x[i]
        x[i] = 0


def running_sum(x, y):  # type: ignore[no-untyped-def]
    total = x[0] * 0
    for i in range(x.shape[0]):
        total += x[i]
        y[i] = total


def even_only(x, y):  # type: ignore[no-untyped-def]
    if x.shape[0] % 2:
        raise ValueError("odd")
    y[:] = x


def by_pointer(x, y):  # type: ignore[no-untyped-def]
    whole = as_strided(y, (y.shape[0] + 2,), y.strides)
    y[:] = x
    whole[y.shape[0] + 1] = 7


def read_by_pointer(x, y):  # type: ignore[no-untyped-def]
    whole = as_strided(x, (x.shape[0] + 2,), x.strides)
    y[:] = x
    if whole[x.shape[0] + 1] == 12345:
        y[0] += 1


def twice(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]


def halved(x, y, g, dx):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        dx[i] = g[i] / 2


BROKEN = {
    "an expression's gradient": (
        lambda: made(custom.expression(lambda self, x: x * x), custom.expression(lambda self, x, y, g: x * g)),
        "the gradient of input 0 is .* where differences",
    ),
    "a compiled gradient": (
        lambda: made(custom.compiled(twice), custom.compiled(halved)),
        "the gradient of input 0 is",
    ),
    "an index out of range": (
        lambda: made(custom.compiled(beyond)),
        "with every index checked: its compiled code raised",
    ),
    "an element left unwritten": (
        lambda: made(custom.compiled(unwritten)),
        "output 0 of the kernel is|depends on what was in the memory",
    ),
    "an input written": (lambda: made(custom.compiled(into_input)), "changed an input"),
    "rows that need each other": (
        lambda: made(custom.compiled(rows=("x", "y"))(running_sum)),
        "depends on where 2 threads cut",
    ),
    "odd sizes that raise": (
        lambda: made(custom.compiled(even_only)),
        "its compiled code raised an exception|ValueError: odd",
    ),
    "memory beside the arrays": (
        lambda: made(custom.compiled(by_pointer), reference=same),
        "wrote outside of its memory",
    ),
    "memory read beside the arrays": (
        lambda: made(custom.compiled(read_by_pointer), reference=same),
        "reads or writes beside its arrays",
    ),
    "types that are not given": (lambda: made(custom.python(lambda self, x: x[:-1])), "ShapeError: .*is wanted"),
    "what depends on the run": (
        lambda: made(custom.python(lambda self, x, n=[0]: (n.append(0), x + len(n))[1])),
        "of the kernel is .* where the reference|twice the same",
    ),
    "a kernel that is not its reference": (
        lambda: made(custom.expression(lambda self, x: F.exp(x)), reference=same),
        "where the reference has",
    ),
    "a gradient of another shape": (
        lambda: made(
            custom.composition(lambda self, b, x: b.Relu(x)),
            custom.composition(lambda self, b, x, y, g: b.ReduceSum(g, axes=(0,), keepdims=0)),
        ),
        "AssertionError: .*gradient",
    ),
}


SLOW = ("odd sizes that raise", "memory read beside the arrays", "memory beside the arrays", "a compiled gradient")


@pytest.mark.parametrize("fault", [rare(fault) if fault in SLOW else fault for fault in BROKEN])
def test_what_is_broken_is_found(fault: str):
    """Each by what it does; the sentence says where."""
    declare, says = BROKEN[fault]
    with pytest.raises(OperatorFault, match=says) as raised:
        check_operator(declare(), ((7,),))
    assert "float" in str(raised.value)


def test_what_it_is_given():
    with pytest.raises(OptionError, match="takes an operator"):
        check_operator("NoSuch")
    with pytest.raises(OptionError, match="none of the shapes tried"):
        check_operator(made(custom.python(lambda self, x: x), infer=lambda self, x: 1 / 0))
    with pytest.raises(OperatorFault, match="refuses the sample"):
        check_operator("Gemm", ((3, 4), (5, 6)))
