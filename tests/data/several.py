"""Records with several labels: findings that add up in the features, and that clinics may name otherwise."""

from collections.abc import Sequence

import numpy as np

from fedflux.data import Dataset, Examples
from fedflux.data.scaling import UNCHANGED
from fedflux.data.splits import hold_out

LABELS = 6
SWAPPED = ((0, 1, 2, 3, 4, 5), (1, 2, 3, 0, 4, 5), (4, 1, 0, 3, 5, 2))
"""What each group of clinics calls every finding."""


def findings(
    clients: int = 9, records: int = 120, seed: int = 1, names: Sequence[Sequence[int]] = SWAPPED, noise: float = 1.0
) -> Dataset:
    """Clinics that take turns in how they name findings; about one record in six has none."""
    rng = np.random.default_rng(seed)
    looks = rng.normal(size=(LABELS, 16))
    y = (rng.random((clients, records, LABELS)) < np.linspace(0.15, 0.4, LABELS)).astype(np.int64)
    x = (y @ looks + noise * rng.normal(size=(clients, records, 16))).astype(np.float32)
    cluster = np.arange(clients) % len(names)
    told = np.stack([one[:, np.argsort(list(names[int(group)]))] for one, group in zip(y, cluster, strict=True)])
    owner = np.repeat(np.arange(clients), records)
    train, test = hold_out(Examples(x.reshape(-1, 16), told.reshape(-1, LABELS), owner))
    return Dataset(
        "findings",
        train,
        test,
        LABELS,
        tuple(f"clinic {k}" for k in range(clients)),
        cluster,
        UNCHANGED,
        tuple(f"finding {u}" for u in range(LABELS)),
    )
