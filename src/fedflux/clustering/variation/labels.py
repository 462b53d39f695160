"""By how much label shares of clients of one cluster differ: ρ, by DerSimonian and Laird's moments of Pearson's χ²."""

import numpy as np

from fedflux.clustering.evidence.pool import Index, Pool
from fedflux.clustering.variation.means import CLEARLY
from fedflux.descriptors.sums import group_sums


def labels_of(pool: Pool, labels: Index, clusters: int) -> float:
    """ρ: Pearson's χ² of the clients against their cluster's shares, over what sampling explains."""
    sizes = pool.labels.sum(axis=1)
    counts = group_sums(pool.labels, labels, clusters)
    total = counts.sum(axis=1)
    share = counts / np.maximum(total, 1e-12)[:, None]
    own = pool.labels / np.maximum(sizes, 1e-12)[:, None]
    expected = share[labels]
    gap = np.where(expected > 0, (own - expected) ** 2 / np.where(expected > 0, expected, 1.0), 0.0).sum(axis=1)
    members = group_sums((sizes > 0).astype(np.float64), labels, clusters)
    kinds = np.maximum((counts > 0).sum(axis=1) - 1, 0)
    freedom = float((kinds * np.maximum(members - 1, 0)).sum())
    lever = kinds * (total - group_sums(sizes**2, labels, clusters) / np.maximum(total, 1e-12))
    return _root(float((sizes * gap).sum()), freedom, float(np.where(members > 1, lever, 0.0).sum()))


def _root(scatter: float, freedom: float, lever: float) -> float:
    """√ of the variance that the excess of the scatter over its expectation speaks of; 0 where chance explains it."""
    excess = scatter - freedom
    clear = lever > 0 and excess > CLEARLY * np.sqrt(2 * freedom)
    return float(np.sqrt(excess / lever)) if clear else 0.0
