"""One level: all pairs of clouds, the descriptor's distance beside W2 of points and of Gaussians."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.descriptors.sums import spans
from fedflux.studies.fidelity.clouds import Cloud
from fedflux.studies.fidelity.optimal_transport import split, squared_w2
from fedflux.studies.fidelity.transport import transport
from fedflux.studies.fidelity.wasserstein import ROUNDING, Gaussians, PairBlocks, constants, pair_blocks, pair_constants

Array = NDArray[np.float64]
PAIRS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class Pairs:
    """Distances of all pairs of clouds of one level; `_marginal` ones are of the label-free block alone."""

    same_round: NDArray[np.bool_]
    """Only these are ever compared by FLUX: other pairs live in projections of different models."""
    descriptor: Array
    """As descriptors of standard deviations have it, or of covariances where those are asked for."""
    points: Array
    """W2 of the drawn points."""
    descriptor_points: Array
    """The descriptor's distance over the blocks that `points` could compare; nearly always the same."""
    gaussian: Array
    delta: Array
    low: Array
    high: Array
    descriptor_marginal: Array
    points_marginal: Array
    gaussian_marginal: Array

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """For a file."""
        return dict(self.__dict__)


def compare_clouds(
    clouds: Sequence[Cloud], full: bool, on_pairs: Callable[[int], None] = lambda done: None
) -> tuple[Pairs, dict[str, Any]]:
    """The pairs, and what is counted on them: bounds that fail, the eigenvalues' range, the points' own error."""
    first, second = (rows.astype(np.int64) for rows in np.triu_indices(len(clouds), k=1))
    count = np.stack([cloud.moments.count for cloud in clouds])
    mean, covariance = (np.stack([getattr(c.moments, name) for c in clouds]) for name in ("mean", "covariance"))
    these = Gaussians.of(mean, covariance)
    present = count >= 2
    used = present[first] & present[second]
    blocks = _blocks(these, first, second)
    classes = count.shape[1] - 1
    held = [split(*cloud.points, classes) for cloud in clouds]
    sampled = transport(held, first, second, on_pairs)
    seen = used & ~np.isnan(sampled)
    own = blocks.covariances if full else blocks.deviations
    low, high = pair_constants(these, first, second, used)
    rounds = np.array([cloud.round for cloud in clouds])
    pairs = Pairs(
        same_round=rounds[first] == rounds[second],
        descriptor=_distance(own, used),
        points=_distance(sampled, seen),
        descriptor_points=_distance(own, seen),
        gaussian=_distance(blocks.gaussian, used),
        delta=_distance(blocks.covariances, used),
        low=low,
        high=high,
        descriptor_marginal=np.sqrt(own[:, 0]),
        points_marginal=np.sqrt(sampled[:, 0]),
        gaussian_marginal=np.sqrt(blocks.gaussian[:, 0]),
    )
    flat = these.diagonal()
    flat_blocks = _blocks(flat, first, second)
    flat_low, flat_high = pair_constants(flat, first, second, used)
    slack = np.where(used, blocks.slack, 0.0).sum(axis=1)
    smallest, largest = these.smallest[present].min(), these.largest[present].max()
    whole_low, whole_high = (float(one) for one in constants(smallest, largest))
    counted = {
        "bounds": {
            "eigenvalues": [float(smallest), float(largest)],
            "constants": [whole_low, whole_high if np.isfinite(whole_high) else None],
            "tolerance": f"{ROUNDING:g} of the traces, squared distances",
            "full": _violations(pairs.delta, pairs.gaussian, low, high, slack),
            "diagonal": _violations(
                _distance(flat_blocks.covariances, used),
                _distance(flat_blocks.gaussian, used),
                flat_low,
                flat_high,
                slack,
            ),
            "points": _violations(_distance(blocks.covariances, seen), pairs.points, low, high, slack),
            "deviations_above_gaussian": int(
                np.sum(_distance(blocks.deviations, used) ** 2 > pairs.gaussian**2 + slack)
            ),
        },
        "blocks_left_out": float(1 - seen.mean()),
        "floor": _floor(clouds, classes),
    }
    return pairs, counted


def _blocks(these: Gaussians, first: NDArray[np.int64], second: NDArray[np.int64]) -> PairBlocks:
    """Some pairs at a time, which bounds memory."""
    parts = [pair_blocks(these, first[rows], second[rows]) for rows in spans(len(first), PAIRS_AT_ONCE)]
    names = ("deviations", "covariances", "gaussian", "slack")
    return PairBlocks(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _distance(blocks: Array, used: NDArray[np.bool_]) -> Array:
    return np.asarray(np.sqrt(np.where(used, blocks, 0.0).sum(axis=1)))


def _violations(delta: Array, w2: Array, low: Array, high: Array, slack: Array) -> dict[str, int]:
    """Pairs outside c₋Δ ≤ W2 and W2 ≤ c₊Δ, beyond rounding; c₊ is infinite for singular covariances."""
    upper = np.where(np.isfinite(high), np.where(np.isfinite(high), high, 0.0) * delta, np.inf)
    return {
        "pairs": len(delta),
        "below": int(np.sum((low * delta) ** 2 > w2**2 + slack)),
        "above": int(np.sum(w2**2 > upper**2 + slack)),
        "without_upper": int(np.sum(~np.isfinite(high))),
    }


def _floor(clouds: Sequence[Cloud], classes: int) -> float | None:
    """Mean W2 between two draws of points of the same client and round, which is 0 but for sampling."""
    found = []
    for cloud in clouds:
        if cloud.others is None:
            continue
        both = zip(split(*cloud.points, classes), split(*cloud.others, classes), strict=True)
        squares = np.array([squared_w2(a, b) for a, b in both])
        found.append(np.sqrt(squares[(cloud.moments.count >= 2) & ~np.isnan(squares)].sum()))
    return float(np.mean(found)) if found else None
