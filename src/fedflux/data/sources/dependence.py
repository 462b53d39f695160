"""Do records look as if some belonged together, though the data names no groups?

Two signs. *Runs*: records that follow one another in a client's class are more alike than records there in any order.
With d the records' deviations from their class mean, Σ dᵢ·dᵢ₊₁ is compared with itself after shuffling each class of
each client: under exchangeable records it is the largest of 200 such sums with a chance of 1 in 200, whatever their
distribution. *Near-copies*: pairs of images at less than a thirtieth of the distance of usual pairs.
"""

import numpy as np
from numpy.typing import NDArray

from fedflux.data.dataset import Examples
from fedflux.data.tasks.kinds import strata as strata_of
from fedflux.streams import stream

SHUFFLES = 199
LEAST_RECORDS = 100
"""Records below which nothing is said."""
MOST_RECORDS = 20_000
MOST_OF_CLIENT = 1_000
"""The first of each client are looked at: runs need neighbours."""
LEAST_CORRELATION = 0.1
"""Of neighbours: less is no reason to say anything, however many records prove it."""
WIDTH = 32
"""Directions of the input in which records are compared."""
NEAR = 1 / 900
"""Of the mean squared distance."""
NEAR_SHARE = 0.05
"""Records that have a near-copy, from which on it is said."""
MOST_VALUES = 1_000
"""Of a record, drawn at random where it has more."""
LEAST_VALUES = 64
"""Values of a record below which equal ones are no wonder."""

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def dependence(examples: Examples) -> str | None:
    """What makes the records look dependent, in words; None where nothing does, or where groups are known."""
    if examples.group is not None:
        return None
    owner = np.zeros(len(examples), dtype=np.int64) if examples.client is None else examples.client
    rows = _some(owner)
    if len(rows) < LEAST_RECORDS:
        return None
    x = _values(examples, rows)
    label = strata_of(examples.y)
    strata = owner[rows] * (1 + int(label.max())) + label[rows]
    near = near_copies(x, owner[rows]) if x.shape[1] >= LEAST_VALUES else 0.0
    if near > NEAR_SHARE:
        return f"{near:.0%} of the records looked at have a near-copy at the same client"
    alike = neighbours_alike(x, strata)
    return None if alike is None else f"records next to each other are alike (correlation {alike:.2f})"


def _values(examples: Examples, rows: Index) -> Array:
    """(N, values): the records as lists of numbers, `MOST_VALUES` of each at most, which bounds memory."""
    flat = examples.x.reshape(len(examples), -1)
    values = np.arange(flat.shape[1])
    if len(values) > MOST_VALUES:
        values = np.sort(stream(0, "dependence values").choice(len(values), MOST_VALUES, replace=False))
    return flat[np.ix_(rows, values)].astype(np.float64)


def _some(owner: Index) -> Index:
    """The first records of each client, in order, as many as are looked at."""
    order = np.argsort(owner, kind="stable")
    place = np.arange(len(order)) - np.searchsorted(owner[order], owner[order])
    return np.asarray(order[place < MOST_OF_CLIENT][:MOST_RECORDS])


def neighbours_alike(x: Array, strata: Index) -> float | None:
    """The correlation of neighbours within strata, None where it may be chance or does not matter."""
    order = np.argsort(strata, kind="stable")
    number = np.unique(strata[order], return_inverse=True)[1].reshape(-1)
    rng = stream(0, "dependence")
    wide = x.shape[1] > WIDTH
    turned = (x @ rng.choice((-1.0, 1.0), size=(x.shape[1], WIDTH)) if wide else x)[order]
    mean = np.zeros((number[-1] + 1, turned.shape[1]))
    np.add.at(mean, number, turned)
    deviation = turned - (mean / np.bincount(number)[:, None])[number]
    total = np.sqrt((deviation**2).mean(axis=0))
    deviation = deviation / np.where(total > 0, total, 1.0)
    together = number[1:] == number[:-1]
    if together.sum() < LEAST_RECORDS:
        return None

    def products(some: Array) -> float:
        return float(np.einsum("nd,nd->n", some[1:], some[:-1])[together].sum())

    found = products(deviation)
    correlation = found / (float((deviation**2).sum(axis=1)[1:][together].sum()) or 1.0)
    if correlation < LEAST_CORRELATION:
        return None
    shuffled = (deviation[np.lexsort((rng.random(len(number)), number))] for _ in range(SHUFFLES))
    return correlation if all(products(one) < found for one in shuffled) else None


def near_copies(x: Array, owner: Index) -> float:
    """The share of records with a near-copy at their client."""
    close = 0
    for client in np.unique(owner):
        mine = x[owner == client]
        mine = mine - mine.mean(axis=0)
        norm = np.einsum("nd,nd->n", mine, mine)
        if norm.sum() == 0:
            continue
        for begin in range(0, len(mine), 500):
            part = slice(begin, begin + 500)
            apart = norm[part, None] + norm - 2 * mine[part] @ mine.T
            apart[np.arange(len(apart)), np.arange(begin, begin + len(apart))] = np.inf
            close += int((apart.min(axis=1) < NEAR * 2 * norm.mean()).sum())
    return close / len(x)
