"""One federation, one algorithm: from settings to a result on disk, begun anew or gone on with."""

import gc
import platform
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedflux.algorithms import check_task, find_algorithm, make_algorithm
from fedflux.algorithms.base import Averaging
from fedflux.data import Federation, Population, populate
from fedflux.data.dataset import Dataset
from fedflux.data.sources import load
from fedflux.data.sources.own import with_scale
from fedflux.engine import DistantEngine, Engine, SimulatedEngine, Work, make_engine, place_of
from fedflux.engine.modes import one_thread, torch_settings
from fedflux.errors import FedfluxError, StoppedError
from fedflux.files import read_lines, read_object, write_json
from fedflux.models import OwnModel
from fedflux.models.own import code_at
from fedflux.runs.config import RunConfig, unread
from fedflux.runs.identity import HOW_AND_WHERE, deployed_identity, folder_name, group, identity, label, revision
from fedflux.runs.metrics import Metrics
from fedflux.runs.scaling import kept_scaling, shared_out, warn_unscaled
from fedflux.runs.session import Listener, Session, cohort_size, recall
from fedflux.runs.storage.digests import check_files
from fedflux.runs.storage.folder import (
    CONFIG_FILE,
    RESULT_FILE,
    ROUNDS_FILE,
    clear,
    held,
    read_config,
)
from fedflux.runs.storage.store import STORE_FILE, Store
from fedflux.runs.tracking import check_trackers
from fedflux.version import __version__

NOT_NUMBERS = {*HOW_AND_WHERE, "command", "identity", "group", "label", "format", "unread", "model_code"}
FORMAT = 2
"""Of run folders: a run goes on only with the version that knows its states."""


def run_config(
    config: RunConfig,
    on_round: Listener | None = None,
    dataset: Dataset | None = None,
    share: float = 1.0,
    model: OwnModel | None = None,
    metrics: Metrics | None = None,
) -> dict[str, Any]:
    """Run, evaluate, save; the answer is what `fedflux run --json` prints.

    Everything that can be wrong with the input is found before the run folder is made. With `resume` the run in the
    folder goes on after its last whole round, on the engine that began it, to the numbers of an uninterrupted run;
    a finished one is answered from disk. `dataset` saves loading it again; `share` is the part of a GPU that the run
    may take, where others run beside it. `model` is one that was handed in, under the name that the settings have.
    A run that `on_round` ended early, by answering True, does not enter the store: no setting says that it would.
    """
    _free_device()  # of a run that failed: its traceback held on to it then
    try:
        return _run(config, on_round, dataset, share, model, metrics)
    finally:
        _free_device()


