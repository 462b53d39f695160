"""How much of a device's memory an engine takes, and what it does when that was too much.

Several runs may share one GPU. Each has a share of the whole, and others may take memory at any moment. So sizes follow
what is free now, and work for which the device has too little memory all the same is done again in smaller chunks.
"""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from fedflux.errors import FedfluxError

T = TypeVar("T")
PART = 0.4
"""The part of its room that an engine plans with for one chunk: while a second graph of a chunk is recorded it takes
twice its size, and other runs may want memory at the same time.
"""
CONTEXT = 2**29
"""What CUDA takes for a process beside torch's tensors, about."""
GIGA = 2**30
SIGNS = ("out of memory", "alloc_failed", "cublas_status_not_initialized", "unable to find an engine")
"""How torch, cuBLAS and cuDNN say that memory is short, in lower case."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that the device's memory is used up.

    One that happens while a graph is recorded is followed by another: the recording could not be ended.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.cuda.OutOfMemoryError):
            return True
        if isinstance(seen, RuntimeError) and any(sign in str(seen).lower() for sign in SIGNS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


class Memory:
    """A device's memory as one engine sees it; `share` is the part of the device that this process may take."""

    def __init__(self, device: str, share: float = 1.0) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"a share of the device is above 0 and at most 1, not {share}")
        self.device = device
        self.share = share
        self.limited = torch.device(device).type == "cuda"
        """Whether memory is counted here; a CPU's is the system's business."""

    def room(self, recorded: int = 0) -> int:
        """Bytes that this process may still take: of its share, and of what is free now.

        What torch has reserved and does not use is free for this process, except the memory of `recorded` graphs, which
        belongs to them as long as they are kept.
        """
        free, total = torch.cuda.mem_get_info(self.device)
        held = torch.cuda.memory_allocated(self.device) + recorded
        unused = max(torch.cuda.memory_reserved(self.device) - held, 0)
        return max(min(int(self.share * total) - CONTEXT - held, free + unused), 0)

    def cost(self, work: Callable[[], object]) -> int:
        """Bytes that work takes at its peak beyond what is held before it."""
        work()  # once without measuring: what compiles itself takes more the first time
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        work()
        torch.cuda.synchronize(self.device)
        return max(torch.cuda.max_memory_allocated(self.device) - before, 1)

    def release(self) -> None:
        """Give back what nothing refers to any more."""
        gc.collect()
        if self.limited:
            torch.cuda.empty_cache()

    def attempt(self, work: Callable[[], T]) -> T | None:
        """What the work gives, None where the device is out of memory; then nothing of the attempt is left."""
        try:
            return work()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # only here the error is gone, and with it the frames that hold the attempt's tensors
        return None

    def in_chunks(
        self,
        count: int,
        size: int,
        work: Callable[[slice, int], T],
        drop: Callable[[bool], None],
        least: str,
    ) -> tuple[list[T], int]:
        """Do `count` things, `size` at a time, half as many each time that the device is out of memory.

        `work` is given which ones, and the size. Before it is tried again `drop` forgets what can be made anew: all of
        it when told True, which comes before the last attempt at a chunk of one. Answers what each chunk gave, and the
        size at the end. `least` says in the error what a chunk of one is.
        """
        found: list[T] = []
        begin, last = 0, False
        while begin < count or not found:
            some = slice(begin, min(begin + size, count))
            part = self.attempt(lambda: work(some, size))  # noqa: B023
            if part is not None:
                found.append(part)
                begin, last = max(some.stop, 1), False
                continue
            alone = some.stop - some.start <= 1
            if alone and last:
                raise self.exhausted(least)
            last = alone
            drop(alone)
            self.release()
            size = max(-(-(some.stop - some.start) // 2), 1)
        return found, size

    def insist(self, work: Callable[[], T], drop: Callable[[bool], None], least: str) -> T:
        """What the work gives, at the second attempt where the device is out of memory at the first."""
        return self.in_chunks(1, 1, lambda some, size: work(), drop, least)[0][0]

    def exhausted(self, least: str) -> FedfluxError:
        """The error for work that does not fit however small it is made."""
        figures = ""
        if self.limited:
            free, total = (number / GIGA for number in torch.cuda.mem_get_info(self.device))
            figures = f" ({free:.1f} of {total:.1f} GiB are free, {self.share * total:.1f} are this run's)"
        return FedfluxError(
            f"{self.device} has too little memory for {least} at a time{figures}: "
            "run fewer things on it at once, lower --batch-size, take a smaller --model, or use --device cpu"
        )
