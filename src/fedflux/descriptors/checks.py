"""What is wrong with something a client sent about its data: each check gives the reason in words, or None.

Nothing here raises: a bad message costs its sender the run, and nobody else anything.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.descriptor import Descriptors
from fedflux.descriptors.projector import Projector
from fedflux.descriptors.wire import from_arrays
from fedflux.errors import FedfluxError
from fedflux.operations import Arrays

FAR = 1.0
"""A descriptor may lie outside the frozen box by so many times its width: late clients gave no bounds of their own."""
WIDE = 100.0
"""Bounds that reach so many times farther than the median client's are nobody's: latents come from one model."""
TYPES: Mapping[str, tuple[str, ...]] = {
    "schema": (np.array(1).dtype.str,),
    "mean": ("<f4",),
    "spread": ("<f2",),
    "count": ("<u4", "<i4"),
    "effective": ("<f4",),
    "validation_mean": ("<f4",),
    "validation_count": ("<u4",),
    "correlation": ("|i1",),
    "full": ("|i1",),
    "noise": ("<f4",),
}
"""The number types of a descriptor's blocks, as the wire form writes them."""


def first_fault(faults: Iterable[str | None]) -> str | None:
    """The first thing that is wrong; checks are generators, so that later ones may rely on earlier ones."""
    return next((fault for fault in faults if fault is not None), None)


def finite_fault(arrays: Arrays, what: str) -> str | None:
    """NaN or infinite numbers."""
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array.astype(np.float64)).all():
            return f"{what} holds NaN or infinite numbers in {name}"
    return None


def names_fault(arrays: Arrays, wanted: Iterable[str], what: str) -> str | None:
    """Other arrays than those that were asked for."""
    odd = sorted(set(arrays) ^ set(wanted))
    return f"{what} does not have the arrays asked for: {', '.join(odd[:3])}" if odd else None


def shape_fault(arrays: Arrays, shapes: Mapping[str, tuple[int, ...]], what: str) -> str | None:
    """Arrays of other names or shapes."""
    fault = names_fault(arrays, shapes, what)
    if fault is not None:
        return fault
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            return f"{what} has a wrong shape: {name} is {arrays[name].shape}, not {shape}"
    return None


def bounds_fault(arrays: Arrays, width: int) -> str | None:
    """Bounds of another latent, not finite, or upside down."""
    if set(arrays) != {"low", "high"}:
        return "its bounds lack low or high"
    if any(array.shape != (width,) for array in arrays.values()):
        return f"its bounds have a wrong shape: {arrays['low'].shape}, not ({width},)"
    with np.errstate(over="ignore"):
        single = {name: array.astype(np.float32) for name, array in arrays.items()}
    fault = finite_fault(single, "its bounds")
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


def descriptor_fault(
    arrays: Arrays, bounds: Bounds | None, projector: Projector, classes: int, examples: int, exactly: bool
) -> str | None:
    """A descriptor that cannot be read, is not of this projector, or lies where no data of these bounds can lie.

    `exactly`: it must count all of the examples that its client said it holds, and not only some of them.
    """
    for name, array in arrays.items():
        if name in TYPES and array.dtype.str not in TYPES[name]:
            return f"its descriptor has a wrong type: {name} is {array.dtype}"
    try:
        found = from_arrays(arrays)
    except FedfluxError as error:
        return f"its descriptor cannot be read: {error}"
    except (TypeError, ValueError, KeyError, IndexError) as error:
        return f"its descriptor cannot be read: {type(error).__name__}"
    wanted = (1, classes + 1, len(projector))
    if found.mean.shape != wanted:
        return f"its descriptor has a wrong shape: {found.mean.shape}, not {wanted}"
    return first_fault(_descriptor_faults(found, bounds, projector, examples, exactly))


def _descriptor_faults(
    found: Descriptors, bounds: Bounds | None, projector: Projector, examples: int, exactly: bool
) -> Iterable[str | None]:
    total = int(found.count[0, 0])
    if total < 1 or total > examples:
        yield f"it counts {total:,} examples, but said {examples:,} before"
    if exactly and total != examples:
        yield f"it counts {total:,} examples, but said {examples:,} before"
    more = (found.effective > found.count + 1e-3).any() or (found.effective < 0).any()
    if more and not found.noise.any():
        yield "its descriptor counts more effective examples than examples"
    if bounds is None:
        if (np.abs(found.mean) > 1e3).any() or (found.deviations() > 1e3).any():
            yield "its descriptor lies far outside the unit ball"
        return
    low, high = projected_box(bounds, projector)
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


def projected_box(bounds: Bounds, projector: Projector) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The smallest box of reduced latents that holds every latent within the bounds."""
    low, high = (side.astype(np.float64) for side in (bounds.low, bounds.high))
    centre = projector.components @ ((low + high) / 2 - projector.mean)
    half = np.abs(projector.components) @ ((high - low) / 2)
    return centre - half, centre + half
