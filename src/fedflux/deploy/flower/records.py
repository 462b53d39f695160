"""Between Flower's records and requests, models and answers."""

from collections.abc import Iterator, Mapping, MutableMapping
from json import dumps, loads
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedflux import operations
from fedflux.deploy.node.arrays import digest
from fedflux.errors import FedfluxError
from fedflux.operations import Arrays

ASK, ARRAYS = "ask", "arrays"
"""The records of a question: what is asked, and its arrays; every other record is a model, by its digest."""
ABOUT, ANSWER, MODELS, TOLD = "about", "answer", "models", "told"
"""The records of a reply: plain values, arrays, trained models, and what was told of a preparation."""

MOST = 2**31
"""Numbers that a model's arrays of one value may stand for, all together."""


def pack(arrays: Arrays) -> Any:
    """Named arrays as a Flower record."""
    return ArrayRecord({name: Array(np.array(array, order="C")) for name, array in arrays.items()})


def unpack(record: Any) -> dict[str, NDArray[np.generic]]:
    """A Flower record as named arrays; refuses any serialisation but plain arrays."""
    return {name: np.asarray(array.numpy()) for name, array in record.items()}


def pack_model(arrays: Arrays) -> Any:
    """A model as a record; an array that holds one value throughout travels as that value."""
    record = {}
    for name, array in arrays.items():
        first = np.ravel(array)[:1]
        if array.size > 1 and (array == first).all() and array.tobytes() == array.size * first.tobytes():
            record[f"{name}@{'x'.join(map(str, array.shape))}"] = first
        else:
            record[name] = array
    return pack(record)


def unpack_model(record: Any, most: int | None = None) -> dict[str, NDArray[np.generic]]:
    """A model's arrays; what travelled as one value takes no memory here, and may stand for at most so many numbers
    where it is expanded later, before anybody has looked at its shape.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    declared = 0
    for full, array in unpack(record).items():
        name, _, shape = full.partition("@")
        dims = tuple(map(int, shape.split("x"))) if shape else array.shape
        declared += abs(prod(dims)) if shape else 0
        if most is not None and declared > most:
            raise FedfluxError(f"a model's arrays of one value stand for {declared:,} numbers: at most {most:,}")
        arrays[name] = np.broadcast_to(array, dims) if shape else array
    return arrays


def to_records(request: Any) -> dict[str, Any]:
    """A request as Flower's records; models go beside them."""
    packed = operations.pack(request)
    ask = ConfigRecord({"name": packed.name, "revision": packed.revision, "outline": dumps(packed.outline)})
    return {ASK: ask, **({ARRAYS: pack(packed.arrays)} if packed.arrays else {})}


def from_records(content: Mapping[str, Any]) -> Any:
    """The request again; a revision that is not ours is refused with both numbers."""
    ask, arrays = content[ASK], unpack(content.get(ARRAYS, {}))
    packed = operations.Packed(str(ask["name"]), int(ask["revision"]), arrays, loads(str(ask["outline"])))
    return operations.unpack(packed)


def version(content: Mapping[str, Any]) -> str:
    """What an answer says it answers to: the content of the question."""
    return digest(unpack(content.get(ARRAYS, {})), " ".join(str(content[ASK][key]) for key in sorted(content[ASK])))


def about(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a reply says beside its arrays."""
    found = content.get(ABOUT)
    return dict(found) if isinstance(found, ConfigRecord) else {}


def record_bytes(content: Any) -> int:
    """What a message's records weigh: arrays with their headers, numbers and keys."""
    if not isinstance(content, RecordDict):
        return 0
    return sum(int(record.count_bytes()) + len(name) for name, record in content.items())


class InContext(MutableMapping[str, Arrays]):
    """A node's memory in Flower's own context, which lives as long as the SuperNode."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, name: str) -> Arrays:
        record = self.state[name]
        del self.state[name]
        self.state[name] = record  # the last that was used
        return unpack(record)

    def __setitem__(self, name: str, arrays: Arrays) -> None:
        self.state[name] = pack(arrays)

    def __delitem__(self, name: str) -> None:
        del self.state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.state))

    def __len__(self) -> int:
        return len(self.state)
