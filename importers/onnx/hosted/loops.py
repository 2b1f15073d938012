"""Loops whose turns or sizes follow from data: Loop, Scan, SequenceMap. A turn runs the body as programs of its own,
or many turns are one program."""
from __future__ import annotations

from typing import Any

import numpy as np

from tileflow.memory import budget
from tileflow.system.errors import ModelError, ShapeError, UnsupportedError

from .registry import Attributes, Datum, hosted

MOST_TURNS = 1 << 20
"""Turns of one loop that Python makes: a loop that goes on for longer is taken for an endless one."""


@hosted("Loop")
def loop(attrs: Attributes, most: np.ndarray | None = None, condition: np.ndarray | None = None, *carried: Datum) -> list[Datum]:
    """The body until it says that it is over, at most `most` times; then what it carries on, and its other outputs, a row a turn."""
    body, state = attrs["body"], list(carried)
    limit = None if most is None else int(most.reshape(-1)[0])
    scans: list[list[np.ndarray]] = [[] for _ in body.results[1 + len(state):]]
    going = condition is None or bool(condition.reshape(-1)[0])
    most_turns = MOST_TURNS + 1 if limit is None else limit
    turn, together = 0, True
    while going and turn < most_turns:
        _check_turn(attrs, turn)
        many = body.turns(turn, min(most_turns, MOST_TURNS) - turn, state) if together else None
        if many is not None:
            turn, going, state, made = many
        else:
            together = together and turn == 0                         # what the first turn changes may stay from then on
            more, *found = body(np.array(turn, np.int64), np.array(True), *state)
            turn, going, state = turn + 1, bool(more.reshape(-1)[0]), found[:len(state)]
            made = [[row] for row in found[len(state):]]
        for rows, new in zip(scans, made, strict=True):
            rows += new
    return [*state, *(_stacked(attrs, rows, port) for rows, port in zip(scans, body.results[1 + len(state):], strict=True))]


def _check_turn(attrs: Attributes, turn: int) -> None:
    if turn >= MOST_TURNS:
        raise UnsupportedError(f"{attrs.title} has made {turn:,} turns and goes on; tileflow takes so long a loop for an endless one")


def _stacked(attrs: Attributes, rows: list[np.ndarray], port: Any, axis: int = 0) -> np.ndarray:
    """Rows along a new axis; without any an empty array of the declared type, whose open sizes are 0."""
    if not rows:
        from ..tensors import declared_dtype
        dims = [n if isinstance(n, int) else 0 for n in port.dims or ()]
        axis = axis + len(dims) + 1 if axis < 0 else axis
        return np.zeros((*dims[:axis], 0, *dims[axis:]), declared_dtype(port.dtype))
    if any(row.shape != rows[0].shape for row in rows):
        raise ShapeError(f"{attrs.title} gives rows of several shapes as its output {port.name}; they must be one, or a sequence")
    budget.require(len(rows) * rows[0].nbytes, f"What {attrs.title} gives as {port.name}", "make fewer turns")
    return np.stack(rows, axis=axis)


@hosted("Scan")
def scan(attrs: Attributes, *operands: Datum) -> list[Datum]:
    """The body for each slice of the inputs that are scanned, with what it carries on; until opset 9 with a batch dimension in front."""
    if attrs.opset >= 9:
        return _scanned(attrs, list(operands), attrs)
    lengths, rows = operands[0], operands[1:]
    most, batch = max(x.shape[1] for x in rows[-attrs["num_scan_inputs"]:]), rows[0].shape[0]
    if lengths is not None and (lengths != most).any():
        raise UnsupportedError(f"{attrs.title} has rows of several lengths (sequence_lens); tileflow takes rows of one length")
    flags = {"scan_input_directions": attrs.get("directions", [])}
    found = [_scanned(attrs, [x[i] for x in rows], flags) for i in range(batch)]
    return [np.stack(parts) for parts in zip(*found, strict=True)]


def _scanned(attrs: Attributes, operands: list[np.ndarray], flags: dict[str, Any]) -> list[Datum]:
    body, scanned = attrs["body"], attrs["num_scan_inputs"]
    if not 0 < scanned <= len(operands):
        raise ModelError(f"{attrs.title} scans {scanned} of {len(operands)} inputs; export the model again")
    state, rows = operands[:-scanned], operands[-scanned:]
    outputs = len(body.results) - len(state)
    def listed(name: str, wanted: int) -> list[int]:
        return list(flags.get(name) or [0] * wanted)
    axes, backwards = listed("scan_input_axes", scanned), listed("scan_input_directions", scanned)
    out_axes, out_backwards = listed("scan_output_axes", outputs), listed("scan_output_directions", outputs)
    rows = [np.moveaxis(x, axis, 0)[::-1 if flip else 1] for x, axis, flip in zip(rows, axes, backwards, strict=True)]
    if any(len(x) != len(rows[0]) for x in rows):
        raise ShapeError(f"{attrs.title} scans inputs of {', '.join(str(len(x)) for x in rows)} slices; they must have equally many")
    scans: list[list[np.ndarray]] = [[] for _ in range(outputs)]
    for turn in range(len(rows[0])):
        _check_turn(attrs, turn)
        made = body(*state, *(np.array(x[turn]) for x in rows))
        state = made[:len(state)]
        for kept, row in zip(scans, made[len(state):], strict=True):
            kept.append(row)
    ports = body.results[len(state):]
    return [*state, *(_stacked(attrs, kept[::-1] if flip else kept, port, axis)
                      for kept, port, axis, flip in zip(scans, ports, out_axes, out_backwards, strict=True))]


@hosted("SequenceMap")
def sequence_map(attrs: Attributes, sequence: list[Datum], *more: Datum) -> list[Datum]:
    """The body for each part of a sequence, with the part at the same place of other sequences, and tensors as they are."""
    if any(isinstance(other, list) and len(other) != len(sequence) for other in more):
        raise ShapeError(f"{attrs.title} has sequences of several lengths; they must have one")
    body = attrs["body"]
    rows = [body(part, *(other[i] if isinstance(other, list) else other for other in more)) for i, part in enumerate(sequence)]
    return [[row[i] for row in rows] for i in range(len(body.results))]
