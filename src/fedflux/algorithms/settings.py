"""The methods' settings: which method, and what it does in a round. A method says in `reads` which of them it reads."""

from dataclasses import dataclass
from typing import Literal

from fedflux.algorithms.registry import ALGORITHMS, find_algorithm
from fedflux.clustering.change.drift import FALSE_ALARMS
from fedflux.clustering.placement.novelty import LEVEL
from fedflux.settings import Declared, at_least, between, passes, setting, share


@dataclass(frozen=True)
class MethodSettings(Declared):
    """What the server asks of clients, round by round."""

    algorithm: str = setting("flux", "{names}", panel="Method", names=ALGORITHMS, check=passes(find_algorithm))
    participation: float = setting(1.0, "share of clients in each round", panel="Method", check=share())
    finetune: int = setting(
        0,
        "epochs each client goes on alone with at the end, the best on validation kept",
        panel="Method",
        check=at_least(0, "{given}: give {low} or more epochs"),
    )
    passes: int | None = setting(
        None,
        "training passes over each client's data in all, the same for every method: what the rounds leave of them goes "
        "into fine-tuning",
        panel="Experiments",
        unset="as many as the rounds take, and --finetune",
        check=at_least(1),
    )
    cluster_round: int | Literal["auto", "trigger"] = setting(
        "auto",
        "FedAvg rounds before clustering. auto: a few, and clusters are looked for again as the model learns; trigger: "
        "when the paper's C(r) fires",
        panel="Clustering",
    )
    late: Literal["regroup", "place"] = setting(
        "regroup",
        "clients that come after clustering: regroup finds clusters anew once many have come, place never does",
        panel="Clustering",
    )
    redescribe: int = setting(
        1,
        "flux-dynamic, flux-soft: describe clients anew every so many rounds",
        panel="Clustering",
        check=at_least(0),
    )
    false_alarms: float = setting(
        FALSE_ALARMS,
        "flux-dynamic: rounds without drift in which somebody is said to drift",
        panel="Clustering",
        check=between(0, 1, "()"),
    )
    drift_test: Literal["history", "chunk"] = setting(
        "history",
        "flux-dynamic: each client's history, corrected over clients, or its newest chunk alone, as in version 0.1",
        panel="Experiments",
    )
    assignment: Literal["mixture", "calibrated", "euclidean"] = setting(
        "mixture",
        "late and unseen clients by class mixtures, calibrated distances or the paper's euclidean ones",
        panel="Experiments",
    )
    min_members: int = setting(
        1,
        "clusters of fewer clients are not offered to unseen ones",
        panel="Clustering",
        check=at_least(1),
    )
    sharing: Literal["auto", "none", "trunk", "general"] = setting(
        "auto",
        "what clusters train together. none: nothing; trunk: all layers but the last; general: a model beside their "
        "own; auto: models of their own beside ones with a shared trunk, as validation weighs them",
        panel="Clustering",
    )
    answer: Literal["cluster", "both"] = setting(
        "cluster", "both: the older name of --sharing general", panel="Experiments", counts=False
    )
    novel: Literal["nearest", "global"] = setting(
        "nearest", "unseen clients that fit no cluster: nearest cluster's model, or global", panel="Experiments"
    )
    novelty_level: float = setting(
        LEVEL,
        "unseen clients of known patterns called novel, at most",
        panel="Experiments",
        check=between(0, 1, "()"),
    )
    server_momentum: float = setting(
        0.0,
        "FedAvg, FLUX: how much of a round's movement models go on with in the next",
        panel="Experiments",
        check=between(0, 1, "[)"),
    )
