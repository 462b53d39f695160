"""A trained federation, opened again: it places clients, predicts for them, and hands out anybody's model."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedflux.algorithms import Algorithm, make_algorithm
from fedflux.algorithms.base import grown
from fedflux.algorithms.shared.finetune import TUNED, tuned
from fedflux.data import Cohort
from fedflux.data.holding import NothingToTellError
from fedflux.data.scaling import Scaling
from fedflux.engine import Predictor, SimulatedEngine, Stack, make_engine
from fedflux.engine.modes import one_thread, torch_settings
from fedflux.engine.stack import Parameters
from fedflux.errors import FedfluxError, unknown
from fedflux.files import read_object
from fedflux.library.module import ClientModel
from fedflux.library.newcomers import Newcomer, known_clients, meet, newcomer
from fedflux.models import OwnModel, build_model
from fedflux.models.own import code_at
from fedflux.placement import Placement
from fedflux.plugins import import_named
from fedflux.runs.config import RunConfig, config_of
from fedflux.runs.storage.digests import check_file, has_digests, kept_files
from fedflux.runs.storage.folder import (
    CONFIG_FILE,
    MODEL_FILE,
    RESULT_FILE,
    TRAINED_FILE,
    TRAINED_TENSORS,
    read_config,
)
from fedflux.runs.storage.trained import Form, Trained, load_trained

Probabilities = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A finished run that can be asked: `fedflux.load` makes one.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> clients = {name: (rng.normal(size=(60, 4)), rng.integers(2, size=60)) for name in ("north", "south")}
    >>> run = fedflux.run(fedflux.Federation.from_clients(clients), rounds=3).load()
    >>> run.clients, run.class_names, run.input_shape
    (('north', 'south'), ('0', '1'), (4,))
    >>> newcomer = rng.normal(size=(30, 4))  # no labels
    >>> run.assign(newcomer).cluster.shape, run.predict(newcomer).shape
    ((1,), (30, 2))
    >>> run.predict(newcomer, client="north").shape, type(run.model("north")).__name__
    ((30, 2), 'ClientModel')
    """

    path: Path
    config: RunConfig
    result: Mapping[str, Any]
    _algorithm: Algorithm[Any]
    _trained: Trained
    _engine: SimulatedEngine
    _model: str | OwnModel

    def __repr__(self) -> str:
        known = self.result.get("known")
        score = "" if known is None else f", known {known:.1f}"
        return f"TrainedRun({self.config.algorithm}, {len(self.clients)} clients{score}, {str(self.path)!r})"

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients that trained."""
        return self._trained.form.client_names

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the columns of predictions are called."""
        return self._trained.form.class_names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input as clients have it; where a shift coloured grey images, of the coloured ones."""
        return self._trained.form.model_shape

    @property
    def input_type(self) -> torch.dtype:
        """The kind of number that inputs are."""
        form = self._trained.form
        return torch.uint8 if form.kind == "u" else torch.int64 if form.kind == "i" else torch.float32

    @property
    def scaling(self) -> Scaling:
        """What is done to inputs before models see them."""
        return Scaling.from_plain(self._trained.form.scaling)

    @property
    def clusters(self) -> dict[str, int]:
        """The cluster of every client that trained, −1 where it has none."""
        return dict(zip(self.clients, self._algorithm.assignment(self._trained.state).tolist(), strict=True))

    def assign(self, x: Any, y: Any = None, *, group: Any = None) -> Placement:
        """Where new clients belong, from their inputs alone, or from labels, too, where they have some.

        `x` are one client's inputs, or a mapping from names to inputs; `y` and `group` are then mappings, too.
        """
        placement = self._answer(self._meet(x, y, group))[1]
        if placement is None:
            raise FedfluxError(f"{self.config.algorithm} places nobody: it has no clusters; predict() answers")
        return placement

    def predict(
        self, x: Any, y: Any = None, *, client: str | int | None = None, group: Any = None
    ) -> "Probabilities | dict[str, Probabilities]":
        """Probabilities of the classes, or of each of several labels, a row a record: of a new client's, or with
        `client` of a known one's.

        With a mapping from names to inputs the answer is a mapping, too.
        """
        if client is not None:
            if isinstance(x, Mapping) or y is not None:
                raise FedfluxError("predict with client= takes one client's inputs, without labels")
            brought = self._meet(x, None, group)
            own = self._own(client)
            return self._probabilities(own, brought)[0]
        cohort = self._meet(x, y, group)
        found = self._probabilities(self._answer(cohort)[0], cohort)
        return dict(zip(_names(x), found, strict=True)) if isinstance(x, Mapping) else found[0]

    def answer(self, x: Any, y: Any = None, *, group: Any = None) -> tuple[Placement | None, dict[str, Probabilities]]:
        """Both at once: where new clients belong, None without clusters, and the predictions by name."""
        cohort = self._meet(x, y, group)
        predictor, placement = self._answer(cohort)
        found = self._probabilities(predictor, cohort)
        return placement, dict(zip(_names(x), found, strict=True))

    def model(self, client: str | int) -> ClientModel:
        """The model of a client that trained, fine-tuned where it was, as a module that takes raw inputs."""
        return self._module(self._own(client))

    def model_for(self, x: Any, y: Any = None, *, group: Any = None) -> ClientModel:
        """The model that a new client is given for these records."""
        return self._module(self._answer(self._meet(x, y, group))[0])

    def _meet(self, x: Any, y: Any, group: Any) -> Cohort:
        return meet(_newcomers(x, y, group), self._trained.form, self._algorithm.uses_truth)

    def _answer(self, cohort: Cohort) -> tuple[Predictor, Placement | None]:
        """What new clients are given; those with labels are taken in as if they came late."""
        labelled = [client for client in cohort if cohort.federation.size(client, "train")]
        if labelled and len(labelled) < len(cohort):
            raise FedfluxError("some of these clients have labels and some have none: ask for them apart")
        with self._computing():
            features = cohort.features("test")
            unlabelled = self._algorithm.unseen(self._trained.state, features, self._engine)
            if unlabelled is None:
                raise FedfluxError(f"{self.config.algorithm} has no answer for clients that did not train with it")
            if not labelled:
                self._warn_blind_features()
                return unlabelled, unlabelled.placement
            state = grown(self._trained.state, len(cohort.federation))
            state, _ = self._algorithm.complete(state, cohort, self._engine)
            own = self._algorithm.known(state, cohort, self._engine)
            if own is None:
                raise FedfluxError(f"{self.config.algorithm} has no answer for clients with labels")
            placed = None if unlabelled.placement is None else self._algorithm.assignment(state)[list(cohort.ids)]
            return self._engine.resolved(own, cohort.ids), None if placed is None else _certain(placed, unlabelled)

    def _warn_blind_features(self) -> None:
        """Say where features cannot tell the clusters apart."""
        if any("P(Y|X)" in pair["shift"] for pair in self.result.get("why") or ()):
            words = "clusters of this run differ in P(Y|X), which features cannot show"
            words = f"{words}: doubt the answer, or ask with labels, too: predict(x, y)"
            warnings.warn(words, stacklevel=4)

    def _own(self, client: str | int) -> Predictor:
        """What a client that trained answers with, from one stack."""
        predictor, clients = self._known(client)
        try:
            return self._engine.resolved(predictor, clients)
        except NothingToTellError as error:
            words = "models of its own stay with a deployed client, who alone can answer with them"
            raise FedfluxError(f"client '{self.clients[clients[0]]}' left no model here: {words}") from error

    def _known(self, client: str | int) -> tuple[Predictor, Sequence[int]]:
        number = self.number(client)
        cohort = known_clients([number], self._trained.form)
        own = self._algorithm.known(self._trained.state, cohort, self._engine)
        if own is None:
            raise FedfluxError(f"{self.config.algorithm} has no answer for clients that trained")
        if TUNED in self._trained.kept.clients:
            own = tuned(own, np.isin(cohort.ids, self._trained.kept.clients[TUNED]))
        return own, cohort.ids

    def number(self, client: str | int) -> int:
        """The number of a client that trained, by its name or its number."""
        if isinstance(client, str) and client in self.clients:
            return self.clients.index(client)
        if isinstance(client, int | np.integer) and 0 <= client < len(self.clients):
            return int(client)
        raise unknown("client", str(client), self.clients)

    def _probabilities(self, predictor: Predictor, cohort: Cohort) -> list[Probabilities]:
        with self._computing():
            return self._engine.predict(predictor, cohort.features("test"))

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Torch as it was set when the run computed: with other settings last digits differ."""
        with one_thread(), torch_settings(self._engine.device, self._engine.precision):
            yield

    @property
    def method(self) -> Algorithm[Any]:
        """The method that trained, with its settings."""
        return self._algorithm

    @property
    def state(self) -> Any:
        """What the method ended with."""
        return self._trained.state

    @property
    def form(self) -> Form:
        """What models must know of the data."""
        return self._trained.form

    def module(self, parameters: Parameters) -> ClientModel:
        """A model with these parameters, as a module that takes raw inputs."""
        form = self._trained.form
        model = build_model(self._model, form.model_shape, form.classes, self.config.seed, 0, form.integers)
        model.load_state_dict(parameters)
        return ClientModel([model], [1.0], self.scaling, form.channels, form.several_labels).eval()

    def _module(self, predictor: Predictor) -> ClientModel:
        if predictor.adaptation is not None:
            words = "fits its model to every batch that it answers"
            raise FedfluxError(f"{self.config.algorithm} {words}: no plain module does that; use predict()")
        form, models = self._trained.form, []
        used = np.flatnonzero(predictor.weights[0])
        for row in used:
            model = build_model(self._model, form.model_shape, form.classes, self.config.seed, 0, form.integers)
            model.load_state_dict(predictor.stack.row(int(row)))
            models.append(model)
        weights = predictor.weights[0, used].tolist()
        return ClientModel(models, weights, self.scaling, form.channels, form.several_labels).eval()


