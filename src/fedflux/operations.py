"""Operations by name: what may be asked of a client, as a name, a revision, arrays and plain values.

A training rule, a query about data or an adaptation is a frozen dataclass. Registered under a name, it can be sent to
a node elsewhere and built again there from its arrays and plain values: nothing is pickled, and a message can name
only what the receiver has registered itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.savable import put_together, take_apart

C = TypeVar("C", bound=type)
Arrays = Mapping[str, NDArray[np.generic]]
"""Named arrays: all that an answer of a client holds."""


@dataclass(frozen=True, eq=False)
class Packed:
    """An operation on its way to a client."""

    name: str
    revision: int
    arrays: Arrays
    outline: Any
    """Everything that is no array, in plain values."""


_KINDS: dict[str, type] = {}
_NAMES: dict[type, tuple[str, int]] = {}


def operation(name: str, revision: int = 1) -> Callable[[C], C]:
    """Register a frozen dataclass under a name; the revision is raised whenever its answers change."""

    def register(kind: C) -> C:
        if not is_dataclass(kind):
            raise TypeError(f"operation '{name}': {kind.__name__} is no dataclass")
        before = _KINDS.get(name)
        if before is not None and (before.__module__, before.__qualname__) != (kind.__module__, kind.__qualname__):
            raise ValueError(f"operation '{name}' is {before.__module__}.{before.__qualname__} already")
        _KINDS[name] = kind
        _NAMES[kind] = (name, revision)
        return kind

    return register


def name_of(thing: Any) -> str:
    """The name that an operation is registered under."""
    return _registered(thing)[0]


def revision_of(thing: Any) -> int:
    """Its revision."""
    return _registered(thing)[1]


def pack(thing: Any) -> Packed:
    """An operation as it travels."""
    name, revision = _registered(thing)
    tensors, outline = take_apart(thing)
    return Packed(name, revision, {key: tensor.numpy() for key, tensor in tensors.items()}, outline)


def unpack(packed: Packed, device: str = "cpu") -> Any:
    """The operation again; a name or revision that is not known here is refused in words."""
    kind = _KINDS.get(packed.name)
    if kind is None:
        raise FedfluxError(f"operation '{packed.name}' is not known here: {', '.join(sorted(_KINDS))} are")
    own = _NAMES[kind][1]
    if own != packed.revision:
        raise FedfluxError(f"operation '{packed.name}' has revision {own} here, and {packed.revision} is asked for")
    tensors = {key: torch.from_numpy(np.array(array, order="C")) for key, array in packed.arrays.items()}
    return put_together(kind, tensors, packed.outline, device)


def _registered(thing: Any) -> tuple[str, int]:
    found = _NAMES.get(type(thing))
    if found is None:
        raise FedfluxError(f"{type(thing).__name__} cannot be asked of clients: it is no registered operation")
    return found
