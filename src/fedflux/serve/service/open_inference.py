"""The Open Inference Protocol, version 2, over REST, with its extension for binary data: standard clients work."""

from collections.abc import Mapping
from json import dumps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.serve.bundle import EXTRACTOR, Bundle
from fedflux.serve.inputs import KINDS
from fedflux.serve.service.gate import RefusedError, plain
from fedflux.serve.service.reading import read_object
from fedflux.version import __version__

Array = NDArray[np.generic]
TYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
NAMES = {np.dtype(kind).name: name for name, kind in TYPES.items()}
SERVER = {"name": "fedflux", "version": __version__, "extensions": ["binary_tensor_data"]}
LENGTH = "inference-header-content-length"
INPUT = "x"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype"],
                "properties": {
                    "name": {"type": "string", "enum": [INPUT]},
                    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    "datatype": {"type": "string", "enum": list(TYPES)},
                    "parameters": {"type": "object"},
                    "data": {"type": "array", "items": {}},
                },
            },
        },
        "outputs": {
            "type": "array",
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
        "parameters": {"type": "object"},
    },
}


def served_models(bundle: Bundle) -> list[str]:
    """What can be asked: the answer to a cluster's members, every single model, and the extractor."""
    return [*(one.name for one in bundle.clusters), *bundle.answering.models, EXTRACTOR]


def metadata(bundle: Bundle, name: str) -> dict[str, Any]:
    """What goes in and what comes out."""
    _check_name(bundle, name)
    form = bundle.form
    return {
        "name": name,
        "versions": ["1"],
        "platform": "onnxruntime",
        "inputs": [{"name": INPUT, "datatype": NAMES[np.dtype(KINDS[form.kind]).name], "shape": [-1, *form.shape]}],
        "outputs": [{"name": output, **told} for output, told in _given(bundle, name).items()],
        "parameters": {"bundle": bundle.id, "class_names": list(bundle.class_names)},
    }


def _given(bundle: Bundle, name: str) -> dict[str, dict[str, Any]]:
    """The outputs of a model: what is likeliest, and with several labels those of one half or more."""
    classes = len(bundle.class_names)
    if name == EXTRACTOR:
        return {"latents": {"datatype": "FP64", "shape": [-1, int(bundle.offer.mixtures.centre.shape[1])]}}
    found: dict[str, dict[str, Any]] = {"probabilities": {"datatype": "FP32", "shape": [-1, classes]}}
    if bundle.several_labels:
        return {**found, "labels": {"datatype": "BOOL", "shape": [-1, classes]}}
    return {**found, "class": {"datatype": "INT64", "shape": [-1]}}


def _check_name(bundle: Bundle, name: str) -> None:
    if name not in served_models(bundle):
        known = ", ".join(served_models(bundle)[:12])
        raise RefusedError(404, f"there is no model {plain(name)}: there are {known}")


def parse(body: bytes, length: str | None) -> tuple[dict[str, Any], bytes]:
    """The JSON part of a request, and the binary part behind it."""
    if length is None:
        return read_object(body), b""
    if not length.isascii() or not length.isdigit() or len(length) > 12 or int(length) > len(body):
        raise RefusedError(400, f"{LENGTH} is not the length of the JSON part of this body")
    return read_object(body[: int(length)]), body[int(length) :]


def infer(
    bundle: Bundle, name: str, told: Mapping[str, Any], binary: bytes, most: int
) -> tuple[bytes, int | None, int]:
    """The answer, the length of its JSON part where binary data follow, and the number of records."""
    _check_name(bundle, name)
    x = _input(told, binary, most)
    wanted = _outputs(told, tuple(_given(bundle, name)))
    try:
        if name == EXTRACTOR:
            found: dict[str, Array] = {"latents": bundle.describe(x)}
        else:
            found = _answers(bundle, name, x)
    except FedfluxError as error:
        raise RefusedError(400, str(error)) from error
    head = {"model_name": name, "model_version": "1", "parameters": {"bundle": bundle.id}}
    if isinstance(told.get("id"), str):
        head["id"] = told["id"]
    return (*_packed(head, found, wanted), len(x))


