"""A GPU that is not there: what torch would tell of its memory, and in which words it would fail."""

import pytest
import torch

GIGA = 2**30
SPOILT = "CUDA error: operation failed due to a previous error during capture"
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB"


class Gpu:
    """What torch tells of a GPU, made up; `step` is what any work takes at its peak."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total, self.others, self.allocated, self.cached, self.step = 140 * GIGA, 0, 0, 0, GIGA
        self.emptied = 0
        for name in ("mem_get_info", "memory_allocated", "memory_reserved", "max_memory_allocated", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        for name in ("synchronize", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, lambda *_: None)

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return self.total - self.others - self.allocated - self.cached, self.total

    def memory_allocated(self, device: object = None) -> int:
        return self.allocated

    def memory_reserved(self, device: object = None) -> int:
        return self.allocated + self.cached

    def max_memory_allocated(self, device: object = None) -> int:
        return self.allocated + self.step

    def empty_cache(self) -> None:
        self.emptied += 1
