"""`check_algorithm`: what every method must hold, whoever wrote it; an AssertionError says what does not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.algorithms.base import Algorithm, RoundMetrics, Settings
from fedflux.data import Cohort, Dataset, Examples, Federation, Labelled, Partition, partition
from fedflux.engine import DivergedError, Engine, Predictor, Training, make_engine
from fedflux.savable import put_together, take_apart

Make = Callable[[Settings], Algorithm[Any]]
CLIENTS, ROUNDS, CLASSES, SIDE = 6, 4, 3, 4
SETTINGS = Settings(rounds=ROUNDS, training=Training(1, 8, 0.05, 0.9), seed=3, clusters=2, cluster_round=2)


def check_algorithm(make: Make) -> None:
    """Run the whole battery on an algorithm's factory, on a small federation with two looks and two clusters."""
    algorithm = make(SETTINGS)
    assert is_dataclass(algorithm), "an algorithm is a frozen dataclass: settings in, no hidden attributes"
    assert isinstance(algorithm.revision, int), "an algorithm has a revision, raised when its numbers change"
    for check in CHECKS:
        check(make)


def check_repeatable(make: Make) -> None:
    """The same seed gives the same bits."""
    assert _same(_play(make)[-1][0], _play(make)[-1][0]), "two runs with one seed differ"


def check_states_are_left_alone(make: Make) -> None:
    """A round makes a new state and leaves the old one as it was."""
    algorithm, view, engine = _stage(make)
    state = algorithm.init(view, engine)
    for cohort in _cohorts(view):
        before = take_apart(state)
        after, _ = algorithm.round(state, cohort, engine)
        assert _same_parts(before, take_apart(state)), f"round {cohort.round} changed the state it was given"
        state = after


def check_resumes(make: Make) -> None:
    """A state that was saved and loaded after any round goes on to the same bits."""
    whole = _play(make)
    algorithm, view, _ = _stage(make)
    for stop in range(ROUNDS):
        state = whole[stop][0]
        tensors, outline = take_apart(state)
        loaded = put_together(type(state), tensors, outline)
        engine = _engine(view)
        for cohort in list(_cohorts(view))[stop:]:
            loaded, _ = algorithm.round(loaded, cohort, engine)
        assert _same(loaded, whole[-1][0]), f"saved after round {stop} and gone on with, a run ends otherwise"


def check_metrics(make: Make) -> None:
    """A round tells of every member: validation accuracy, bytes, and the work done."""
    _, view, _ = _stage(make)
    for (_, metrics), cohort in zip(_play(make)[1:], _cohorts(view), strict=True):
        assert metrics is not None
        assert set(metrics.validation) == set(cohort), "validation is told for members, and for all of them"
        assert all(0 <= score <= 1 for score in metrics.validation.values()), "validation accuracies are shares"
        assert set(metrics.up) >= set(cohort), "bytes are counted for every member, be it 0"
        assert all(count >= 0 for count in (*metrics.up.values(), *metrics.down.values())), "bytes cannot be negative"
        assert metrics.work.get("training", 0) >= len(cohort), "training passes are counted (RoundMetrics.count)"


def check_answers(make: Make) -> None:
    """Everyone is answered: with mixtures of finite models, whose weights sum to one; members of no round too."""
    for chosen in (_everyone, _only_one, _all_but_last):
        algorithm, view, engine = _stage(make)
        state = _play(make, chosen)[-1][0]
        everyone = view.cohort(range(CLIENTS))
        state, _ = algorithm.complete(state, everyone, engine)
        labels = algorithm.assignment(state)
        assert labels.shape == (CLIENTS,), "assignment has an entry a client"
        assert labels.dtype == np.int64, "assignment is of int64"
        known = algorithm.known(state, everyone, engine)
        if known is not None:
            _check_predictor(known)
            scores = engine.evaluate(known, everyone, "test")
            assert np.isfinite(scores).all(), "a known client is left without an answer"
        unseen = algorithm.unseen(state, everyone.features("test"), engine)
        if unseen is not None:
            _check_predictor(unseen)


def check_some_at_a_time(make: Make) -> None:
    """Clients asked for one by one are answered as when all are asked together."""
    algorithm, view, engine = _stage(make)
    everyone = view.cohort(range(CLIENTS))
    state, _ = algorithm.complete(_play(make)[-1][0], everyone, engine)
    together = algorithm.known(state, everyone, engine)
    if together is None:
        return
    found = engine.evaluate(together, everyone, "test")
    alone = []
    for client in range(CLIENTS):
        one = view.cohort([client])
        own = algorithm.known(state, one, engine)
        assert own is not None
        alone.append(engine.evaluate(own, one, "test")[0])
    np.testing.assert_allclose(found, alone, err_msg="known() answers a client otherwise when it is asked alone")


