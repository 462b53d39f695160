"""Where workers leave trained models: memory that all processes share, so that nothing is packed, sent or unpacked."""

import mmap
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import torch

from fedflux.engine.processes.transfer import aligned, nameless
from fedflux.engine.stack import Parameters, Stack

LARGEST = 2**26
"""Bytes of a buffer, which stays as long as its engine; larger answers are sent."""


class _Place(NamedTuple):
    """One tensor of the models."""

    shape: tuple[int, ...]
    """With the rows first."""
    dtype: torch.dtype
    begin: int

    @property
    def end(self) -> int:
        return self.begin + torch.Size(self.shape).numel() * self.dtype.itemsize


class ResultBuffer:
    """Room for some models: the parent makes it, workers put rows there, the parent reads them."""

    @staticmethod
    def like(model: Parameters, rows: int) -> "ResultBuffer | None":
        """For so many such models; None where that would be large."""
        places: dict[str, _Place] = {}
        end = 0
        for name, tensor in model.items():
            places[name] = _Place((rows, *tensor.shape), tensor.dtype, aligned(end))
            end = places[name].end
        if not 0 < end <= LARGEST:
            return None
        file = nameless()
        try:
            os.ftruncate(file, end)
            return ResultBuffer(places, file)
        except BaseException:
            os.close(file)
            raise

    def __init__(self, places: Mapping[str, _Place], file: int) -> None:
        memory = mmap.mmap(file, 0)
        self._stack = Stack({name: _tensor(memory, place) for name, place in places.items()})
        self._places, self._file = places, file  # its own only from here on, to close

    def fits(self, model: Parameters, rows: int = 1) -> bool:
        """Whether it has room for so many such models."""
        told = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in model.items()]
        own = [(name, place.shape[1:], place.dtype) for name, place in self._places.items()]
        return told == own and rows <= len(self._stack)

    def put(self, row: int, model: Parameters) -> bool:
        """Leave a model there, if it is one of those that it was made for."""
        if not self.fits(model):
            return False
        with torch.no_grad():
            for name, tensor in self._stack.row(row).items():
                tensor.copy_(model[name])
        return True

    def models(self, begin: int, end: int) -> Stack:
        """A copy of what lies there."""
        return Stack({name: tensor[begin:end].clone() for name, tensor in self._stack.tensors.items()})

    def send(self, connection: "Connection[Any, Any]") -> None:
        """Show it to another process, which keeps it."""
        connection.send_bytes(pickle.dumps(self._places))
        send_handle(connection, self._file, None)

    @staticmethod
    def receive(connection: "Connection[Any, Any]") -> "ResultBuffer":
        """The one that is shown next."""
        places = pickle.loads(connection.recv_bytes())
        return ResultBuffer(places, recv_handle(connection))

    def close(self) -> None:
        """Nobody else will be shown it; the memory goes when the last process has dropped it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()


@dataclass(frozen=True, eq=False)
class ResultRows:
    """The buffer of one call, and which rows of it are whose."""

    buffer: ResultBuffer
    begins: list[int]
    """Each position's first row, and the end of the last one's."""

    def leave(self, position: int, models: list[Parameters]) -> bool:
        """Whether all models of a position could be left there."""
        rows = range(self.begins[position], self.begins[position + 1])
        return len(rows) == len(models) and all(map(self.buffer.put, rows, models))

    def collect(self, sent: Sequence[list[Parameters] | None]) -> Stack:
        """All models in order: those that were left here, and of the other positions those that were sent."""
        if all(models is None for models in sent):
            return self.buffer.models(0, self.begins[-1])
        rows: list[Parameters] = []
        for position, models in enumerate(sent):
            left = self.buffer.models(self.begins[position], self.begins[position + 1])
            rows += [left.row(row) for row in range(len(left))] if models is None else models
        return Stack.join(rows)


def _tensor(memory: mmap.mmap, place: _Place) -> torch.Tensor:
    count = torch.Size(place.shape).numel()
    if not count:
        return torch.empty(place.shape, dtype=place.dtype)
    return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.begin).view(place.shape)
