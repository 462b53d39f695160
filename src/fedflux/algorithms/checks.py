"""`check_algorithm`: what every method must hold, whoever wrote it; an AssertionError says what does not."""

from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.algorithms.base import grown
from fedflux.algorithms.check_engines import Left, LossyEngine, PackingEngine, RecordingEngine
from fedflux.algorithms.check_stage import (
    CLIENTS,
    LATER,
    ROUNDS,
    SETTINGS,
    Make,
    Play,
    all_but_last,
    cohorts,
    everyone,
    fresh_engine,
    only_one,
    play,
    same,
    same_parts,
    saved,
    small_federation,
    stage,
)
from fedflux.data import Cohort, Labelled
from fedflux.engine import DivergedError, Engine, Predictor, Training
from fedflux.savable import take_apart

__all__ = ["CHECKS", "SETTINGS", "check_algorithm", "small_federation"]


def check_algorithm(make: Make) -> None:
    """Run the whole battery on an algorithm's factory, on a small federation with two looks and two clusters."""
    algorithm = make(SETTINGS)
    assert is_dataclass(algorithm), "an algorithm is a frozen dataclass: settings in, no hidden attributes"
    assert isinstance(algorithm.revision, int), "an algorithm has a revision, raised when its numbers change"
    for check in CHECKS:
        check(make)


def check_repeatable(make: Make) -> None:
    """The same seed gives the same bits, on the server and at the clients."""
    one, two = (play(make).steps[-1] for _ in range(2))
    assert same(one.state, two.state), "two runs with one seed differ"
    assert same(one.kept, two.kept), "two runs with one seed differ in what clients keep"


def check_states_are_left_alone(make: Make) -> None:
    """A round makes a new state and leaves the old one as it was."""
    algorithm, view, engine = stage(make)
    state = algorithm.init(view, engine)
    for cohort in cohorts(view):
        before = take_apart(state)
        after, _ = algorithm.round(state, cohort, engine)
        assert same_parts(before, take_apart(state)), f"round {cohort.round} changed the state it was given"
        state = after


def check_resumes(make: Make) -> None:
    """A state that was saved and loaded after any round, clients' slots with it, goes on to the same bits."""
    whole = play(make)
    for stop, step in enumerate(whole.steps[:-1]):
        assert type(step.state) in whole.algorithm.states, f"{type(step.state).__name__} is not among its `states`"
        loaded, engine = saved(step.state), fresh_engine(whole.view, whole.algorithm)
        engine.restore(saved(step.kept))
        for cohort in list(cohorts(whole.view))[stop:]:
            loaded, _ = whole.algorithm.round(loaded, cohort, engine)
        assert same(loaded, whole.end), f"saved after round {stop} and gone on with, a run ends otherwise"
        kept = same(engine.kept(), whole.engine.kept())
        assert kept, f"saved after round {stop} and gone on with, clients end with other models"


def check_metrics(make: Make) -> None:
    """A round tells of every member: validation accuracy, bytes, and the work done."""
    played = play(make)
    for step, cohort in zip(played.steps[1:], cohorts(played.view), strict=True):
        metrics = step.metrics
        assert metrics is not None
        assert set(metrics.validation) == set(cohort), "validation is told for members, and for all of them"
        assert all(0 <= score <= 1 for score in metrics.validation.values()), "validation accuracies are shares"
        assert set(metrics.up) >= set(cohort), "bytes are counted for every member, be it 0"
        assert all(count >= 0 for count in (*metrics.up.values(), *metrics.down.values())), "bytes cannot be negative"
        assert metrics.work.get("training", 0) >= len(cohort), "training passes are counted (RoundMetrics.count)"


def check_answers(make: Make) -> None:
    """Everyone is answered: with mixtures of finite models, whose weights sum to one; members of no round too."""
    for chosen in (everyone, only_one, all_but_last):
        played = play(make, chosen)
        _check_everyone_is_answered(played, played.end, played.everyone, played.engine)


def check_some_at_a_time(make: Make) -> None:
    """Clients asked for one by one are answered as when all are asked together."""
    played = play(make)
    state, _ = played.algorithm.complete(played.end, played.everyone, played.engine)
    together = played.algorithm.known(state, played.everyone, played.engine)
    if together is None:
        return
    found = played.engine.evaluate([together], played.everyone, "test").values[0]
    alone = []
    for client in range(CLIENTS):
        one = played.view.cohort([client])
        own = played.algorithm.known(state, one, played.engine)
        assert own is not None
        alone.append(played.engine.evaluate([own], one, "test").values[0, 0])
    np.testing.assert_allclose(found, alone, err_msg="known() answers a client otherwise when it is asked alone")


