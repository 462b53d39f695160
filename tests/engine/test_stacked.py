"""Stacked and replayed training against the loop: the same draws, the same steps, the same models."""

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.engine.making import Dropping, Normed
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedflux.data import Federation, Partition, partition
from fedflux.data.dataset import Dataset, Examples
from fedflux.descriptors.bounds import LatentRange
from fedflux.descriptors.moments import MomentStatistic, moments
from fedflux.descriptors.projector import Projector
from fedflux.engine import Backend, DivergedError, Job, Key, LoopEngine, Predictor, Stack, Training, auto
from fedflux.engine.batched.inference import BatchedEngine
from fedflux.engine.batched.replay import ReplayEngine
from fedflux.engine.batched.stacked import StackedEngine, stacked_engine
from fedflux.engine.kernels.fused import with_fused_layers
from fedflux.engine.recipe import Recipe
from fedflux.engine.rules import Batch, Extras, Operations
from fedflux.engine.stack import Parameters
from fedflux.models import build_model

SHAPES = {"lenet5": (1, 16, 16), "mlp": (1, 6, 6), "resnet9": (3, 16, 16)}
TRAINING = Training(epochs=2, batch_size=8, lr=0.02, momentum=0.9)


def make_federation(shape: tuple[int, int, int], sizes: tuple[int, ...] = (23, 8, 17, 9)) -> Federation:
    """Clients of these sizes in all (a fifth is validation), images of noise around their class."""
    rng = np.random.default_rng(3)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    y = rng.integers(0, 5, len(owner))
    centres = rng.integers(60, 190, (5, *shape))
    x = np.clip(centres[y] + rng.normal(0, 40, (len(y), *shape)), 0, 255).astype(np.uint8)
    examples = Examples(x, y.astype(np.int64), owner)
    names = tuple(f"c{k}" for k in range(len(sizes)))
    return partition(Dataset("made", examples, examples, 5, client_names=names), Partition())


def pair(model: str, dtype: torch.dtype = torch.float64) -> tuple[Federation, LoopEngine, BatchedEngine]:
    shape = SHAPES[model]
    loop, other = (
        make(build_model(model, shape, 5, seed=1).to(dtype), "cpu", "fp32-strict")
        for make in (LoopEngine, stacked_engine)
    )
    assert isinstance(other, BatchedEngine)
    return make_federation(shape), loop, other


def apart(one: Stack, two: Stack) -> float:
    return max(
        float((one.tensors[name].double() - tensor.double()).abs().max()) for name, tensor in two.tensors.items()
    )


def everyone(federation: Federation) -> list[Job]:
    return [Job(client) for client in range(len(federation))]


@pytest.mark.parametrize("model", SHAPES)
def test_float64_training_agrees_to_rounding(model: str) -> None:
    federation, loop, other = pair(model)
    cohort = federation.cohort(range(len(federation)))
    one = loop.train(loop.initial(), cohort, everyone(federation), TRAINING, Key(5, 2))
    two = other.train(other.initial(), cohort, everyone(federation), TRAINING, Key(5, 2))
    assert apart(one, two) < 1e-8
    assert apart(one, loop.initial()) > 1e-3  # something was learned


