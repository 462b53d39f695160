"""What clusters found anew go on from: the models that their members had, and how those have been moving."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from fedflux.clustering import Clusters
from fedflux.engine import Stack


def shares_of_members(models: int, came_from: NDArray[np.int64], clusters: Clusters) -> NDArray[np.float64]:
    """How many members of each cluster found anew had each of the models."""
    shares = np.zeros((len(clusters.centroids), models))
    np.add.at(shares, (clusters.labels, came_from), 1)
    return shares


def inherited(velocity: Stack | None, shares: NDArray[np.float64]) -> Stack | None:
    """The velocity of models that are averages of earlier ones by `shares` (models × earlier ones).

    What lies behind the earlier ones in the stack, the general model's, comes behind the new ones as it is.
    """
    if velocity is None:
        return None
    return velocity.average(block_diag(shares, np.eye(len(velocity) - shares.shape[1])))
