"""Models as named arrays, and the names that two machines agree on."""

from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.engine.stack import Parameters
from fedflux.operations import Arrays


def model_arrays(params: Parameters) -> dict[str, NDArray[np.generic]]:
    """One model's tensors as arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in params.items()}


def parameters(arrays: Arrays) -> Parameters:
    """One model's arrays as tensors."""
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


def digest(arrays: Arrays, words: str = "") -> str:
    """A name for arrays and words: names, types, shapes and content."""
    found = sha256(words.encode())
    for name in sorted(arrays):
        array = np.array(arrays[name], order="C")
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:32]
