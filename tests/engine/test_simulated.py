"""The seam over clients of this process: slots, queries, preparations, and who answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.engine.test_stacked import SHAPES, make_federation

from fedflux.data import Features, Split
from fedflux.data.holding import About, Holding, NothingToTellError, Pass, Seen
from fedflux.descriptors.bounds import LatentRange
from fedflux.descriptors.queries import AskedAlone
from fedflux.engine import Job, Key, LoopEngine, Predictor, SimulatedEngine, Stack, Training
from fedflux.engine.rules import Extras
from fedflux.models import build_model
from fedflux.operations import Arrays, operation

TRAINING = Training(epochs=1, batch_size=8, lr=0.02, momentum=0.9)
FEDERATION = make_federation(SHAPES["mlp"])
EVERYONE = FEDERATION.cohort(range(4))


def make() -> SimulatedEngine:
    return SimulatedEngine(LoopEngine(build_model("mlp", SHAPES["mlp"], 5, 1)))


def same(one: Stack, other: Stack) -> bool:
    return all(tensor.equal(other.tensors[name]) for name, tensor in one.tensors.items())


def test_models_that_clients_keep_are_not_sent_back() -> None:
    engine = make()
    plain = engine.train(engine.initial(), EVERYONE, [Job(k) for k in EVERYONE], TRAINING, Key(1, 1))
    kept = engine.train(engine.initial(), EVERYONE, [Job(k, keep=("own",)) for k in EVERYONE], TRAINING, Key(1, 1))
    assert len(kept.models) == 0
    assert kept.clients == tuple(EVERYONE)
    held = engine.kept()
    assert held.clients["own"].tolist() == list(EVERYONE)
    assert same(held.models["own"], plain.models)


def test_a_client_goes_on_from_its_own_model_once_it_has_one() -> None:
    engine = make()
    own = [Job(k, own=("own",), keep=("own",)) for k in EVERYONE]
    engine.train(engine.initial(), EVERYONE, own[:2], TRAINING, Key(1, 1))
    engine.train(engine.initial(), EVERYONE, own, TRAINING, Key(1, 2))
    first = engine.train(engine.initial(), EVERYONE, [Job(k) for k in (0, 1)], TRAINING, Key(1, 1)).models
    jobs = [Job(0, (1,)), Job(1, (2,)), Job(2, (0,)), Job(3, (0,))]
    expected = engine.train(Stack.together([engine.initial(), first]), EVERYONE, jobs, TRAINING, Key(1, 2)).models
    assert same(engine.kept().models["own"], expected)


def test_slots_that_were_saved_are_gone_on_with() -> None:
    one, other = make(), make()
    jobs = [Job(k, own=("own",), keep=("own",)) for k in EVERYONE]
    one.train(one.initial(), EVERYONE, jobs, TRAINING, Key(1, 1))
    other.restore(one.kept())
    for engine in (one, other):
        engine.train(engine.initial(), EVERYONE, jobs, TRAINING, Key(1, 2))
    assert same(one.kept().models["own"], other.kept().models["own"])


def test_predictors_answer_with_what_clients_keep() -> None:
    engine = make()
    trained = engine.train(engine.initial(), EVERYONE, [Job(k) for k in EVERYONE], TRAINING, Key(1, 1)).models
    engine.train(engine.initial(), EVERYONE, [Job(k, keep=("own",)) for k in (1, 3)], TRAINING, Key(1, 1))
    has_one = np.array([False, True, False, True])
    both = Stack.together([engine.initial(), trained])
    expected = Predictor.single(both, np.where(has_one, 1 + np.arange(4), 0))
    kept = Predictor.kept(engine.initial(), "own", has_one)
    scores = engine.evaluate([kept, expected], EVERYONE, "test").values
    np.testing.assert_array_equal(scores[0], scores[1])
    blend = Predictor(engine.initial(), np.tile([0.25, 0.75], (2, 1)), slots=("own",), blended=True)
    pair = FEDERATION.cohort([1, 3])
    mixed = Stack.together([trained.take([1, 3]), engine.initial()]).average(
        np.array([[0.75, 0, 0.25], [0, 0.75, 0.25]])
    )
    scores = engine.evaluate([blend, Predictor.single(mixed, np.arange(2))], pair, "test").values
    np.testing.assert_array_equal(scores[0], scores[1])


def test_a_slot_that_a_client_does_not_have_is_said() -> None:
    engine = make()
    with pytest.raises(NothingToTellError, match="client 0 keeps no model 'own'"):
        engine.evaluate([Predictor.kept(engine.initial(), "own", np.ones(4, dtype=np.bool_))], EVERYONE, "test")


def test_a_slot_can_be_kept_under_another_name() -> None:
    engine = make()
    engine.train(engine.initial(), EVERYONE, [Job(k, keep=("a",)) for k in EVERYONE], TRAINING, Key(1, 1))
    engine.copy_slot([1, 2], "a", "b")
    kept = engine.kept()
    assert kept.clients["b"].tolist() == [1, 2]
    assert same(kept.models["b"], kept.models["a"].take([1, 2]))


@operation("test-range")
@dataclass(frozen=True)
class AskRange(AskedAlone):
    """The widest latent of the odd stored examples; even-numbered clients choose nothing."""

    def passes(self) -> Sequence[Pass]:
        return (Pass("train", LatentRange(), chosen=odd),)

    def answer(self, held: Holding, seen: Seen) -> dict[str, NDArray[np.generic]]:
        if seen.sums[0] is None:
            raise NothingToTellError("it chose nothing")
        return {"high": seen.sums[0][1].numpy()}

    def fault(self, answer: Arrays, about: About) -> str | None:
        return None


def odd(held: Holding) -> NDArray[np.int64]:
    return np.arange(1, len(held.rows("train")), 2) if held.client % 2 else np.zeros(0, dtype=np.int64)


def test_a_query_chooses_examples_and_those_without_any_are_missing() -> None:
    engine = make()
    found = engine.ask(AskRange(), EVERYONE, engine.initial())
    assert found.clients == (1, 3)
    assert found.missing == {0: "it chose nothing", 2: "it chose nothing"}
    for client, answer in zip(found.clients, found.arrays, strict=True):
        x = FEDERATION.materialise(client, "train").x[1::2]
        expected = engine.public(engine.initial(), x, LatentRange())[1].numpy()
        np.testing.assert_allclose(answer["high"].astype(np.float64), expected, rtol=1e-6)


def test_features_without_labels_cannot_be_asked_for_more() -> None:
    engine = make()
    with pytest.raises(ValueError, match="no labels"):
        engine.ask(AskLabelled(), [Features(FEDERATION.materialise(0, "test").x)], engine.initial())
    with pytest.raises(ValueError, match="without labels"):
        engine.ask(AskLabelled(), EVERYONE.features("test"), engine.initial())


@operation("test-labelled")
@dataclass(frozen=True)
class AskLabelled(AskedAlone):
    """Asks for labels."""

    def passes(self) -> Sequence[Pass]:
        return (Pass("train", LatentRange()),)

    def answer(self, held: Holding, seen: Seen) -> dict[str, NDArray[np.generic]]:
        return {}

    def fault(self, answer: Arrays, about: About) -> str | None:
        return None


@operation("test-preparation")
@dataclass(frozen=True)
class ByLoss:
    """Weights by loss, from which the sum leaves."""

    split: ClassVar[Split] = "train"

    def prepare(
        self, held: Holding, losses: NDArray[np.float32], extras: Extras
    ) -> tuple[Sequence[Extras], Mapping[str, NDArray[np.generic]]]:
        scale = float(extras.get("scale", torch.tensor(1.0)))
        return [{"weights": torch.from_numpy(scale * one)} for one in losses], {"sum": losses.sum(axis=1)}

    def fault(self, told: Arrays, about: About) -> str | None:
        return None


@operation("test-weighted")
@dataclass(frozen=True)
class Nudge:
    """Moves every weight by the mean of a batch's extras: shows what a rule was given."""

    def start(self, operations, params):
        return {}

    def step(self, operations, params, memory, batch, extras, index):
        (model,) = params
        moved = {n: t + extras["weights"][batch.positions].mean() for n, t in operations.trained(model).items()}
        return ({**model, **moved},), memory


