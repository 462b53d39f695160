"""Ablations: how much data, which clusterer, which test-time assignment, which descriptor."""

from typing import Any

from fedflux.studies.paper import Figure
from fedflux.studies.paper.reading import NAMES, dataset, places, shift
from fedflux.studies.paper.study import Study

STRENGTHS = {"low": 1, "mid-low": 3, "mid-high": 5, "high": 7}
"""The first and the last by FedAvg's figures at 100 %, which are those of levels 1 and 7 in the plots."""
CLUSTERERS = {
    "kmeans-silhouette": "k-means, unsupervised",
    "hdbscan": "HDBSCAN",
    "agglomerative": "agglomerative",
    "adaptive-dbscan": "FLUX (ours)",
}
PARTS = ("mean", "covariance", "class means", "class covariances")


def _strength(figure: Figure) -> str:
    return figure.setting.removeprefix("mean over shifts at ").removesuffix(" heterogeneity")


def _clusterer(figure: Figure) -> dict[str, Any]:
    """FLUX's own is whatever it takes by default, or by the preset."""
    chosen = figure.more["clusterer"]
    return {} if chosen == "adaptive-dbscan" else {"clusterer": chosen}


def _clusterings(name: str, title: str) -> Study:
    return Study(
        name,
        title,
        "10 clients, four shifts, levels 1 to 8, seeds 42 to 46. FLUX (ours) is the paper's adaptive DBSCAN under "
        "--preset paper, and by default the calibrated tests.",
        places=places(name, row=lambda figure: CLUSTERERS[figure.more["clusterer"]], settings=_clusterer),
        levelled=True,
    )


def _parts(figure: Figure) -> str:
    return f"{', '.join(figure.more['descriptor'])}; {figure.more['length']}l"


def _whole(figure: Figure) -> bool:
    return len(figure.more["descriptor"]) == len(PARTS)


STUDIES = (
    Study(
        "tab:datasize_combined",
        "FLUX and FedAvg with parts of the data",
        "MNIST, 10 clients, four shifts at one of four levels, which are not numbered: here 1, 3, 5 and 7, since "
        "FedAvg's figures at 100 % are those of levels 1 and 7. All else is as with all data, as the paper says: at "
        "4 % a client then takes about 60 steps in ten rounds, too few to learn from.",
        places=places(
            "tab:datasize_combined",
            row=lambda figure: f"{NAMES[figure.algorithm]} {figure.more['data_fraction']:.0%}",
            column=_strength,
            settings=lambda f: {} if f.more["data_fraction"] == 1 else {"data_fraction": f.more["data_fraction"]},
            levels=lambda figure: (STRENGTHS[_strength(figure)],),
            doubt=lambda figure: "levels and number of clients are not stated",
        ),
        levelled=True,
        smoke={"data_fraction": 0.5},
    ),
    Study(
        "tab:lowdata_combined",
        "FLUX and FedAvg with one hundredth of the data",
        "MNIST (not stated), a hundredth of the training data over 20 clients, 200 rounds, level 4 (not stated).",
        places=places(
            "tab:lowdata_combined",
            column=shift,
            settings=lambda f: {"clients": 20, "data_fraction": f.more["data_fraction"], "rounds": f.more["rounds"]},
            levels=lambda figure: (4,),
            doubt=lambda figure: "dataset and level are not stated",
        ),
        smoke={"clients": 6, "data_fraction": 0.4},
    ),
    _clusterings("tab:ablation_clustering_mnist", "FLUX with other clusterers on MNIST"),
    _clusterings("tab:ablation_clustering_cifar", "FLUX with another clusterer on CIFAR-100"),
    Study(
        "tab:ablation_random",
        "Test clients placed by descriptors, or at random",
        "10 clients, levels 1 to 8, seeds 42 to 46.",
        places=places(
            "tab:ablation_random",
            row=lambda f: f"{dataset(f)}, {'FLUX' if f.more['assignment'] == 'descriptor' else 'random'}",
            column=shift,
            missing=lambda f: "" if f.more["assignment"] == "descriptor" else "no setting places clients at random",
        ),
        levelled=True,
    ),
    Study(
        "tab:ablation",
        "FLUX with parts of its descriptor, and longer ones",
        "MNIST, 10 clients (not stated), the shifts of tab:n_client_all, seeds 42 to 46.",
        places=places(
            "tab:ablation",
            row=_parts,
            settings=lambda f: {"components": 10 * f.more["length"]} if f.more["length"] > 1 else {},
            missing=lambda figure: "" if _whole(figure) else "no setting leaves blocks out of the descriptor",
            doubt=lambda figure: "the number of clients is not stated",
        ),
    ),
)
