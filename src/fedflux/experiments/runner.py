"""One federation, one algorithm: the rounds, the two evaluations, and what is left on disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from fedflux.algorithms import Algorithm, RoundMetrics, make_algorithm
from fedflux.data import Cohort, Federation, partition
from fedflux.data.patterns import shift_parts
from fedflux.data.sources import load
from fedflux.engine import Engine, Predictor, make_engine
from fedflux.errors import FedfluxError
from fedflux.experiments.config import RunConfig
from fedflux.experiments.scores import client_scores, cluster_scores
from fedflux.files import jsonable, make_folder, write_json, write_npz, written_whole
from fedflux.flux.why import explain
from fedflux.flux.wire import to_arrays
from fedflux.streams import stream

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
ROUNDS_FILE = "rounds.json"
DESCRIPTOR_FILE = "descriptors.npz"
MODEL_FILE = "models.safetensors"


@dataclass(frozen=True)
class Progress:
    """What a progress display is told after each round."""

    round: int
    rounds: int
    accuracy: float
    clusters: int
    events: tuple[str, ...] = ()


def run_config(config: RunConfig, on_round: Callable[[Progress], None] | None = None) -> dict[str, Any]:
    """Run, evaluate, save; the answer is what `fedflux run --json` prints.

    Everything that can be wrong with the input is found before the run folder is made.
    """
    begin = perf_counter()
    federation, config = build_federation(config)
    _check_clusters(config, federation)
    algorithm = make_algorithm(config.algorithm, config.settings())
    view = federation if algorithm.uses_truth else federation.blind()
    with one_thread():
        engine = make_engine(config.engine, config.model, view, config.seed, config.device, config.precision)
        state = algorithm.init(view, engine)
        folder = _make_folder(config, federation)
        write_json(folder / CONFIG_FILE, {**asdict(config), "command": config.command()})
        history: list[RoundMetrics] = []
        for cohort in cohorts(view, config):
            state, metrics = algorithm.round(state, cohort, engine)
            history.append(metrics)
            if on_round:
                on_round(_progress(config, algorithm, state, history))
            if config.until == "clustered" and algorithm.described(state) is not None:
                break
        everyone = view.cohort(range(len(view)))
        if config.until is None:
            state = algorithm.complete(state, everyone, engine)
        scores = _evaluate(config, algorithm, state, everyone, engine)
    result = {
        **scores,
        **_clusters(algorithm, state, federation),
        "why": _why(config, algorithm, state),
        "cluster_round": getattr(state, "cluster_round", None),
        **_costs(history),
        "rounds": len(history),
        "seconds": perf_counter() - begin,
        "engine": engine.name,
        "device": engine.device,
        "precision": engine.precision,
        "epsilon": None,
        "command": config.command(),
        "run_dir": str(folder),
    }
    _save(folder, result, history, algorithm, state, federation)
    return {**jsonable(result)}


def build_federation(config: RunConfig) -> tuple[Federation, RunConfig]:
    """Load and partition the data; the config comes back with `model` and `clients` decided."""
    dataset = load(config.dataset, Path(config.data_dir) if config.data_dir else None)
    federation = partition(dataset, config.partition())
    model = config.model
    if model == "auto":
        model = "lenet5" if min(federation.image_shape[1:]) >= 12 else "mlp"
    return federation, replace(config, model=model, clients=len(federation))


def cohort_size(federation: Federation, config: RunConfig) -> int:
    """How many clients take part in a round."""
    return max(1, round(config.participation * len(federation)))


def cohorts(federation: Federation, config: RunConfig) -> Iterator[Cohort]:
    """The members of every round: everyone, or a fresh random share."""
    count = cohort_size(federation, config)
    for r in range(1, config.rounds + 1):
        if count == len(federation):
            yield federation.cohort(range(len(federation)), r)
        else:
            chosen = stream(config.seed, "participation", r).choice(len(federation), size=count, replace=False)
            yield federation.cohort(chosen, r)


def _check_clusters(config: RunConfig, federation: Federation) -> None:
    """Refuse more clusters than clients can fill, before the rounds that lead to clustering."""
    if config.algorithm != "flux" or config.clusterer != "kmeans" or not isinstance(config.clusters, int):
        return
    members = cohort_size(federation, config)
    if config.clusters > members:
        raise FedfluxError(f"--clusters {config.clusters}, but {members} clients take part in a round: ask for fewer")


def _make_folder(config: RunConfig, federation: Federation) -> Path:
    """The run's folder, rid of what an earlier run left in it."""
    path = Path(config.out or Path("runs") / config.folder_name(federation.dataset.checksum))
    folder = make_folder(path, "fedflux run", CONFIG_FILE, {"algorithm", "command"})
    for name in (RESULT_FILE, ROUNDS_FILE, DESCRIPTOR_FILE, MODEL_FILE):
        (folder / name).unlink(missing_ok=True)
    return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread while a run lasts: small models lose from more, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _evaluate(
    config: RunConfig, algorithm: Algorithm[Any], state: Any, everyone: Cohort, engine: Engine
) -> dict[str, Any]:
    """Known association and test phase on the test parts; P(Y|X) has no test phase, since features cannot show it."""
    known: NDArray[np.float64] | None = None
    test: NDArray[np.float64] | None = None
    placed: list[dict[str, Any]] | None = None
    if config.until is None:
        known = engine.evaluate(algorithm.known(state, everyone, engine), everyone, "test")
        holders = everyone.federation.cohort([k for k in everyone if everyone.federation.size(k, "test")])
        if "pygx" not in shift_parts(config.shift) and len(holders):
            predictor = algorithm.unseen(state, holders.features("test"), engine)
            if predictor is not None:
                test = np.full(len(everyone), np.nan)
                test[list(holders.ids)] = engine.evaluate(predictor, holders, "test")
                placed = _placements(predictor, holders)
    scores = {**client_scores(known, "known"), **client_scores(test, "test")}
    return {**scores, "worst": scores["known_worst"], "test_placements": placed}


