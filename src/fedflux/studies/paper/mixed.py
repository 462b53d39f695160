"""Other worlds: two shifts at once, radiographs, clients that drift, and noise on descriptors."""

from typing import Any

from fedflux.studies.paper import Figure
from fedflux.studies.paper.reading import method, places
from fedflux.studies.paper.study import Study

MIXES = {"tab:m11": "P(X) and P(Y)", "tab:m12": "P(X|Y) and P(Y)", "tab:m13": "P(Y|X) and P(Y)"}
ALL_LEVELS = tuple(range(1, 9))
DRIFTING = (2, 5, 8)


def _mix(name: str, words: str) -> Study:
    hidden = " The paper prints a test phase all the same." if "Y|X" in words else ""
    return Study(
        name,
        f"All methods under {words} at once",
        f"MNIST, 10 clients (not stated), levels 3 to 6, seeds 42 to 46.{hidden}",
        places=places(name, column=lambda figure: f"level {figure.levels[0]}"),
        levelled=True,
        rows_are_methods=True,
    )


def _drift(figure: Figure) -> dict[str, Any]:
    """FLUX in a world that drifts is its dynamic form."""
    return {"drift": "after:4,7", **({"algorithm": "flux-dynamic"} if figure.algorithm == "flux" else {})}


STUDIES = (
    *(_mix(name, words) for name, words in MIXES.items()),
    Study(
        "tab:main_chex",
        "All methods on CheXpert, three heterogeneities",
        "20 clients, 150 images each to train on, patients kept apart, macro ROC AUC, 20 rounds. The authors' release "
        "gives clients of one distribution the same images and tests on the training list, so its figures are largely "
        "of images that were trained on. --dataset nih-cxr runs it on NIH ChestX-ray14 instead.",
        places=places(
            "tab:main_chex",
            column=lambda figure: figure.setting.removesuffix(" heterogeneity"),
            doubt=lambda figure: "the paper's scores are largely of images that were trained on",
        ),
        smoke={"clients": 4, "rounds": 1, "samples_per_client": 20},
        levelled=True,
        rows_are_methods=True,
    ),
    Study(
        "tab:dp_effect",
        "FLUX with noise on its descriptors",
        "MNIST, four shifts, levels 1 to 8, 10 clients: none of it stated, but without noise the paper's figures are "
        "near those of tab:dataset_comparison. The paper's mechanism, which spends ε on every coordinate.",
        places=places(
            "tab:dp_effect",
            row=lambda figure: f"ε = {figure.more['epsilon']}" if figure.more["epsilon"] else "no noise",
            settings=lambda f: {"dp": "paper", "epsilon": f.more["epsilon"]} if f.more["epsilon"] else {},
            levels=lambda figure: ALL_LEVELS,
            doubt=lambda figure: "dataset, shifts, levels and clients are not stated",
        ),
        levelled=True,
    ),
    Study(
        "tab:flux_soft",
        "FLUX-soft and all methods, where the world drifts twice",
        f"MNIST, four shifts, three levels (here {DRIFTING}), drift after rounds 4 and 7, known association; FLUX is "
        "flux-dynamic, which clusters anew when clients drift. The text uses this one table both for soft assignment "
        "in a world that stays and for a world that drifts twice in training and once at test.",
        places=places(
            "tab:flux_soft",
            row=lambda figure: "FLUX (dynamic)" if figure.algorithm == "flux" else method(figure),
            settings=_drift,
            levels=lambda figure: DRIFTING,
            doubt=lambda figure: "which world, which levels and which phase it shows is not stated",
        ),
        smoke={"drift": "after:3"},
    ),
)
