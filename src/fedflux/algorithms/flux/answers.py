"""What clients of a FLUX run are answered with, known ones and unseen ones (Algorithm 2), and what the run can show."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, Described, Method
from fedflux.algorithms.flux.describe import Told, asked, describe_unlabelled
from fedflux.algorithms.flux.general_model import hear
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.algorithms.shared.averaging import by_membership
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
        """The model of the cluster whose P(X) fits best (Algorithm 2); whoever fits none is told so."""
        if isinstance(state, WarmUp):
            return self._known_in_warm_up(state, len(features))
        told = describe_unlabelled(state.extractor, features, engine)
        mixture = by_membership(state.models, state.assignment, len(features))
        if told is None:
            return mixture
        found = state.clusters.judge(told.descriptors, self.settings.novelty_level, self.settings.calibrated_assignment)
        if len(found) < len(features):
            return self._with_silent(state, found, told, features, mixture)
        return self._answer(state, found, mixture)

    def _answer(self, state: C, found: Placement, mixture: Predictor) -> Predictor:
        """What clients are given where they are placed."""
        weights = self._weights(state, found)
        if self.settings.novel == "global" and "novel" in self.reads:
            weights = np.where(found.novel[:, None], mixture.weights[: len(found)], weights)
        own = Predictor(state.models, weights, placement=found)
        return hear(own, state.answering, self._share_of_unseen(state, found))

    def _with_silent(
        self, state: C, found: Placement, told: Told, features: Sequence[Features], mixture: Predictor
    ) -> Predictor:
        """The same where some did not describe themselves: those get the mixture of all clusters' models."""
        rows = [list(asked(features)).index(client) for client in told.clients]
        answer = self._answer(state, found, mixture)
        every = hear(mixture, state.answering, state.share)
        weights = np.zeros((len(features), answer.weights.shape[1]))
        weights[:, : every.weights.shape[1]] = every.weights
        weights[rows] = answer.weights
        return replace(answer, weights=weights, placement=_with_blanks(found, rows, mixture.weights.argmax(axis=1)))

    def _weights(self, state: C, found: Placement) -> NDArray[np.float64]:
        """How much of each cluster's model a client is given: all of the fitting one's."""
        return Predictor.single(state.models, found.cluster).weights

    def _share_of_unseen(self, state: C, found: Placement) -> float | NDArray[np.float64]:
        """The general model's part in the answer to unseen clients."""
        return state.share

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


def _with_blanks(found: Placement, rows: Sequence[int], otherwise: NDArray[np.int64]) -> Placement:
    """Placements of everyone: those that were found at their rows, and nothing known of the others."""
    count = len(otherwise)
    cluster, novel = otherwise.astype(np.int64), np.zeros(count, dtype=np.bool_)
    distances = np.full((count, found.distances.shape[1]), np.nan)
    score, confidence = np.full(count, np.nan), np.full(count, np.nan)
    cluster[rows], distances[rows], novel[rows] = found.cluster, found.distances, found.novel
    score[rows], confidence[rows] = found.score, found.confidence
    return Placement(cluster, distances, novel, score, confidence)