def load(path: str | PathLike[str], *, model: object = None) -> TrainedRun:
    """Open a finished run. `model` is the class, function or module it was trained with, where it has no import path.

    Every file is checked against the digest that the run wrote down: what was changed or cut off is refused by name.

    Examples
    --------
    >>> result = fedflux.run(dataset="digits", shift="px", clients=3, rounds=2, out="runs/three")
    >>> run = fedflux.load("runs/three")  # also in another process, on another day
    >>> run.clients, run.config.algorithm
    (('0', '1', '2'), 'flux')
    """
    folder = Path(path)
    begun = read_config(folder)
    if begun is None:
        raise FedfluxError(f"{folder} is no run folder, or its {CONFIG_FILE} is missing or damaged")
    if not has_digests(folder) or not (folder / RESULT_FILE).exists():
        raise _without_state(folder, begun)
    files = kept_files(folder, (CONFIG_FILE, RESULT_FILE, TRAINED_FILE, TRAINED_TENSORS))
    for name, digest in files.items():
        check_file(folder, name, digest)
    result = read_object(folder / RESULT_FILE)
    if result is None:
        raise FedfluxError(f"{folder / RESULT_FILE} is damaged; run it again")
    config = config_of(begun)
    own = _model(folder, begun, model)
    ran_on = begun["ran_on"]
    device = device_like(ran_on["device"])
    plain = make_algorithm(config.algorithm, config.settings())
    trained = load_trained(folder, plain.states, device, files)
    algorithm = make_algorithm(config.algorithm, config.settings(trained.form.true_clusters))
    view = known_clients([0], trained.form).federation
    kind = "stacked" if ran_on["engine"] == "stacked" else "loop"  # other engines compute as the loop does
    engine = make_engine(kind, own, view, config.seed, device, ran_on["precision"])
    _check_layers(own, engine, algorithm.models(trained.state))
    engine.restore(trained.kept)
    return TrainedRun(folder, config, result, algorithm, trained, engine, own)


