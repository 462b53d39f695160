"""Where clients belong, for everyone who asks: from the test that decides it to the report that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Placement:
    """One entry a client."""

    cluster: NDArray[np.int64]
    """The cluster that fits best, whether or not its model answers alone."""
    distances: NDArray[np.float64]
    """(clients × clusters): how far the client's data are from every cluster's."""
    novel: NDArray[np.bool_]
    """Whether the client's data are like no cluster's."""
    score: NDArray[np.float64]
    """p-value of its data being like some cluster's."""
    confidence: NDArray[np.float64]
    """Probability of the chosen cluster, given that the client belongs to one of them."""

    def __len__(self) -> int:
        return len(self.cluster)

    @property
    def distance(self) -> NDArray[np.float64]:
        """To the chosen cluster."""
        return np.asarray(self.distances[np.arange(len(self)), self.cluster])

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> "Placement":
        """Some clients' placements."""
        index = np.asarray(rows, dtype=np.int64)
        return Placement(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def join(parts: Sequence["Placement"]) -> "Placement":
        """The placements of several groups of clients, one after another."""
        return Placement(*(np.concatenate([getattr(p, field.name) for p in parts]) for field in fields(Placement)))

    def as_records(self, clients: Sequence[int]) -> list[dict[str, Any]]:
        """A line a client, as results list them."""
        return [
            {
                "client": client,
                "cluster": int(self.cluster[k]),
                "distances": self.distances[k],
                "novel": bool(self.novel[k]),
                "novelty_score": float(self.score[k]),
                "confidence": float(self.confidence[k]),
            }
            for k, client in enumerate(clients)
        ]
