"""A descriptor's wire form: compact arrays, the same on disk, in a simulation and between machines.

Labelled clients send class means (4-byte floats), class deviations (2), class correlations (1 byte each), counts and
effective counts (4 each) and the validation mean; the marginal block follows from the classes and is not sent. With ten
classes and l = 10 that is 1,178 bytes, under 0.5 % of LeNet-5. Unlabelled clients send the marginal block alone.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.flux.descriptor import Descriptors

SCHEMA = 1
STEP = 127.0
"""A correlation of ±1 is ±127 in a signed byte."""

Arrays = Mapping[str, NDArray[np.generic]]


def to_arrays(descriptors: Descriptors) -> dict[str, NDArray[np.generic]]:
    """Named arrays, one row a client."""
    first = 1 if descriptors.classes else 0
    upper = np.triu_indices(descriptors.mean.shape[2], k=1)
    arrays: dict[str, NDArray[np.generic]] = {
        "schema": np.array(SCHEMA),
        "mean": descriptors.mean[:, first:].astype(np.float32),
        "spread": _half(descriptors.spread[:, first:]),
        "count": descriptors.count[:, first:].astype(np.uint32),
        "effective": descriptors.effective.astype(np.float32),
        "validation_mean": descriptors.validation_mean.astype(np.float32),
        "validation_count": descriptors.validation_count.astype(np.uint32),
    }
    if descriptors.classes:
        arrays["correlation"] = np.rint(descriptors.correlation[..., upper[0], upper[1]] * STEP).astype(np.int8)
    if descriptors.noise.any():
        arrays["noise"] = descriptors.noise.astype(np.float32)
    return arrays


def client_bytes(descriptors: Descriptors) -> int:
    """What one client sends; unlabelled clients have no validation split to tell of."""
    arrays = to_arrays(descriptors)
    skipped = {"schema", "noise"} | (
        set() if descriptors.classes else {"effective", "validation_mean", "validation_count"}
    )
    return sum(int(array[0].nbytes) for name, array in arrays.items() if name not in skipped)


def over_the_wire(descriptors: Descriptors) -> Descriptors:
    """What arrives when these are sent, so that a simulation clusters exactly what a deployment would."""
    return from_arrays(to_arrays(descriptors))


def from_arrays(arrays: Arrays) -> Descriptors:
    """Read the wire form back; refuses another schema, missing blocks and shapes that do not fit together."""
    needed = {"schema", "mean", "spread", "count", "effective", "validation_mean", "validation_count"}
    missing = needed - set(arrays)
    if missing:
        raise FedfluxError(f"not a descriptor file: it lacks {', '.join(sorted(missing))}")
    if arrays["schema"].shape != () or int(arrays["schema"]) != SCHEMA:
        raise FedfluxError(f"descriptor schema {arrays['schema']}; this fedflux reads schema {SCHEMA}")
    mean, spread = arrays["mean"].astype(np.float64), arrays["spread"].astype(np.float64)
    count, effective = arrays["count"].astype(np.int64), arrays["effective"].astype(np.float64)
    labelled = "correlation" in arrays
    _check_shapes(mean, spread, count, effective, labelled)
    correlation = (
        _square(arrays["correlation"], mean.shape) if labelled else np.zeros((len(mean), 0, *mean.shape[2:] * 2))
    )
    if labelled:
        mean, spread, count = _with_marginal(mean, spread, count)
    return Descriptors(
        mean=mean,
        spread=spread,
        correlation=correlation,
        count=count,
        effective=effective,
        noise=arrays["noise"].astype(np.float64) if "noise" in arrays else np.zeros(mean.shape[:2]),
        validation_mean=arrays["validation_mean"].astype(np.float64),
        validation_count=arrays["validation_count"].astype(np.int64),
    )


def _half(values: NDArray[np.float64]) -> NDArray[np.float16]:
    """Two-byte floats, kept finite."""
    limit = float(np.finfo(np.float16).max)
    return np.clip(values, -limit, limit).astype(np.float16)


def _check_shapes(
    mean: NDArray[np.float64],
    spread: NDArray[np.float64],
    count: NDArray[np.int64],
    effective: NDArray[np.float64],
    labelled: bool,
) -> None:
    groups = mean.shape[1] + labelled if mean.ndim == 3 else -1
    if mean.ndim != 3 or spread.shape[:3] != mean.shape or count.shape != mean.shape[:2]:
        raise FedfluxError(f"descriptor blocks do not fit together: mean {mean.shape}, spread {spread.shape}")
    if effective.shape != (len(mean), groups):
        raise FedfluxError(f"descriptor blocks do not fit together: mean {mean.shape}, effective {effective.shape}")
    if not (np.isfinite(mean).all() and np.isfinite(spread).all() and np.isfinite(effective).all()):
        raise FedfluxError("a descriptor holds NaN or infinite numbers")


def _square(packed: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Symmetric correlation matrices from their upper triangles."""
    clients, classes, length = shape
    upper = np.triu_indices(length, k=1)
    if packed.shape != (clients, classes, len(upper[0])):
        raise FedfluxError(
            f"descriptor correlations of shape {packed.shape} do not fit {classes} classes and l = {length}"
        )
    matrix = np.zeros((clients, classes, length, length))
    matrix[..., upper[0], upper[1]] = packed.astype(np.float64) / STEP
    matrix += np.swapaxes(matrix, -1, -2)
    matrix[..., np.arange(length), np.arange(length)] = 1.0
    return matrix


def _with_marginal(
    mean: NDArray[np.float64], spread: NDArray[np.float64], count: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Put group 0 in front: the mixture of the classes, whose spread is that within them plus that between them."""
    total = count.sum(axis=1)
    share = count / np.maximum(total, 1)[:, None]
    marginal = np.einsum("ku,kui->ki", share, mean)
    if spread.ndim == 3:
        raw = np.einsum("ku,kui->ki", share, spread**2 + mean**2)
        around = np.sqrt(np.maximum(raw - marginal**2, 0))
    else:
        raw = np.einsum("ku,kuij->kij", share, spread + mean[..., :, None] * mean[..., None, :])
        around = raw - marginal[:, :, None] * marginal[:, None, :]
    return (
        np.concatenate([marginal[:, None], mean], axis=1),
        np.concatenate([around[:, None], spread], axis=1),
        np.concatenate([total[:, None], count], axis=1),
    )
