"""Between Flower's records and arrays: models and answers on the wire.

Models have digests, so that a node that holds one already is told its name instead of being sent it again.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedflux.engine.stack import Parameters
from fedflux.operations import Arrays

ASK = "ask"
"""The record that says what is asked, and under which models."""
ARRAYS = "arrays"
"""The arrays of a question."""
ABOUT = "about"
"""The record of a reply that is no array."""
ANSWER = "answer"
TOLD = "told"
"""What a client tells of its preparation, beside the models that it trained."""


def pack(arrays: Arrays) -> Any:
    """Named arrays as a Flower record."""
    return ArrayRecord({name: Array(np.array(array, order="C")) for name, array in arrays.items()})


def unpack(record: Any) -> dict[str, NDArray[np.generic]]:
    """A Flower record as named arrays; refuses any serialisation but plain arrays."""
    return {name: np.asarray(array.numpy()) for name, array in record.items()}


def pack_models(models: Sequence[Arrays]) -> Any:
    """Models, one after another, as a record; an array that holds one value throughout travels as that value."""
    record = {}
    for row, arrays in enumerate(models):
        for name, array in arrays.items():
            first = np.ravel(array)[:1]
            if array.size > 1 and (array == first).all() and array.tobytes() == array.size * first.tobytes():
                record[f"{row}/{name}@{'x'.join(map(str, array.shape))}"] = first
            else:
                record[f"{row}/{name}"] = array
    return pack(record)


def unpack_models(record: Any) -> dict[str, NDArray[np.generic]]:
    """The same again, names with the number of the model before them; what was one value takes no memory here."""
    arrays = {}
    for full, array in unpack(record).items():
        name, _, shape = full.partition("@")
        arrays[name] = np.broadcast_to(array, tuple(map(int, shape.split("x")))) if shape else array
    return arrays


def model_arrays(params: Parameters) -> dict[str, NDArray[np.generic]]:
    """One model's tensors as arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in params.items()}


def parameters(arrays: Arrays) -> Parameters:
    """One model's arrays as tensors."""
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


def digest(arrays: Arrays, words: str = "") -> str:
    """A name for arrays and words that two machines agree on: names, types, shapes and content."""
    found = sha256(words.encode())
    for name in sorted(arrays):
        array = np.array(arrays[name], order="C")
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:32]


def record_bytes(content: Any) -> int:
    """What a message's records weigh: arrays with their headers, numbers and keys."""
    if not isinstance(content, RecordDict):
        return 0
    return sum(int(record.count_bytes()) + len(name) for name, record in content.items())
