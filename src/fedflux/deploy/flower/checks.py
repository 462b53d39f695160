"""What is wrong with something a node sent: each check gives the reason in words, or None.

Nothing here raises: a bad message costs its sender the run, and nobody else anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.flux.describe import Extractor
from fedflux.deploy.flower.records import Arrays, descriptor_types
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.wire import from_arrays
from fedflux.errors import FedfluxError

FAR = 1.0
"""A descriptor may lie outside the frozen box by so many times its width: late nodes gave no bounds of their own."""
WIDE = 100.0
"""Bounds that reach so many times farther than the median node's are no honest node's: latents come from one model."""


def first_fault(faults: Iterable[str | None]) -> str | None:
    """The first thing that is wrong; checks are generators, so that later ones may rely on earlier ones."""
    return next((fault for fault in faults if fault is not None), None)


def shape_fault(arrays: Arrays, wanted: Arrays, what: str) -> str | None:
    """Other names, shapes or number types than those of the model that was sent."""
    if set(arrays) != set(wanted):
        odd = sorted(set(arrays) ^ set(wanted))
        return f"{what} is of another model: {', '.join(odd[:3])} {'is' if len(odd) == 1 else 'are'} not in both"
    for name, array in arrays.items():
        if array.shape != wanted[name].shape:
            return f"{what} has a wrong shape: {name} is {array.shape}, not {wanted[name].shape}"
        if array.dtype != wanted[name].dtype:
            return f"{what} has a wrong type: {name} is {array.dtype}, not {wanted[name].dtype}"
    return None


def finite_fault(arrays: Arrays, what: str) -> str | None:
    """NaN or infinite numbers."""
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array.astype(np.float64)).all():
            return f"{what} holds NaN or infinite numbers in {name}"
    return None


def version_fault(told: Any, wanted: str, what: str) -> str | None:
    """An answer to something else than what was asked."""
    return None if told == wanted else f"{what} is for version {str(told)[:8]}, not {wanted[:8]}"


def count_fault(told: Any, declared: int | None, limit: int) -> str | None:
    """A number of examples that is none, too large, or not what the node said before."""
    if isinstance(told, bool) or not isinstance(told, int) or told < 1:
        return f"it counts {told} examples: a whole number above 0 is needed"
    if told > limit:
        return f"it counts {told:,} examples, above the limit of {limit:,}"
    if declared is not None and told != declared:
        return f"it counts {told:,} examples, but said {declared:,} before"
    return None


def accuracy_fault(told: Any) -> str | None:
    """An accuracy outside 0 to 1."""
    if isinstance(told, float | int) and 0.0 <= told <= 1.0:
        return None
    return f"its accuracy {told} is outside 0 to 1"


def bounds_fault(arrays: Arrays, width: int) -> str | None:
    """Bounds of another latent, not finite, or upside down."""
    if set(arrays) != {"low", "high"}:
        return "its bounds lack low or high"
    if any(array.shape != (width,) for array in arrays.values()):
        return f"its bounds have a wrong shape: {arrays['low'].shape}, not ({width},)"
    fault = finite_fault(arrays, "its bounds")
    if fault is None and (arrays["low"].astype(np.float64) > arrays["high"].astype(np.float64)).any():
        return "its bounds are upside down: low above high"
    return fault


def wide_faults(bounds: Sequence[Bounds]) -> list[str | None]:
    """Bounds that reach so far beyond everyone else's that the shared projector would see nothing else."""
    reach = np.array([max(np.abs(one.low).max(), np.abs(one.high).max()) for one in bounds], dtype=np.float64)
    if len(reach) < 3:
        return [None] * len(reach)
    usual = float(np.median(reach))
    return [
        f"its bounds reach {far:.3g}, where the median node's reach {usual:.3g}" if far > WIDE * usual else None
        for far in reach
    ]


def descriptor_fault(arrays: Arrays, extractor: Extractor, classes: int, examples: int) -> str | None:
    """A descriptor that cannot be read, is not of this extractor, or lies where no data of these bounds can lie."""
    for name, kind in descriptor_types(arrays).items():
        if arrays[name].dtype.str != kind:
            return f"its descriptor has a wrong type: {name} is {arrays[name].dtype}"
    try:
        found = from_arrays(arrays)
    except FedfluxError as error:
        return f"its descriptor cannot be read: {error}"
    except (TypeError, ValueError, KeyError, IndexError) as error:
        return f"its descriptor cannot be read: {type(error).__name__}"
    wanted = (1, classes + 1, len(extractor.projector))
    if found.mean.shape != wanted:
        return f"its descriptor has a wrong shape: {found.mean.shape}, not {wanted}"
    return first_fault(_descriptor_faults(found, extractor, examples))


def _descriptor_faults(found: Descriptors, extractor: Extractor, examples: int) -> Iterable[str | None]:
    total = int(found.count[0, 0])
    yield count_fault(total, examples, examples)
    if (found.effective > found.count + 1e-3).any() or (found.effective < 0).any():
        yield "its descriptor counts more effective examples than examples"
    low, high = projected_box(extractor)
    yield outside_fault(found.mean[0][found.count[0] > 0], low, high, "mean")
    if found.validation_count[0]:
        yield outside_fault(found.validation_mean, low, high, "validation mean")
    if (found.deviations()[0] > (1 + 2 * FAR) * (high - low) + 1e-6).any():
        yield "its descriptor lies far outside the bounds: a spread is wider than the box"


def outside_fault(
    points: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], what: str
) -> str | None:
    """Points farther outside a box than `FAR` times its width."""
    slack = FAR * (high - low) + 1e-6
    if ((points < low - slack) | (points > high + slack)).any():
        return f"its descriptor lies far outside the bounds: a {what} is beyond the box"
    return None


def projected_box(extractor: Extractor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The smallest box of reduced latents that holds every latent within the bounds."""
    low, high = (side.astype(np.float64) for side in (extractor.bounds.low, extractor.bounds.high))
    centre = extractor.projector.components @ ((low + high) / 2 - extractor.projector.mean)
    half = np.abs(extractor.projector.components) @ ((high - low) / 2)
    return centre - half, centre + half


def update_fault(
    arrays: Arrays, about: Mapping[str, Any], examples: Any, start: Arrays, base: str, declared: int, limit: int
) -> str | None:
    """Everything that can be wrong with a trained model."""
    return first_fault(
        (
            shape_fault(arrays, start, "its update"),
            finite_fault(arrays, "its update"),
            version_fault(about.get("base"), base, "its update"),
            count_fault(examples, declared, limit),
        )
    )
