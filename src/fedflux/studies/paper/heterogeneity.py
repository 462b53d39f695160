"""Shifts and levels: the main table, its comparison with HACCS by shift, and the plots by level."""

from collections.abc import Iterator

from fedflux.studies.paper.reading import DATASETS, NAMES, dataset, places, plotted, shift
from fedflux.studies.paper.study import Place, Runs, Study

KNOWN, TEST = ("px", "py", "pygx", "pxgy"), ("px", "py", "pxgy")
USUAL = "10 clients, the paper's training, seeds 42 to 46"


def by_level(datasets: tuple[str, ...]) -> Iterator[Place]:
    """The curves of a plot over levels: means over shifts at each."""
    for name in datasets:
        for score, over in (("known", KNOWN), ("test", TEST)):
            panel = f"{DATASETS[name]}, {'known association' if score == 'known' else 'test phase'}"
            for method, curve in plotted()["levels"][name][score].items():
                for level, (mean, std) in enumerate(zip(curve["mean"], curve["std"], strict=True), start=1):
                    yield Place(
                        row=NAMES[method],
                        column=f"{DATASETS[name]}, level {level}, {score}",
                        score=score,
                        runs=Runs(name, method, tuple((kind, level) for kind in over)),
                        paper=mean,
                        paper_std=std,
                        panel=panel,
                        x=level,
                    )


STUDIES = (
    Study(
        "tab:dataset_comparison",
        "All methods on six datasets, means over shifts and levels",
        f"MNIST to CIFAR-100: {USUAL}; test phases over three shifts, since P(Y|X) has none. CheXpert: 20 clients, "
        "mean of three heterogeneities, patients kept apart (the authors' release scores images that it trained on). "
        "Office-Home: 10 clients, four domains.",
        places=places("tab:dataset_comparison", column=dataset),
        levelled=True,
        rows_are_methods=True,
    ),
    Study(
        "tab:comparison_haccs",
        "HACCS, FedAvg, FedDrift and FLUX by shift",
        f"Means over levels 1 to 8; {USUAL}.",
        places=places("tab:comparison_haccs", column=lambda figure: f"{dataset(figure)}, {shift(figure)}"),
        levelled=True,
        rows_are_methods=True,
    ),
    Study(
        "fig:hetero_mnist",
        "Accuracy by level on MNIST",
        f"Means over four shifts, the test phase over three; {USUAL}. The paper's curves are its authors' plots' data.",
        kind="figure",
        places=tuple(by_level(("mnist",))),
        drawn="lines",
        x_label="non-IID level",
        levelled=True,
        rows_are_methods=True,
    ),
    Study(
        "fig:hetero",
        "Accuracy by level on MNIST, FMNIST, CIFAR-10 and CIFAR-100",
        f"Means over four shifts, the test phase over three; {USUAL}. The paper's curves are its authors' plots' data.",
        kind="figure",
        places=tuple(by_level(("mnist", "fmnist", "cifar10", "cifar100"))),
        drawn="lines",
        x_label="non-IID level",
        levelled=True,
        rows_are_methods=True,
    ),
)
