"""S3 on the wire: a descriptor as compact arrays, the same on disk, in a simulation and between machines.

Labelled clients send class means (4-byte floats), logarithms of class deviations (2 bytes), class correlations (1 byte
each), counts and effective counts (4 each) and the validation mean; the marginal block follows from the classes and is
not sent. With ten classes and l = 10 that is 1,178 bytes, under 0.5 % of LeNet-5. Unlabelled clients send the marginal
block alone. Under privacy the marginal block is released by itself and sent, counts may be negative, and variances of
the noise, which follow from public numbers, stand beside them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.sums import EXACT, precision, spans
from fedflux.errors import FedfluxError
from fedflux.operations import Arrays

SCHEMA = 1
STEP = 127.0
"""A correlation of ±1 is ±127 in a signed byte."""
NONE = -80.0
ROUNDING = 0.02
"""Eigenvalues of a correlation matrix below this are lost in the rounding to a byte."""


def to_arrays(descriptors: Descriptors) -> dict[str, NDArray[np.generic]]:
    """Named arrays, one row a client."""
    first = 1 if descriptors.classes else 0
    arrays: dict[str, NDArray[np.generic]] = {
        "schema": np.array(SCHEMA),
        "mean": descriptors.mean[:, first:].astype(np.float32),
        "spread": _logarithm(descriptors.deviations()[:, first:]),
        "count": descriptors.count[:, first:].astype(np.int32 if descriptors.noise.any() else np.uint32),
        "effective": descriptors.effective.astype(np.float32),
        "validation_mean": descriptors.validation_mean.astype(np.float32),
        "validation_count": descriptors.validation_count.astype(np.uint32),
    }
    if descriptors.classes:
        arrays["correlation"] = _packed(descriptors.correlation)
    if descriptors.spread.ndim == 4:
        deviation = descriptors.deviations()[:, 0]
        scale = deviation[..., :, None] * deviation[..., None, :]
        arrays["full"] = _packed(descriptors.spread[:, 0] / np.where(scale > 0, scale, 1.0))
    if descriptors.noise.any():
        arrays["noise"] = descriptors.noise.astype(np.float32)
        arrays["count_noise"] = descriptors.count_noise.astype(np.float32)
        arrays["validation_noise"] = descriptors.validation_noise.astype(np.float32)
        if descriptors.classes:
            arrays["marginal_mean"] = descriptors.mean[:, 0].astype(np.float32)
            arrays["marginal_spread"] = _logarithm(descriptors.deviations()[:, 0])
            arrays["size"] = descriptors.count[:, 0].astype(np.uint32)
    return arrays


def join_arrays(parts: Sequence[Arrays]) -> dict[str, NDArray[np.generic]]:
    """The wire forms of several groups of clients, one after another; without privacy there is no noise."""
    joined: dict[str, NDArray[np.generic]] = {"schema": np.array(SCHEMA)}
    for name in {name: None for part in parts for name in part if name != "schema"}:
        rows = [part.get(name, np.zeros(part["effective"].shape, dtype=np.float32)) for part in parts]
        joined[name] = np.concatenate(rows)
    return joined


def put_arrays(arrays: Arrays, rows: NDArray[np.int64], fresh: Arrays) -> dict[str, NDArray[np.generic]]:
    """The wire form with the clients at `rows` described by `fresh` instead."""
    count = len(arrays["effective"])
    order = np.arange(count)
    order[rows] = count + np.arange(len(rows))
    joined = join_arrays([arrays, fresh])
    return {name: array if name == "schema" else array[order] for name, array in joined.items()}


def label_free(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """What an unlabelled client sends of it: there is no validation part to tell of."""
    return {name: array for name, array in arrays.items() if name not in ("validation_mean", "validation_count")}


def completed(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """An unlabelled client's message in the form that is read."""
    clients, _, length = arrays["mean"].shape
    return {
        **arrays,
        "validation_mean": np.zeros((clients, length), dtype=np.float32),
        "validation_count": np.zeros(clients, dtype=np.uint32),
    }


def client_bytes(descriptors: Descriptors) -> int:
    """What one client sends; unlabelled clients have no validation split to tell of, labelled ones no marginal."""
    known = {"schema", "noise", "count_noise", "validation_noise", "size"}
    skipped = known | ({"full"} if descriptors.classes else {"validation_mean", "validation_count"})
    one = to_arrays(descriptors.take([0]))
    return sum(int(array.nbytes) for name, array in one.items() if name not in skipped)


def over_the_wire(descriptors: Descriptors) -> Descriptors:
    """What arrives when these are sent."""
    return from_arrays(to_arrays(descriptors))


