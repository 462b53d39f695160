"""The limit of the machine: one independent one-thread loop on every core, all at once."""

import os

from fedflux.studies.bench.remote import Remote
from fedflux.studies.bench.work import Work


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LoopPerCoreRunner:
    """Each loop does the whole work; nothing is shared or sent, so no engine on CPU processes can do better."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._loops: list[Remote] = []

    def start(self) -> None:
        """All loops at once."""
        self._loops = [Remote("loop", self._work) for _ in range(cores())]
        for loop in self._loops:
            loop.start()

    def round(self) -> int:
        """A round of every loop."""
        for loop in self._loops:
            loop.begin_round()
        return sum(samples for _, samples in [loop.end_round() for loop in self._loops])

    def loss(self) -> float:
        """Of the first loop; they all do the same."""
        return float(self._loops[0].look()["loss"])

    def device_peak(self) -> int | None:
        """It runs on CPU."""
        return None

    def close(self) -> None:
        """End all loops."""
        for loop in self._loops:
            loop.close()
