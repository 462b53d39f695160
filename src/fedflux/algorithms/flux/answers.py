"""What clients of a FLUX run are answered with, known ones and unseen ones (Algorithm 2), and what the run can show."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, Described, Method
from fedflux.algorithms.flux.describe import asked, describe_unlabelled
from fedflux.algorithms.flux.general_model import hear
from fedflux.algorithms.flux.placing import Placed, place_unseen
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.data import Cohort, Features
from fedflux.engine import Engine, Predictor, Stack
from fedflux.placement import Placement

C = TypeVar("C", bound=Clustered)


class FluxAnswers(Method, Generic[C]):
    """Answers of FLUX and its kin."""

    def _known_in_warm_up(self, state: WarmUp, clients: int) -> Predictor:
        return Predictor.shared(state.models, np.ones(1), clients)

    def known(self, state: WarmUp | C, clients: Cohort, engine: Engine) -> Predictor:
        """The model of the cluster that each client's training data was put in, and the general one as it is heard."""
        if isinstance(state, WarmUp):
            return self._known_in_warm_up(state, len(clients))
        own = Predictor.single(state.models, np.maximum(state.assignment[list(clients.ids)], 0))
        return hear(own, state.answering, state.share)

    def unseen(self, state: WarmUp | C, features: Sequence[Features], engine: Engine) -> Predictor:
        """The models of the clusters that the images are from, as far as those tell (Algorithm 2); whoever fits none is
        told so.
        """
        if isinstance(state, WarmUp):
            return self._known_in_warm_up(state, len(features))
        offered = state.holders >= self.settings.min_members
        fallback = self._fallback(state, len(features), offered)
        placed = self._placed(state, features, engine, offered) if offered.any() else None
        if placed is None:
            return fallback
        if len(placed.clients) < len(features):
            return self._with_silent(state, placed, features, fallback)
        return self._answer(state, placed.placement, fallback)

    def _placed(
        self, state: C, features: Sequence[Features], engine: Engine, offered: NDArray[np.bool_]
    ) -> Placed | None:
        """Where clients belong, by the rule that was asked for."""
        level = self.settings.novelty_level
        if self.settings.assignment == "mixture":
            alone = state.holders <= 1
            return place_unseen(state.extractor, state.offer, state.clusters, offered, alone, features, engine, level)
        told = describe_unlabelled(state.extractor, features, engine)
        if told is None:
            return None
        found = state.clusters.judge(told.descriptors, level, self.settings.assignment == "calibrated")
        return Placed(told.clients, found if offered.all() else _among(found, offered))

    def _fallback(self, state: C, clients: int, offered: NDArray[np.bool_]) -> Predictor:
        """What answers where nothing is known of a client: the clusters' models on offer by their size. Where every
        cluster is too small to be offered, the general model, or else the one that everybody trained before clustering.
        """
        kept = np.where(offered, state.sizes, 0)
        if kept.any():
            return Predictor.shared(state.models, kept.astype(np.float64), clients)
        general = state.general if state.general is not None else state.extractor.reference
        return Predictor.shared(general, np.ones(1), clients)

    def _answer(self, state: C, found: Placement, fallback: Predictor) -> Predictor:
        """What clients are given where they are placed."""
        weights = self._weights(state, found)
        if self.settings.novel == "global" and "novel" in self.reads:
            weights = np.where(found.novel[:, None], fallback.weights[: len(found)], weights)
        own = Predictor(state.models, weights, placement=found)
        return hear(own, state.answering, self._share_of_unseen(state, found))

    def _with_silent(self, state: C, placed: Placed, features: Sequence[Features], fallback: Predictor) -> Predictor:
        """The same where some did not answer: those get the mixture of all clusters' models."""
        rows = [list(asked(features)).index(client) for client in placed.clients]
        answer = self._answer(state, placed.placement, fallback)
        every = hear(fallback, state.answering, state.share)
        weights = np.zeros((len(features), answer.weights.shape[1]))
        weights[:, : every.weights.shape[1]] = every.weights
        weights[rows] = answer.weights
        blanks = _with_blanks(placed.placement, rows, fallback.weights)
        return replace(answer, weights=weights, placement=blanks)

    def _weights(self, state: C, found: Placement) -> NDArray[np.float64]:
        """How much of each cluster's model a client is given: by its posterior, or all of the nearest one's."""
        if self.settings.assignment == "mixture":
            return found.posterior
        return Predictor.single(state.models, found.cluster).weights

    def _share_of_unseen(self, state: C, found: Placement) -> float | NDArray[np.float64]:
        """The general model's part in the answer to unseen clients: more of it where it is not sure where they belong.

        Of a client that belongs to its cluster with probability p, the rest is better served by what serves everyone.
        """
        if self.settings.assignment != "mixture":
            return state.share
        return np.asarray(1 - (1 - state.share) * found.confidence)

    def assignment(self, state: WarmUp | C) -> NDArray[np.int64]:
        """The cluster of every client, −1 where it has none yet."""
        if isinstance(state, WarmUp):
            return np.full(state.clients, 0 if state.over else UNPLACED, dtype=np.int64)
        return state.assignment

    def described(self, state: WarmUp | C) -> Described | None:
        """Everyone who sent a descriptor."""
        if isinstance(state, WarmUp):
            return None
        clients = np.array(state.described, dtype=np.int64)
        return Described(clients, state.descriptors, state.assignment[clients], state.clusters)

    def models(self, state: WarmUp | C) -> Mapping[str, Stack]:
        """The clusters' models, and the general one where there is one."""
        general = None if isinstance(state, WarmUp) else state.general
        return {"models": state.models} if general is None else {"models": state.models, "general": general}

    def summary(self, state: WarmUp | C) -> Mapping[str, Any]:
        """When clusters were found, and how far the general model is heard."""
        heard = self.settings.general_model and "answer" in self.reads
        if isinstance(state, WarmUp):
            return {"cluster_round": None, "releases": 0, **({"general_share": 0.0} if heard else {})}
        share = {"general_share": state.share} if heard else {}
        return {"cluster_round": state.cluster_round, "releases": 1, **share}


def _among(found: Placement, offered: NDArray[np.bool_]) -> Placement:
    """Placements among the clusters on offer."""
    assert found.distances is not None
    cluster = np.where(offered[None], found.distances, np.inf).argmin(axis=1).astype(np.int64)
    posterior = np.where(offered[None], found.posterior, 0.0)
    total = posterior.sum(axis=1, keepdims=True)
    distances = np.where(offered[None], found.distances, np.inf)
    posterior = np.divide(posterior, total, where=total > 0, out=posterior)
    return replace(found, cluster=cluster, posterior=posterior, distances=distances)


def _with_blanks(found: Placement, rows: Sequence[int], otherwise: NDArray[np.float64]) -> Placement:
    """Placements of everyone: those that were found at their rows, and nothing known of the others."""
    count = len(otherwise)
    score, calibrated = np.full(count, np.nan), np.zeros(count, dtype=np.bool_)
    cluster, novel = otherwise.argmax(axis=1).astype(np.int64), np.zeros(count, dtype=np.bool_)
    posterior, distances = np.full((count, found.posterior.shape[1]), np.nan), None
    cluster[rows], novel[rows], score[rows] = found.cluster, found.novel, found.score
    posterior[rows], calibrated[rows] = found.posterior, found.calibrated
    if found.distances is not None:
        distances = np.full((count, found.distances.shape[1]), np.nan)
        distances[rows] = found.distances
    return Placement(cluster, novel, score, posterior, calibrated, distances)
