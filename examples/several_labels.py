"""Twelve clinics read X-rays for six findings, a scan may show several, and some clinics call them by other names."""

import numpy as np
from numpy.typing import NDArray

import fedflux

FINDINGS = ["effusion", "mass", "nodule", "oedema", "fibrosis", "hernia"]
LOOKS = np.random.default_rng(0).normal(size=(6, 24))
BOOKS = np.array([[0, 1, 2, 3, 4, 5], [1, 2, 3, 0, 4, 5], [0, 5, 2, 4, 3, 1]])
"""What each of three code books calls every finding."""


def clinic(number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """250 scans as 24 measurements, and 0 or 1 for each finding, in the clinic's own code book."""
    rng = np.random.default_rng(number + 1)
    shown = (rng.random((250, 6)) < [0.15, 0.2, 0.25, 0.3, 0.35, 0.4]).astype(np.int64)
    named = np.zeros_like(shown)
    named[:, BOOKS[number % 3]] = shown
    return shown @ LOOKS + rng.normal(size=(250, 24)), named


clinics = {f"clinic {k}": clinic(k) for k in range(12)}
books = {f"clinic {k}": k % 3 for k in range(12)}
federation = fedflux.Federation.from_clients(clinics, clusters=books, class_names=FINDINGS)
scores = {}
for name in ("local", "fedavg", "flux", "oracle"):
    result = fedflux.run(
        federation, algorithm=name, rounds=15, lr=0.2, batch_size=16, out=f"runs/findings-{name}", progress=False
    )
    scores[name] = result.known
    print(f"{name}: {result['score']} {result.known:.1f}, worst clinic {result['worst']:.1f}")
    if name == "flux":
        print(f"{result['clusters_found']} code books, {100 * result['pairs_right']:.0f} % of pairs right")
        print(result["why"][0]["words"])
assert scores["flux"] >= scores["oracle"] - 1
