"""Fine-tuning: each client alone, stopped where its validation part says."""

import numpy as np
import pytest
import torch

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


def test_a_mixture_is_refused() -> None:
    federation = small_federation()
    engine = make_engine("loop", "mlp", federation, seed=1, device="cpu")
    mixed = Predictor.shared(engine.initial(2), np.ones(2), 6)
    with pytest.raises(ValueError, match="not a mixture"):
        finetune(mixed, federation.cohort(range(6)), engine, TRAINING, 1, Key(1, 10))


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
