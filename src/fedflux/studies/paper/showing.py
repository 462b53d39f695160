"""What is shown rather than measured: images under shifts, descriptors in a plane, distances against W2."""

from collections.abc import Iterator

from fedflux.studies.paper import fidelity_rows
from fedflux.studies.paper.reading import DATASETS
from fedflux.studies.paper.study import Place, Runs, Study

SHIFTED = (("px", 7), ("py", 8), ("pygx", 4), ("pxgy", 4))
MAPPED = {3: 2, 4: 3, 5: 4}
"""The level of P(X) that has M rotations."""
CLIENTS = 30
KEYS = {"max": "Max", "min": "Min", "mean": "Mean", "std": "Std"}


def distances() -> Iterator[Place]:
    """tab:eps_R1: |descriptor distance − W2| over all pairs of clients and rounds."""
    for name in ("mnist", "cifar10"):
        for level, printed in fidelity_rows(name, "pygx").items():
            for key, words in KEYS.items():
                yield Place(
                    row=f"{DATASETS[name]}, level {level}",
                    column=words,
                    score=key,
                    runs=Runs(name, "fidelity", (("pygx", level),), (("clients", CLIENTS),)),
                    paper=printed[key],
                    doubt="the paper does not state its unit of latents",
                )


def maps() -> Iterator[Place]:
    """Clusters found where there are M of them."""
    for name in ("mnist", "cifar100"):
        for count, level in MAPPED.items():
            yield Place(
                row="FLUX",
                column=f"{DATASETS[name]}, M = {count}",
                score="pairs_right",
                runs=Runs(name, "flux", (("px", level),)),
                panel=f"{DATASETS[name]}, M = {count}",
                x=count,
            )


def _samples(name: str) -> Study:
    return Study(
        f"fig:appendix_ANDA_{name}",
        f"{DATASETS[name]} images of two clients under each shift",
        "P(X) at level 7, P(Y) at level 8 (3 classes), P(Y|X) and P(X|Y) at level 4; seed 42. Nothing is trained.",
        kind="figure",
        places=tuple(
            Place("images", kind, "samples", Runs(name, "fedavg", ((kind, level),)), panel=kind)
            for kind, level in SHIFTED
        ),
        drawn="samples",
        seeds=(42,),
    )


STUDIES = (
    Study(
        "tab:eps_R1",
        "How far descriptor distances are from W2",
        "P(Y|X), 30 clients, 10 rounds: 44,850 pairs a level; as `fedflux fidelity` measures it, seed 42.",
        places=tuple(distances()),
        seeds=(42,),
        smoke={"clients": 4, "rounds": 2},
    ),
    _samples("mnist"),
    _samples("cifar10"),
    Study(
        "fig:pca_clustering",
        "Descriptors of clients in a plane, and the clusters found",
        "P(X) of 3, 4 and 5 rotations, 10 clients, seed 42. The number is the share of pairs of clients that are "
        "rightly put together or apart, in percent; the paper shows the map alone.",
        kind="figure",
        places=tuple(maps()),
        drawn="maps",
        seeds=(42,),
    ),
)
