"""Block scaling: each block of the descriptor is min–max scaled with one scalar range over all clients."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.descriptors.descriptor import Descriptors


@dataclass(frozen=True, eq=False)
class BlockScaler:
    """Fitted ranges, kept so that late and unseen clients are scaled like the clients that were clustered."""

    low: NDArray[np.float64]
    width: NDArray[np.float64]

    @staticmethod
    def fit(descriptors: Descriptors) -> "BlockScaler":
        """One (minimum, range) per block."""
        blocks = descriptors.blocks()
        low = np.array([block.min() for block in blocks])
        return BlockScaler(low, np.array([block.max() for block in blocks]) - low)

    def transform(self, descriptors: Descriptors) -> NDArray[np.float64]:
        """Scaled vectors (K, numbers); a block without range, the same for everyone, is left at its offset from it.

        Label-free descriptors have only the first two blocks and use the first two ranges.
        """
        safe = np.where(self.width > 0, self.width, 1.0)
        blocks = descriptors.blocks()
        return np.concatenate([(b - self.low[i]) / safe[i] for i, b in enumerate(blocks)], axis=1)
