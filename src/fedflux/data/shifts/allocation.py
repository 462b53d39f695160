"""Which rows each client gets: equal shares, skewed sizes, Dirichlet label skew, the data's own clients."""

from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from fedflux.data.shifts.patterns import Pattern, soft_weights
from fedflux.data.splits import Rows, whole_groups
from fedflux.errors import FedfluxError
from fedflux.streams import stream


@dataclass(frozen=True, eq=False)
class ClientRows:
    """One client's rows: train and validation index the training part of the dataset, test its test part."""

    train: Rows
    validation: Rows
    test: Rows


def deal_shares(
    count: int, clients: int, seed: int, purpose: str, quantity_skew: float = 0.0, group: Rows | None = None
) -> list[Rows]:
    """Shuffle `count` rows and cut them into one share a client; sizes are equal unless skewed (0 to 1).

    Rows of a `group` go to one client, so that sizes are only about those.
    """
    shares = _cut(count, clients, seed, purpose, quantity_skew)
    if group is None or count == 0:
        return shares
    rows = np.concatenate(shares)
    number = np.unique(group[rows], return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(number)
    room = [(False, -len(share), client) for client, share in enumerate(shares)]
    heapify(room)
    owner = np.empty(len(sizes), dtype=np.int64)
    for one in stream(seed, f"deal groups {purpose}").permutation(len(sizes)):
        _, taken, client = room[0]  # whoever has none yet, then whoever is furthest from its share
        owner[one] = client
        heapreplace(room, (True, taken + int(sizes[one]), client))
    return [rows[owner[number] == client] for client in range(clients)]


def _cut(count: int, clients: int, seed: int, purpose: str, quantity_skew: float) -> list[Rows]:
    rows = stream(seed, f"deal {purpose}").permutation(count).astype(np.int64)
    if quantity_skew == 0:
        return np.array_split(rows, clients)
    weights = np.array(soft_weights(stream(seed, "quantity skew"), clients, min(quantity_skew, 0.99)))
    sizes = np.ones(clients, dtype=np.int64) if count >= clients else np.zeros(clients, dtype=np.int64)
    cuts = np.rint(np.cumsum(weights) * (count - sizes.sum())).astype(np.int64)
    sizes += np.diff(cuts, prepend=0)
    return np.split(rows, np.cumsum(sizes)[:-1])


def deal_dirichlet(
    labels: tuple[NDArray[np.int64], NDArray[np.int64]], classes: int, clients: int, seed: int, alpha: float
) -> tuple[list[Rows], list[Rows]]:
    """Cut every class over the clients by one Dirichlet(alpha) draw, the same proportions in train and test."""
    for attempt in range(1000):
        proportions = stream(seed, "dirichlet", round=attempt).dirichlet(np.full(clients, alpha), size=classes)
        train = _deal_by_class(labels[0], proportions, seed, "train")
        if min(map(len, train)) >= 2:
            return train, _deal_by_class(labels[1], proportions, seed, "test")
    raise FedfluxError(
        f"Dirichlet({alpha}) leaves a client with fewer than 2 of the {len(labels[0])} examples at {clients} clients; "
        "use fewer clients, a lower level or a larger alpha"
    )


def _deal_by_class(y: NDArray[np.int64], proportions: NDArray[np.float64], seed: int, purpose: str) -> list[Rows]:
    shares: list[list[Rows]] = [[] for _ in range(proportions.shape[1])]
    rng = stream(seed, f"dirichlet {purpose}")
    for label, share in enumerate(proportions):
        rows = rng.permutation(np.flatnonzero(y == label))
        cuts = np.rint(np.cumsum(share)[:-1] * len(rows)).astype(np.int64)
        for mine, part in zip(shares, np.split(rows, cuts), strict=True):
            mine.append(part)
    return [rng.permutation(np.concatenate(mine)) for mine in shares]


def deal_domains(
    domain: NDArray[np.int64],
    own: NDArray[np.int64],
    rows: Rows,
    seed: int,
    purpose: str,
    skew: float,
    group: Rows | None,
) -> list[Rows]:
    """For every client a share of its domain: of these rows, those of `own[client]`, cut over the clients of one.

    `domain` and `group` have a number for every row of the dataset's part.
    """
    shares: list[Rows] = [rows[:0]] * len(own)
    for one in np.unique(own).tolist():
        mine, there = np.flatnonzero(own == one).tolist(), rows[domain[rows] == one]
        belonging = None if group is None else group[there]
        dealt = deal_shares(len(there), len(mine), seed, f"{purpose} domain {one}", skew, belonging)
        for client, share in zip(mine, dealt, strict=True):
            shares[client] = there[share]
    return shares


def deal_existing(client: NDArray[np.int64], clients: int) -> list[Rows]:
    """The rows of every client as the data names them."""
    order = np.argsort(client, kind="stable").astype(np.int64)
    return np.split(order, np.searchsorted(client[order], np.arange(1, clients)))


def split_validation(rows: Rows, share: float, seed: int, client: int, group: Rows | None = None) -> tuple[Rows, Rows]:
    """Train and validation rows of one client; at least one row stays in training.

    `group` has a number for every row of the dataset's part: rows of one group stay on one side.
    """
    rng = stream(seed, "validation split", client=client)
    rows = rng.permutation(rows)
    if group is not None:
        held = whole_groups(group[rows], np.zeros(len(rows), dtype=np.int64), share, rng)
        return rows[~held], rows[held]
    cut = int(share * len(rows))
    return rows[cut:], rows[:cut]


def select_labels(rows: Rows, y: NDArray[np.int64], pattern: Pattern, rng: np.random.Generator) -> Rows:
    """P(Y) inside one split: drop or re-weight classes, then draw with repetition up to the original size.

    Every kept original stays once, so only the top-up repeats; it is drawn inside the split, so no copy crosses it.
    """
    if pattern.label_weights is not None:
        return _draw_weighted(rows, y, np.array(pattern.label_weights), rng)
    if pattern.kept is None:
        return rows
    kept = rows[np.isin(y[rows], pattern.kept)]
    if len(kept) == 0:
        return kept
    return np.concatenate([kept, rng.choice(kept, size=len(rows) - len(kept))])


def _draw_weighted(rows: Rows, y: NDArray[np.int64], weights: NDArray[np.float64], rng: np.random.Generator) -> Rows:
    present = np.unique(y[rows])
    share = weights[present]
    if len(rows) == 0 or share.sum() == 0:
        return rows[:0]
    drawn = []
    for label, wanted in zip(present, rng.multinomial(len(rows), share / share.sum()), strict=True):
        mine = rng.permutation(rows[y[rows] == label])
        drawn += [mine[:wanted], rng.choice(mine, size=max(0, wanted - len(mine)))]
    return np.concatenate(drawn)