def check_labels_stay_out(make: Make) -> None:
    """The test phase answers by features alone, whatever labels ride along."""
    algorithm, view, engine = _stage(make)
    state = _play(make)[-1][0]
    honest = view.cohort(range(CLIENTS)).features("test")
    wrong = [Labelled(one.x, torch.zeros(len(one), dtype=torch.int64), np.arange(len(one))) for one in honest]
    first, second = (algorithm.unseen(state, features, engine) for features in (honest, wrong))
    assert (first is None) == (second is None), "labels decide whether the test phase has an answer"
    if first is not None and second is not None:
        answers = [engine.predict(one, honest) for one in (first, second)]
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
        algorithm, view, engine = _stage(make, whole, clients)
        state = _play(make, settings=whole, clients=clients)[-1][0]
        everyone = view.cohort(range(CLIENTS))
        state, _ = algorithm.complete(state, everyone, engine)
        known = algorithm.known(state, everyone, engine)
        scores = np.zeros(CLIENTS) if known is None else engine.evaluate(known, everyone, "test")
        found.append((scores, algorithm.assignment(state)))
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
        engine = _engine(view)
        state = algorithm.init(view, engine)
        for cohort in _cohorts(view):
            state, _ = algorithm.round(state, cohort, engine)
        ends.append(getattr(state, "models", None) or state.model)
    for name, tensor in ends[0].tensors.items():
        torch.testing.assert_close(tensor, ends[1].tensors[name], msg="copies by count and copies by row differ")


def check_divergence_is_told(make: Make) -> None:
    """Training that leaves the finite numbers stops the run with the client's name."""
    wild = replace(SETTINGS, training=Training(2, 8, 1e30, 0.9))
    try:
        _play(make, settings=wild)
    except DivergedError:
        return
    raise AssertionError("training with a learning rate of 1e30 was not reported to diverge")


def check_truth_stays_hidden(make: Make) -> None:
    """A method that does not say so may not read the true clusters: what it is given refuses to tell."""
    algorithm = make(SETTINGS)
    if not algorithm.uses_truth:
        _play(make)  # on a blind federation, which raises when it is asked


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
)


def small_federation(clients: Sequence[int] = range(CLIENTS)) -> Federation:
    """Clients of two looks (bright in the left or the right half, by class), in the order asked for."""
    generator = np.random.default_rng(0)
    per_client, held = 30, 12
    parts = []
    for count in (per_client, held):
        x = generator.normal(0, 0.6, (CLIENTS, count, 1, SIDE, SIDE))
        y = np.tile(np.arange(count) % CLASSES, (CLIENTS, 1))
        for client in range(CLIENTS):
            for k, label in enumerate(y[client]):
                x[client, k, 0, label, : 2 if client % 2 else None] += 2.0
                x[client, k, 0, 3] += 2.0 * (client % 2)
        who = np.repeat(np.arange(CLIENTS), count)
        parts.append(Examples(x.reshape(-1, 1, SIDE, SIDE).astype(np.float32), y.reshape(-1), who))
    names, truth = tuple(f"client {k}" for k in range(CLIENTS)), np.arange(CLIENTS) % 2
    made = partition(Dataset("npz", parts[0], parts[1], CLASSES, names, truth), Partition("none", level=1, seed=3))
    return replace(made, rows=tuple(made.rows[k] for k in clients), _truth=truth[list(clients)])


def _stage(
    make: Make, settings: Settings = SETTINGS, clients: Sequence[int] = range(CLIENTS)
) -> tuple[Algorithm[Any], Federation, Engine]:
    """The algorithm, what it may see, and an engine."""
    algorithm = make(settings)
    federation = small_federation(clients)
    view = federation if algorithm.uses_truth else federation.blind()
    return algorithm, view, _engine(view)


def _engine(view: Federation) -> Engine:
    return make_engine("loop", "mlp", view, seed=3, device="cpu")


def _everyone(round: int) -> Sequence[int]:
    return range(CLIENTS)


def _only_one(round: int) -> Sequence[int]:
    return [2]


def _all_but_last(round: int) -> Sequence[int]:
    return range(CLIENTS - 1)


def _cohorts(view: Federation, chosen: Callable[[int], Sequence[int]] = _everyone) -> Iterator[Cohort]:
    return (view.cohort(chosen(r), r) for r in range(1, ROUNDS + 1))


def _play(
    make: Make,
    chosen: Callable[[int], Sequence[int]] = _everyone,
    settings: Settings = SETTINGS,
    clients: Sequence[int] = range(CLIENTS),
) -> list[tuple[Any, RoundMetrics | None]]:
    """The state before the first round and after each, with what the round told."""
    algorithm, view, engine = _stage(make, settings, clients)
    history: list[tuple[Any, RoundMetrics | None]] = [(algorithm.init(view, engine), None)]
    for cohort in _cohorts(view, chosen):
        history.append(algorithm.round(history[-1][0], cohort, engine))
    return history


def _check_predictor(predictor: Predictor) -> None:
    weights: NDArray[np.float64] = predictor.weights
    assert weights.shape == (CLIENTS, len(predictor.stack)), "a predictor has a row a client and a column a model"
    assert (weights >= 0).all(), "a predictor's weights cannot be negative"
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, err_msg="a client's weights must sum to one")
    assert predictor.stack.finite()[(weights > 0).any(axis=0)].all(), (
        "a client is answered by a model that is not finite"
    )


def _same(one: Any, other: Any) -> bool:
    return _same_parts(take_apart(one), take_apart(other))


def _same_parts(one: tuple[dict[str, torch.Tensor], Any], other: tuple[dict[str, torch.Tensor], Any]) -> bool:
    tensors, others = one[0], other[0]
    if tensors.keys() != others.keys() or one[1] != other[1]:
        return False
    return all(_equal(tensors[name].numpy(), others[name].numpy()) for name in tensors)


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
