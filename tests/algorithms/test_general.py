"""`--sharing general`: clusters' models stay FLUX's, the general one is FedAvg's, and validation says who is heard."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, assert_same, engine_of, play, saved, small

import fedflux
from fedflux.algorithms import FedAvg, Flux, RoundMetrics
from fedflux.algorithms.checks import check_resumes
from fedflux.algorithms.flux.sharing.ballots import Ballot, hold, mixtures_of
from fedflux.algorithms.flux.sharing.branches import GENERAL, OWN, Branches
from fedflux.algorithms.flux.soft import FluxSoft
from fedflux.data import Federation
from fedflux.engine import Predictor, Scores, Stack

CLUSTERED = replace(SETTINGS, cluster_round=2, sharing="none")
BOTH = replace(CLUSTERED, sharing="general")
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def ballot(clusters: int, *votes: float) -> Ballot:
    return replace(Ballot.blank((OWN, GENERAL), clusters, 2), votes=np.array(votes))


def test_a_general_model_is_voted_on_in_fifths() -> None:
    np.testing.assert_array_equal(mixtures_of((OWN, GENERAL)), [[1 - share, share] for share in SHARES])


@pytest.fixture(scope="module")
def turned() -> Federation:
    return small("px", level=4, clients=6, fraction=1.0)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("method", [Flux, FluxSoft])
def test_clusters_models_are_as_without_it_and_the_general_one_is_fedavgs(
    method: Any, momentum: float, turned: Federation
) -> None:
    engine = engine_of(turned)
    state, _ = play(method(replace(BOTH, server_momentum=momentum)), turned, engine, 4)
    alone, _ = play(method(replace(CLUSTERED, server_momentum=momentum)), turned, engine, 4)
    everyone, _ = play(FedAvg(replace(CLUSTERED, server_momentum=momentum)), turned, engine, 4)
    assert len(state.models) > 1
    for name, tensor in alone.models.tensors.items():
        torch.testing.assert_close(state.models.tensors[name], tensor)
        torch.testing.assert_close(state.general.tensors[name], everyone.model.tensors[name])
    assert alone.general is None


def test_the_general_model_costs_a_second_one_each_way_once_there_are_clusters(turned: Federation) -> None:
    state, history = play(Flux(BOTH), turned, engine_of(turned), 4)
    size = state.models.model_bytes()
    assert [metrics.up[0] // size for metrics in (history[0], history[3])] == [1, 2]
    assert [metrics.down[0] // size for metrics in (history[0], history[3])] == [1, 2]
    assert history[3].work["training"] == 2 * history[0].work["training"]


def test_where_labels_conflict_nobody_listens_to_it() -> None:
    conflict = small("pygx", level=8, clients=6, fraction=1.0)
    engine = engine_of(conflict)
    settings = replace(BOTH, rounds=8)
    state, _ = play(Flux(settings), conflict, engine, 8)
    assert len(state.models) > 1
    everyone = conflict.cohort(range(6))
    ballots = [ballot(len(state.models), *votes) for votes in ((1, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1))]
    heard = [Flux(settings).known(replace(state, ballot=one), everyone, engine) for one in ballots]
    own, shared = engine.evaluate(heard, everyone, "validation").values
    assert own.mean() > shared.mean() + 0.1
    assert state.share <= 0.4  # below a half it changes an answer only where the cluster's model is the less sure


def models_that_say(*answers: int) -> Stack:
    """Linear maps of the digits' 64 pixels that answer one class each, whatever they see."""
    bias = torch.full((len(answers), 10), -9.0)
    bias[torch.arange(len(answers)), torch.tensor(answers)] = 9.0
    return Stack({"bias": bias})


class Station:
    """An engine whose clients all want the answer 1, and hear mixtures of models that know one answer each."""

    def evaluate(self, predictors: Sequence[Predictor], cohort: Any, split: str) -> Scores:
        assert split == "validation"
        return Scores(np.stack([self._one(predictor) for predictor in predictors]))

    def _one(self, predictor: Predictor) -> np.ndarray:
        says = torch.softmax(predictor.stack.tensors["bias"], dim=1).numpy()
        heard = (predictor.weights @ says).argmax(axis=1)
        return np.where(np.arange(len(heard)) == 2, np.nan, heard == 1)  # the third has no validation part


def voted(own: Stack, general: Stack, cluster: Sequence[int]) -> Ballot:
    engine: Any = Station()
    cohort: Any = range(3)
    branches = Branches({OWN: own, GENERAL: general}, np.zeros(len(own), dtype=np.int64))
    return hold(ballot(len(own), *[0.0] * 6), branches, cohort, np.array(cluster), engine)


