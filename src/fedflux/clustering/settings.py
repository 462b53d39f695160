"""The clusterers' settings: which one, and what it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedflux.clustering import ALPHA, CLUSTERERS, check_clusterer
from fedflux.errors import FedfluxError
from fedflux.settings import Declared, above, at_least, between, passes, setting


@dataclass(frozen=True)
class ClusteringSettings(Declared):
    """How descriptors become clusters."""

    clusters: int | Literal["true"] | None = setting(
        None,
        "number of clusters: of kmeans, or 'true'; of methods that need it",
        panel="Method",
        unset="the true one",
        check=at_least(1),
    )
    clusterer: str = setting("calibrated", "{names}", panel="Method", names=CLUSTERERS, check=passes(check_clusterer))
    significance: float = setting(
        ALPHA,
        "calibrated: chance of splitting a uniform federation",
        panel="Clustering",
        check=between(0, 1, "()"),
    )
    variation: Literal["estimated", "fixed"] = setting(
        "estimated",
        "calibrated: what clients of one cluster differ by, estimated or version 0.1's fixed floor",
        panel="Clustering",
    )
    eps_scale: float = setting(1.0, "adaptive-dbscan's factor on the radius", panel="Clustering", check=above(0))


def with_kmeans(given: Mapping[str, object]) -> dict[str, object]:
    """What was given, where a number of clusters asks for k-means: the one clusterer that takes a number."""
    if given.get("clusters") is None:
        return dict(given)
    name = given.get("clusterer") or "kmeans"
    if name != "kmeans":
        raise FedfluxError(f"--clusters is for --clusterer kmeans; {name} finds the number by itself")
    return {**given, "clusterer": name}