@pytest.mark.parametrize("precision", ["fp32-strict", "bf16"])
def test_fused_layers_can_be_mapped(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = make_federation((3, 16, 16))
    cohort = federation.cohort(range(4))
    model = build_model("lenet5", (3, 16, 16), 5, seed=1)
    model = model if precision == "bf16" else model.double()
    ends = []
    for fused in (False, True):
        if fused:
            monkeypatch.setattr(StackedEngine, "_prepared", lambda _, model: with_fused_layers(model))
        engine = StackedEngine(deepcopy(model), "cpu", precision)
        ends.append(engine.train(engine.initial(), cohort, everyone(federation), TRAINING, Key(5, 2)))
    assert 0 < apart(*ends) < (3e-3 if precision == "bf16" else 1e-12)
    assert apart(ends[0], Stack.of(model)) > 0.02


@pytest.mark.parametrize("model", SHAPES)
def test_training_on_another_part_in_evaluation_mode_agrees(model: str) -> None:
    federation, loop, other = pair(model)
    cohort = federation.cohort(range(len(federation)))
    held = replace(TRAINING, split="validation", evaluating=True)
    trained = other.train(other.initial(), cohort, everyone(federation), TRAINING, Key(5, 2))
    one, two = (e.train(e.initial(), cohort, everyone(federation), held, Key(5, 2)) for e in (loop, other))
    assert apart(one, two) < 1e-8
    assert apart(two, trained) > 1e-3
    for name, tensor in one.tensors.items():
        if "running" in name:
            assert torch.equal(tensor, loop.initial().take([0] * 4).tensors[name])


@pytest.mark.parametrize("model", SHAPES)
def test_single_precision_stays_near_over_two_rounds(model: str) -> None:
    federation, loop, other = pair(model, torch.float32)
    cohort = federation.cohort(range(len(federation)))
    ends = []
    for engine in (loop, other):
        stack = engine.initial()
        for round in (1, 2):
            trained = engine.train(stack, cohort, everyone(federation), TRAINING, Key(5, round))
            stack = trained.average(np.ones((1, len(federation))))
        ends.append(stack)
    assert apart(*ends) < 1e-3


def test_models_with_random_layers_are_trained_as_in_the_loop() -> None:
    federation = make_federation(SHAPES["mlp"])
    cohort = federation.cohort(range(4))
    torch.manual_seed(1)
    model = Dropping(SHAPES["mlp"], 5)
    one, two = (
        make(deepcopy(model)).train(Stack.of(model), cohort, everyone(federation), TRAINING, Key(1, 1))
        for make in (LoopEngine, stacked_engine)
    )
    assert apart(one, two) == 0


def test_models_with_batch_norm_are_replayed_and_others_stacked() -> None:
    assert isinstance(pair("resnet9")[2], ReplayEngine)
    assert isinstance(pair("lenet5")[2], StackedEngine)


def test_jobs_start_where_told_and_the_start_is_untouched() -> None:
    federation, loop, other = pair("mlp")
    start = loop.initial().take([0, 0])
    start = Stack({n: t + torch.arange(2).reshape(-1, *[1] * (t.ndim - 1)) * 0.01 for n, t in start.tensors.items()})
    before = {name: tensor.clone() for name, tensor in start.tensors.items()}
    jobs = [Job(2, (1,)), Job(0, (0,)), Job(2, (0,))]
    cohort = federation.cohort([0, 2])
    one, two = (engine.train(start, cohort, jobs, TRAINING, Key(0, 1)) for engine in (loop, other))
    assert apart(one, two) < 1e-10
    assert all(torch.equal(start.tensors[name], tensor) for name, tensor in before.items())


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, _, other = pair("mlp")
    cohort = federation.cohort(range(4))
    whole = other.train(other.initial(), cohort, everyone(federation), TRAINING, Key(1, 1))
    assert other.chunk == 4
    monkeypatch.setattr("fedflux.engine.batched.stacked.ON_CPU", 3)
    assert apart(whole, other.train(other.initial(), cohort, everyone(federation), TRAINING, Key(1, 1))) < 1e-12
    assert other.chunk == 3


@pytest.mark.parametrize("lanes", [1, 2, 3, 9])
def test_clients_side_by_side_do_not_touch_each_other(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflux.engine.batched.replay.LANES", lanes)
    torch.manual_seed(1)
    model = Normed(SHAPES["mlp"], 5).double()
    loop, other = LoopEngine(deepcopy(model), "cpu", "fp32-strict"), ReplayEngine(model, "cpu", "fp32-strict")
    federation = make_federation(SHAPES["mlp"], (23, 8, 17, 9, 17))
    cohort = federation.cohort(range(5))
    for round in (1, 2):
        one, two = (
            engine.train(engine.initial(), cohort, everyone(federation), TRAINING, Key(1, round))
            for engine in (loop, other)
        )
        assert apart(one, two) < 1e-10


def test_a_second_round_of_the_same_clients_reuses_the_stepper() -> None:
    federation, loop, other = pair("mlp")
    assert isinstance(other, StackedEngine)
    cohort = federation.cohort(range(4))
    for round in (1, 2, 3):
        one, two = (
            engine.train(engine.initial(), cohort, everyone(federation), TRAINING, Key(1, round))
            for engine in (loop, other)
        )
        assert apart(one, two) < 1e-10
    assert len(other._steppers) == 1


@dataclass(frozen=True)
class Coupled:
    """Two parameter sets: one descends a weighted loss, the other follows it; extras weigh samples and set the pull."""

    lr: float

    def start(self, operations: Operations, params: tuple[Parameters, ...]) -> dict[str, Tensor]:
        return {"steps": torch.zeros(())}

    def step(
        self,
        operations: Operations,
        params: tuple[Parameters, ...],
        memory: dict[str, Tensor],
        batch: Batch,
        extras: Extras,
        index: Tensor,
    ) -> tuple[tuple[Parameters, ...], dict[str, Tensor]]:
        leader, follower = params
        trained = operations.trained(leader)

        def loss(at: Parameters) -> Tensor:
            losses = cross_entropy(operations.apply({**leader, **at}, batch.x), batch.y, reduction="none")
            return batch.mean(extras["weights"][batch.positions] * losses)

        moved = operations.add(trained, operations.gradient(loss, trained), -self.lr)
        pull = extras["pull"] * (1 + 0.01 * index)
        pulled = {name: tensor + pull * (moved[name] - tensor) for name, tensor in operations.trained(follower).items()}
        return ({**leader, **moved}, {**follower, **pulled}), {"steps": memory["steps"] + 1}


@pytest.mark.parametrize("model", SHAPES)
def test_rules_with_several_sets_memory_and_extras(model: str) -> None:
    federation, loop, other = pair(model)
    cohort = federation.cohort(range(4))
    start = loop.initial().take([0, 0])
    jobs = [Job(client, (0, 1)) for client in range(4)]
    rng = torch.Generator().manual_seed(1)
    extras = [
        {
            "weights": torch.rand(federation.size(k, "train"), generator=rng, dtype=torch.float64),
            "pull": torch.tensor(0.1 * (k + 1), dtype=torch.float64),
        }
        for k in range(4)
    ]
    one, two = (
        engine.train(start, cohort, jobs, TRAINING, Key(3, 1), Coupled(0.05), extras) for engine in (loop, other)
    )
    assert len(one) == len(two) == 8
    assert apart(one, two) < 1e-8


@pytest.mark.parametrize("model", ["mlp"])
def test_tensors_are_known_by_name_not_by_order(model: str) -> None:
    federation, loop, other = pair(model)
    cohort = federation.cohort(range(4))
    start = loop.initial().take([0, 0])
    jobs = [Job(client, (0, 1)) for client in range(4)]
    weights, pull = torch.rand(40, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    for extras in ({"weights": weights, "pull": pull}, {"pull": pull, "weights": weights}):
        one, two = (
            engine.train(start, cohort, jobs, TRAINING, Key(3, 1), Coupled(0.05), [extras] * 4)
            for engine in (loop, other)
        )
        assert apart(one, two) < 1e-8
        start = Stack(dict(reversed(list(start.tensors.items()))))


@pytest.mark.parametrize("model", SHAPES)
def test_evaluation_predictions_losses_and_statistics_agree(model: str) -> None:
    federation, loop, other = pair(model)
    cohort = federation.cohort(range(4))
    stack = loop.train(loop.initial(), cohort, everyone(federation), TRAINING, Key(1, 1))
    weights = np.array([[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0.25] * 4, [0, 0, 0, 1]])
    several = [
        Predictor(stack, weights),
        Predictor.shared(stack, np.ones(4), 4),
        Predictor(loop.initial(), np.ones((4, 1))),
    ]
    alone = np.stack([loop.evaluate([one], cohort, "test")[0] for one in several])
    for engine in (loop, other):
        np.testing.assert_array_equal(engine.evaluate(several, cohort, "test"), alone)
    for predictor in several[:2]:
        found = [engine.evaluate([predictor], cohort, "test")[0] for engine in (loop, other)]
        np.testing.assert_array_equal(found[0], found[1])
        features = cohort.features("validation")
        for mine, theirs in zip(*(e.predict(predictor, features) for e in (loop, other)), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)
    for mine, theirs in zip(*(e.losses(stack, cohort, "train") for e in (loop, other)), strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    first = stack.take([0])
    data = [cohort.data(client, "train") for client in cohort]
    for mine, theirs in zip(*(e.reduce(first, data, LatentRange()) for e in (loop, other)), strict=True):
        assert all(torch.allclose(a, b) for a, b in zip(mine, theirs, strict=True))
    width = int(other.reduce(first, data, LatentRange())[0][0].shape[0])
    statistic = MomentStatistic(Projector(np.zeros(width), np.eye(3, width)), 5)
    for mine, theirs in zip(*(e.reduce(first, data, statistic) for e in (loop, other)), strict=True):
        np.testing.assert_allclose(moments(mine).mean, moments(theirs).mean, atol=1e-9)


def test_a_statistic_is_given_labels_where_there_are_any() -> None:
    class Labels:
        def add(self, so_far: int | None, latents: torch.Tensor, labels: torch.Tensor | None) -> int:
            return (so_far or 0) + (0 if labels is None else len(labels))

    federation, loop, other = pair("mlp")
    cohort = federation.cohort(range(3))
    mixed = [cohort.data(0, "train"), cohort.data(1, "train").features(), cohort.data(2, "train")]
    found = [engine.reduce(loop.initial(), mixed, Labels()) for engine in (loop, other)]
    assert found[0] == found[1] == [len(mixed[0]), 0, len(mixed[2])]


def test_a_client_without_examples_in_a_split_has_no_score() -> None:
    _, loop, other = pair("mlp")
    small = make_federation(SHAPES["mlp"], (12, 4))
    assert small.size(1, "validation") == 0
    cohort = small.cohort([0, 1])
    scores = [
        e.evaluate([Predictor.shared(e.initial(), np.ones(1), 2)], cohort, "validation")[0] for e in (loop, other)
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert np.isnan(scores[1][1])


def test_a_client_that_diverges_is_named() -> None:
    federation, _, other = pair("mlp")
    wild = Training(epochs=2, batch_size=8, lr=1e200, momentum=0.9)
    with pytest.raises(DivergedError, match="client 0 diverged in round 4"):
        other.train(other.initial(), federation.cohort(range(4)), everyone(federation), wild, Key(1, 4))


@pytest.mark.parametrize(
    ("model", "loop", "cores", "rounds", "found"),
    [
        ("mlp", 1e-5, 2, 1, "loop"),  # over in a moment
        ("mlp", 1e-3, 2, 100, "processes"),
        ("mlp with a rule", 1e-5, 2, 1, "loop"),
        ("mlp with a rule", 1e-3, 2, 100, "stacked"),
        ("mlp with a rule", 1e-9, 2, 100, "stacked"),  # whatever the clock says: rounding must not depend on it
        ("mlp with a rule", 1.0, 2, 40, "processes"),
        ("lenet5", 8e-3, 2, 100, "processes"),
        ("lenet5", 8e-3, 1, 100, "loop"),
        ("resnet9", 1.0, 2, 100, "processes"),
    ],
)
def test_auto_picks_by_work_and_calibration_and_says_so(
    model: str, loop: float, cores: int, rounds: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "_loop_step", lambda *_: loop)
    monkeypatch.setattr(auto, "cores", lambda: cores)
    model, _, own_rule = model.partition(" with ")
    work = auto.Work(clients=10, samples=480, batch_size=64, epochs=2, rounds=rounds, own_rule=bool(own_rule))
    choice = auto.choose(build_model(model, SHAPES[model], 5, seed=1), Recipe(model, SHAPES[model], 5, 1), "cpu", work)
    assert choice.name == found
    assert choice.words.startswith(found)


def test_the_calibration_times_real_steps() -> None:
    model, recipe = build_model("mlp", SHAPES["mlp"], 5, seed=1), Recipe("mlp", SHAPES["mlp"], 5, 1)
    assert 0 < auto._loop_step(model, recipe, 4) < 10


def test_engines_are_backends() -> None:
    engines: list[Backend] = [pair("mlp")[1], pair("mlp")[2], pair("resnet9")[2]]
    assert [engine.name for engine in engines] == ["loop", "stacked", "stacked"]
