"""Making things ahead of their use, in a thread of this process."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(make: Callable[[], Iterator[T]], depth: int, give_up: Callable[[], None] | None = None) -> Iterator[T]:
    """The items of `make()`, up to `depth` of them made ahead in a thread. Its exceptions are raised here; the thread ends with the iteration, also
    when that is closed early: `give_up` is then called to end what it may wait for."""
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
                ready.put(("item", next(items)))
        except StopIteration:
            ready.put(("end", None))
        except BaseException as error:
            ready.put(("error", error))

    thread = threading.Thread(target=work, name="tileflow-data", daemon=True)
    thread.start()
    try:
        while True:
            kind, what = ready.get()
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
        thread.join()
