"""Operators that ONNX defines by simpler ones since some opset only: the same parts for files that were written before."""
from __future__ import annotations

from collections.abc import Sequence

from tileflow.graph import Value
from tileflow.ops.shape import normal_axes
from tileflow.system.errors import ShapeError

from .site import Site
from .versions import form

AXES_AS_OPERAND = 18
"""Since this opset ONNX gives the sums of functions a definition, whose axes are an operand."""
BLOCKS_DEFINED = 28


@form("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", below=AXES_AS_OPERAND)
def sum_of(site: Site) -> Sequence[Value]:
    """A sum of a function of the elements, or a function of such a sum. As in ONNX's definitions, exponentials are summed in float64, where those of
    float32 do not overflow before 700, and roots and logarithms of whole numbers are taken in float32 and cut."""
    x, op = site.value(0), site.op_type
    axes = normal_axes(site.attrs.get("axes") or range(x.type.rank), x.type.rank)
    wide = "float64" if op == "ReduceLogSumExp" else "float32" if not x.type.is_float and op in ("ReduceL2", "ReduceLogSum") else x.dtype
    terms = site.emit("Cast", x, to=wide) if wide == "float64" and wide != x.dtype else x
    if op == "ReduceL1":
        terms = site.emit("Abs", terms)
    elif op in ("ReduceL2", "ReduceSumSquare"):
        terms = site.emit("Mul", terms, terms)
    elif op == "ReduceLogSumExp":
        terms = site.emit("Exp", terms)
    keepdims = int(site.attrs.get("keepdims", 1))
    if op in ("ReduceL1", "ReduceSumSquare"):
        return site.finish("ReduceSum", terms, axes=axes, keepdims=keepdims)
    total = site.emit("ReduceSum", terms, axes=axes, keepdims=keepdims)
    total = total if total.dtype == wide else site.emit("Cast", total, to=wide)
    last = "Sqrt" if op == "ReduceL2" else "Log"
    return site.finish(last, total) if wide == x.dtype else site.finish("Cast", site.emit(last, total), to=x.dtype)


@form("DepthToSpace", below=BLOCKS_DEFINED)
def depth_to_space(site: Site) -> Sequence[Value]:
    """Channels become blocks of pixels: with mode DCR the blocks' places are the first part of the channel's number, with CRD the last."""
    x, block = site.value(0), _block(site)
    batch, channels, height, width = _sizes(site, x)
    if channels % (block * block):
        raise ShapeError(f"{site.title} makes blocks of {block} x {block} pixels of {channels} channels, which they do not divide")
    depth = channels // (block * block)
    mode = site.attrs.get("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise site.unsupported(f"mode={mode!r}"[:120])
    split = (batch, block, block, depth, height, width) if mode == "DCR" else (batch, depth, block, block, height, width)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    return _moved(site, x, split, order, (batch, depth, height * block, width * block))


@form("SpaceToDepth", below=BLOCKS_DEFINED)
def space_to_depth(site: Site) -> Sequence[Value]:
    """Blocks of pixels become channels, which number the pixels first."""
    x, block = site.value(0), _block(site)
    batch, channels, height, width = _sizes(site, x)
    if height % block or width % block:
        raise ShapeError(f"{site.title} takes blocks of {block} x {block} pixels out of {height} x {width}, which they do not divide")
    rows, columns = height // block, width // block
    return _moved(site, x, (batch, channels, rows, block, columns, block), (0, 3, 5, 1, 2, 4), (batch, channels * block * block, rows, columns))


def _block(site: Site) -> int:
    block = int(site.attrs["blocksize"])
    if block < 1:
        raise ShapeError(f"{site.title} has the blocksize {block}; it must be 1 or more")
    return block


def _sizes(site: Site, x: Value) -> tuple[int, ...]:
    if x.type.rank != 4:
        raise ShapeError(f"{site.title} takes [batch, channels, height, width], not {x.type}")
    return x.shape


def _moved(site: Site, x: Value, split: tuple[int, ...], order: tuple[int, ...], shape: tuple[int, ...]) -> Sequence[Value]:
    turned = site.emit("Transpose", site.emit("Reshape", x, shape=split, allowzero=1), perm=order)
    return site.finish("Reshape", turned, shape=shape, allowzero=1)
