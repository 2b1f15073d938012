"""The rows that the driver interprets, and the builder of tables of them.

A job is a main task and those that it spawns. A task is a table of rows, eight int64 words each, interpreted by whoever is its walker (see
`claim`); only one thread at a time is. Words of memory that rows count in or look at are int64 at fixed addresses, so that leaves, Python and
other tasks may read and write them between their rows.

    LEAF      function, block, n, chunk, look         leaf(block, lo, hi, worker) over 0..n, in chunks that workers claim where chunk < n
    REPEAT    counter, n, word, exit                  counter < n (or < the word, where there is one): to the next row; else counter = 0, to exit
    AGAIN     counter, n, word, start                 counter += 1; then as REPEAT, with the body's start for the next row and the next for exit
    BRANCH    word, value, target                     the word is not the value (or there is no word): to target
    PATCH     patches, count, counter, offset         each patch: word at address = base + ((counter + offset) % ring) * stride
    SPAWN     first task, count                       those tasks begin, side by side with what follows here
    WAIT                                              until all tasks spawned here have ended; fails if one of them failed
    HOST      number                                  Python's function of that number is called by whoever runs the job; then on
    HOLD      1 or 0                                  from here on the deadline does not stop this task; it may again
    ADVANCE   word, n                                 word += n

An outer PATCH may write a base of an inner one's, a word that REPEAT or BRANCH looks at, or an argument of a leaf: all are words.
"""
from __future__ import annotations

from .boards import ROW_WORDS

LEAF, REPEAT, AGAIN, BRANCH, PATCH, SPAWN, WAIT, HOST, HOLD, ADVANCE = range(10)
PATCH_WORDS = 4
"""address, base, stride, ring"""
CHUNK_NS = 15_000.0
"""Nanoseconds of one core's work that a chunk has, about: short beside what is lost when a thread is not run in the middle of one, long beside a
claim (50 ns when cores share the word)."""
MOST_CHUNKS = 1 << 20
LOOK_NS = 5_000.0
"""From this cost on the clock is looked at after a serial row; after several shorter ones otherwise."""
__all__ = ["ADVANCE", "AGAIN", "BRANCH", "HOLD", "HOST", "LEAF", "PATCH", "PATCH_WORDS", "REPEAT", "ROW_WORDS", "SPAWN", "WAIT", "chunk"]


def chunk(n: int, grain: int, cost: float) -> int:
    """How many units of a range of n a worker claims at once: whole grains, about equal parts of `CHUNK_NS` of the range's `cost` (nanoseconds)."""
    grains = -(-n // grain)
    parts = max(2, min(round(cost / CHUNK_NS), grains, MOST_CHUNKS))
    return -(-grains // parts) * grain