def test_the_smallest_part_that_serves_members_best_is_taken() -> None:
    wrong, right = models_that_say(0, 0, 0), models_that_say(1)
    found = voted(wrong, right, [0, 2, 0])
    assert found.votes.tolist() == [0, 0, 0, 2, 2, 2]
    np.testing.assert_allclose(found.parts(), [[0.4, 0.6]] * 3)
    np.testing.assert_array_equal(voted(right.take([0, 0]), wrong.take([0]), [0, 1, 0]).parts(), [[1, 0]] * 2)
    np.testing.assert_array_equal(ballot(2, *[0.0] * 6).parts(), [[1, 0]] * 2)


def test_votes_of_earlier_rounds_count_and_silence_changes_nothing(turned: Federation) -> None:
    engine = engine_of(turned)
    state, _ = play(Flux(BOTH), turned, engine, 3)
    told = replace(state, ballot=ballot(len(state.models), *(1e6 * (share == 0.8) for share in SHARES)))
    later, _ = play(Flux(BOTH), turned, engine, 4, state=told)
    assert later.share == 0.8
    assert later.ballot.votes[4] >= 5e5

    class Silent:
        def evaluate(self, predictors: Sequence[Predictor], cohort: Any, split: str) -> Scores:
            return Scores(np.full((len(predictors), len(cohort)), np.nan))

    silent: Any = Silent()
    cohort, metrics = turned.cohort(range(6), 4), RoundMetrics()
    assert Flux(BOTH)._weigh(told, cohort, silent, metrics).share == 0.8
    assert metrics.events == []


def test_members_vote_before_they_train(turned: Federation) -> None:
    """In the first round with clusters all models are one, and whoever is heard says the same."""
    state, history = play(Flux(BOTH), turned, engine_of(turned), 3)
    assert len(set(state.ballot.votes.tolist())) == 1
    assert state.ballot.votes[0] > 0
    assert state.share == 0
    assert not any("general" in event for event in history[2].events)


@pytest.mark.parametrize("share", SHARES)
def test_known_clients_hear_their_clusters_model_and_the_general_one(share: float, turned: Federation) -> None:
    engine = engine_of(turned)
    state, _ = play(Flux(BOTH), turned, engine, 3)
    state = replace(state, ballot=ballot(len(state.models), *(float(share == one) for one in SHARES)))
    heard = Flux(BOTH).known(state, turned.cohort(range(6)), engine)
    own = np.eye(len(state.models))[state.assignment]
    np.testing.assert_allclose(heard.weights, np.column_stack([(1 - share) * own, np.full(6, share)]))
    assert_same(heard.stack, Stack.together([state.models, state.general]))


def test_unseen_clients_hear_it_as_far_as_known_ones(turned: Federation) -> None:
    engine = engine_of(turned)
    for algorithm in (Flux(BOTH), FluxSoft(BOTH)):
        state, _ = play(algorithm, turned, engine, 3)
        state = replace(state, ballot=ballot(len(state.models), 0, 1, 0, 0, 0, 0))
        answered = algorithm.unseen(state, turned.cohort(range(6)).features("test"), engine)
        np.testing.assert_allclose(answered.weights[:, -1], 0.2)
        np.testing.assert_allclose(answered.weights.sum(axis=1), 1)
        assert answered.placement is not None


def test_it_goes_on_from_a_saved_state(turned: Federation) -> None:
    engine = engine_of(turned)
    whole, _ = play(Flux(BOTH), turned, engine, 4)
    half, _ = play(Flux(BOTH), turned, engine, 3)
    found, _ = play(Flux(BOTH), turned, engine, 4, state=saved(half))
    np.testing.assert_array_equal(found.ballot.votes, whole.ballot.votes)
    np.testing.assert_array_equal(found.ballot.own, whole.ballot.own)
    assert_same(found.general, whole.general)
    check_resumes(lambda settings: Flux(replace(settings, sharing="general")))


def test_a_run_says_how_far_the_general_model_was_heard_and_keeps_it(tmp_path: Path) -> None:
    told = fedflux.run(shift="px", level=4, clients=6, rounds=5, answer="both", out=tmp_path / "both")
    assert told["general_share"] in SHARES
    assert (tmp_path / "both" / "general.safetensors").exists()
    alone = fedflux.run(shift="px", level=4, clients=6, rounds=5, sharing="none", out=tmp_path / "alone")
    assert "general_share" not in alone
    assert not (tmp_path / "alone" / "general.safetensors").exists()
    assert told["assignment"] == alone["assignment"]