def check_labels_stay_out(make: Make) -> None:
    """The test phase answers by features alone, whatever labels ride along."""
    played = play(make)
    honest = played.everyone.features("test")
    wrong = [Labelled(one.x, torch.zeros(len(one), dtype=torch.int64), np.arange(len(one))) for one in honest]
    first, second = (played.algorithm.unseen(played.end, features, played.engine) for features in (honest, wrong))
    assert (first is None) == (second is None), "labels decide whether the test phase has an answer"
    if first is not None and second is not None:
        answers = [played.engine.predict(one, honest) for one in (first, second)]
        for a, b in zip(*answers, strict=True):
            np.testing.assert_array_equal(a, b, err_msg="labels enter the test phase")


def check_clients_are_interchangeable(make: Make) -> None:
    """Clients in another order get the same results in that order, up to the clusters' names.

    Batches are whole, since the order of a client's examples is drawn by its number.
    """
    order = [3, 1, 5, 0, 4, 2]
    whole = replace(SETTINGS, training=Training(1, 10_000, 0.05, 0.0))
    found = []
    for clients in (list(range(CLIENTS)), order):
        played = play(make, settings=whole, clients=clients)
        state, _ = played.algorithm.complete(played.end, played.everyone, played.engine)
        known = played.algorithm.known(state, played.everyone, played.engine)
        scores = np.zeros(CLIENTS)
        if known is not None:
            scores = played.engine.evaluate([known], played.everyone, "test").values[0]
        found.append((scores, played.algorithm.assignment(state)))
    (plain, labels), (permuted, relabelled) = found
    np.testing.assert_allclose(permuted, plain[order], atol=0.05, err_msg="permuting clients changes their results")
    before, after = (one[:, None] == one[None] for one in (labels[order], relabelled))
    np.testing.assert_array_equal(before, after, err_msg="permuting clients changes who is with whom")


def check_copies(make: Make) -> None:
    """Examples that a client holds several times, be they told by a count or by as many rows, give the same models."""
    ends = []
    for counted in (True, False):
        federation = small_federation()
        if counted:
            federation = replace(federation, duplicate=2)
        else:
            rows = tuple(replace(one, train=np.tile(one.train, 2)) for one in federation.rows)
            federation = replace(federation, rows=rows)
        algorithm = make(SETTINGS)
        view = federation if algorithm.uses_truth else federation.blind()
        engine = fresh_engine(view, algorithm)
        state = algorithm.init(view, engine)
        for cohort in cohorts(view):
            state, _ = algorithm.round(state, cohort, engine)
        ends.append({**algorithm.models(state), **engine.kept().models})
    for name, stack in ends[0].items():
        for key, tensor in stack.tensors.items():
            other = ends[1][name].tensors[key]
            torch.testing.assert_close(tensor, other, msg="copies by count and copies by row differ")


def check_divergence_is_told(make: Make) -> None:
    """Training that leaves the finite numbers stops the run with the client's name."""
    wild = replace(SETTINGS, training=Training(2, 8, 1e30, 0.9))
    try:
        play(make, settings=wild)
    except DivergedError:
        return
    raise AssertionError("training with a learning rate of 1e30 was not reported to diverge")


def check_truth_stays_hidden(make: Make) -> None:
    """A method that does not say so may not read the true clusters: what it is given refuses to tell."""
    if not make(SETTINGS).uses_truth:
        play(make)  # on a blind federation, which raises when it is asked


def check_goes_on_without_some(make: Make) -> None:
    """A third of all answers lost: the run comes to its end with finite models, and everyone is answered."""
    for seed in range(2):
        played = play(make, through=partial(LossyEngine, share=1 / 3, seed=seed))
        lossy = LossyEngine(played.engine, 1 / 3, seed + 100)
        _check_everyone_is_answered(played, played.end, played.everyone, lossy)


def check_silence_changes_nothing(make: Make) -> None:
    """A round in which nobody answers leaves models and clusters as they were, before the first answer and later."""
    played = play(make)
    silent = LossyEngine(played.engine, 1.0)
    for step in (played.steps[0], played.steps[1], played.steps[-1]):
        after, _ = played.algorithm.round(step.state, played.view.cohort(range(CLIENTS), step.state.round + 1), silent)
        before, now = (played.algorithm.models(state) for state in (step.state, after))
        assert before.keys() == now.keys(), "a round without answers changes which models there are"
        assert all(same(before[name], now[name]) for name in now), "a round without answers changes models"
        old, new = (played.algorithm.assignment(state) for state in (step.state, after))
        np.testing.assert_array_equal(new, old, err_msg="a round without answers changes clusters")


