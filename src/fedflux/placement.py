"""Where clients belong, for everyone who asks: from the test that decides it to the report that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Placement:
    """Where clients belong: one entry a client in each array.

    Examples
    --------
    >>> from fedflux import Describer, FluxClustering
    >>> rng = np.random.default_rng(0)
    >>> clients = [(rng.normal(size=(200, 12)) + 2 * (k % 2), rng.integers(3, size=200)) for k in range(6)]
    >>> describer, flux = Describer(classes=3), FluxClustering()
    >>> extractor = flux.extractor([describer.bounds(x) for x, y in clients])
    >>> flux = flux.fit([describer.describe(x, y, extractor) for x, y in clients])
    >>> newcomer = rng.normal(size=(50, 12)) + 2  # no labels
    >>> placement = flux.place([describer.scores(newcomer, flux.offer_)])
    >>> placement.cluster.tolist(), placement.confidence.round(2).tolist(), placement.novel.tolist()
    ([1], [1.0], [False])
    """

    cluster: NDArray[np.int64]
    """The cluster that fits best, whether or not its model answers alone."""
    novel: NDArray[np.bool_]
    """Whether the client's data are like no cluster's."""
    score: NDArray[np.float64]
    """p-value of its data being like some cluster's."""
    posterior: NDArray[np.float64]
    """(clients × clusters): the probability of each, given that the client belongs to one of them."""
    calibrated: NDArray[np.bool_]
    """Whether there was anything to learn from what is usual in the chosen cluster; else nobody is called novel."""
    distances: NDArray[np.float64] | None = None
    """(clients × clusters): how far the client's data are from every cluster's, where it was placed by that."""

    def __len__(self) -> int:
        return len(self.cluster)

    @property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of the chosen cluster."""
        return np.asarray(self.posterior[np.arange(len(self)), self.cluster])

    @property
    def distance(self) -> NDArray[np.float64] | None:
        """To the chosen cluster."""
        return None if self.distances is None else np.asarray(self.distances[np.arange(len(self)), self.cluster])

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> "Placement":
        """Some clients' placements."""
        index = np.asarray(rows, dtype=np.int64)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[index] for name, value in values.items() if value is not None})

    @staticmethod
    def join(parts: Sequence["Placement"]) -> "Placement":
        """The placements of several groups of clients, one after another."""
        values = {field.name: [getattr(p, field.name) for p in parts] for field in fields(Placement)}
        joined: dict[str, Any] = {
            n: None if any(one is None for one in each) else np.concatenate(each) for n, each in values.items()
        }
        return replace(parts[0], **joined)

    def as_records(self, clients: Sequence[int]) -> list[dict[str, Any]]:
        """A line a client, as results list them."""
        return [
            {
                "client": client,
                "cluster": int(self.cluster[k]),
                "posterior": self.posterior[k],
                **({} if self.distances is None else {"distances": self.distances[k]}),
                "novel": bool(self.novel[k]),
                "novelty_score": float(self.score[k]),
                "calibrated": bool(self.calibrated[k]),
                "confidence": float(self.confidence[k]),
            }
            for k, client in enumerate(clients)
        ]
