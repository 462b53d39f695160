"""`--sharing auto` and `trunk`: heads by cluster, trunks by kin, and what two branches cost until one is dropped."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.playing import SETTINGS, assert_fedavg, assert_same, engine_of, play, saved
from tests.runs.making import read_rounds
from torch import Tensor, nn

import fedflux
from fedflux.algorithms import FedAvg, RoundMetrics, Settings
from fedflux.algorithms.check_engines import WrappedEngine
from fedflux.algorithms.flux.plain import Flux, Oracle
from fedflux.algorithms.flux.sharing.ballots import SPARED, Ballot, mixtures_of
from fedflux.algorithms.flux.sharing.branches import GENERAL, OWN, TRUNK, Branches
from fedflux.algorithms.flux.sharing.rounds import WORTHWHILE
from fedflux.algorithms.flux.soft import FluxSoft
from fedflux.algorithms.shared.averaging import aggregate
from fedflux.data import Federation, Partition, partition
from fedflux.data.sources import load
from fedflux.engine import Job, Key, Scores, SimulatedEngine, Stack, make_engine
from fedflux.models import OwnModel

CLIENTS, ROUNDS = 8, 12
AUTO = replace(SETTINGS, rounds=ROUNDS, cluster_round=1)
ALONE = replace(AUTO, sharing="trunk")
FOUR = (0, 1, 2, 3, 0, 1, 2, 3)
TWO_KIN = np.array([0, 0, 1, 1])


@pytest.fixture(scope="module")
def whole() -> Federation:
    return partition(load("digits"), Partition("pygx", level=4, clients=CLIENTS, seed=5, data_fraction=0.3))


@pytest.fixture(scope="module")
def engine(whole: Federation) -> SimulatedEngine:
    return engine_of(whole)


@pytest.fixture(scope="module")
def view(whole: Federation) -> Federation:
    """Clients of four clusters."""
    return clustered(whole, FOUR)


def clustered(view: Federation, truth: Sequence[int]) -> Federation:
    """The same clients, in these clusters."""
    return replace(view, _truth=np.array(truth))


def oracle(settings: Settings) -> Oracle:
    return Oracle.make(settings)


def parted(stack: Stack, head: frozenset[str]) -> tuple[Stack, Stack]:
    """The trunks and the heads."""
    names = {name: name in head for name in stack.tensors}
    trunk, heads = ({k: stack.tensors[k] for k, yes in names.items() if yes == kind} for kind in (False, True))
    return Stack(trunk), Stack(heads)


def differ(one: Stack, other: Stack) -> bool:
    return all(not torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


def assert_kin(stack: Stack, kin: np.ndarray, head: frozenset[str]) -> None:
    """One trunk for each of the kin, another for every other, and a head for each cluster."""
    trunks, heads = parted(stack, head)
    for one in range(len(kin)):
        for other in range(one):
            assert differ(heads.take([one]), heads.take([other]))
            if kin[one] == kin[other]:
                assert_same(trunks.take([one]), trunks.take([other]))
            else:
                assert differ(trunks.take([one]), trunks.take([other]))


# the two ends: FedAvg and FedPer


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("settings", [AUTO, ALONE])
def test_one_cluster_is_fedavg(settings: Settings, momentum: float, whole: Federation, engine: SimulatedEngine) -> None:
    how = replace(settings, server_momentum=momentum)
    one = clustered(whole, [0] * CLIENTS)
    assert_fedavg(oracle(how), one, engine)
    state, _ = play(oracle(how), one, engine, 1)
    begun = replace(state, branches=Branches({TRUNK: state.models}, state.branches.kin))
    found, _ = play(oracle(how), one, engine, 4, state=begun)
    expected, _ = play(FedAvg(how), one, engine, 4)
    assert found.branches.names == (TRUNK,)
    assert_same(found.models, expected.model)


class OneLayer(nn.Module):
    """Its latents are the inputs: there is nothing before the last layer."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(int(np.prod(input_shape)), classes)

    def encode(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits


@pytest.mark.parametrize(
    ("settings", "branches"), [(AUTO, (OWN, GENERAL)), (ALONE, (OWN,)), (replace(AUTO, sharing="none"), (OWN,))]
)
def test_a_model_of_one_layer_has_a_general_model_beside_it(
    settings: Settings, branches: tuple[str, ...], view: Federation
) -> None:
    one_layer = make_engine("loop", OwnModel.of(OneLayer), view, seed=5)
    state, _ = play(oracle(settings), view, one_layer, 3)
    assert state.branches.names == branches
    if branches == (OWN, GENERAL):
        assert differ(state.branches.stacks[GENERAL], state.branches.stacks[OWN].take([0]))


@pytest.mark.parametrize("settings", [AUTO, ALONE])
def test_a_trunk_is_fedavgs_in_the_first_round(settings: Settings, view: Federation, engine: SimulatedEngine) -> None:
    """All clusters begin with the same model: what they make of its trunk does not depend on who is where."""
    state, _ = play(oracle(settings), view, engine, 2)
    expected, _ = play(FedAvg(settings), view, engine, 2)
    trunk, heads = parted(state.branches.stacks[TRUNK], engine.head_names)
    same, head = parted(expected.model, engine.head_names)
    assert_same(trunk, same.take([0] * 4))
    assert differ(heads, head.take([0] * 4))


def everyone(round: int) -> Sequence[int]:
    return range(CLIENTS)


def some(round: int) -> Sequence[int]:
    return range(CLIENTS) if round == 1 else [k for k in range(CLIENTS) if (k + round) % 3]


@pytest.mark.parametrize("cohort", [everyone, some])
def test_a_cluster_for_each_client_is_fedper(
    cohort: Callable[[int], Sequence[int]], whole: Federation, engine: SimulatedEngine
) -> None:
    """Arivazhagan et al., 2019, in a few lines: clients keep their heads, the server averages the trunks."""
    apart = clustered(whole, range(CLIENTS))
    state, _ = play(oracle(ALONE), apart, engine, 1)
    trunk, heads = parted(state.models.take(state.assignment), engine.head_names)  # client by client
    for r in range(2, 5):
        members = apart.cohort(list(cohort(r)), r)
        models = Stack({**trunk.tensors, **heads.tensors})
        jobs = [Job(k, (k,)) for k in members]
        trained = engine.train(models, members, jobs, ALONE.training, Key(ALONE.seed, r)).models
        layers, own = parted(trained, engine.head_names)
        heads = heads.put(list(members), own)
        trunk = layers.average(members.sizes("train")[None]).take([0] * CLIENTS)
    found, _ = play(oracle(ALONE), apart, engine, 4, cohort, state)
    assert found.branches.names == (TRUNK,)
    mine, my_heads = parted(found.models.take(found.assignment), engine.head_names)
    assert_same(mine, trunk)
    assert_same(my_heads, heads)
    assert_kin(found.models, np.zeros(CLIENTS), engine.head_names)


# kin


def test_statistics_of_layers_belong_to_the_trunk() -> None:
    def stack(rows: Sequence[float], steps: Sequence[int]) -> Stack:
        values = torch.tensor(rows)[:, None]
        return Stack({"a.weight": values, "a.running_var": values, "a.steps": torch.tensor(steps), "b.weight": values})

    before = Branches({TRUNK: stack([0.0, 0.0, 7.0], [0, 0, 7])}, np.array([0, 0, 1]))
    trained, cluster, sizes = stack([1.0, 2.0, 5.0], [1, 2, 3]), np.array([0, 0, 1]), np.array([1.0, 1.0, 2.0])
    after = before.averaged(trained, cluster, sizes, frozenset({"b.weight"}), aggregate, aggregate).models.tensors
    for name in ("a.weight", "a.running_var"):
        assert after[name].flatten().tolist() == [3.25, 3.25, 7.0]
    assert after["a.steps"].tolist() == [3, 3, 7]
    assert after["b.weight"].flatten().tolist() == [1.5, 5.0, 7.0]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("settings", [AUTO, ALONE])
@pytest.mark.parametrize("cohort", [everyone, some, lambda r: {3: [0, 4], 4: [1, 2]}.get(r, range(CLIENTS))])
def test_kin_share_a_trunk_whoever_of_them_trained(
    cohort: Any, settings: Settings, momentum: float, view: Federation, engine: SimulatedEngine
) -> None:
    algorithm = oracle(replace(settings, server_momentum=momentum))
    state, _ = play(algorithm, view, engine, 1)
    state = replace(state, branches=replace(state.branches, kin=TWO_KIN))
    for r in range(2, 6):
        state, _ = play(algorithm, view, engine, r, cohort, state)
        assert_kin(state.branches.stacks[TRUNK], TWO_KIN, engine.head_names)
        if momentum:
            begin = state.branches.begins[TRUNK]
            assert_kin(state.velocity.take(range(begin, begin + 4)), TWO_KIN, engine.head_names)
    if OWN in state.branches.names:
        assert_kin(state.branches.stacks[OWN], np.arange(4), engine.head_names)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("cohort", [everyone, some, lambda r: {3: [0, 4], 4: [1, 2]}.get(r, range(CLIENTS))])
def test_kin_that_agree_on_everything_share_one_model(
    cohort: Any, momentum: float, view: Federation, engine: SimulatedEngine
) -> None:
    """Clusters of one kin are one client group of FedAvg, whoever of them trained."""
    algorithm = oracle(replace(ALONE, server_momentum=momentum))
    state, _ = play(algorithm, view, engine, 1)
    state = replace(state, branches=replace(state.branches, kin=TWO_KIN, whole=True))
    found, _ = play(algorithm, view, engine, 5, cohort, state)
    joined = oracle(replace(AUTO, sharing="none", server_momentum=momentum))
    two, _ = play(joined, clustered(view, [int(TWO_KIN[m]) for m in FOUR]), engine, 1)
    expected, _ = play(joined, clustered(view, [int(TWO_KIN[m]) for m in FOUR]), engine, 5, cohort, two)
    assert_same(found.models, expected.models.take(TWO_KIN))
    if momentum:
        assert_same(found.velocity, expected.velocity.take(TWO_KIN))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_who_is_away_keeps_its_head_and_no_kin_of_the_absent_move(
    momentum: float, view: Federation, engine: SimulatedEngine
) -> None:
    algorithm = oracle(replace(ALONE, server_momentum=momentum))
    state, _ = play(algorithm, view, engine, 1)
    state = replace(state, branches=replace(state.branches, kin=TWO_KIN))
    state, _ = play(algorithm, view, engine, 3, state=state)
    after, _ = play(algorithm, view, engine, 4, lambda r: [0, 4], state)
    (trunk, head), (new_trunk, new_head) = (parted(one.models, engine.head_names) for one in (state, after))
    assert_same(new_trunk.take([2, 3]), trunk.take([2, 3]))
    assert_same(new_head.take([1, 2, 3]), head.take([1, 2, 3]))
    assert differ(new_trunk.take([1]), trunk.take([1]))  # its kin trained it
    assert differ(new_head.take([0]), head.take([0]))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("settings", [AUTO, ALONE])
def test_clusters_found_anew_share_the_trunk_of_their_kin(
    settings: Settings, momentum: float, view: Federation, engine: SimulatedEngine
) -> None:
    algorithm = oracle(replace(settings, server_momentum=momentum))
    state, _ = play(algorithm, view, engine, 3, lambda r: [0, 1, 2, 4])
    state = replace(state, branches=replace(state.branches, kin=np.array([0, 0, 1])))
    state, _ = play(algorithm, view, engine, 4, lambda r: [0, 1, 2, 4], state)
    after, history = play(algorithm, view, engine, 5, state=state)
    assert any("4 clusters found anew" in event for event in history[0].events)
    kin = after.branches.kin
    assert sorted(np.bincount(kin).tolist()) in ([1, 3], [2, 2])
    assert_kin(after.branches.stacks[TRUNK], kin, engine.head_names)
    assert len(after.answering) == 4 * len(after.branches.names)
    assert after.velocity is None if not momentum else len(after.velocity) == len(after.answering)


@pytest.mark.parametrize("columns", [1, 7, 640])
@pytest.mark.parametrize("how", ["inherit", "restart", "tied"])
def test_trunks_are_made_one_to_the_last_bit(how: str, columns: int) -> None:
    head = frozenset({"b"})
    for clusters in range(2, 18):
        generator = torch.Generator().manual_seed(clusters)
        stacks = {
            name: Stack({key: torch.randn(rows, columns, generator=generator) for key in ("a", "b")})
            for name, rows in ((OWN, clusters), (TRUNK, clusters), (GENERAL, 1))
        }
        before = Branches(stacks, np.arange(clusters) % 2)
        shares = np.random.default_rng(clusters).integers(1, 5, (clusters, clusters)).astype(np.float64)
        make: dict[str, Callable[..., Any]] = {
            "inherit": partial(before.inherit, shares),
            "restart": partial(before.restart, [*range(1, clusters), clusters, 0]),
            "tied": before.tied,
        }
        after, velocity = make[how](before.answering, head)
        assert_kin(after.stacks[TRUNK], after.kin, head)
        assert_kin(after.stacks[OWN], np.arange(after.clusters), head)
        for name, tensor in after.answering.tensors.items():  # here models are what they move by
            torch.testing.assert_close(velocity.tensors[name], tensor)
        assert_same(after.stacks[GENERAL], stacks[GENERAL])


@pytest.mark.parametrize("settings", [AUTO, ALONE])
def test_where_clusters_come_late_they_share_a_trunk_from_then_on(
    settings: Settings, whole: Federation, engine: SimulatedEngine
) -> None:
    late = clustered(whole, [0, 0, 0, 0, 1, 1, 1, 1])
    state, _ = play(oracle(settings), late, engine, 2, lambda r: range(4))
    assert state.branches.names == (OWN,)
    state, history = play(oracle(settings), late, engine, 5, state=state)
    assert any("2 clusters found anew" in event for event in history[0].events)
    assert state.branches.names == ((OWN, TRUNK) if settings is AUTO else (TRUNK,))
    assert_kin(state.branches.stacks[TRUNK], np.zeros(2), engine.head_names)


# costs, and the end of a branch


def play_both(algorithm: Any, view: Federation, engine: SimulatedEngine, rounds: int) -> Any:
    """Rounds in which both branches stay, whatever members say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ballot, "droppable", lambda *_: None)
        patch.setattr(Ballot, "asks_for_another", False)
        return play(algorithm, view, engine, rounds)


def ready(state: Any, dropped: str) -> Any:
    """A state in which two branches say the same and ballots have long spared one of them."""
    models = state.branches.stacks[TRUNK]
    spared = tuple(99 if name == dropped else -99 for name in state.branches.names)
    ballot = replace(state.ballot, spared=spared, faint=-99, levels=(1.0,) * SPARED)
    return replace(state, branches=replace(state.branches, stacks={OWN: models, TRUNK: models}), ballot=ballot)


@pytest.mark.parametrize("dropped", [OWN, TRUNK])
def test_two_branches_cost_two_models_until_one_is_dropped(
    dropped: str, view: Federation, engine: SimulatedEngine
) -> None:
    state, before = play_both(oracle(AUTO), view, engine, 8)
    _, alone = play(oracle(ALONE), view, engine, 3)
    end, after = play(oracle(AUTO), view, engine, 10, state=ready(state, dropped))
    _, fedavg = play(FedAvg(AUTO), view, engine, 1)
    for metrics, times in [
        (before[0], 1),
        *((one, 2) for one in before[1:]),
        *((one, 1) for one in (*after, alone[2])),
    ]:
        for what in ("training", "models_up", "models_down"):
            assert metrics.work[what] == times * fedavg[0].work[what]
        if metrics is not before[0]:  # then descriptors are sent, too
            assert metrics.up == {client: times * size for client, size in fedavg[0].up.items()}
            assert metrics.down == {client: times * size for client, size in fedavg[0].down.items()}
    left = {OWN: TRUNK, TRUNK: OWN}[dropped]
    assert (end.branches.names, end.dropped, end.ballot) == ((left,), (dropped,), None)
    assert any("members can do without" in event for event in after[0].events)
    assert before[0].parts == {}
    assert before[1].parts == {OWN: 1.0, TRUNK: 0.0}  # nobody has voted
    assert all(set(one.parts) == {OWN, TRUNK} and sum(one.parts.values()) == pytest.approx(1) for one in before[1:])
    assert [one.parts for one in after] == [{left: 1.0}] * 2


def test_members_vote_by_their_examples_from_the_second_round_on(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play(oracle(AUTO), view, engine, 2)
    assert not state.ballot.votes.any()
    after, _ = play(oracle(AUTO), view, engine, 3, state=state)
    cohort = view.cohort(range(CLIENTS), 3)
    sizes = cohort.sizes("validation")
    for place in (0, -1):  # own models alone, and trunks alone
        heard = replace(state, ballot=replace(state.ballot, votes=np.eye(5)[place]))
        scores = engine.evaluate([oracle(AUTO).known(heard, cohort, engine)], cohort, "validation").values[0]
        np.testing.assert_allclose(after.ballot.votes[place], scores @ sizes)
        right = [scores[state.assignment == m] @ sizes[state.assignment == m] for m in range(4)]
        np.testing.assert_allclose(after.ballot.own[:, place], right)
    assert after.ballot.counted == sizes.sum()


# a general model in the place of clusters' own


LAST = ROUNDS - WORTHWHILE + 1
"""The last round in which it may begin."""


def weighed(state: Any, view: Federation, engine: SimulatedEngine, **changed: Any) -> tuple[Any, RoundMetrics]:
    """The state after the ballot of the next round, in which clusters' own models are dropped."""
    metrics = RoundMetrics()
    told = replace(ready(state, OWN), round=state.round + 1)
    told = replace(told, branches=replace(told.branches, **changed))
    return oracle(AUTO)._weigh(told, view.cohort(range(CLIENTS), told.round), engine, metrics), metrics


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_general_model_takes_the_place_of_own_ones(
    momentum: float, whole: Federation, engine: SimulatedEngine
) -> None:
    view = clustered(whole, [0, 1, 2, 0, 1, 0, 0, 0])
    algorithm = oracle(replace(AUTO, server_momentum=momentum))
    state, _ = play_both(algorithm, view, engine, LAST - 1)
    after, metrics = weighed(state, view, engine)
    assert (after.branches.names, after.dropped) == ((TRUNK, GENERAL), (OWN,))
    trunk, sizes = state.branches.stacks[TRUNK], np.bincount(state.assignment)
    assert sorted(sizes) == [1, 2, 5]
    assert_same(after.models, trunk)
    for name, tensor in trunk.tensors.items():
        mean = sum(tensor[m].double() * size for m, size in enumerate(sizes.tolist())) / CLIENTS
        torch.testing.assert_close(after.general.tensors[name][0].double(), mean, rtol=1e-6, atol=1e-7)
    assert isinstance(after.ballot, Ballot)
    assert (after.ballot.names, after.ballot.begun, after.ballot.spared) == ((TRUNK, GENERAL), LAST - 1, (0, 0))
    assert not after.ballot.votes.any()
    assert after.ballot.votes.shape == (len(mixtures_of((TRUNK, GENERAL))),)
    np.testing.assert_array_equal(after.parts, [[1, 0]] * 3)
    assert [event.split(": ", 1)[0] for event in metrics.events] == [f"round {LAST}"]
    if momentum:  # the others go on as they have been moving, it begins at rest
        assert_same(after.velocity.take([0, 1, 2]), state.velocity.take([3, 4, 5]))
        assert not any(tensor[3].any() for tensor in after.velocity.tensors.values())


def test_a_general_model_is_trained_and_voted_on(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play_both(oracle(AUTO), view, engine, LAST - 1)
    begun, _ = weighed(state, view, engine)
    first, history = play(oracle(AUTO), view, engine, LAST, state=ready(state, OWN))
    cohort = view.cohort(range(CLIENTS), LAST)
    jobs, key = [Job(client) for client in cohort], Key(AUTO.seed, LAST)
    trained = engine.train(begun.general, cohort, jobs, AUTO.training, key).models
    assert_same(first.general, trained.average(cohort.sizes("train")[None]))
    assert_kin(first.models, np.zeros(4), engine.head_names)
    assert history[0].parts == {TRUNK: 1.0, GENERAL: 0.0}
    last, history = play(oracle(AUTO), view, engine, ROUNDS, state=first)
    assert last.ballot is None or last.ballot.votes.any()
    assert all(sum(metrics.parts.values()) == pytest.approx(1) for metrics in history)
    answered = oracle(AUTO).unseen(last, view.cohort(range(CLIENTS)).features("test"), engine)
    np.testing.assert_allclose(answered.weights.sum(axis=1), 1)


def test_no_general_model_begins_too_late_or_across_kin(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play_both(oracle(AUTO), view, engine, LAST)
    for before, changed in ((state, {}), (replace(state, round=LAST - 1), {"kin": TWO_KIN})):
        after, _ = weighed(before, view, engine, **changed)
        assert (after.branches.names, after.dropped, after.ballot) == ((TRUNK,), (OWN,), None)
        assert after.general is None


class Told(WrappedEngine):
    """Scores members as a test wants: a ballot that hears a quarter of own models, then what would take their place."""

    instead, alone = 0.9, 0.1

    def evaluate(self, predictors, cohort, split):
        scores = [0.1, 0.2, 0.3, 0.8, 0.5]
        if len(predictors) > 5:  # what answers now, the trunk alone, then mixtures with the general model
            assert [bool(one.weights[:, -1].any()) for one in predictors] == [False, False, True, True, True, True]
            np.testing.assert_allclose(predictors[0].weights[:, :4].sum(axis=1), 0.25)
            scores = [0.8, self.alone, 0.1, self.instead, 0.1, 0.1]
        return Scores(np.tile(np.array(scores)[:, None], (1, len(cohort))))


@pytest.mark.parametrize(
    ("instead", "alone", "taken"), [(0.9, 0.1, True), (0.795, 0.1, True), (0.785, 0.1, False), (0.9, 0.95, False)]
)
def test_members_may_prefer_a_general_model_to_own_ones_that_are_hardly_heard(
    instead: float, alone: float, taken: bool, view: Federation, engine: SimulatedEngine
) -> None:
    told = Told(engine)
    told.instead, told.alone = instead, alone
    algorithm = oracle(replace(AUTO, rounds=100))
    start, _ = play_both(algorithm, view, engine, 2)
    state, asked = start, []
    for r in range(3, 15):
        metrics = RoundMetrics()
        state = replace(state, round=r, ballot=replace(state.ballot, levels=(0.8,) * SPARED))
        state = algorithm._weigh(state, view.cohort(range(CLIENTS), r), told, metrics)
        if metrics.down:
            asked.append(r)
            assert set(metrics.down.values()) == {start.models.model_bytes()}  # what is proposed is sent
            assert metrics.work["models_down"] == CLIENTS
        if GENERAL in state.branches.names:
            break
    assert state.branches.names == ((TRUNK, GENERAL) if taken else (OWN, TRUNK))
    assert asked == ([5] if taken else [5, 10])
    if taken:
        sizes = np.bincount(start.assignment)[None].astype(np.float64)
        assert state.general is not None
        assert_same(state.general, start.branches.stacks[TRUNK].average(sizes))


def test_nothing_is_proposed_across_kin_or_too_late(view: Federation, engine: SimulatedEngine) -> None:
    state, _ = play_both(oracle(AUTO), view, engine, 2)
    assert oracle(replace(AUTO, rounds=state.round + WORTHWHILE - 1))._general(state) is not None
    assert oracle(replace(AUTO, rounds=state.round + WORTHWHILE - 2))._general(state) is None
    apart = replace(state, branches=replace(state.branches, kin=TWO_KIN))
    assert oracle(replace(AUTO, rounds=100))._general(apart) is None


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_it_goes_on_from_a_saved_state_across_all_of_this(
    momentum: float, view: Federation, engine: SimulatedEngine
) -> None:
    algorithm = oracle(replace(AUTO, server_momentum=momentum))
    start, _ = play_both(algorithm, view, engine, LAST - 1)
    whole, _ = play(algorithm, view, engine, LAST + 3, state=ready(start, OWN))
    state = ready(start, OWN)
    for r in range(LAST, LAST + 4):
        state, _ = play(algorithm, view, engine, r, state=saved(state))
    assert whole.dropped[0] == OWN
    assert state.branches.names == whole.branches.names
    assert state.dropped == whole.dropped
    assert_same(state.answering, whole.answering)
    np.testing.assert_array_equal(state.parts, whole.parts)


# runs


RUN: dict[str, Any] = {"shift": "px", "level": 4, "clients": CLIENTS, "rounds": 4, "cluster_round": 1, "device": "cpu"}


@pytest.mark.parametrize(
    ("options", "branches"),
    [
        ({"algorithm": "flux", "epsilon": 1.0}, [OWN, TRUNK]),
        ({"algorithm": "flux", "participation": 0.5}, [OWN, TRUNK]),
        ({"algorithm": "flux", "sharing": "none"}, [OWN]),
        ({"algorithm": "flux", "sharing": "trunk"}, [TRUNK]),
        ({"algorithm": "flux-prior"}, [OWN, TRUNK]),
        ({"algorithm": "flux-soft"}, [OWN, TRUNK]),
        ({"algorithm": "flux-soft", "sharing": "trunk"}, [TRUNK]),
        ({"algorithm": "flux-dynamic"}, [OWN, GENERAL]),
        ({"algorithm": "flux-dynamic", "sharing": "trunk"}, [TRUNK, GENERAL]),
    ],
    ids=str,
)
def test_runs_say_what_was_shared(options: dict[str, Any], branches: list[str], tmp_path: Path) -> None:
    result = fedflux.run(**RUN, **options, out=tmp_path / "run")
    told, found = result["sharing_parts"], result["clusters_found"]
    alone = [OWN] if found == 1 and GENERAL not in branches and options.get("sharing") != "none" else branches
    assert told["branches"] == list(told["mean"]) == alone
    assert sum(told["mean"].values()) == pytest.approx(1)
    assert np.shape(told["by_cluster"])[1] == len(alone)
    np.testing.assert_allclose(np.sum(told["by_cluster"], axis=1), 1)
    assert len(told["kin"]) == len(told["by_cluster"]) >= found
    assert told["dropped"] == []
    for score in (result["known"], result["test"]):
        assert 10 < score <= 100  # per cent
    for entry in read_rounds(tmp_path / "run"):
        parts = entry.get("parts", {})
        assert list(parts) == (alone if entry["round"] > 1 else [])
        assert not parts or sum(parts.values()) == pytest.approx(1)


def test_where_clusters_lend_heads_are_lent_and_trunks_are_everybodys(
    whole: Federation, engine: SimulatedEngine
) -> None:
    blind = whole.blind()
    algorithm = FluxSoft.make(ALONE)
    state, _ = play(algorithm, blind, engine, 2)
    expected, _ = play(FedAvg(ALONE), blind, engine, 2)
    plain, _ = play(Flux.make(ALONE), blind, engine, 2)
    assert len(state.models) > 1
    assert len(plain.models) > 1
    for found in (state, plain):
        trunk = parted(found.branches.stacks[TRUNK], engine.head_names)[0]
        assert_same(trunk, parted(expected.model, engine.head_names)[0].take([0] * len(found.models)))
