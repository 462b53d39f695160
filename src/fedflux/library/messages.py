"""What a server and its clients tell each other in loops of their own: small named arrays, for whatever carries them.

A message is a plain dictionary of numpy arrays. One of them, `header`, says in JSON what the message is and of which
types its arrays are, so that it may travel as .npz, as JSON lists or as Flower's records: nothing is pickled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from json import dumps, loads
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.operations import Arrays, Packed, pack, unpack

T = TypeVar("T")
Message = dict[str, NDArray[Any]]
HEADER = "header"
NUMBERS = "biuf"
"""Kinds of arrays that a message may hold."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A message that was read: its arrays as they were sent, and what its header says of them."""

    arrays: Arrays
    about: Mapping[str, Any]


def sealed(kind: str, arrays: Arrays, **about: Any) -> Message:
    """A message of this kind."""
    types = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    header = dumps({"kind": kind, "types": types, **about}, sort_keys=True).encode()
    return {**arrays, HEADER: np.frombuffer(header, dtype=np.uint8)}


def opened(message: Any, kind: str, whose: str = "this") -> Opened:
    """The message again, however it came; anything else than a message of this kind is refused."""
    if not isinstance(message, Mapping) or HEADER not in message:
        raise FedfluxError(f"{whose} is no {kind}: give the dictionary of arrays that was made for it")
    try:
        header = loads(np.asarray(message[HEADER]).astype(np.uint8).tobytes())
        types = {str(name): (np.dtype(one), tuple(map(int, shape))) for name, (one, shape) in header["types"].items()}
        told = str(header["kind"])
        if any(one.kind not in NUMBERS for one, _ in types.values()):
            raise ValueError("it holds something else than numbers")
        arrays = {name: np.asarray(message[name]).astype(one).reshape(shape) for name, (one, shape) in types.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FedfluxError(f"{whose} is a damaged message: {error}") from error
    if told != kind:
        raise FedfluxError(f"{whose} is a message of another kind: {told}, where {kind} is needed")
    return Opened(arrays, header)


def sealed_question(kind: str, question: Any) -> Message:
    """A registered operation as a message."""
    packed = pack(question)
    return sealed(kind, packed.arrays, name=packed.name, revision=packed.revision, outline=packed.outline)


def opened_question(message: Any, kind: str, expected: type[T]) -> T:
    """The operation again; one of another kind is refused."""
    found = opened(message, kind, f"what was given as {kind}")
    try:
        question = unpack(Packed(found.about["name"], found.about["revision"], found.arrays, found.about["outline"]))
    except FedfluxError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FedfluxError(f"what was given as {kind} is a damaged message: {error}") from error
    if not isinstance(question, expected):
        raise FedfluxError(f"what was given as {kind} asks for something else: {found.about['name']}")
    return question


def mark_of(message: Mapping[str, Any], kind: str) -> str:
    """A short digest of what a message says, the same however it travelled: answers name what they answer."""
    found = opened(message, kind, f"what was given as {kind}")
    told = sha256(dumps(found.about, sort_keys=True).encode())
    for name in sorted(found.arrays):
        told.update(name.encode() + np.ascontiguousarray(found.arrays[name]).tobytes())
    return told.hexdigest()[:16]