def _placements(predictor: Predictor, holders: Cohort) -> list[dict[str, Any]] | None:
    """Where the test phase put each client, and its distances to all clusters."""
    if predictor.distances is None:
        return None
    chosen = predictor.weights.argmax(axis=1)
    return [
        {"client": client, "cluster": int(chosen[k]), "distances": predictor.distances[k]}
        for k, client in enumerate(holders)
    ]


def _clusters(algorithm: Algorithm[Any], state: Any, federation: Federation) -> dict[str, Any]:
    labels = algorithm.assignment(state)
    placed = labels >= 0
    truth = federation.truth
    if not placed.any():
        return {**cluster_scores(np.zeros(1, dtype=np.int64), None), "clusters_found": None, "assignment": labels}
    return {
        **cluster_scores(labels[placed], None if truth is None else truth[placed]),
        "assignment": labels,
    }


def _why(config: RunConfig, algorithm: Algorithm[Any], state: Any) -> list[dict[str, Any]] | None:
    described = algorithm.described(state)
    if described is None:
        return None
    return [asdict(pair) for pair in explain(described.clusters.pool, config.significance)]


def _costs(history: list[RoundMetrics]) -> dict[str, Any]:
    phases = {p: sum(m.seconds.get(p, 0.0) for m in history) for p in ("training", "descriptor", "clustering")}
    return {
        **{f"seconds_{phase}": seconds for phase, seconds in phases.items()},
        "bytes_up": sum(sum(m.up.values()) for m in history),
        "bytes_down": sum(sum(m.down.values()) for m in history),
    }


def _progress(config: RunConfig, algorithm: Algorithm[Any], state: Any, history: list[RoundMetrics]) -> Progress:
    scores = [score for score in history[-1].validation.values() if not np.isnan(score)]
    labels = algorithm.assignment(state)
    return Progress(
        round=len(history),
        rounds=config.rounds,
        accuracy=100 * float(np.mean(scores)) if scores else float("nan"),
        clusters=len(np.unique(labels[labels >= 0])) or 1,
        events=tuple(history[-1].events),
    )


def _save(
    folder: Path,
    result: dict[str, Any],
    history: list[RoundMetrics],
    algorithm: Algorithm[Any],
    state: Any,
    federation: Federation,
) -> None:
    rounds = [
        {
            "round": r,
            "validation": {k: 100 * v for k, v in metrics.validation.items()},
            "bytes_up": metrics.up,
            "bytes_down": metrics.down,
            "seconds": metrics.seconds,
            "events": metrics.events,
        }
        for r, metrics in enumerate(history, start=1)
    ]
    write_json(folder / ROUNDS_FILE, rounds)
    described = algorithm.described(state)
    if described is not None:
        arrays = {**to_arrays(described.descriptors), "clients": described.clients, "labels": described.labels}
        if federation.truth is not None:
            arrays["truth"] = federation.truth[described.clients]
        write_npz(folder / DESCRIPTOR_FILE, arrays)
    stack = getattr(state, "models", None) or state.model
    with written_whole(folder / MODEL_FILE) as handle:
        handle.write(save({name: tensor.contiguous().cpu() for name, tensor in stack.tensors.items()}))
    write_json(folder / RESULT_FILE, result)
