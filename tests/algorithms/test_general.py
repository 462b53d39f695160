"""`--answer both`: clusters' models stay FLUX's, the general one is FedAvg's, and validation says who is heard."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, assert_same, engine_of, play, saved, small

from fedflux.algorithms import FedAvg, Flux
from fedflux.algorithms.checks import check_resumes
from fedflux.algorithms.flux_soft import FluxSoft
from fedflux.algorithms.general import SHARES, best_share, hear
from fedflux.data import Federation
from fedflux.engine import Predictor, Stack

CLUSTERED = replace(SETTINGS, cluster_round=2)
BOTH = replace(CLUSTERED, beside=True)


@pytest.fixture(scope="module")
def turned() -> Federation:
    return small("px", level=4, clients=6, fraction=1.0)


@pytest.mark.parametrize("method", [Flux, FluxSoft])
def test_clusters_models_are_as_without_it_and_the_general_one_is_fedavgs(method: Any, turned: Federation) -> None:
    engine = engine_of(turned)
    state, _ = play(method(BOTH), turned, engine, 4)
    alone, _ = play(method(CLUSTERED), turned, engine, 4)
    everyone, _ = play(FedAvg(CLUSTERED), turned, engine, 4)
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
    own = engine.evaluate(Flux(settings).known(replace(state, share=0.0), everyone, engine), everyone, "validation")
    shared = engine.evaluate(Flux(settings).known(replace(state, share=1.0), everyone, engine), everyone, "validation")
    assert own.mean() > shared.mean() + 0.1
    assert state.share <= 0.5  # a half changes an answer only where the cluster's model is the less sure of the two


def models_that_say(*answers: int) -> Stack:
    """Linear maps of the digits' 64 pixels that answer one class each, whatever they see."""
    bias = torch.full((len(answers), 10), -9.0)
    bias[torch.arange(len(answers)), torch.tensor(answers)] = 9.0
    return Stack({"bias": bias})


class Ballot:
    """An engine whose clients all want the answer 1, and hear mixtures of models that know one answer each."""

    def evaluate(self, predictor: Predictor, cohort: Any, split: str) -> np.ndarray:
        assert split == "validation"
        says = torch.softmax(predictor.stack.tensors["bias"], dim=1).numpy()
        heard = (predictor.weights @ says).argmax(axis=1)
        return np.where(np.arange(len(heard)) == 2, np.nan, heard == 1)  # the third has no validation part


def test_the_smallest_part_that_serves_members_best_is_taken() -> None:
    cluster, cohort = np.array([3, 5, 3]), range(3)
    wrong, right = models_that_say(0, 0, 0, 0, 0, 0), models_that_say(1)
    share, tried = best_share(wrong, right, cluster, cohort, Ballot())  # type: ignore[arg-type]
    assert share == 0.75  # at a half the first of equals wins
    assert tried == {0.0: 0, 0.25: 0, 0.5: 0, 0.75: 1, 1.0: 1}
    assert best_share(models_that_say(*[1] * 6), models_that_say(0), cluster, cohort, Ballot())[0] == 0  # type: ignore[arg-type]


def test_nobody_with_a_validation_part_means_nobody_listens() -> None:
    class Silent:
        def evaluate(self, predictor: Predictor, cohort: Any, split: str) -> np.ndarray:
            return np.full(len(predictor.weights), np.nan)

    models = models_that_say(0, 1)
    assert best_share(models, models.take([0]), np.array([0, 1]), range(2), Silent()) == (0.0, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("share", SHARES)
def test_hearing_mixes_and_keeps_what_was_said_of_placements(share: float) -> None:
    models, general = models_that_say(0, 1), models_that_say(2)
    own = Predictor.single(models, np.array([1, 0, 1]), np.arange(6.0).reshape(3, 2))
    heard = hear(own, general, share)
    if share == 0:
        assert heard is own
        return
    np.testing.assert_allclose(heard.weights, [[0, 1 - share, share], [1 - share, 0, share], [0, 1 - share, share]])
    np.testing.assert_array_equal(heard.distances, own.distances)


def test_unseen_clients_hear_it_as_far_as_known_ones(turned: Federation) -> None:
    engine = engine_of(turned)
    for algorithm in (Flux(BOTH), FluxSoft(BOTH)):
        state, _ = play(algorithm, turned, engine, 3)
        answered = algorithm.unseen(replace(state, share=0.25), turned.cohort(range(6)).features("test"), engine)
        np.testing.assert_allclose(answered.weights[:, -1], 0.25)
        np.testing.assert_allclose(answered.weights.sum(axis=1), 1)
        assert answered.verdict is not None


def test_it_goes_on_from_a_saved_state(turned: Federation) -> None:
    engine = engine_of(turned)
    whole, _ = play(Flux(BOTH), turned, engine, 4)
    half, _ = play(Flux(BOTH), turned, engine, 3)
    found, _ = play(Flux(BOTH), turned, engine, 4, state=saved(half))
    assert found.share == whole.share
    assert_same(found.general, whole.general)
    check_resumes(lambda settings: Flux(replace(settings, beside=True)))
