"""Minimum cuts: two-way choices that cost something each, and something wherever neighbours choose differently."""
from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable

SOURCE, SINK = "source", "sink"


class MinimumCut:
    """A network of capacities. `side()` gives what stays with SOURCE when the cheapest set of edges is cut.

    Dinic's algorithm (Soviet Math. Doklady 11, 1970): shortest augmenting paths in levels.
    """

    def __init__(self) -> None:
        self._edges: dict[Hashable, list[int]] = {SOURCE: [], SINK: []}
        self._to: list[Hashable] = []
        self._left: list[float] = []

    def edge(self, a: Hashable, b: Hashable, capacity: float) -> None:
        """It costs `capacity` to have `a` with SOURCE and `b` with SINK."""
        if capacity <= 0 or a == SINK or b == SOURCE:
            return
        for start, end, left in ((a, b, capacity), (b, a, 0.0)):
            self._edges.setdefault(start, []).append(len(self._to))
            self._to.append(end)
            self._left.append(left)

    def agree(self, name: Hashable, maker: Hashable, readers: Iterable[Hashable], cost: float) -> None:
        """It costs `cost`, once, when any of `readers` is not on the side of `maker`. `name` tells such a group from the others."""
        up, down = ("up", name), ("down", name)
        self.edge(maker, up, cost)
        self.edge(down, maker, cost)
        for reader in readers:
            self.edge(up, reader, math.inf)
            self.edge(reader, down, math.inf)

    def side(self) -> set[Hashable]:
        """What stays with SOURCE; as little as possible where there is a choice."""
        while (level := self._levels()).get(SINK) is not None:
            following = {place: iter(edges) for place, edges in self._edges.items()}
            path: list[int] = []
            at: Hashable = SOURCE
            while True:
                if at == SINK:
                    flow = min(self._left[i] for i in path)
                    for i in path:
                        self._left[i] -= flow
                        self._left[i ^ 1] += flow
                    full = next(k for k, i in enumerate(path) if self._left[i] <= 0)
                    at, path = self._to[path[full] ^ 1], path[:full]
                    continue
                step = next((i for i in following[at] if self._left[i] > 0 and level.get(self._to[i]) == level[at] + 1), None)
                if step is not None:
                    path.append(step)
                    at = self._to[step]
                elif path:
                    at = self._to[path.pop() ^ 1]
                else:
                    break
        return set(self._levels())

    def _levels(self) -> dict[Hashable, int]:
        """Edges from SOURCE to everything that can still be reached."""
        level: dict[Hashable, int] = {SOURCE: 0}
        waiting = deque[Hashable]([SOURCE])
        while waiting:
            at = waiting.popleft()
            for i in self._edges[at]:
                if self._left[i] > 0 and self._to[i] not in level:
                    level[self._to[i]] = level[at] + 1
                    waiting.append(self._to[i])
        return level
