"""`--answer both`: clusters' models stay FLUX's, the general one is FedAvg's, and validation says who is heard."""

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
from fedflux.algorithms.flux.general_model import SHARES, elected, hear, votes
from fedflux.algorithms.flux.soft import FluxSoft
from fedflux.data import Federation
from fedflux.engine import Predictor, Scores, Stack
from fedflux.placement import Placement

CLUSTERED = replace(SETTINGS, cluster_round=2)
BOTH = replace(CLUSTERED, general_model=True)
ONLY_GENERAL = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


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
    heard = [Flux(settings).known(replace(state, ballot=ballot), everyone, engine) for ballot in ((), ONLY_GENERAL)]
    own, shared = engine.evaluate(heard, everyone, "validation").values
    assert own.mean() > shared.mean() + 0.1
    assert state.share <= 0.4  # below a half it changes an answer only where the cluster's model is the less sure


def models_that_say(*answers: int) -> Stack:
    """Linear maps of the digits' 64 pixels that answer one class each, whatever they see."""
    bias = torch.full((len(answers), 10), -9.0)
    bias[torch.arange(len(answers)), torch.tensor(answers)] = 9.0
    return Stack({"bias": bias})


class Ballot:
    """An engine whose clients all want the answer 1, and hear mixtures of models that know one answer each."""

    def evaluate(self, predictors: Sequence[Predictor], cohort: Any, split: str) -> Scores:
        assert split == "validation"
        return Scores(np.stack([self._one(predictor) for predictor in predictors]))

    def _one(self, predictor: Predictor) -> np.ndarray:
        says = torch.softmax(predictor.stack.tensors["bias"], dim=1).numpy()
        heard = (predictor.weights @ says).argmax(axis=1)
        return np.where(np.arange(len(heard)) == 2, np.nan, heard == 1)  # the third has no validation part


def test_the_smallest_part_that_serves_members_best_is_taken() -> None:
    engine: Any = Ballot()
    cohort: Any = range(3)
    wrong, right = models_that_say(0, 0, 0), models_that_say(1)
    found = votes(Predictor.single(wrong, np.array([0, 2, 0])), Stack.together([wrong, right]), cohort, engine)
    assert found.tolist() == [0, 0, 0, 2, 2, 2]
    assert elected(found.tolist()) == 0.6
    own = Predictor.single(right.take([0, 0]), np.array([0, 1, 0]))
    assert elected(votes(own, Stack.together([own.stack, wrong.take([0])]), cohort, engine).tolist()) == 0
    assert elected(()) == 0


def test_votes_of_earlier_rounds_count_and_silence_changes_nothing(turned: Federation) -> None:
    engine = engine_of(turned)
    state, _ = play(Flux(BOTH), turned, engine, 3)
    told = replace(state, ballot=tuple(1e6 * (share == 0.8) for share in SHARES))
    later, _ = play(Flux(BOTH), turned, engine, 4, state=told)
    assert later.share == 0.8
    assert later.ballot[4] >= 5e5

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
    assert len(set(state.ballot)) == 1
    assert state.share == 0
    assert not any("general" in event for event in history[2].events)


@pytest.mark.parametrize("share", SHARES)
def test_hearing_mixes_and_keeps_what_was_said_of_placements(share: float) -> None:
    models, general = models_that_say(0, 1), models_that_say(2)
    chosen, ones = np.array([1, 0, 1]), np.ones(3)
    placement = Placement(chosen, ones > 1, ones, np.full((3, 2), 0.5), ones > 0, np.arange(6.0).reshape(3, 2))
    own = replace(Predictor.single(models, chosen), placement=placement)
    heard = hear(own, Stack.together([models, general]), share)
    if share == 0:
        assert heard is own
        return
    np.testing.assert_allclose(heard.weights, [[0, 1 - share, share], [1 - share, 0, share], [0, 1 - share, share]])
    assert heard.placement is placement
    assert len(heard.stack) == 3


def test_unseen_clients_hear_it_as_far_as_known_ones(turned: Federation) -> None:
    engine = engine_of(turned)
    for algorithm in (Flux(BOTH), FluxSoft(BOTH)):
        state, _ = play(algorithm, turned, engine, 3)
        answered = algorithm.unseen(
            replace(state, ballot=(0, 1, 0, 0, 0, 0)), turned.cohort(range(6)).features("test"), engine
        )
        np.testing.assert_allclose(answered.weights[:, -1], 0.2)
        np.testing.assert_allclose(answered.weights.sum(axis=1), 1)
        assert answered.placement is not None


def test_it_goes_on_from_a_saved_state(turned: Federation) -> None:
    engine = engine_of(turned)
    whole, _ = play(Flux(BOTH), turned, engine, 4)
    half, _ = play(Flux(BOTH), turned, engine, 3)
    found, _ = play(Flux(BOTH), turned, engine, 4, state=saved(half))
    assert found.ballot == whole.ballot
    assert_same(found.general, whole.general)
    check_resumes(lambda settings: Flux(replace(settings, general_model=True)))


def test_a_run_says_how_far_the_general_model_was_heard_and_keeps_it(tmp_path: Path) -> None:
    told = fedflux.run(shift="px", level=4, clients=6, rounds=5, answer="both", out=tmp_path / "both")
    assert told["general_share"] in SHARES
    assert (tmp_path / "both" / "general.safetensors").exists()
    alone = fedflux.run(shift="px", level=4, clients=6, rounds=5, out=tmp_path / "alone")
    assert "general_share" not in alone
    assert not (tmp_path / "alone" / "general.safetensors").exists()
    assert told["assignment"] == alone["assignment"]