def _free_device() -> None:
    """Give back what a run held on a GPU: engines and their recorded steps refer to each other, so nobody else does."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()


def _run(
    config: RunConfig,
    on_round: Listener | None,
    dataset: Dataset | None,
    share: float,
    model: OwnModel | None,
    metrics: Metrics | None,
) -> dict[str, Any]:
    begin = perf_counter()
    check_trackers(config.track)
    population, config = build_population(config, dataset)
    federation = population.training
    _check_clusters(config, federation)
    checksum, code = federation.dataset.checksum, None if model is None else model.digest
    path = Path(config.out or Path("runs") / folder_name(config, checksum, code))
    requested = _requested(config, identity(config, checksum, code), checksum, model)
    begun = _begun(path, requested) if config.resume else None
    if begun is not None:
        config = replace(config, engine=begun["ran_on"]["engine"], device=begun["ran_on"]["device"])
    if config.privacy_unit == "group" and federation.dataset.train.group is None:
        raise FedfluxError(f"--privacy-unit group: {config.dataset} has no groups; give it some, or leave the flag out")
    check_task(config.algorithm, config.settings(), federation.task)
    settings = shared_out(config.settings(_true_clusters(federation)), federation)
    algorithm = make_algorithm(config.algorithm, settings)
    view = federation if algorithm.uses_truth else federation.blind()
    with one_thread(), torch_settings(place_of(config.engine, config.device), config.precision):
        engine = engine_for(config, view, share, model)
        state = algorithm.init(view, engine)
        with held(path) as folder:
            store = None if config.store == "none" else Store(Path(config.store or folder.parent / STORE_FILE))
            begun = begun or _begin(folder, requested, engine)
            result = read_object(folder / RESULT_FILE)
            if result is None:
                found = kept_scaling(folder, view.cohort(range(len(view))), engine, settings)
                population = population.scaled(found.scaling)
                federation = population.training
                view = federation if algorithm.uses_truth else federation.blind()
                session = Session(
                    config, algorithm, engine, federation, view, folder, on_round, begin, population, found, metrics
                )
                result = session.to_the_end(state, begun)
            else:
                check_files(folder, (CONFIG_FILE, RESULT_FILE, ROUNDS_FILE))
            if store is not None and not result.get("stopped_early"):
                _enter(store, folder, begun, result)
    return result


def run_deployed(
    config: RunConfig, engine: DistantEngine, on_round: Listener | None = None, average: Averaging | None = None
) -> dict[str, Any]:
    """The same session over clients that are reached elsewhere; `average` takes the place of the weighted mean.

    Such a run has an identity of its own and is never answered from a store: nobody here knows what nodes hold.
    """
    begin = perf_counter()
    check_trackers(config.track)
    if config.out is None:
        raise FedfluxError("a deployed run needs a folder on the server: out = FOLDER")
    if config.unseen:
        raise FedfluxError(
            f"unseen = {config.unseen}: nodes cannot be held out; those without labels are asked after training"
        )
    requested = _requested(config, deployed_identity(config), None)
    begun = _begun(Path(config.out), requested) if config.resume else None
    algorithm = make_algorithm(config.algorithm, replace(config.settings(), average=average))
    with one_thread(), held(Path(config.out)) as folder:
        done = 0 if begun is None else recall(folder, requested["identity"], algorithm, engine)
        there = engine.present(done + 1)
        if there is None:
            raise ValueError("run_deployed is for clients that come and go; use run_config")
        settings = shared_out(config.settings(_true_clusters(there.federation)), there.federation)
        settings = replace(settings, average=average)
        check_task(config.algorithm, settings, there.federation.task)
        algorithm = make_algorithm(config.algorithm, settings)
        view = there.federation if algorithm.uses_truth else there.federation.blind()
        state = algorithm.init(view, engine)
        begun = begun or _begin(folder, requested, engine)
        found = kept_scaling(folder, view.cohort(there.labelled), engine, settings)
        engine.scale(found.scaling)
        federation = there.federation.scaled(found.scaling)
        view = federation if algorithm.uses_truth else federation.blind()
        session = Session(config, algorithm, engine, federation, view, folder, on_round, begin, scaling=found)
        return session.to_the_end(state, begun)


def _begin(folder: Path, requested: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    """A new run in a folder: what an earlier one left goes, and the settings in force are written down."""
    clear(folder)
    begun = {**requested, "ran_on": _ran_on(engine)}
    write_json(folder / CONFIG_FILE, begun)
    return begun


def _enter(store: Store, folder: Path, begun: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Put the finished run into the store; a run that was resumed just for this is there already, or goes in now."""
    try:
        store.add(begun, result, read_lines(folder / ROUNDS_FILE))
    except sqlite3.Error as error:
        words = f"the run is finished and kept in {folder}, but could not enter {store.path}: {error}"
        raise StoppedError(f"{words} (--resume tries again)") from error


def _requested(config: RunConfig, identity: str, checksum: str | None, model: OwnModel | None = None) -> dict[str, Any]:
    """What config.json holds: the settings in force, and which run that makes it."""
    settings = {key: value for key, value in asdict(config).items() if key != "resume"}
    code = code_at(config.model) if model is None else model.code
    return {
        **settings,
        "format": FORMAT,
        "command": config.command(),
        "identity": identity,
        "checksum": checksum,
        "revision": revision(config),
        "group": group(config, checksum or "nodes"),
        "label": label(config),
        "unread": unread(config.given(), config),
        **({} if code is None else {"model_code": code}),
    }


def _ran_on(engine: Engine) -> dict[str, str]:
    """What may change the last digits: a run is continued on the same engine and device."""
    return {
        "engine": engine.name,
        "device": engine.device,
        "precision": engine.precision,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "fedflux": __version__,
    }