def test_preparation_gives_each_job_the_extras_of_its_model_and_tells_sums() -> None:
    engine = make()
    models = Stack.together([engine.initial(), Stack({n: 2 * t for n, t in engine.initial().tensors.items()})])
    whole = Training(epochs=1, batch_size=10_000, lr=0.1, momentum=0.0)
    jobs = [Job(k, (m,)) for k in (0, 1) for m in (0, 1)]
    cohort = FEDERATION.cohort([0, 1])
    extras = {1: {"scale": torch.tensor(2.0)}}
    found = engine.train(models, cohort, jobs, whole, Key(1, 1), Nudge(), extras, ByLoss())
    losses = engine.backend.losses(models, cohort, "train")
    name = next(iter(engine.trained_names))
    for row, job in enumerate(jobs):
        step = (1 + job.client) * losses[job.client][job.models[0]].mean()
        moved = found.models.tensors[name][row] - models.tensors[name][job.models[0]]
        torch.testing.assert_close(moved, torch.full_like(moved, float(step)), rtol=1e-4, atol=1e-5)
    for client in (0, 1):
        np.testing.assert_allclose(found.told[client]["sum"].astype(np.float64), losses[client].sum(axis=1), rtol=1e-6)


def test_nobody_asked_means_no_models() -> None:
    engine = make()
    found = engine.train(engine.initial(), EVERYONE, [], TRAINING, Key(1, 1))
    assert (found.jobs, len(found.models)) == ((), 0)