def _answers(bundle: Bundle, name: str, x: Array) -> dict[str, Array]:
    place = next((k for k, one in enumerate(bundle.clusters) if one.name == name), None)
    weights = {name: 1.0} if place is None else bundle.of_member(place)
    probabilities = bundle.predict(x, weights)
    if bundle.several_labels:
        return {"probabilities": probabilities, "labels": probabilities >= 0.5}
    return {"probabilities": probabilities, "class": probabilities.argmax(axis=1).astype(np.int64)}


def _input(told: Mapping[str, Any], binary: bytes, most: int) -> Array:
    inputs = told.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise RefusedError(400, f"inputs must be a list of one tensor, '{INPUT}'")
    one = inputs[0]
    if one.get("name") != INPUT:
        raise RefusedError(400, f"there is no input {plain(one.get('name'))}: the input is '{INPUT}'")
    kind = one.get("datatype")
    if not isinstance(kind, str) or kind not in TYPES:
        raise RefusedError(400, f"datatype {plain(kind)} is none of {', '.join(TYPES)}")
    shape = one.get("shape")
    if not isinstance(shape, list) or not 1 <= len(shape) <= 8 or not all(_is_size(size) for size in shape):
        raise RefusedError(400, "shape must be a list of sizes")
    if shape[0] > most:
        raise RefusedError(400, f"{shape[0]} records are too many at once; send at most {most}")
    return _values(one, TYPES[kind], shape, binary)


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31


def _values(one: Mapping[str, Any], kind: type[np.generic], shape: list[int], binary: bytes) -> Array:
    count = 1
    for size in shape:
        count *= size
    parameters = one.get("parameters")
    length = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if length is not None:
        if length != len(binary) or len(binary) != count * np.dtype(kind).itemsize:
            raise RefusedError(400, "binary_data_size, the data behind the JSON part, and shape do not fit together")
        return np.frombuffer(binary, dtype=np.dtype(kind).newbyteorder("<")).reshape(shape)
    data = one.get("data")
    if not isinstance(data, list):
        raise RefusedError(400, "the input has no data")
    try:
        raw = np.asarray(data)
        if raw.dtype.kind not in "buif" or raw.size != count:
            raise ValueError("no numbers of that shape")
        values = raw.reshape(shape).astype(kind)
        if raw.dtype.kind in "iuf" and np.dtype(kind).kind in "iu" and not np.array_equal(values, raw.reshape(shape)):
            raise ValueError("numbers beyond the datatype")
    except (ValueError, OverflowError, RecursionError, TypeError) as error:
        raise RefusedError(400, "data do not fit shape and datatype") from error
    return values


def _outputs(told: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, bool]:
    """The outputs that are asked for, and which of them as binary data."""
    parameters = told.get("parameters")
    usual = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    asked = told.get("outputs")
    if asked is None or asked == []:
        return dict.fromkeys(known, usual)
    if not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        raise RefusedError(400, "outputs must be a list of tensors by name")
    found = {}
    for one in asked:
        if one.get("name") not in known:
            raise RefusedError(400, f"there is no output {plain(one.get('name'))}: there are {', '.join(known)}")
        own = one.get("parameters")
        found[str(one["name"])] = bool(own.get("binary_data", usual)) if isinstance(own, dict) else usual
    return found


def _packed(head: dict[str, Any], found: Mapping[str, Array], wanted: Mapping[str, bool]) -> tuple[bytes, int | None]:
    outputs, tail = [], b""
    for name, binary in wanted.items():
        values = found[name]
        one: dict[str, Any] = {"name": name, "datatype": NAMES[values.dtype.name], "shape": list(values.shape)}
        if binary:
            content = values.astype(values.dtype.newbyteorder("<")).tobytes()
            one["parameters"] = {"binary_data_size": len(content)}
            tail += content
        else:
            one["data"] = values.ravel().tolist()
        outputs.append(one)
    text = dumps({**head, "outputs": outputs}, separators=(",", ":")).encode()
    return text + tail, len(text) if tail else None
