"""FedAvg, local, FLUX, prior and oracle: their rules, and what they may not see."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedflux.algorithms import ALGORITHMS, PAPER_BASELINES, READS, Settings, make_algorithm
from fedflux.algorithms.base import RoundMetrics
from fedflux.algorithms.flux.describe import DescriptorSettings, describe, describe_unlabelled, fit_extractor
from fedflux.algorithms.flux.sharing.branches import OWN, Branches
from fedflux.algorithms.shared.averaging import aggregate
from fedflux.clustering import Clusterer
from fedflux.data import Dataset, Examples, Features, Federation, Labelled, Partition, partition
from fedflux.data.sources import load
from fedflux.engine import Job, Kept, Key, SimulatedEngine, Stack, Training, make_engine
from fedflux.errors import FedfluxError

TRAINING = Training(epochs=1, batch_size=16, lr=0.05, momentum=0.9)
ANY_MODEL = [name for name, kind in ALGORITHMS.items() if not kind.needs_batch_norm]
"""The methods that can train the model of these tests."""
SETTINGS = Settings(
    rounds=4, training=TRAINING, seed=5, clusters=2, clusterer=Clusterer("agglomerative"), cluster_round=2
)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return partition(load("digits"), Partition("px", level=3, clients=6, seed=5, data_fraction=0.5))


@pytest.fixture(scope="module")
def engine(federation: Federation) -> SimulatedEngine:
    return make_engine("loop", "mlp", federation, seed=5)


def play(name, federation, engine, settings=SETTINGS, rounds=4, cohort=None):
    algorithm = make_algorithm(name, settings)
    view = federation if algorithm.uses_truth else federation.blind()
    engine.restore(Kept())
    state = algorithm.init(view, engine)
    history = []
    for r in range(1, rounds + 1):
        members = range(len(view)) if cohort is None else cohort(r)
        state, metrics = algorithm.round(state, view.cohort(members, r), engine)
        history.append(metrics)
    return algorithm, state, history, view


def test_fedavg_is_the_size_weighted_mean(federation: Federation, engine: SimulatedEngine) -> None:
    _, state, _, _ = play("fedavg", federation, engine, rounds=1)
    cohort = federation.cohort(range(6))
    trained = engine.train(engine.initial(), cohort, [Job(k) for k in range(6)], TRAINING, Key(5, 1)).models
    sizes = np.array([federation.size(k, "train") for k in range(6)])
    for name, tensor in trained.tensors.items():
        expected = np.average(tensor.numpy().astype(np.float64), axis=0, weights=sizes)
        np.testing.assert_allclose(state.model.tensors[name][0], expected, rtol=1e-5, atol=1e-7)


def test_flux_is_fedavg_bit_for_bit_until_it_clusters(federation: Federation, engine: SimulatedEngine) -> None:
    _, global_state, _, _ = play("fedavg", federation, engine, rounds=2)
    _, state, _, _ = play("flux", federation, engine, rounds=2)
    assert state.cluster_round == 2
    for m in range(len(state.models)):
        for name, tensor in global_state.model.tensors.items():
            assert torch.equal(state.models.tensors[name][m], tensor[0])


def test_flux_with_one_cluster_is_fedavg_bit_for_bit(federation: Federation, engine: SimulatedEngine) -> None:
    one = replace(SETTINGS, clusterer=Clusterer("kmeans", clusters=1))
    _, state, _, _ = play("flux", federation, engine, one)
    _, global_state, _, _ = play("fedavg", federation, engine)
    for name, tensor in global_state.model.tensors.items():
        assert torch.equal(state.models.tensors[name], tensor)


def test_oracle_has_the_true_clusters_and_trains_them_apart(federation: Federation, engine: SimulatedEngine) -> None:
    _, state, history, _ = play("oracle", federation, engine)
    truth = federation.truth
    assert truth is not None
    pairs = state.assignment[:, None] == state.assignment[None]
    np.testing.assert_array_equal(pairs, truth[:, None] == truth[None])
    assert not torch.equal(*(state.models.tensors["classifier.weight"][m] for m in (0, 1)))
    assert history[1].events == [f"round 2: {len(np.unique(truth))} clusters of 6 clients"]


def test_prior_is_told_only_the_number(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm, state, _, _ = play("flux-prior", federation, engine)
    assert federation.truth is not None
    assert len(state.models) == len(np.unique(federation.truth))
    assert algorithm.settings.clusterer.name == "kmeans"


def test_an_empty_cluster_keeps_its_model() -> None:
    models = Stack({"w": torch.tensor([[1.0], [2.0], [3.0]])})
    trained = Stack({"w": torch.tensor([[10.0], [20.0]])})
    found = aggregate(models, trained, np.array([2, 2]), np.array([1.0, 3.0]))
    assert found.tensors["w"].flatten().tolist() == [1.0, 2.0, 17.5]


def test_late_clients_are_placed_and_absent_ones_completed(federation: Federation, engine: SimulatedEngine) -> None:
    early, late = [0, 1, 2, 3], [0, 1, 2, 3, 4]
    algorithm, state, history, view = play("flux", federation, engine, cohort=lambda r: early if r <= 2 else late)
    assert state.assignment[4] >= 0
    assert state.assignment[5] == -1
    assert history[2].up[4] > history[3].up[4]  # the descriptor travels once
    state, costs = algorithm.complete(state, view.cohort(range(6)), engine)
    assert (state.assignment >= 0).all()
    tried = costs.up[0]  # everyone says how likely its validation part is in each cluster
    assert all(costs.up[client] == tried for client in range(5))
    assert costs.up[5] - tried == history[2].up[4] - history[3].up[4]  # the absent one sends a descriptor, too
    assert costs.down[5] - costs.down[0] > state.models.model_bytes()  # and gets a model
    assert state.described == (0, 1, 2, 3, 4, 5)
    assert len(algorithm.described(state).sent["mean"]) == 6


def test_clusters_are_found_anew_once_many_more_have_come(federation: Federation, engine: SimulatedEngine) -> None:
    """Those who come first are described first, whatever their ids."""
    truth = federation.truth
    assert truth is not None
    groups = {1: [5, 2, 4], 2: [5, 2, 4], 3: [0, 5], 4: [1, 3, 5]}
    for name in ("oracle", "flux-prior", "flux"):
        _, state, history, _ = play(name, federation, engine, cohort=lambda r: groups[r])
        assert state.described == (2, 4, 5, 0, 1, 3)
        assert state.clustered == 6
        assert (
            sum(" clusters " in event and " clients" in event for metrics in history for event in metrics.events) == 2
        )
        assert len(state.models) == len(state.clusters.centroids) == len(np.unique(state.assignment))
        if name == "oracle":
            np.testing.assert_array_equal(
                state.assignment[:, None] == state.assignment[None], truth[:, None] == truth[None]
            )


@pytest.mark.parametrize(
    ("early", "late", "found"),
    [
        ([0, 1, 2, 3, 4], [5], [5, 6]),  # nobody is left to come
        ([0, 2, 3], [1, 5], [3, 5]),  # many more
        ([0, 2, 3, 4], [1], [4]),  # neither
    ],
)
def test_when_clusters_are_found_anew(
    federation: Federation, engine: SimulatedEngine, early: list[int], late: list[int], found: list[int]
) -> None:
    history = play("flux", federation, engine, cohort=lambda r: early if r < 3 else early + late)[2]
    told = [event for metrics in history for event in metrics.events if " clusters " in event and " clients" in event]
    sizes = [int(event.split()[-2]) for event in told]
    assert sizes == found


def test_late_clients_are_only_placed_where_the_clusterer_cannot_take_more(
    federation: Federation, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedflux.clustering.clusterers.EXACT", 4)
    early = [0, 2, 3]
    _, state, _, _ = play("flux", federation, engine, cohort=lambda r: early if r < 3 else range(6))
    assert state.clustered == 3
    assert (state.assignment >= 0).all()


def test_a_new_cluster_goes_on_from_its_members_models(federation: Federation, engine: SimulatedEngine) -> None:
    apart = replace(SETTINGS, sharing="none")
    algorithm, state, _, view = play("oracle", federation, engine, apart, rounds=2)
    one = state.models.take([0, 0]).tensors
    models = Stack(
        {name: tensor + torch.tensor([0.0, 1.0]).view(2, *[1] * (tensor.ndim - 1)) for name, tensor in one.items()}
    )
    came_from = np.array([0, 1, 0, 1, 1, 0])
    branches = Branches({OWN: models}, np.zeros(2, dtype=np.int64))
    before = replace(state, branches=branches, assignment=came_from, clustered=3)
    after = algorithm._refine(before, view, engine, RoundMetrics())
    assert after.clustered == 6
    for cluster in range(len(after.models)):
        share = came_from[after.assignment == cluster].mean()  # of model 1, which is model 0 and one more
        for name, tensor in after.models.row(cluster).items():
            torch.testing.assert_close(tensor, models.row(0)[name] + share)


def test_a_late_client_joins_its_twins_cluster(federation: Federation, engine: SimulatedEngine) -> None:
    truth = federation.truth
    assert truth is not None
    twins = next((a, b) for a in range(6) for b in range(a + 1, 6) if truth[a] == truth[b])
    early = [k for k in range(6) if k != twins[1]]
    settings = replace(SETTINGS, training=replace(TRAINING, epochs=4), cluster_round=3)
    _, state, _, _ = play("oracle", federation, engine, settings, cohort=lambda r: early if r <= 3 else range(6))
    assert state.assignment[twins[0]] == state.assignment[twins[1]]


def test_only_the_methods_allowed_to_can_read_the_truth(federation: Federation, engine: SimulatedEngine) -> None:
    readers = {name for name in ANY_MODEL if make_algorithm(name, SETTINGS).uses_truth}
    assert readers == {"oracle", "flux-prior"}
    assert make_algorithm("flux", replace(SETTINGS, true_count=True)).uses_truth
    for name in readers:  # and when handed a blind federation they fail instead of guessing
        with pytest.raises(FedfluxError, match="may not read"):
            make_algorithm(name, SETTINGS).init(federation.blind(), engine)
    for name in set(ANY_MODEL) - readers:  # the others run to the end without asking
        play(name, federation, engine, rounds=3)
    with pytest.raises(FedfluxError, match="may not read"):
        _ = federation.blind().truth
    with pytest.raises(FedfluxError, match="may not read"):
        _ = federation.blind().patterns[0]


def test_a_blind_federation_hides_the_datas_own_clusters() -> None:
    x, y = np.zeros((8, 1, 4, 4), np.uint8), np.arange(8) % 2
    client = np.repeat([0, 1], 4)
    part = Examples(x, y, client)
    dataset = Dataset("npz", part, part, 2, ("a", "b"), np.array([0, 1]))
    blind = partition(dataset, Partition("none", level=1)).blind()
    assert blind.dataset.client_clusters is None


def test_truth_is_needed_where_it_is_used(federation: Federation, engine: SimulatedEngine) -> None:
    without = partition(load("digits"), Partition("dirichlet", level=3, clients=6))
    with pytest.raises(FedfluxError, match="no true clusters"):
        make_algorithm("oracle", SETTINGS).init(without, engine)


@pytest.mark.parametrize("name", [n for n in ANY_MODEL if n not in ("local", "pfedme")])
def test_test_phase_cannot_see_labels(name: str, federation: Federation, engine: SimulatedEngine) -> None:
    """Whatever labels ride along, even as a labelled record, the chosen models stay the same."""
    algorithm, state, _, view = play(name, federation, engine)
    honest = view.cohort(range(6)).features("test")
    assert all(type(one) is Features and not hasattr(one, "y") for one in honest)
    generator = np.random.default_rng(0)
    smuggled = [
        Labelled(one.x, torch.from_numpy(generator.integers(10, size=len(one))), np.arange(len(one))) for one in honest
    ]
    expected = algorithm.unseen(state, honest, engine)
    found = algorithm.unseen(state, smuggled, engine)
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_unlabelled_descriptors_ignore_labels(federation: Federation, engine: SimulatedEngine) -> None:
    cohort = federation.cohort(range(6))
    extractor = fit_extractor(engine.initial(), cohort, engine, DescriptorSettings())
    assert extractor is not None
    labelled = [cohort.data(k, "test") for k in cohort]
    with_labels = describe_unlabelled(extractor, labelled, engine)
    without = describe_unlabelled(extractor, cohort.features("test"), engine)
    assert with_labels is not None
    assert without is not None
    np.testing.assert_array_equal(with_labels.descriptors.vectors(), without.descriptors.vectors())
    assert without.descriptors.classes == 0


def test_copies_of_unlabelled_images_are_no_evidence() -> None:
    repeating = partition(load("digits"), Partition("py", level=6, clients=6, seed=5, data_fraction=0.5))
    engine = make_engine("loop", "mlp", repeating, seed=5)
    cohort = repeating.cohort(range(6))
    extractor = fit_extractor(engine.initial(), cohort, engine, DescriptorSettings())
    assert extractor is not None
    for features in (cohort.features("test"), [Features(cohort.data(k, "test").x) for k in cohort]):
        told = describe_unlabelled(extractor, features, engine)
        assert told is not None
        found = told.descriptors
        for k, client in enumerate(cohort):
            copies = np.unique(cohort.data(client, "test").rows, return_counts=True)[1]
            assert found.effective[k, 0] == pytest.approx(copies.sum() ** 2 / (copies**2).sum(), rel=1e-6)
            assert found.count[k, 0] == copies.sum()
    assert (found.effective < found.count).any()


def test_descriptors_match_numpy_on_raw_latents(federation: Federation, engine: SimulatedEngine) -> None:
    cohort = federation.cohort([1])
    extractor = fit_extractor(engine.initial(), cohort, engine, DescriptorSettings())
    assert extractor is not None
    told = describe(extractor, cohort, engine)
    assert told is not None
    assert told.clients == (1,)
    found = told.descriptors
    data = cohort.data(1, "train")

    class Collect:
        def add(self, so_far, latents, labels):
            return latents if so_far is None else torch.cat([so_far, latents])

    (latents,) = engine.backend.reduce(engine.initial(), [data], Collect())
    z = extractor.question.projector.project(latents).numpy()
    np.testing.assert_allclose(found.mean[0, 0], z.mean(axis=0), rtol=1e-4, atol=1e-5)
    for u in range(10):
        mine = z[data.y.numpy() == u]
        assert found.count[0, 1 + u] == len(mine)
        np.testing.assert_allclose(found.mean[0, 1 + u], mine.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.spread[0, 1 + u], mine.std(axis=0), rtol=1e-3, atol=1e-4)


def test_bytes_of_a_round(federation: Federation, engine: SimulatedEngine) -> None:
    _, state, history, _ = play("flux", federation, engine, replace(SETTINGS, sharing="none"))
    size = 4 * sum(t[0].numel() for t in state.models.tensors.values())
    assert set(history[0].up.values()) == set(history[0].down.values()) == {size}
    latent, classes, length = 64, 10, 10
    moments = classes * (4 * length + 2 * length + length * (length - 1) // 2)  # means, deviations, correlations
    descriptor = moments + 4 * classes + 4 * (classes + 1) + 4 * (length + 1)  # counts, effective counts, validation
    assert descriptor == 1178
    assert set(history[1].up.values()) == {size + 4 * 2 * latent + descriptor}
    assert set(history[1].down.values()) == {size + 4 * 2 * latent}
    assert set(history[2].up.values()) == {size}


def test_local_models_stay_apart(federation: Federation, engine: SimulatedEngine) -> None:
    algorithm, state, history, view = play("local", federation, engine, rounds=2)
    held = engine.kept()
    assert held.clients["personal"].tolist() == list(range(6))
    assert sum(history[0].up.values()) == 0
    assert algorithm.unseen(state, view.cohort(range(6)).features("test"), engine) is None
    two = view.cohort([1, 3])
    answering = engine.resolved(algorithm.known(state, two, engine), two.ids)
    np.testing.assert_array_equal(answering.weights, [[1, 0, 0], [0, 1, 0]])
    for name, tensor in held.models["personal"].tensors.items():
        assert torch.equal(answering.stack.tensors[name][:2], tensor[[1, 3]])
        assert not torch.equal(tensor[1], tensor[3])


@pytest.mark.parametrize("name", ANY_MODEL)
def test_methods_with_a_rule_of_their_own_are_listed(name, federation, monkeypatch):
    """What engines are told of a method is what it does."""
    engine, rules = make_engine("loop", "mlp", federation, seed=5), []
    whole = engine.train

    def watched(start, cohort, jobs, training, key, rule=None, *more):
        rules.append(rule)
        return whole(start, cohort, jobs, training, key, rule, *more)

    monkeypatch.setattr(engine, "train", watched)
    play(name, federation, engine, rounds=1)
    assert [rule is not None for rule in rules[:1]] == [ALGORITHMS[name].own_rule]
    assert ALGORITHMS[name].own_rule == (name in ("apfl", "ditto", "fedem", "fedrc", "fedrep", "pfedme"))


@pytest.mark.parametrize(
    ("name", "paper"), [*((name, False) for name in ANY_MODEL), *((name, True) for name in sorted(PAPER_BASELINES))]
)
def test_everyone_clips_gradients(name: str, paper: bool, federation: Federation, engine: SimulatedEngine) -> None:
    free, clipped = (moved(name, paper, federation, engine, clip=clip) for clip in (None, 1e-3))
    assert clipped < 0.05 * free


@pytest.mark.parametrize(
    ("name", "paper"), [*((name, False) for name in ANY_MODEL), *((name, True) for name in sorted(PAPER_BASELINES))]
)
def test_everyone_takes_the_optimiser_but_who_fixes_its_steps(
    name: str, paper: bool, federation: Federation, engine: SimulatedEngine
) -> None:
    """Adam's first steps are about as long as its rate is, whatever the gradient."""
    plain, adam, shrunk = (
        moved(name, paper, federation, engine, **more)
        for more in ({}, {"kind": "adam", "lr": 1e-6}, {"weight_decay": 0.5})
    )
    late = moved(name, paper, federation, engine, schedule="cosine", rounds=1)
    assert late == pytest.approx(plain, rel=1e-5)  # the first round of a schedule has the whole rate
    if "optimiser" in READS[name]:
        assert adam < 1e-3 * plain
        assert shrunk != plain
    else:
        assert shrunk == plain
        assert moved(name, paper, federation, engine, kind="adam") == plain


def moved(name: str, paper: bool, federation: Federation, engine: SimulatedEngine, **more: Any) -> float:
    """How far the weight that moves furthest has come after a round."""
    settings = replace(SETTINGS, training=replace(TRAINING, **more), paper_baselines=paper, rounds=1)
    algorithm = make_algorithm(name, settings)
    view = federation if algorithm.uses_truth else federation.blind()
    cohort = view.cohort(range(len(view)), 1)
    engine.restore(Kept())
    before = algorithm.init(view, engine)
    after, _ = algorithm.round(before, cohort, engine)
    first, last = (algorithm.models(state)["models"] for state in (before, after))
    pairs = [(first, last), *((engine.initial(), own) for own in engine.kept().models.values())]
    return max(
        float((tensor - old.tensors[key]).abs().max()) for old, now in pairs for key, tensor in now.tensors.items()
    )
