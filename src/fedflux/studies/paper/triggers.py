"""When to cluster: FLUX by the round of clustering, FedAvg's curves, and the trigger's threshold."""

from collections.abc import Iterator

from fedflux.studies.paper.reading import DATASETS, plotted
from fedflux.studies.paper.study import Place, Runs, Study

FIXED = (("px", 5), ("py", 8), ("pxgy", 2))
"""Two rotations in three colours; 3 classes; 2 classes rotated."""
SHOWN = ("mnist", "fmnist", "cifar10")
ROUNDS = 10
PROTOCOL = "P(X) of 2 rotations and 3 colours, P(Y) of 3 classes, P(X|Y) of 2 classes; 10 clients, 10 rounds"
PHASE = "the paper does not say which phase it shows"


def stops() -> Iterator[Place]:
    """FLUX, clustering after round 1 to 9."""
    for name in SHOWN:
        for round, mean in enumerate(plotted()["cluster_round"][name], start=1):
            yield Place(
                row="FLUX",
                column=f"{DATASETS[name]}, round {round}",
                score="known",
                runs=Runs(name, "flux", FIXED, (("cluster_round", round),)),
                paper=mean,
                doubt=PHASE,
                panel=DATASETS[name],
                x=round,
            )


def trends() -> Iterator[Place]:
    """FedAvg's validation accuracy after every round."""
    for name in SHOWN:
        for round in range(1, ROUNDS + 1):
            yield Place(
                row="FedAvg",
                column=f"{DATASETS[name]}, round {round}",
                score=f"validation:{round}",
                runs=Runs(name, "fedavg", FIXED),
                panel=DATASETS[name],
                x=round,
            )


def thresholds() -> Iterator[Place]:
    """FLUX where C(r) has another threshold: it then clusters after another round, and no more."""
    found = plotted()["threshold"]
    for name in ("mnist", "cifar10"):
        for threshold, mean in zip(found["T"], found[name], strict=True):
            yield Place(
                row="FLUX",
                column=f"{DATASETS[name]}, T = {threshold:g}",
                score=f"threshold:{threshold:g}",
                runs=Runs(name, "flux", FIXED),
                paper=mean,
                doubt=f"{PHASE}, nor the levels",
                panel=DATASETS[name],
                x=threshold,
            )


STUDIES = (
    Study(
        "fig:stop_round",
        "FLUX by the round after which clusters are made",
        f"{PROTOCOL}; known association, seeds 42 to 46.",
        kind="figure",
        places=tuple(stops()),
        drawn="lines",
        x_label="clustering after round",
    ),
    Study(
        "fig:trend_fedavg",
        "FedAvg's validation accuracy by round",
        f"{PROTOCOL}; seeds 42 to 46. The paper's curves are not to be had as data.",
        kind="figure",
        places=tuple(trends()),
        drawn="lines",
        x_label="round",
    ),
    Study(
        "fig:threshold_detection",
        "FLUX by the threshold T of C(r)",
        f"{PROTOCOL}; known association, seeds 42 to 46. Until it clusters FLUX is FedAvg: the round in which C(r) "
        "fires is read off FedAvg's validation curve, and the run is that of fig:stop_round which clusters then.",
        kind="figure",
        places=tuple(thresholds()),
        drawn="lines",
        x_label="threshold T",
    ),
)
