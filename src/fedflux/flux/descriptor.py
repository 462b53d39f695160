"""Descriptors: what clients send about their data, as a record of named blocks with a label-free part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedflux.errors import FedfluxError
from fedflux.flux.moments import Moments

SCHEMA = 1
MISSING = -1.0
"""What fills the two blocks of a class with fewer than two examples, as in the authors' release."""


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The descriptors of K clients (flat arrays: one client is K = 1).

    Group 0 is the marginal, group 1 + u is class u; descriptors made without labels have group 0 alone.
    """

    mean: NDArray[np.float32]
    """(K, groups, l)."""
    spread: NDArray[np.float32]
    """(K, groups, l) standard deviations, or (K, groups, l, l) covariances."""
    count: NDArray[np.int64]
    """(K, groups): examples behind each mean."""
    effective: NDArray[np.float32]
    """(K, groups): Kish's effective count, smaller than `count` where a client holds copies of examples."""

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def classes(self) -> int:
        """U, or 0 without labels."""
        return int(self.mean.shape[1]) - 1

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> "Descriptors":
        """Some clients' descriptors."""
        index = np.asarray(rows, dtype=np.int64)
        return Descriptors(self.mean[index], self.spread[index], self.count[index], self.effective[index])

    def label_free(self) -> "Descriptors":
        """d′: the marginal moments, which an unlabelled client can compute too."""
        return Descriptors(self.mean[:, :1], self.spread[:, :1], self.count[:, :1], self.effective[:, :1])

    def blocks(self) -> list[NDArray[np.float64]]:
        """[μx, Σx, μ1, Σ1, …, μU, ΣU], each (K, width); classes with fewer than two examples are filled with −1."""
        result = []
        for group in range(self.mean.shape[1]):
            missing = (self.count[:, group] < 2) & (group > 0)
            for values in (self.mean[:, group], self.spread[:, group]):
                block = values.reshape(len(self), -1).astype(np.float64)
                block[missing] = MISSING
                result.append(block)
        return result

    def vectors(self) -> NDArray[np.float64]:
        """The paper's d, one row a client: 2(U + 1)l numbers."""
        return np.concatenate(self.blocks(), axis=1)

    @property
    def client_bytes(self) -> int:
        """What one client sends: moments as 4-byte floats, counts and effective counts as 4 bytes each."""
        return 4 * sum(int(array[0].size) for array in (self.mean, self.spread, self.count, self.effective))

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """The wire and disk form: named arrays and a schema version."""
        return {
            "schema": np.array(SCHEMA),
            "mean": self.mean,
            "spread": self.spread,
            "count": self.count,
            "effective": self.effective,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> "Descriptors":
        """Read the wire form back; refuses another schema, missing blocks and shapes that do not fit together."""
        missing = {"schema", "mean", "spread", "count", "effective"} - set(arrays)
        if missing:
            raise FedfluxError(f"not a descriptor file: it lacks {', '.join(sorted(missing))}")
        if int(arrays["schema"]) != SCHEMA:
            raise FedfluxError(f"descriptor schema {int(arrays['schema'])}; this fedflux reads schema {SCHEMA}")
        mean, spread = arrays["mean"].astype(np.float32), arrays["spread"].astype(np.float32)
        count, effective = arrays["count"].astype(np.int64), arrays["effective"].astype(np.float32)
        if mean.ndim != 3 or spread.shape[:3] != mean.shape or {count.shape, effective.shape} != {mean.shape[:2]}:
            raise FedfluxError(f"descriptor blocks do not fit together: mean {mean.shape}, spread {spread.shape}")
        return Descriptors(mean, spread, count, effective)


def make_descriptors(clients: Sequence[Moments], effective: Sequence[NDArray[np.float32]]) -> Descriptors:
    """Stack the clients' moments and effective counts."""
    return Descriptors(
        np.stack([m.mean for m in clients]),
        np.stack([m.spread for m in clients]),
        np.stack([m.count for m in clients]),
        np.stack(effective),
    )


def join_descriptors(parts: Sequence[Descriptors]) -> Descriptors:
    """Descriptors of several groups of clients, one after another."""
    return Descriptors(
        *(np.concatenate([getattr(p, f) for p in parts]) for f in ("mean", "spread", "count", "effective"))
    )


def effective_counts(
    rows: NDArray[np.int64], labels: NDArray[np.int64] | None, classes: int | None
) -> NDArray[np.float32]:
    """Kish's n²/Σc² for everything and for each class, c being the copies a client holds of each distinct example."""
    groups = [np.ones(len(rows), dtype=bool)]
    if labels is not None and classes is not None:
        groups += [labels == u for u in range(classes)]
    counts = []
    for members in groups:
        copies = np.unique(rows[members], return_counts=True)[1]
        counts.append(copies.sum() ** 2 / (copies**2).sum() if len(copies) else 0.0)
    return np.array(counts, dtype=np.float32)
