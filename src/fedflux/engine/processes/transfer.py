"""Objects between processes: small ones through the pipe, arrays and tensors in memory that both sides map.

The memory has no name (an anonymous file that travels as a descriptor), so that nothing is left behind whoever dies.
"""

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Of every array, as torch's own allocator: kernels may round differently at other addresses."""
INLINE_BYTES = 2**15
"""Messages up to this size without large arrays go through the pipe."""
LARGE = 2**10
"""Arrays below this stay inside the pickle."""

Name = Callable[[object], object | None]
"""What an object that the receiver already holds is called; None for all others."""


class SharedMessage:
    """A packed object that can be sent any number of times."""

    def __init__(self, content: object, name: Name | None = None) -> None:
        buffers: list[memoryview] = []
        stream = io.BytesIO()
        _Pickler(stream, buffers, name).dump(content)
        self._inline = stream.getvalue()
        self._file: int | None = None
        if buffers or len(self._inline) > INLINE_BYTES:
            self._file = _fill([stream.getbuffer(), *buffers])

    def send(self, connection: "Connection[Any, Any]") -> None:
        """Hand it over."""
        if self._file is None:
            connection.send_bytes(self._inline)
        else:
            connection.send_bytes(b"")
            send_handle(connection, self._file, None)

    def close(self) -> None:
        """Give up this side's hold of the memory; receivers keep theirs."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()


def send(connection: "Connection[Any, Any]", content: object) -> None:
    """Pack, hand over, forget."""
    message = SharedMessage(content)
    message.send(connection)
    message.close()


def receive(
    connection: "Connection[Any, Any]", resolve: Callable[[Any], object] | None = None, own: bool = False
) -> Any:
    """The next object; `own` copies its arrays out of the shared memory, otherwise they are views of it.

    Views are private: what the receiver writes to them, no other process sees.
    """
    inline = connection.recv_bytes()
    if inline:
        return _Unpickler(io.BytesIO(inline), (), resolve).load()
    file = recv_handle(connection)
    try:
        memory = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(file)
    view = memoryview(memory)
    count = int.from_bytes(view[:8], "little")
    table = np.frombuffer(view, np.int64, 2 * count, 8).reshape(count, 2).tolist()
    parts = [view[begin : begin + length] for begin, length in table]
    content = parts[0]
    buffers = [bytearray(part) for part in parts[1:]] if own else parts[1:]
    return _Unpickler(io.BytesIO(content), buffers, resolve).load()


def _fill(parts: list[memoryview]) -> int:
    """A nameless file that holds a table of (begin, length) and the parts."""
    begin = 8 + 16 * len(parts)
    table = []
    for part in parts:
        begin = aligned(begin)
        table += [begin, part.nbytes]
        begin += part.nbytes
    file = nameless()
    try:
        os.ftruncate(file, begin)
        _write(file, memoryview(len(parts).to_bytes(8, "little") + np.array(table, np.int64).tobytes()), 0)
        for part, offset in zip(parts, table[::2], strict=True):
            _write(file, part, offset)
    except BaseException:
        os.close(file)
        raise
    return file


def aligned(offset: int) -> int:
    """The first place at or after an offset where an array may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def nameless() -> int:
    """A file that nobody can find: it lives as long as a process holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedflux", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(file: int, part: memoryview, offset: int) -> None:
    while part.nbytes:
        written = os.pwrite(file, part, offset)
        part, offset = part[written:], offset + written


class _Pickler(pickle.Pickler):
    """Leaves the bytes of large arrays and of tensors to the shared memory."""

    def __init__(self, file: io.BytesIO, buffers: list[memoryview], name: Name | None) -> None:
        def set_aside(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes < LARGE:
                return True
            buffers.append(view)
            return False

        super().__init__(file, protocol=5, buffer_callback=set_aside)
        self._name = name

    def persistent_id(self, item: object) -> object | None:
        return None if self._name is None else self._name(item)

    def reducer_override(self, item: object) -> Any:
        if isinstance(item, Tensor) and item.layout == torch.strided and not item.is_quantized:
            flat: Any = item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            return _tensor, (pickle.PickleBuffer(flat), item.dtype, tuple(item.shape), item.requires_grad)
        if isinstance(item, np.ndarray) and item.nbytes >= LARGE and not item.dtype.hasobject:
            return np.ascontiguousarray(item).__reduce_ex__(5)  # numpy would copy a strided array into the pickle
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: Any, resolve: Callable[[Any], object] | None) -> None:
        super().__init__(file, buffers=buffers)
        self._resolve = resolve

    def persistent_load(self, name: Any) -> object:
        assert self._resolve is not None
        return self._resolve(name)


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    made = torch.frombuffer(data, dtype=dtype).reshape(shape) if len(data) else torch.empty(shape, dtype=dtype)
    return made.requires_grad_() if requires_grad else made
