"""Twelve clinics of 8 to 3,000 patients name four illnesses in three ways, and nobody says which clinics agree."""

import sys

import numpy as np
from numpy.typing import NDArray

import fedflux

SIZES = [8, 12, 20, 40, 80, 120, 200, 400, 700, 1200, 2000, 3000]
NAMES = np.array(["well", "cold", "flu", "covid"])


def clinic(size: int, way: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Eight columns in units of their own; two of them decide the illness, which is named in one of three ways."""
    x = rng.normal([50, 120, 5, 0, 0, 0, 1, 9], [20, 15, 2, 1, 1, 1, 1, 3], (size, 8))
    illness = 2 * (x[:, 0] > 50) + (x[:, 1] > 120)
    return x, NAMES[(illness + way) % len(NAMES)]


seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
rng = np.random.default_rng(seed)
clinics = {f"clinic {k}": clinic(size, k % 3, rng) for k, size in enumerate(rng.permutation(SIZES))}
truth = {name: k % 3 for k, name in enumerate(clinics)}
federation = fedflux.Federation.from_clients(clinics, clusters=truth)
flux, oracle, alone = (
    fedflux.run(federation, algorithm=algorithm, rounds=20, lr=0.05, progress=False)
    for algorithm in ("flux", "oracle", "local")
)
print(flux.clients.assign(patients=[len(y) for _, y in clinics.values()]).sort_values("patients").round(1))
print(f"seed {seed}: flux {flux.known:.1f} %, true clusters {oracle.known:.1f} %, everybody alone {alone.known:.1f} %")
