"""Which clusters may share a trunk: those whose members pull the model the same way.

Clusters that merely differ (other colours, other annotators) move the layers before the last one alike. Where they
conflict (digits turned upside down), two groups of clusters pull apart, each as one. That is Sattler's sign of clients
that belong apart (CFL, 2021), asked here of clusters, whose mean updates have little noise. Where groups agree on the
last layer as well (the same names for the same things), their clusters may share that, too.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedflux.algorithms.shared.averaging import aggregate
from fedflux.algorithms.shared.geometry import inner_products
from fedflux.engine import Stack

TOGETHER, APART = 0.5, 0.1
"""Two groups of clusters are kept apart where the mean cosine within them is above the one and that between them below
the other."""
LARGEST = 1000
"""Clusters up to which their updates are compared pair by pair; beyond, all share one trunk."""


def cosines(
    start: Stack, trained: Stack, cluster: NDArray[np.int64], sizes: NDArray[np.float64], clusters: int
) -> NDArray[np.float64]:
    """(M × M): between clusters' mean updates, from what members made of one model; 0 where nobody of one trained."""
    rows = np.zeros(clusters, dtype=np.int64)
    means = aggregate(start.take(rows), trained, cluster, sizes)
    products = inner_products(means, start, rows)
    length = np.sqrt(np.maximum(np.diag(products), 0.0))
    scale = np.outer(length, length)
    return np.asarray(np.divide(products, scale, where=scale > 0, out=np.zeros_like(products)))


def find_kin(cosine: NDArray[np.float64]) -> NDArray[np.int64]:
    """(M,): the group of every cluster, numbered from 0; one group unless clusters clearly pull apart."""
    groups = _split(cosine, np.arange(len(cosine)))
    kin = np.zeros(len(cosine), dtype=np.int64)
    for number, members in enumerate(sorted(groups, key=lambda one: int(one[0]))):
        kin[members] = number
    return kin


def agree(cosine: NDArray[np.float64], kin: NDArray[np.int64]) -> bool:
    """Whether the clusters of every kin pull the same way, on average; not where nobody has kin."""
    others = ~np.eye(len(kin), dtype=np.bool_)
    groups = [np.outer(kin == number, kin == number) & others for number in np.unique(kin)]
    means = [float(cosine[pairs].mean()) for pairs in groups if pairs.any()]
    return bool(means) and min(means) >= TOGETHER


def _split(cosine: NDArray[np.float64], members: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Halves of these clusters, and halves of those, as long as they pull apart; two alone show no agreement."""
    if len(members) < 3:
        return [members]
    among = cosine[np.ix_(members, members)]
    distance = np.maximum(1 - (among + among.T) / 2, 0.0)
    np.fill_diagonal(distance, 0.0)
    half = fcluster(linkage(squareform(distance, checks=False), "average"), 2, "maxclust")
    same = half[:, None] == half[None]
    pairs = same & ~np.eye(len(members), dtype=np.bool_)
    if same.all() or not pairs.any() or among[pairs].mean() < TOGETHER or among[~same].mean() > APART:
        return [members]
    return [part for value in (1, 2) for part in _split(cosine, members[half == value])]
