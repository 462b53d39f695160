"""What is made of descriptors: clusters, and where a client belongs.

Clusterers are loaded when one of these names is first asked for: placement alone, as a service or a client does it,
needs neither torch nor scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedflux.clustering.adaptive_dbscan import AdaptiveDBSCAN
    from fedflux.clustering.calibrated import CalibratedClustering
    from fedflux.clustering.clusterers import (
        ALPHA,
        CLUSTERERS,
        Clusterer,
        Clusters,
        check_clusterer,
        clusterer_digest,
        find_clusters,
        name_of_clusterer,
        takes,
        with_centroids,
    )
    from fedflux.clustering.silhouette import SilhouetteKMeans

__all__ = [
    "ALPHA",
    "CLUSTERERS",
    "AdaptiveDBSCAN",
    "CalibratedClustering",
    "Clusterer",
    "Clusters",
    "SilhouetteKMeans",
    "check_clusterer",
    "clusterer_digest",
    "find_clusters",
    "name_of_clusterer",
    "takes",
    "with_centroids",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedflux.clustering' has no attribute '{name}'")
    return getattr(import_module("fedflux.clustering.clusterers"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