def check_examples_stay_at_clients(make: Make) -> None:
    """No array with an entry an example leaves a client, in rounds, at the end or in the test phase."""
    notes: list[Left] = []
    played = play(make, all_but_last, through=partial(RecordingEngine, left=notes))
    _check_everyone_is_answered(played, played.end, played.everyone, RecordingEngine(played.engine, notes))
    for left in notes:
        words = f"{left.request} tells {left.name} of shape {left.shape}, an entry an example, of client {left.client}"
        assert not left.examples & set(left.shape), words


def check_requests_travel(make: Make) -> None:
    """Everything that is asked of clients is a registered operation, and does the same once it has travelled."""
    here, there = play(make), play(make, through=PackingEngine)
    assert same(here.end, there.end), "what was packed and unpacked on its way to clients gives other numbers"
    unseen = there.algorithm.unseen(there.end, there.everyone.features("test"), PackingEngine(there.engine))
    if unseen is not None:
        PackingEngine(there.engine).evaluate([unseen], there.everyone, "test")


def check_grows(make: Make) -> None:
    """Clients that come between rounds take part in the later ones and are answered; the others keep their places."""
    if make(SETTINGS).uses_truth:
        return
    played = play(make)
    more = small_federation(range(CLIENTS + LATER)).blind()
    for stop in (1, 3):
        step, engine = played.steps[stop], fresh_engine(more, played.algorithm)
        engine.restore(step.kept)
        state = grown(step.state, len(more))
        labels = played.algorithm.assignment(state)
        assert labels.shape == (len(more),), "a state that grew has an assignment of every client"
        before = played.algorithm.assignment(step.state)
        np.testing.assert_array_equal(labels[:CLIENTS], before, err_msg="growing changes who is where")
        for r in range(stop + 1, ROUNDS + 1):
            cohort = more.cohort(range(len(more)), r)
            state, metrics = played.algorithm.round(saved(state), cohort, engine)
            assert set(metrics.validation) == set(cohort), "clients that came later take part in no round"
        _check_everyone_is_answered(played, state, more.cohort(range(len(more))), engine)


CHECKS = (
    check_repeatable,
    check_states_are_left_alone,
    check_resumes,
    check_metrics,
    check_answers,
    check_some_at_a_time,
    check_labels_stay_out,
    check_clients_are_interchangeable,
    check_copies,
    check_divergence_is_told,
    check_truth_stays_hidden,
    check_goes_on_without_some,
    check_silence_changes_nothing,
    check_examples_stay_at_clients,
    check_requests_travel,
    check_grows,
)


def _check_everyone_is_answered(played: Play, state: Any, clients: Cohort, engine: Engine) -> None:
    """The end of a run through some engine: nobody is left without an answer of finite models."""
    algorithm = played.algorithm
    state, _ = algorithm.complete(state, clients, engine)
    for name, stack in algorithm.models(state).items():
        assert stack.finite().all(), f"of its {name} some are not finite"
    labels = algorithm.assignment(state)
    assert labels.shape == (len(clients),), "assignment has an entry a client"
    assert labels.dtype == np.int64, "assignment is of int64"
    known = algorithm.known(state, clients, engine)
    if known is not None:
        _check_predictor(known, len(clients))
        reliable = engine.inner if isinstance(engine, LossyEngine) else engine
        scores = reliable.evaluate([known], clients, "test").values
        assert np.isfinite(scores).all(), "a known client is left without an answer"
    unseen = algorithm.unseen(state, clients.features("test"), engine)
    if unseen is not None:
        _check_predictor(unseen, len(clients))


def _check_predictor(predictor: Predictor, clients: int) -> None:
    weights: NDArray[np.float64] = predictor.weights
    columns = len(predictor.stack) + len(predictor.slots)
    assert weights.shape == (clients, columns), "a predictor has a row a client and a column a model"
    assert (weights >= 0).all(), "a predictor's weights cannot be negative"
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, err_msg="a client's weights must sum to one")
    used = (weights[:, : len(predictor.stack)] > 0).any(axis=0)
    assert predictor.stack.finite()[used].all(), "a client is answered by a model that is not finite"
