"""Making things ahead of their use, in a thread of this process."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ..system.spans import span

T = TypeVar("T")
ASKED_S = 0.1
"""How often somebody who waits for an item asks whether to go on waiting."""
LEFT_S = 1.0
"""How long a thread that is stopped in the middle of an item may take before it is left to itself."""


def ahead(make: Callable[[], Iterator[T]], depth: int, give_up: Callable[[], None] | None = None,
          stop_waiting: Callable[[], bool] | None = None) -> Iterator[T]:
    """The items of `make()`, up to `depth` of them made ahead in a thread. Its exceptions are raised here; the thread ends with the iteration, also
    when that is closed early: `give_up` is then called to end what it may wait for. Once `stop_waiting` is true nothing more comes."""
    ready: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    free = threading.Semaphore(depth)
    stop = threading.Event()

    def work() -> None:
        try:
            items = make()
            while True:
                free.acquire()
                if stop.is_set():
                    return
                with span("make a batch", "data"):
                    item = next(items)
                ready.put(("item", item))
        except StopIteration:
            ready.put(("end", None))
        except BaseException as error:
            ready.put(("error", error))

    thread = threading.Thread(target=work, name="tileflow-data", daemon=True)
    thread.start()
    try:
        while True:
            with span("wait for a batch", "data"):
                kind, what = _next(ready, stop_waiting)
            if kind == "end":
                return
            if kind == "error":
                raise what
            free.release()
            yield what
    finally:
        stop.set()
        free.release()
        if give_up is not None:
            give_up()
        thread.join(LEFT_S if stop_waiting is not None and stop_waiting() else None)


def _next(ready: SimpleQueue[tuple[str, Any]], stop_waiting: Callable[[], bool] | None) -> tuple[str, Any]:
    if stop_waiting is None:
        return ready.get()
    while not stop_waiting():
        try:
            return ready.get(timeout=ASKED_S)
        except Empty:
            continue
    return "end", None
