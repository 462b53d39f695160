"""Scores: how well clusters match the truth, and how clients fare."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, rand_score


def cluster_scores(labels: NDArray[np.int64], truth: NDArray[np.int64] | None) -> dict[str, Any]:
    """Clusters found and, against a truth, ARI, NMI and the share of client pairs decided rightly (Rand index)."""
    found = len(np.unique(labels))
    if truth is None:
        return {"clusters_found": found, "clusters_true": None, "ari": None, "nmi": None, "pairs_right": None}
    return {
        "clusters_found": found,
        "clusters_true": len(np.unique(truth)),
        "ari": float(adjusted_rand_score(truth, labels)),
        "nmi": float(normalized_mutual_info_score(truth, labels)),
        "pairs_right": float(rand_score(truth, labels)),
    }


def client_scores(accuracies: NDArray[np.float64] | None, prefix: str) -> dict[str, Any]:
    """Percentages: mean over clients, each client, the worst, the 10 % quantile; clients without data are left out."""
    if accuracies is None or np.isnan(accuracies).all():
        return {prefix: None, f"{prefix}_per_client": None, f"{prefix}_worst": None, f"{prefix}_quantile10": None}
    percent = 100 * accuracies
    return {
        prefix: float(np.nanmean(percent)),
        f"{prefix}_per_client": percent.tolist(),
        f"{prefix}_worst": float(np.nanmin(percent)),
        f"{prefix}_quantile10": float(np.nanquantile(percent, 0.1)),
    }
