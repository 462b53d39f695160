"""Fine-tuning: each client alone, stopped where its validation part says."""

import numpy as np
import pytest
import torch
from tests.algorithms.playing import assert_same

from fedflux.algorithms.checks import small_federation
from fedflux.algorithms.shared.finetune import TUNED, finetune
from fedflux.engine import Job, Key, Predictor, Training, make_engine

TRAINING = Training(3, 8, 0.1, 0.9)


def test_validation_never_gets_worse_and_the_best_epoch_is_kept() -> None:
    federation = small_federation()
    engine = make_engine("loop", "mlp", federation, seed=1, device="cpu")
    cohort = federation.cohort(range(6))
    start = Predictor.shared(engine.initial(), np.ones(1), 6)
    tuned, kept = finetune(start, cohort, engine, TRAINING, 4, Key(1, 10))
    before, after = engine.evaluate([start, tuned], cohort, "validation").values
    assert (after >= before).all()
    assert (after > before).any()
    assert (after[kept == 0] == before[kept == 0]).all()
    client = int(np.flatnonzero(kept > 0)[0])
    model = engine.initial()
    for epoch in range(1, kept[client] + 1):
        alone = federation.cohort([client])
        model = engine.train(model, alone, [Job(client)], Training(1, 8, 0.1, 0.9), Key(1, 10 + epoch)).models
    held = engine.kept()
    row = held.clients[TUNED].tolist().index(client)
    assert set(held.clients[TUNED]) == set(np.flatnonzero(kept > 0))
    for name, tensor in model.tensors.items():
        assert torch.equal(tensor[0], held.models[TUNED].tensors[name][row])


def test_of_a_mixture_the_largest_part_is_tuned_and_takes_its_place() -> None:
    federation = small_federation()
    engine = make_engine("loop", "mlp", federation, seed=1, device="cpu")
    cohort, models = federation.cohort(range(6)), engine.initial(3)
    mixed = Predictor(models, np.tile([0.3, 0.5, 0.2], (6, 1)))
    tuned, kept = finetune(mixed, cohort, engine, TRAINING, 3, Key(1, 10))
    assert (kept > 0).any()
    has_one = (kept > 0)[:, None]
    np.testing.assert_array_equal(tuned.weights, np.where(has_one, [0.3, 0, 0.2, 0.5], [0.3, 0.5, 0.2, 0]))
    before, after = engine.evaluate([mixed, tuned], cohort, "validation").values
    assert (after[kept > 0] > before[kept > 0]).all()
    np.testing.assert_array_equal(after[kept == 0], before[kept == 0])
    client = int(np.flatnonzero(kept > 0)[0])
    model, held = models.take([1]), engine.kept()
    for epoch in range(1, kept[client] + 1):
        alone = federation.cohort([client])
        model = engine.train(model, alone, [Job(client)], Training(1, 8, 0.1, 0.9), Key(1, 10 + epoch)).models
    assert_same(held.models[TUNED].take([held.clients[TUNED].tolist().index(client)]), model)


def test_a_model_that_its_client_keeps_is_refused() -> None:
    federation = small_federation()
    engine = make_engine("loop", "mlp", federation, seed=1, device="cpu")
    own = Predictor(engine.initial(), np.tile([0.0, 1.0], (6, 1)), slots=("personal",))
    with pytest.raises(ValueError, match="personal already"):
        finetune(own, federation.cohort(range(6)), engine, TRAINING, 1, Key(1, 10))


def test_only_the_tuned_models_stay_with_clients() -> None:
    federation = small_federation()
    engine = make_engine("loop", "mlp", federation, seed=3, device="cpu")
    everyone = federation.cohort(range(len(federation)))
    own = Predictor.shared(engine.initial(), np.ones(1), len(everyone))
    tuned, kept = finetune(own, everyone, engine, Training(1, 8, 0.05, 0.9), 2, Key(3, 4))
    assert kept.any()
    assert set(engine.kept().clients) == {"tuned"}
    assert engine.kept().clients["tuned"].tolist() == np.flatnonzero(kept).tolist()
    assert tuned.slots == ("tuned",)