def from_arrays(arrays: Arrays) -> Descriptors:
    """Read the wire form back; refuses another schema, missing blocks and shapes that do not fit together."""
    missing = {"schema", "mean", "spread", "count", "effective", "validation_mean", "validation_count"} - set(arrays)
    if missing:
        raise FedfluxError(f"not a descriptor file: it lacks {', '.join(sorted(missing))}")
    if arrays["schema"].shape != () or int(arrays["schema"]) != SCHEMA:
        raise FedfluxError(f"descriptor schema {arrays['schema']}; this fedflux reads schema {SCHEMA}")
    _check_shapes(arrays)
    labelled = "correlation" in arrays
    mean, count = arrays["mean"].astype(np.float64), arrays["count"].astype(np.int64)
    logarithm = arrays["spread"].astype(np.float64)
    spread = np.where(logarithm > NONE, np.exp(logarithm), 0.0)
    correlation: NDArray[np.floating] = np.zeros((len(mean), 0, mean.shape[2], mean.shape[2]))
    if labelled:
        correlation = _square(arrays["correlation"], mean.shape[2])
        mean, spread, count = _with_marginal(mean, spread, count)
        if "marginal_mean" in arrays:
            mean[:, 0], count[:, 0] = arrays["marginal_mean"], arrays["size"]
            spread[:, 0] = np.exp(arrays["marginal_spread"].astype(np.float64))
    if "full" in arrays:
        shapes = np.concatenate([_square(arrays["full"], mean.shape[2])[:, None], correlation], axis=1)
        spread = shapes * spread[..., :, None] * spread[..., None, :]
    return Descriptors(
        mean=mean,
        spread=spread,
        correlation=correlation,
        count=count,
        effective=arrays["effective"].astype(np.float64),
        noise=arrays["noise"].astype(np.float64) if "noise" in arrays else np.zeros(mean.shape[:2]),
        validation_mean=arrays["validation_mean"].astype(np.float64),
        validation_count=arrays["validation_count"].astype(np.int64),
        count_noise=_or_none(arrays, "count_noise"),
        validation_noise=_or_none(arrays, "validation_noise"),
    )


def _or_none(arrays: Arrays, name: str) -> NDArray[np.float64]:
    """A number a client, 0 where there is no privacy."""
    return arrays[name].astype(np.float64) if name in arrays else np.zeros(len(arrays["mean"]))


def _check_shapes(arrays: Arrays) -> None:
    mean = arrays["mean"]
    if mean.ndim != 3:
        raise FedfluxError(f"descriptor means of shape {mean.shape} do not fit: give (clients, groups, l)")
    clients, groups, length = mean.shape
    labelled = "correlation" in arrays
    pairs = length * (length - 1) // 2
    shapes = {
        "spread": mean.shape,
        "count": (clients, groups),
        "effective": (clients, groups + labelled),
        "noise": (clients, groups + labelled),
        "validation_mean": (clients, length),
        "validation_count": (clients,),
        "correlation": (clients, groups, pairs),
        "full": (clients, pairs),
        "count_noise": (clients,),
        "validation_noise": (clients,),
        "marginal_mean": (clients, length),
        "marginal_spread": (clients, length),
        "size": (clients,),
    }
    private = {"marginal_mean", "marginal_spread", "size"} & set(arrays)
    if len(private) not in (0, 3) or (private and "noise" not in arrays):
        raise FedfluxError(f"a private descriptor lacks some of its blocks: it has {', '.join(sorted(private))}")
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            raise FedfluxError(f"descriptor blocks do not fit together: mean {mean.shape}, {name} {arrays[name].shape}")
    floats = ("mean", "spread", "effective", "noise", "validation_mean", "count_noise", "validation_noise")
    for name in (*floats, "marginal_mean", "marginal_spread"):
        if name in arrays and not np.isfinite(arrays[name].astype(np.float64)).all():
            raise FedfluxError(f"a descriptor's {name} holds NaN or infinite numbers")


def _logarithm(deviation: NDArray[np.float64]) -> NDArray[np.float16]:
    """Logarithms in two bytes: right to a few parts in a thousand at every scale; `NONE` is no deviation at all."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(deviation), NONE).astype(np.float16)


def _packed(correlation: NDArray[np.floating]) -> NDArray[np.int8]:
    """Upper triangles in signed bytes."""
    upper = np.triu_indices(correlation.shape[-1], k=1)
    packed = np.empty((*correlation.shape[:-2], len(upper[0])), dtype=np.int8)
    for rows in spans(len(correlation)):
        packed[rows] = np.rint(correlation[rows][..., upper[0], upper[1]] * STEP)
    return packed


def _square(packed: NDArray[np.generic], length: int) -> NDArray[np.floating]:
    """Correlation matrices from their upper triangles, in pieces: single precision beyond 20,000 clients."""
    result = np.empty((*packed.shape[:-1], length, length), dtype=precision(len(packed)))
    for rows in spans(len(packed), EXACT):
        result[rows] = _lifted(packed[rows], length)
    return result


def _lifted(packed: NDArray[np.generic], length: int) -> NDArray[np.float64]:
    """Correlation matrices with eigenvalues above what rounding to a byte can undo."""
    upper = np.triu_indices(length, k=1)
    matrix = np.zeros((*packed.shape[:-1], length, length))
    matrix[..., upper[0], upper[1]] = packed.astype(np.float64) / STEP
    matrix += np.swapaxes(matrix, -1, -2)
    matrix[..., np.arange(length), np.arange(length)] = 1.0
    values, axes = np.linalg.eigh(matrix)
    if values.min(initial=1.0) >= ROUNDING:
        return matrix
    lifted = (axes * np.maximum(values, ROUNDING)[..., None, :]) @ np.swapaxes(axes, -1, -2)
    deviation = np.sqrt(np.einsum("...ii->...i", lifted))
    return np.asarray(lifted / (deviation[..., :, None] * deviation[..., None, :]))


def _with_marginal(
    mean: NDArray[np.float64], spread: NDArray[np.float64], count: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Put group 0 in front: the mixture of the classes, whose spread is that within them plus that between them."""
    total = np.maximum(count.sum(axis=1), 0)
    share = count / np.maximum(total, 1)[:, None]
    marginal = np.einsum("ku,kui->ki", share, mean)
    raw = np.einsum("ku,kui->ki", share, spread**2 + mean**2)
    around = np.sqrt(np.maximum(raw - marginal**2, 0))
    return (
        np.concatenate([marginal[:, None], mean], axis=1),
        np.concatenate([around[:, None], spread], axis=1),
        np.concatenate([total[:, None], count], axis=1),
    )
