"""Latents of the last clients: a descriptor needs them twice, for the bounds of everyone and for its own moments."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from torch import Tensor

from fedflux.engine.stack import Parameters

RECENT_BYTES = 2**27
"""Latents kept at most, with the images they are of; those made longest ago go first."""


class RecentLatents:
    """Latents by the images they are of and the parameters they were made with, known by their content.

    Parameters reach a worker process as a new copy with each call, so that their identity says nothing.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, bytes], tuple[Tensor, list[Tensor]]] = OrderedDict()
        self._bytes = 0

    def get(self, params: Parameters, x: Tensor) -> list[Tensor] | None:
        """The latents, if they are kept."""
        found = self._kept.get((id(x), _digest(params))) if self._kept else None
        return None if found is None or found[0] is not x else found[1]

    def put(self, params: Parameters, x: Tensor, latents: list[Tensor]) -> None:
        """Keep them for a while; the images too, so that no others can take their place in memory."""
        size, key = _size(x, latents), (id(x), _digest(params))
        if size > RECENT_BYTES:
            return
        if key in self._kept:
            self._bytes -= _size(*self._kept.pop(key))
        self._kept[key] = (x, latents)
        self._bytes += size
        while self._bytes > RECENT_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(*oldest)


def _size(x: Tensor, latents: Sequence[Tensor]) -> int:
    return x.nbytes + sum(one.nbytes for one in latents)


def _digest(params: Parameters) -> bytes:
    digest = blake2b(digest_size=16)
    for tensor in params.values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()
