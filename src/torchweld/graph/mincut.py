"""minimum_cut: which edges of a network to cut so that as little as possible flows.

Source: Dinic 1970, Algorithm for solution of a problem of maximum flow in networks with power
estimation: augmenting paths in layered networks.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class Network:
    """A directed network with capacities; nodes are numbers from 0."""

    def __init__(self) -> None:
        self.edges_of: list[list[int]] = []
        self._to: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        self.edges_of.append([])
        return len(self.edges_of) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        for start, end, left in ((a, b, capacity), (b, a, 0)):
            self.edges_of[start].append(len(self._to))
            self._to.append(end)
            self._left.append(left)

    def sink_side(self, source: int, sink: int) -> frozenset[int]:
        """The nodes on the sink's side of the minimum cut that is nearest to the sink.

        Cost: at most nodes^2 * edges; networks of a few thousand nodes take milliseconds, since
        flows are short.
        """
        while (level := self._levels(source, sink)) is not None:
            self._block(source, sink, level)
        found = {sink}
        waiting = deque([sink])
        while waiting:
            for e in self.edges_of[waiting.popleft()]:
                before = self._to[e]
                if self._left[e ^ 1] and before not in found:
                    found.add(before)
                    waiting.append(before)
        return frozenset(found)

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """How far each node is from the source; None if the sink is out of reach."""
        level = [-1] * len(self.edges_of)
        level[source] = 0
        waiting = deque([source])
        while waiting:
            at = waiting.popleft()
            for e in self.edges_of[at]:
                if self._left[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[at] + 1
                    waiting.append(self._to[e])
        return level if level[sink] >= 0 else None

    def _block(self, source: int, sink: int, level: list[int]) -> None:
        """Send flow along shortest paths until none is left."""
        tried = [0] * len(self.edges_of)
        path: list[int] = []
        at = source
        while True:
            if at == sink:
                flow = min(self._left[e] for e in path)
                for e in path:
                    self._left[e] -= flow
                    self._left[e ^ 1] += flow
                path, at = [], source
                continue
            onward = self._next(at, tried, level)
            if onward is not None:
                path.append(onward)
                at = self._to[onward]
            elif path:
                at = self._to[path.pop() ^ 1]
                tried[at] += 1
            else:
                return

    def _next(self, at: int, tried: list[int], level: list[int]) -> int | None:
        """The first edge that is not spent and leads on."""
        edges = self.edges_of[at]
        while tried[at] < len(edges):
            e = edges[tried[at]]
            if self._left[e] and level[self._to[e]] == level[at] + 1:
                return e
            tried[at] += 1
        return None
