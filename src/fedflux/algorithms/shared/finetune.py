"""Fine-tuning: after the last round each client goes on alone from its model, as far as its validation part says.

The fair partner of personalised methods: it gives every method with one model a client a personal model too.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort
from fedflux.engine import Engine, Job, Key, Predictor, Training


def finetune(
    own: Predictor, cohort: Cohort, engine: Engine, training: Training, epochs: int, key: Key
) -> tuple[Predictor, NDArray[np.int64]]:
    """Personal models of all members, and after how many of the `epochs` each was best on its validation part.

    The model before fine-tuning counts as epoch 0, and a later epoch must be better to be taken, so that validation
    never gets worse; a client without a validation part stays at 0. `key` is that of the last round.
    """
    chosen = own.weights.argmax(axis=1)
    if not np.array_equal(own.weights[np.arange(len(chosen)), chosen], np.ones(len(chosen))):
        raise ValueError("only a client's one model can be fine-tuned, not a mixture")
    models = best = own.stack.take(chosen)
    rows = np.arange(len(cohort))
    scores = engine.evaluate(Predictor.single(best, rows), cohort, "validation")
    kept = np.zeros(len(cohort), dtype=np.int64)
    jobs = [Job(client, (row,)) for row, client in enumerate(cohort)]
    for epoch in range(1, epochs + 1):
        models = engine.train(models, cohort, jobs, replace(training, epochs=1), replace(key, round=key.round + epoch))
        found = engine.evaluate(Predictor.single(models, rows), cohort, "validation")
        better = np.flatnonzero(found > scores)
        if len(better):
            best = best.put(better, models.take(better))
            scores[better], kept[better] = found[better], epoch
    return Predictor.single(best, rows), kept
