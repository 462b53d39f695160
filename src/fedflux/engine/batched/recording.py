"""Steps recorded as CUDA graphs, and the memory that they keep."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

REHEARSALS = 3


class Recordings:
    """CUDA graphs that never run at the same time, and so share their memory; on other devices there are none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.nbytes = 0
        """What the graphs keep for themselves: torch counts it as reserved, and nothing else can use it."""

    def record(self, run: Callable[[], None], state: Any) -> torch.cuda.CUDAGraph:
        """A run as a CUDA graph; the rehearsals before it change the state, which is put back.

        Where memory is short the rehearsals find out, before anything is recorded: torch recovers badly from a
        recording that fails.
        """
        kept = tree_map(torch.clone, state)
        graph = torch.cuda.CUDAGraph()
        side: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device), _same_stream(), _nothing_freed():
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(REHEARSALS):
                    copy_into(state, kept)
                    run()
            torch.cuda.current_stream().wait_stream(side)
            copy_into(state, kept)
            needed = torch.cuda.memory_reserved() - before
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            _check_free(needed)
            try:
                with torch.cuda.graph(graph, pool=self._pool):
                    before = torch.cuda.memory_reserved()
                    run()
                    self.nbytes += torch.cuda.memory_reserved() - before
            except RuntimeError:
                self._end()
                _check_free(needed)  # what torch says then may not mention memory
                raise
        copy_into(state, kept)
        return graph

    def _end(self) -> None:
        """Some versions of torch go on recording after a recording that could not be ended (pytorch #180395)."""
        with suppress(RuntimeError, AttributeError):  # it was ended
            getattr(torch._C, "_cuda_endAllocateToPool")(self._device.index, self._pool)  # noqa: B009


def _check_free(needed: int) -> None:
    """Another process may have taken what the rehearsals gave back."""
    free = torch.cuda.mem_get_info()[0]
    if free < needed:
        raise torch.cuda.OutOfMemoryError(f"CUDA out of memory: a recording needs {needed} bytes, {free} are free")


@contextmanager
def _same_stream() -> Iterator[None]:
    """The current stream is the same afterwards, also when a recording could not be ended."""
    with torch.cuda.stream(torch.cuda.current_stream()):
        yield


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """The collector waits: should it free an older graph in the midst of a recording, that would spoil it."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def copy_into(place: Any, source: Any) -> None:
    """Copy tensors into those of the same name and place in another structure, all of one type in one call."""
    leaves, outline = tree_flatten(place)
    pairs = [(old, new) for old, new in zip(leaves, outline.flatten_up_to(source), strict=True) if old is not new]
    for dtype in {old.dtype for old, _ in pairs}:
        some = [pair for pair in pairs if pair[0].dtype == dtype]
        torch._foreach_copy_([old for old, _ in some], [new for _, new in some])