def _begun(path: Path, requested: Mapping[str, Any]) -> dict[str, Any] | None:
    """The run that a folder holds, None where it holds none; one with other settings cannot be continued with these."""
    begun = read_config(path)
    if begun is None:
        return None
    if begun.get("format") == FORMAT and begun.get("identity") == requested["identity"]:
        ran_on = begun.get("ran_on")
        if not isinstance(ran_on, dict) or not {"engine", "device"} <= ran_on.keys():
            words = "does not say any more what the run ran on; leave out --resume to delete it and start anew"
            raise FedfluxError(f"{path / CONFIG_FILE} is damaged: it {words}")
        return begun
    differing = [key for key in requested if key in begun and requested[key] != begun[key] and key not in NOT_NUMBERS]
    words = ", ".join(f"{key} {begun[key]}, not {requested[key]}" for key in differing)
    words = words if words and begun.get("format") == FORMAT else "another version of fedflux or of your code"
    instead = "name another --out, or leave out --resume to delete it and start anew"
    raise FedfluxError(f"{path} cannot be resumed: it was begun with {words}; {instead}")


def check_start(configs: Sequence[RunConfig], dataset: Dataset, model: OwnModel | None = None) -> None:
    """Refuse settings that no run could begin with, as far as the first federation of each algorithm shows it."""
    for config in configs:
        check_trackers(config.track)
        federation, decided = build_federation(config, dataset)
        _check_clusters(decided, federation)
        check_task(decided.algorithm, decided.settings(), federation.task)
        algorithm = make_algorithm(decided.algorithm, decided.settings(_true_clusters(federation)))
        view = federation if algorithm.uses_truth else federation.blind()
        on = replace(decided, engine="loop" if decided.engine == "auto" else decided.engine)
        algorithm.init(view, engine_for(on, view, model=model))


def _true_clusters(federation: Federation) -> int | None:
    """How many clusters there are; who is in which stays hidden from methods that are told the number only."""
    return None if federation.truth is None else len(np.unique(federation.truth))


def engine_for(
    config: RunConfig, view: Federation, share: float = 1.0, model: OwnModel | None = None
) -> SimulatedEngine:
    """The engine of a run, `auto` picking by how much there is to do."""
    some = range(min(len(view), 20))
    work = Work(
        clients=cohort_size(len(view), config),
        samples=sum(view.size(client, "train") for client in some) / len(some),
        batch_size=config.batch_size,
        epochs=config.epochs,
        rounds=config.rounds,
        own_rule=find_algorithm(config.algorithm).own_rule,
    )
    made = config.model if model is None else model
    return make_engine(config.engine, made, view, config.seed, config.device, config.precision, work, share)


def build_federation(config: RunConfig, dataset: Dataset | None = None) -> tuple[Federation, RunConfig]:
    """Load and partition the data for those that train; the config comes back with `model` and `clients` decided."""
    population, decided = build_population(config, dataset)
    return population.training, decided


def build_population(config: RunConfig, dataset: Dataset | None = None) -> tuple[Population, RunConfig]:
    """The same with the clients that are held out of training."""
    if dataset is None:
        dataset = load(config.dataset, Path(config.data_dir) if config.data_dir else None)
    dataset = with_scale(dataset, config.scale)
    warn_unscaled(dataset)
    if config.shift != "none" and dataset.client_names is not None:
        words = f"{dataset.name} has clients of its own: {config.shift} is simulated on top of how they differ"
        warnings.warn(f"{words}; --shift none leaves them as they are", stacklevel=2)
    population = populate(dataset, config.partition())
    model = decide_model(config, dataset.input_shape)
    return population, replace(config, model=model, clients=len(population.training))


def decide_model(config: RunConfig, input_shape: tuple[int, ...]) -> str:
    """`auto`: LeNet-5 for images that its convolutions fit, an MLP for all else."""
    if config.model != "auto":
        return config.model
    return "lenet5" if len(input_shape) == 3 and min(input_shape[1:]) >= 12 else "mlp"


def _check_clusters(config: RunConfig, federation: Federation) -> None:
    """Refuse more clusters than clients can fill, before the rounds that lead to clustering."""
    if config.algorithm != "flux" or config.clusterer != "kmeans" or not isinstance(config.clusters, int):
        return
    members = cohort_size(len(federation), config)
    if config.clusters > members:
        raise FedfluxError(f"--clusters {config.clusters}, but {members} clients take part in a round: ask for fewer")
