"""Fine-tuning: after the last round each client goes on alone from its model, as far as its validation part says.

The fair partner of personalised methods: it gives every method with one model a client a personal model too. The
models stay with their clients, in the slot `tuned`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Key, Predictor, Training

CANDIDATE, TUNED = "candidate", "tuned"


def finetune(
    own: Predictor, cohort: Cohort, engine: Engine, training: Training, epochs: int, key: Key
) -> tuple[Predictor, NDArray[np.int64]]:
    """Personal models of all members, and after how many of the `epochs` each was best on its validation part.

    Where a mixture answers, the model that has most of it is fine-tuned, and takes its place in the mixture.
    The model before fine-tuning counts as epoch 0, and a later epoch must be better to be taken, so that validation
    never gets worse; a client without a validation part stays at 0. `key` is that of the last round.
    """
    if own.slots:
        raise ValueError("a model that its client keeps is personal already: it cannot be fine-tuned")
    chosen = own.weights.argmax(axis=1)
    scores = engine.evaluate([own], cohort, "validation").values[0]
    kept = np.zeros(len(cohort), dtype=np.int64)
    going = np.ones(len(cohort), dtype=np.bool_)
    ids = np.array(cohort.ids)
    for epoch in range(1, epochs + 1):
        members = [(int(client), int(row)) for client, row, on in zip(ids, chosen, going, strict=True) if on]
        begin = () if epoch == 1 else (CANDIDATE,)
        jobs = [Job(client, (row,), begin, (CANDIDATE,)) for client, row in members]
        step = replace(key, round=key.round + epoch)
        trained = engine.train(own.stack, cohort, jobs, replace(training, epochs=1), step)
        going &= np.isin(ids, trained.clients)  # whoever is gone for an epoch stays with the best so far
        found = engine.evaluate([_kept_in(own, CANDIDATE, going)], cohort, "validation").values[0]
        better = np.flatnonzero(going & (found > scores))
        copied = engine.copy_slot(ids[better].tolist(), CANDIDATE, TUNED) if len(better) else ()
        better = better[np.isin(ids[better], copied)]
        scores[better], kept[better] = found[better], epoch
    engine.drop_slot(cohort.ids, CANDIDATE)
    return tuned(own, kept > 0), kept


def tuned(own: Predictor, has_one: NDArray[np.bool_]) -> Predictor:
    """What clients answer with after fine-tuning, those of them that have a fine-tuned model."""
    return _kept_in(own, TUNED, has_one)


def _kept_in(own: Predictor, slot: str, has_one: NDArray[np.bool_]) -> Predictor:
    """A client's model in a slot in place of the one that it began as, or its own as it was."""
    rows, chosen = np.arange(len(has_one)), own.weights.argmax(axis=1)
    weights = np.column_stack([own.weights, np.where(has_one, own.weights[rows, chosen], 0.0)])
    weights[rows[has_one], chosen[has_one]] = 0.0
    return replace(own, weights=weights, slots=(slot,))
