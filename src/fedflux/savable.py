"""States on disk: any frozen dataclass of arrays and small values as named tensors and a JSON outline, and back.

The outline holds no class names: types come from the dataclass that is asked for, so a file cannot name code to run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

ARRAY = "array"
"""What stands in the outline where an array was."""


def take_apart(value: Any) -> tuple[dict[str, Tensor], Any]:
    """The arrays of a state, named by where they sit in it, and an outline of everything else."""
    tensors: dict[str, Tensor] = {}
    return tensors, _outline(value, "state", tensors)


def _outline(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        tensor = torch.from_numpy(np.array(value, order="C")) if isinstance(value, np.ndarray) else value
        tensors[path] = tensor.detach().cpu().clone().contiguous()
        return ARRAY
    if is_dataclass(value):
        return {f.name: _outline(getattr(value, f.name), f"{path}.{f.name}", tensors) for f in fields(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{path}: only text can be a key of a mapping that is saved")
        return {key: _outline(item, f"{path}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_outline(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{path}: {type(value).__name__} cannot be saved; use arrays, dataclasses, tuples and plain values")


def put_together(kind: type[T], tensors: Mapping[str, Tensor], outline: Any, device: str = "cpu") -> T:
    """The state of type `kind` again; torch tensors go to `device`."""
    result: T = _build(kind, tensors, outline, "state", device)
    return result


def _of_several(kinds: Sequence[Any], outline: Any) -> Any:
    """The first dataclass that has all fields of the outline, else the first kind."""
    some = [kind for kind in kinds if kind is not NoneType]
    fitting = (
        kind
        for kind in some
        if is_dataclass(kind) and isinstance(outline, Mapping) and {*outline} <= {f.name for f in fields(kind)}
    )
    return next(fitting, some[0])


def _build(kind: Any, tensors: Mapping[str, Tensor], outline: Any, path: str, device: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(origin, "__value__"):  # a type alias with arguments, as newer numpy's NDArray[…] is
        origin = get_origin(origin.__value__) or origin.__value__
    if origin in (Union, UnionType):
        if outline is None and NoneType in arguments:
            return None
        return _build(_of_several(arguments, outline), tensors, outline, path, device)
    if kind is Tensor:
        return tensors[path].to(device)
    if (origin or kind) is np.ndarray:
        return tensors[path].numpy()
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        # a field that was added since the file was written has its default
        told = [f.name for f in fields(kind) if f.name in outline]
        values = {name: _build(hints[name], tensors, outline[name], f"{path}.{name}", device) for name in told}
        return kind(**values)  # type: ignore[operator]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _build(arguments[1], tensors, item, f"{path}.{key}", device) for key, item in outline.items()}
    if origin in (tuple, list):
        kinds = arguments[:1] * len(outline) if origin is list or arguments[-1:] == (...,) else arguments
        built = (
            _build(k, tensors, item, f"{path}.{i}", device)
            for i, (k, item) in enumerate(zip(kinds, outline, strict=True))
        )
        return origin(built)
    if kind is float:
        return float(outline)
    if origin is Literal and outline not in arguments:
        raise ValueError(f"{path}: {outline!r} is none of {arguments}")
    if origin is Literal or kind in (bool, int, str):
        return outline
    raise TypeError(f"{path}: a field of type {kind} cannot be restored")