def device_like(device: str) -> str:
    """The device that a run was made on, or what this machine has instead: another GPU, or the CPU."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not torch.cuda.is_available():
        return "cpu"
    return device if int(number or 0) < torch.cuda.device_count() else kind


def _check_layers(model: str | OwnModel, engine: SimulatedEngine, trained: Mapping[str, Stack]) -> None:
    """Refuse a model whose tensors are not those that were trained."""
    made = {name: tuple(tensor.shape[1:]) for name, tensor in engine.initial().tensors.items()}
    for stack in trained.values():
        kept = {name: tuple(tensor.shape[1:]) for name, tensor in stack.tensors.items()}
        differing = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
        if differing:
            name = model.name if isinstance(model, OwnModel) else model
            first = f"{differing[0]}: {made.get(differing[0])}, not {kept.get(differing[0])}"
            raise FedfluxError(f"model {name} is not the one that was trained ({first}): give the one that was")


def _without_state(folder: Path, begun: Mapping[str, Any]) -> FedfluxError:
    """Why there is nothing to load."""
    if not (folder / RESULT_FILE).exists():
        words = f"holds a run that is not finished, or {RESULT_FILE} is gone: fedflux run --out {folder} --resume"
        return FedfluxError(f"{folder} {words}")
    version = begun.get("ran_on", {}).get("fedflux", "0.1")
    kept = f"fedflux report and cluster read it, its models are in {MODEL_FILE}"
    return FedfluxError(
        f"{folder} was made by fedflux {version} and has no {TRAINED_FILE} to place clients with; {kept}"
    )


def _model(folder: Path, begun: Mapping[str, Any], handed_in: object) -> str | OwnModel:
    """The model that the run was trained with: by name, by where its code lies, or as it is handed in."""
    name, code = str(begun["model"]), begun.get("model_code") or {}
    if handed_in is None and code and code["path"] is None:
        words = f"which has no import path: load(…, model={name.rpartition('.')[2]})"
        raise FedfluxError(f"{folder} was trained with model {name}, {words}")
    if isinstance(handed_in, str) or (handed_in is None and code.get("path") in (None, name)):
        name = name if handed_in is None else str(handed_in)
        written = code_at(name)
        own: str | OwnModel = name
    else:
        own = OwnModel.of(import_named(code["path"], "model") if handed_in is None else handed_in)
        name, written = own.name, own.code
    if code and (written is None or written["source"] != code["source"]):
        warnings.warn(f"{folder}: model {name} is written otherwise than when the run was made", stacklevel=3)
    return own


def _newcomers(x: Any, y: Any, group: Any) -> list[Newcomer]:
    if not isinstance(x, Mapping):
        return [newcomer("new", x, y, group)]
    for what, told in (("y", y), ("group", group)):
        if told is not None and (not isinstance(told, Mapping) or told.keys() != x.keys()):
            raise FedfluxError(f"x is a mapping from names: give {what} as a mapping from the same names")
    return [
        newcomer(str(name), one, None if y is None else y[name], None if group is None else group[name])
        for name, one in x.items()
    ]


def _names(x: Any) -> list[str]:
    return [str(name) for name in x] if isinstance(x, Mapping) else ["new"]


def _certain(cluster: NDArray[np.int64], unlabelled: Predictor) -> Placement:
    """Placements of clients that were taken in by their labels."""
    found = unlabelled.placement
    assert found is not None
    posterior = np.eye(found.posterior.shape[1])[cluster]
    return replace(found, cluster=cluster, posterior=posterior, distances=None)
