"""Several clients at once, each on a stream of its own: one client's kernels leave most of a GPU idle.

Nothing is shared between lanes but the examples, so a client's result does not depend on who trains beside it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from fedflux.engine.batched.stepper import Stepper


class SideBySide:
    """Steppers side by side; on a GPU a step of the first few is one recorded graph.

    All graphs, the steppers' own too, run one after another: they share the memory of the first stepper's.
    """

    def __init__(self, steppers: Sequence[Stepper]) -> None:
        self.steppers = tuple(steppers)
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self.recordings = steppers[0].recordings
        device = steppers[0].data.x.device
        self._streams: list[Any] = []
        if device.type == "cuda":
            self._streams = [torch.cuda.Stream(device) for _ in steppers]  # type: ignore[no-untyped-call]

    def step(self, width: int, size: int) -> None:
        """One step of the first `width` lanes, each on `size` examples of its batch."""
        if width == 1 or not self._streams:
            for stepper in self.steppers[:width]:
                stepper.step(True, size)
            return
        if (width, size) not in self._graphs:
            state = [stepper.state for stepper in self.steppers[:width]]
            self._graphs[width, size] = self.recordings.record(lambda: self._run(width, size), state)
        self._graphs[width, size].replay()

    def _run(self, width: int, size: int) -> None:
        here = torch.cuda.current_stream()
        begun = []
        try:
            for stepper, stream in zip(self.steppers[:width], self._streams, strict=False):
                stream.wait_stream(here)
                begun.append(stream)
                with torch.cuda.stream(stream):
                    stepper.run(True, size)
        finally:  # after an error too: a recording cannot be ended while a stream of it is on its own
            for stream in begun:
                here.wait_stream(stream)
