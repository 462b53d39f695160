"""What clients score that were held out of training: the algorithm meets them after it, without labels."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fedflux.algorithms import Algorithm
from fedflux.data import Cohort, Population
from fedflux.data.truth import UNKNOWN
from fedflux.engine import Engine
from fedflux.placement import Placement
from fedflux.runs.config import RunConfig
from fedflux.runs.ending.test_phase import shows_in_features
from fedflux.runs.evaluation import asked_in_parts, placements
from fedflux.runs.scores import client_scores


def evaluate_unseen(
    config: RunConfig, algorithm: Algorithm[Any], state: Any, population: Population | None, last: int, engine: Engine
) -> dict[str, Any]:
    """Scores, placements, names and true clusters of held-out clients, with what they hold after the `last` round.

    All of it is None where nobody was held out. Without a score are runs that stop early, shifts that features cannot
    show, and methods that have no answer to clients without labels.
    """
    if population is None or not population.unseen:
        return {**_scores(config, algorithm, state, [], engine), "unseen_names": None, "unseen_truth": None}
    everyone, clients = population.everyone, population.unseen
    view = everyone if algorithm.uses_truth else everyone.blind()
    met = view.at_test(last).cohort(clients)
    found = _scores(config, algorithm, state, asked_in_parts(met, config), engine)
    truth = everyone.at_test(last).truth
    return {
        **found,
        "unseen_names": None if everyone.names is None else [everyone.names[client] for client in clients],
        "unseen_truth": None if truth is None else [_known(truth[client]) for client in clients],
    }


def _scores(
    config: RunConfig, algorithm: Algorithm[Any], state: Any, parts: Iterable[Cohort], engine: Engine
) -> dict[str, Any]:
    """The scores of clients that are asked some at a time; whoever holds no test example has none."""
    scores: list[float] = []
    placed: list[tuple[Cohort, Placement]] = []
    for part in parts if shows_in_features(config) else ():
        own = np.full(len(part), np.nan)
        held = np.flatnonzero(part.sizes("test"))
        holders = part.only(part.ids[k] for k in held)
        predictor = algorithm.unseen(state, holders.features("test"), engine) if len(held) else None
        if predictor is not None:
            own[held] = engine.evaluate([replace(predictor, placement=None)], holders, "test").values[0]
            placed += [] if predictor.placement is None else [(holders, predictor.placement)]
        scores += own.tolist()
    said = placements(placed, "unseen_novel", "unseen_placements")[2]
    return {**client_scores(np.array(scores, dtype=np.float64), "unseen"), **said}


def _known(cluster: np.int64) -> int | None:
    return None if cluster == UNKNOWN else int(cluster)
