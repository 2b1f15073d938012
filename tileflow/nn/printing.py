"""Printing tensors of a network while it runs."""

from __future__ import annotations

from ..system.errors import OptionError
from .tensor import Tensor


def print_tensor(
    tensor: Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> Tensor:
    """Print a tensor whenever it is computed, in the order of the micro-batches, and its gradient under the title with
    `_gradient` behind it; returns the tensor, to be used in its place (what nobody uses is not computed).

        x = nn.print_tensor(self.layer1(x), "hidden")

    The option printed_tensors does the same by names of layers, and by those of a file's tensors and nodes.

    Args:
        title: by default the layer in which it is called.
        summarise_threshold: elements from which on only `edge_items` at either end of each axis are printed.
        digits: behind the point. float_format: "auto" (a form that all share), "fixed", "scientific", or "none".

    Raises:
        OptionError: a value is of another kind.
    """
    if not isinstance(tensor, Tensor):
        raise OptionError(f"print_tensor takes a tensor that layers or functions made, not {tensor!r}.")
    given = {"summarise_threshold": summarise_threshold, "edge_items": edge_items, "digits": digits}
    for name, number in {**given, "max_line_width": max_line_width}.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise OptionError(f"{name} of print_tensor must be a whole number, not {number!r}.")
    texts = {"separator": separator, "open_bracket": open_bracket, "close_bracket": close_bracket}
    shown = title or ", ".join(tensor.trace.builder.origin.sources)
    found: Tensor = tensor.apply(
        "PrintTensor",
        title=shown,
        print_gradient=int(print_gradient),
        max_line_width=max_line_width,
        float_format=float_format,
        **given,
        **texts,
    )
    return found
