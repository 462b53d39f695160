"""FLUX and its kin on records with several labels, on every engine."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.data.several import LABELS, findings

from fedflux.algorithms import ALGORITHMS, FedAvg, Settings, check_task, make_algorithm
from fedflux.algorithms.flux.describe import DescriptorSettings, describe_all
from fedflux.algorithms.shared.finetune import finetune
from fedflux.data import Federation, Partition, partition
from fedflux.data.tasks import ONE_LABEL, SEVERAL_LABELS
from fedflux.data.tasks.areas import macro_auc
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.engine import Key, LoopEngine, Predictor, ProcessesEngine, Recipe, SimulatedEngine, Training, make_engine
from fedflux.errors import FedfluxError

ABLE = {
    *("local", "fedavg", "oracle", "flux", "flux-prior", "flux-dynamic", "flux-soft", "apfl"),
    *("ditto", "fedper", "fedrep", "fedbn", "feroma", "pacfl"),
}
TRAINING = Training(epochs=2, batch_size=16, lr=0.1, momentum=0.9)
SETTINGS = Settings(rounds=6, training=TRAINING, seed=5, clusters=3)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return partition(findings(), Partition("none", seed=5))


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return make_engine("loop", "mlp", federation, seed=5)


def backend(name: str, federation: Federation) -> SimulatedEngine:
    if name != "processes":
        return make_engine(name, "mlp", federation, seed=5)
    recipe = Recipe("mlp", federation.input_shape, federation.classes, 5, task=federation.task)
    return SimulatedEngine(ProcessesEngine(recipe, pixels=federation.dataset.scaling.pixels, workers=2))


def known(name: str, federation: Federation, engine: SimulatedEngine) -> tuple[float, np.ndarray]:
    """The mean score of known association after all rounds, and the clusters."""
    algorithm = make_algorithm(name, SETTINGS)
    view = federation if algorithm.uses_truth else federation.blind()
    state, everyone = algorithm.init(view, engine), view.cohort(range(len(view)))
    for _ in range(SETTINGS.rounds):
        state, _ = algorithm.round(state, everyone, engine)
    own = algorithm.known(state, everyone, engine)
    assert own is not None
    return float(engine.evaluate([own], everyone, "test").values[0].mean()), algorithm.assignment(state)


def test_swapped_findings_are_found(federation: Federation, engine: SimulatedEngine) -> None:
    oracle, fedavg = (known(name, federation, engine)[0] for name in ("oracle", "fedavg"))
    assert federation.truth is not None
    for name in ("flux", "flux-prior", "flux-soft", "flux-dynamic"):
        score, clusters = known(name, federation, engine)
        late = 0.05 if name == "flux-dynamic" else 0.0  # it looks once, and later
        pairs = [labels[:, None] == labels[None] for labels in (clusters, federation.truth)]
        np.testing.assert_array_equal(pairs[0], pairs[1], err_msg=name)
        assert score >= oracle - 0.01 - late, name
        assert score > fedavg + 0.05, name


@pytest.mark.parametrize("name", ["ditto", "fedper", "fedrep", "feroma"])
def test_competitors_learn_them_too(name: str, federation: Federation, engine: SimulatedEngine) -> None:
    assert known(name, federation, engine)[0] > known("fedavg", federation, engine)[0]


def test_clients_that_differ_in_nothing_stay_together() -> None:
    """Labels that often come together: counted under every label, each would make its means look alike."""
    same = partition(findings(names=[range(LABELS)]), Partition("none", seed=5))
    assert len(np.unique(known("flux", same, make_engine("loop", "mlp", same, seed=5))[1])) == 1


@pytest.mark.parametrize("name", ["processes", "stacked"])
def test_engines_agree(name: str, federation: Federation) -> None:
    engine, other = backend("loop", federation), backend(name, federation)
    everyone = federation.cohort(range(len(federation)))
    for rule in (make_algorithm("fedavg", SETTINGS), make_algorithm("apfl", SETTINGS)):
        scores = []
        for one in (engine, other):
            state, _ = rule.round(rule.init(federation, one), everyone, one)
            own = rule.known(state, everyone, one)
            assert own is not None
            scores.append(one.evaluate([own], everyone, "test").values)
        np.testing.assert_allclose(scores[0], scores[1], atol=2e-3)
    losses = [one.backend.losses(engine.initial(), everyone, "test")[3] for one in (engine, other)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    if isinstance(other.backend, ProcessesEngine):
        other.backend.close()


def test_training_without_autograd_is_training_with_it(federation: Federation) -> None:
    engines = [make_engine("loop", "mlp", federation, seed=5) for _ in range(2)]
    assert isinstance(engines[1].backend, LoopEngine)
    engines[1].backend._chain = None
    two, job = federation.cohort([0, 1]), FedAvg(SETTINGS)
    models = [job.round(job.init(federation, one), two, one)[0].model for one in engines]
    for name, tensor in models[0].tensors.items():
        torch.testing.assert_close(tensor, models[1].tensors[name], rtol=1e-4, atol=1e-5)


def test_scores_are_the_macro_auc_of_sigmoids(federation: Federation, engine: SimulatedEngine) -> None:
    two = federation.cohort([2, 5])
    stack = engine.initial(2)
    mixture = Predictor.shared(stack, np.array([0.25, 0.75]), 2)
    probabilities = engine.predict(mixture, two.features("test"))
    scores = engine.evaluate([mixture], two, "test").values[0]
    for place, client in enumerate(two):
        assert probabilities[place].sum(axis=1).std() > 0  # sigmoids, which need not add up to one
        expected = macro_auc(probabilities[place].astype(np.float64), federation.labels(client, "test"))
        assert scores[place] == pytest.approx(expected, abs=1e-6)


def test_fine_tuning_is_stopped_by_the_score(federation: Federation, engine: SimulatedEngine) -> None:
    everyone, rule = federation.cohort(range(len(federation))), FedAvg(SETTINGS)
    state, _ = rule.round(rule.init(federation, engine), everyone, engine)
    own = rule.known(state, everyone, engine)
    tuned, kept = finetune(own, everyone, engine, TRAINING, 3, Key(5, 6))
    before, after = (engine.evaluate([one], everyone, "validation").values[0] for one in (own, tuned))
    assert kept.max() > 0
    assert (after >= before).all()
    assert (after[kept > 0] > before[kept > 0]).all()


def test_a_record_counts_once_in_a_descriptor(federation: Federation, engine: SimulatedEngine) -> None:
    everyone = federation.cohort(range(len(federation)))
    told = describe_all(engine.initial(), everyone, everyone, engine, DescriptorSettings())
    assert told is not None
    extractor, answer = told
    assert extractor.question.classes == LABELS + 1
    counts = sum(federation.labels(client, "train").sum(axis=0) for client in everyone)
    assert extractor.question.rarest == tuple(np.argsort(counts, kind="stable").tolist())
    np.testing.assert_array_equal(answer.descriptors.count[:, 1:].sum(axis=1), answer.descriptors.count[:, 0])
    none = [int((federation.labels(client, "train").sum(axis=1) == 0).sum()) for client in everyone]
    assert answer.descriptors.count[:, LABELS + 1].tolist() == none


def test_private_descriptors_do_not_tell_which_labels_are_rare(federation: Federation, engine: SimulatedEngine) -> None:
    everyone = federation.cohort(range(len(federation)))
    how = replace(DescriptorSettings(), privacy=Privacy("gaussian", 1.0, releases=5))
    told = describe_all(engine.initial(), everyone, everyone, engine, how)
    assert told is not None
    assert told[0].question.rarest == tuple(range(LABELS))


def test_methods_that_take_labels_for_classes_refuse() -> None:
    for name in ALGORITHMS:
        check_task(name, SETTINGS, ONE_LABEL)
        if name in ABLE:
            check_task(name, SETTINGS, SEVERAL_LABELS)
        else:
            with pytest.raises(FedfluxError, match=r"several: choose .*fedavg, oracle, flux"):
                check_task(name, SETTINGS, SEVERAL_LABELS)
