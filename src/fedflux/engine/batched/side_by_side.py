"""Several clients at once, each on a stream of its own: one client's kernels leave most of a GPU idle.

Nothing is shared between lanes but the examples, so a client's result does not depend on who trains beside it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from fedflux.engine.batched.stepper import Stepper, record


class Lanes:
    """Steppers side by side; on a GPU a step of the first few is one recorded graph."""

    def __init__(self, steppers: Sequence[Stepper]) -> None:
        self.steppers = tuple(steppers)
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._device = steppers[0].data.x.device
        self._streams: list[Any] = []
        if self._device.type == "cuda":
            self._streams = [torch.cuda.Stream(self._device) for _ in steppers]  # type: ignore[no-untyped-call]

    def step(self, width: int, size: int) -> None:
        """One step of the first `width` lanes, each on `size` examples of its batch."""
        if width == 1 or not self._streams:
            for stepper in self.steppers[:width]:
                stepper.step(True, size)
            return
        if (width, size) not in self._graphs:
            state = [stepper.state for stepper in self.steppers[:width]]
            self._graphs[width, size] = record(lambda: self._run(width, size), state, self._device, self._pool)
            self._pool = self._graphs[width, size].pool()
        self._graphs[width, size].replay()

    def _run(self, width: int, size: int) -> None:
        here = torch.cuda.current_stream()
        for stepper, stream in zip(self.steppers[:width], self._streams, strict=False):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                stepper.run(True, size)
        for stream in self._streams[:width]:
            here.wait_stream(stream)
