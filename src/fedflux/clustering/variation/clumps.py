"""Clients in clumps: is what a partition leaves within clusters next to nothing beside what it takes out?

One cloud of clients and a few clumps have the same overall scatter, and among few clients nothing else tells of
natural variation. But a cloud, cut in two, keeps much of its scatter within the parts; clumps keep none.
"""

import numpy as np

from fedflux.clustering.evidence.pool import Index, Pool
from fedflux.clustering.variation.means import cells_of

SHARE = 0.03
"""Variance within two parts, a degree of freedom, beside that between them. Five clients of a cloud that lies in two
directions fall into parts so tight one time in a hundred, in one direction one in ten.
"""
SURE = 1.0
"""Standard errors that are added to the variance within."""


def in_clumps(pool: Pool, labels: Index) -> bool:
    """Whether single clients (the groups of `pool`) lie in these clusters as in clumps.

    With more clusters less must be left: a line cut into M pieces keeps 1/M² of its variance within them.
    """
    clusters, clients = int(labels.max()) + 1, len(pool)
    if clusters == 1 or clients - clusters < 2:
        return False
    within, error = _excess(pool, labels, clusters)
    overall, _ = _excess(pool, np.zeros_like(labels), 1)
    between = (clients - 1) * overall / (clusters - 1)
    return within + SURE * error <= SHARE * between / (clusters - 1) ** 2


def _excess(pool: Pool, labels: Index, clusters: int) -> tuple[float, float]:
    """The variance of class means within clusters beyond that of sampling, per whitened coordinate; its error."""
    cells = cells_of(pool, labels, clusters)
    held = cells.weight > 0
    if not held.any():
        return np.inf, np.inf
    squared, left = cells.residuals(np.zeros_like(cells.inverse))
    trust = np.where(held[..., None], 1 / left**2, 0.0)
    lever = (trust * left * np.maximum(cells.weight, 1e-12)[..., None]).sum()
    excess = (trust * (squared - left)).sum() / lever
    return max(float(excess), 0.0), float(np.sqrt(2 * (trust**2 * left**2).sum()) / lever)
