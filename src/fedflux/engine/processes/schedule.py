"""Who works on what next: biggest first, each client with the worker that has its data, idle workers help out."""

from collections import deque
from collections.abc import Iterable, Sequence


class Shares:
    """The positions of one call, dealt to workers; results never depend on who took which."""

    def __init__(self, weights: Sequence[float], homes: Sequence[int], workers: int) -> None:
        self._weights = weights
        self._queues: list[deque[int]] = [deque() for _ in range(workers)]
        for position in sorted(range(len(weights)), key=lambda p: -weights[p]):
            self._queues[homes[position]].append(position)

    def take(self, worker: int, held: Sequence[int] = ()) -> list[int]:
        """Some positions for a worker that is idle, or has still those that it `held`; empty when none are for it.

        One message carries a fraction of what remains, so that many small clients cost few messages and the last ones
        still spread evenly. An idle worker without any of its own takes the smallest of the worker that has most. A
        busy one is given its own alone, no more than its even part of what is left, and none of the last: those are for
        whoever is idle first.
        """
        own = self._queues[worker]
        if held and (not own or self._for_others(own[0], held)):
            return []
        queue = own or max(self._queues, key=self._weight)
        enough = sum(map(self._weight, self._queues)) / (2 * len(self._queues))
        taken: list[int] = []
        weight = 0.0
        while queue and (not taken or weight + self._weights[queue[0 if queue is own else -1]] <= enough):
            position = queue.popleft() if queue is own else queue.pop()
            taken.append(position)
            weight += self._weights[position]
        return taken

    def drop_after(self, position: float) -> None:
        """Forget what comes after a position that failed: in order, it would not have been reached."""
        for queue in self._queues:
            kept = [p for p in queue if p < position]
            queue.clear()
            queue.extend(kept)

    def _for_others(self, position: int, held: Sequence[int]) -> bool:
        """Whether a position is better left to a worker that is idle sooner than one with these to do."""
        workers, load = len(self._queues), self._weight(held)
        even = (sum(map(self._weight, self._queues)) + load) / workers
        return sum(map(len, self._queues)) <= workers or load + self._weights[position] > even

    def _weight(self, queue: Iterable[int]) -> float:
        return sum(self._weights[position] for position in queue)


def deal(weights: Sequence[float], homes: Sequence[int | None], workers: int) -> list[int]:
    """A worker for every position: where it was before, otherwise, biggest first, where least is to do."""
    load = [0.0] * workers
    dealt = [home if home is not None and home < workers else -1 for home in homes]
    for position, home in enumerate(dealt):
        if home >= 0:
            load[home] += weights[position]
    for position in sorted(range(len(weights)), key=lambda p: -weights[p]):
        if dealt[position] < 0:
            dealt[position] = min(range(workers), key=load.__getitem__)
            load[dealt[position]] += weights[position]
    return dealt
