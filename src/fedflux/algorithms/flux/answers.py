"""What clients of a FLUX run are answered with, known ones and unseen ones (Algorithm 2), and what the run can show."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.algorithms.base import UNPLACED, Described, Method
from fedflux.algorithms.flux.describe import asked, describe_unlabelled
from fedflux.algorithms.flux.placing import Placed, place_unseen
from fedflux.algorithms.flux.state import Clustered, WarmUp
from fedflux.data import Cohort, Features
from fedflux.engine import Engine, Predictor, Stack
from fedflux.placement import Placement

C = TypeVar("C", bound=Clustered)


class FluxAnswers(Method, Generic[C]):
    """Answers of FLUX and its kin."""

    several_labels: ClassVar[bool] = True

    def _known_in_warm_up(self, state: WarmUp, clients: int) -> Predictor:
        return Predictor.shared(state.models, np.ones(1), clients)

    def known(self, state: WarmUp | C, clients: Cohort, engine: Engine) -> Predictor:
        """The models of the cluster that each client's training data was put in, as members weigh the branches."""
        if isinstance(state, WarmUp):
            return self._known_in_warm_up(state, len(clients))
        placed = np.eye(state.branches.clusters)[np.maximum(state.assignment[list(clients.ids)], 0)]
        return Predictor(state.answering, state.branches.weights(placed, state.parts))

    def unseen(self, state: WarmUp | C, features: Sequence[Features], engine: Engine) -> Predictor:
        """The models of the clusters that the images are from, as far as those tell (Algorithm 2); whoever fits none is
        told so.
        """
        if isinstance(state, WarmUp):
            return self._known_in_warm_up(state, len(features))
        offered = state.holders >= self.settings.min_members
        usual = by_size(state.sizes, offered)
        placed = None if usual is None else self._placed(state, features, engine, offered)
        if usual is None:
            general = state.general if state.general is not None else state.extractor.reference
            return Predictor.shared(general, np.ones(1), len(features))
        if placed is None:
            likely = np.tile(usual, (len(features), 1))
            return Predictor(state.answering, state.branches.weights(likely, state.parts))
        answer = self._answer(state, placed.placement, usual)
        return (
            answer
            if len(placed.clients) == len(features)
            else self._with_silent(state, answer, placed, features, usual)
        )

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

    def _answer(self, state: C, found: Placement, usual: NDArray[np.float64]) -> Predictor:
        """What clients are given where they are placed; `usual` is what answers where nothing is known of a client."""
        placed = self._weights(state, found)
        if self.settings.novel == "global" and "novel" in self.reads:
            placed = np.where(found.novel[:, None], usual, placed)
        weights = state.branches.weights(placed, state.parts, self._share_of_unseen(state, found))
        return Predictor(state.answering, weights, placement=found)

    def _with_silent(
        self,
        state: C,
        answer: Predictor,
        placed: Placed,
        features: Sequence[Features],
        usual: NDArray[np.float64],
    ) -> Predictor:
        """The same where some did not answer: those get the mixture of all clusters' models."""
        rows = [list(asked(features)).index(client) for client in placed.clients]
        likely = np.tile(usual, (len(features), 1))
        weights = state.branches.weights(likely, state.parts)
        weights[rows] = answer.weights
        return replace(answer, weights=weights, placement=_with_blanks(placed.placement, rows, likely))

    def _weights(self, state: C, found: Placement) -> NDArray[np.float64]:
        """How much of each cluster's model a client is given: by its posterior, or all of the nearest one's."""
        if self.settings.assignment == "mixture":
            return found.posterior
        return Predictor.single(state.models, found.cluster).weights

    def _share_of_unseen(self, state: C, found: Placement) -> NDArray[np.float64] | None:
        """The general model's part in the answer to unseen clients: more of it where it is not sure where they belong.

        Of a client that belongs to its cluster with probability p, the rest is better served by what serves everyone.
        """
        if state.general is None or self.settings.assignment != "mixture":
            return None
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
        """The clusters' models of every branch, and the general one where there is one."""
        if isinstance(state, WarmUp):
            return {"models": state.models}
        return {
            "models" if place == 0 else name: one for place, (name, one) in enumerate(state.branches.stacks.items())
        }

    def summary(self, state: WarmUp | C) -> Mapping[str, Any]:
        """When clusters were found, what they share, and how far each branch is heard."""
        heard = self.settings.sharing == "general" and "sharing" in self.reads
        if isinstance(state, WarmUp):
            told = {"general_share": 0.0} if heard else {}
            return {"cluster_round": None, "releases": 0, "sharing_parts": None, **told}
        told = {"general_share": state.share} if heard else {}
        parts = {
            "mean": dict(
                zip(state.branches.names, (state.sizes / state.sizes.sum() @ state.parts).tolist(), strict=True)
            ),
            "by_cluster": state.parts,
            "branches": list(state.branches.names),
            "kin": state.branches.kin,
            "whole": state.branches.whole,
            "dropped": list(state.dropped),
        }
        return {
            "cluster_round": state.cluster_round,
            "releases": max(len(state.looks), 1),
            "sharing_parts": parts,
            **told,
        }


def by_size(sizes: NDArray[np.int64], offered: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    """(M,): the clusters on offer by their size, which is how likely each is for a client that nothing is known of.

    None where every cluster is too small to be offered: then the general model answers, or else the one that everybody
    trained before clustering.
    """
    kept = np.where(offered, sizes, 0)
    return np.asarray(kept / kept.sum()) if kept.any() else None


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
