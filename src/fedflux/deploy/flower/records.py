"""Between Flower's records and the core's arrays: models, bounds and descriptors on the wire.

A model has a digest, so that a node that holds it already is told its name instead of being sent it again.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.wire import SCHEMA
from fedflux.engine.stack import Parameters, Stack

Arrays = Mapping[str, NDArray[np.generic]]

MODEL = "model"
"""The record that carries a model, in both directions."""
ASK = "ask"
"""The record that says what is asked and under which model."""
ABOUT = "about"
"""The record of a reply that is neither arrays nor metrics."""
METRICS = "metrics"
BOUNDS = "bounds"
DESCRIPTOR = "descriptor"
EXAMPLES = "num-examples"
UNLABELLED = ("mean", "spread", "count", "full")
"""What an unlabelled node sends of a descriptor: it has no validation part, and its counts are what they are."""


def pack(arrays: Arrays) -> Any:
    """Named arrays as a Flower record."""
    return ArrayRecord({name: Array(np.array(array, order="C")) for name, array in arrays.items()})


def unpack(record: Any) -> dict[str, NDArray[np.generic]]:
    """A Flower record as named arrays; refuses any serialisation but plain arrays."""
    return {name: np.asarray(array.numpy()) for name, array in record.items()}


def model_arrays(params: Parameters) -> dict[str, NDArray[np.generic]]:
    """One model's tensors as arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in params.items()}


def model_stack(arrays: Arrays) -> Stack:
    """One model's arrays as a stack of one."""
    return Stack({name: _tensor(array)[None] for name, array in arrays.items()})


def _tensor(array: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))


def digest(arrays: Arrays) -> str:
    """A name for arrays that two machines agree on: names, types, shapes and content."""
    told = sha256()
    for name in sorted(arrays):
        array = np.array(arrays[name], order="C")
        told.update(f"{name} {array.dtype.str} {array.shape}".encode())
        told.update(array.tobytes())
    return told.hexdigest()[:32]


def bounds_arrays(bounds: Bounds) -> dict[str, NDArray[np.generic]]:
    """[m⁻, m⁺] as arrays."""
    return {"low": bounds.low, "high": bounds.high}


def read_bounds(arrays: Arrays) -> Bounds:
    """Bounds from arrays that have been checked."""
    return Bounds(arrays["low"].astype(np.float32), arrays["high"].astype(np.float32))


def label_free(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """The part of a wire form that an unlabelled node sends."""
    return {name: arrays[name] for name in ("schema", *UNLABELLED) if name in arrays}


def completed(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """An unlabelled node's message in the form that the core reads: effective counts are counts, no validation part."""
    clients, _, length = arrays["mean"].shape
    return {
        **arrays,
        "effective": arrays["count"].astype(np.float32),
        "validation_mean": np.zeros((clients, length), dtype=np.float32),
        "validation_count": np.zeros(clients, dtype=np.uint32),
    }


def descriptor_types(arrays: Arrays) -> dict[str, str]:
    """The number types of a descriptor's blocks, as the core writes them."""
    told = {
        "schema": np.array(SCHEMA).dtype.str,
        "mean": "<f4",
        "spread": "<f2",
        "count": "<u4",
        "effective": "<f4",
        "validation_mean": "<f4",
        "validation_count": "<u4",
        "correlation": "|i1",
        "full": "|i1",
        "noise": "<f4",
    }
    return {name: told[name] for name in arrays if name in told}


def record_bytes(content: Any) -> int:
    """What a message's records weigh: arrays with their headers, numbers and keys."""
    if not isinstance(content, RecordDict):
        return 0
    return sum(int(record.count_bytes()) + len(name) for name, record in content.items())
