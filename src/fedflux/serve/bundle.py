"""A bundle, opened: it describes records, places clients and predicts, with numpy and onnxruntime alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import loads
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from scipy.special import expit, softmax

from fedflux.clustering.placement.misfit import UsualMisfit
from fedflux.clustering.placement.mixtures import ClassMixtures
from fedflux.clustering.placement.offer import Offer, Scores
from fedflux.clustering.placement.posterior import Temperature
from fedflux.errors import FedfluxError, unknown
from fedflux.serve.container import Files, read_files
from fedflux.serve.graphs import Graph
from fedflux.serve.inputs import InputForm

CARD, MOMENTS, EXTRACTOR, DENSITIES = "bundle.json", "placement.safetensors", "extractor", "densities"
MIXTURES = ("centre", "whitening", "mean", "spread", "share", "shape", "error", "offset", "step")
Array = NDArray[np.float64]
Probabilities = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster on offer."""

    number: int
    """As the run numbered it."""
    name: str
    members: int
    calibrated: bool
    """Whether its clients can be called novel: of a cluster of one, nobody knows what is usual."""


@dataclass(frozen=True, eq=False)
class Assigned:
    """Where one client belongs, and how much of each model is in its answer."""

    cluster: Cluster
    posterior: Array
    """Over the clusters on offer."""
    score: float
    """p-value of data like its own, were it like some cluster's."""
    novel: bool
    weights: Mapping[str, float]
    """By the model's id."""

    @property
    def confidence(self) -> float:
        """The probability of the cluster."""
        return float(self.posterior.max())


@dataclass(frozen=True, eq=False)
class Answering:
    """How placements become mixtures of models."""

    models: tuple[str, ...]
    parts: Array
    """(clusters, models): what each model has in the answer to a cluster's clients, without the general one."""
    general: int | None
    """The general model's place, where a client is given the more of it the less sure its placement is."""
    share: float
    """What a client is given of it whose placement is certain."""
    usual: Array
    """(clusters,): what answers whoever nothing is known of."""
    novel_to_usual: bool

    def weights(self, posterior: Array, confidence: float, novel: bool) -> dict[str, float]:
        """The mixture for one client."""
        placed = self.usual if novel and self.novel_to_usual else posterior
        found = placed @ self.parts
        if self.general is not None:
            share = 1 - (1 - self.share) * confidence
            found = found * (1 - share)
            found[self.general] += share
        return {name: float(weight) for name, weight in zip(self.models, found, strict=True) if weight > 0}


@dataclass(frozen=True, eq=False)
class Bundle:
    """What `fedflux export RUN` made, checked and ready."""

    files: Files
    card: Mapping[str, Any]
    form: InputForm
    clusters: tuple[Cluster, ...]
    class_names: tuple[str, ...]
    several_labels: bool
    """Whether a record may have several of the classes, or none."""
    offer: Offer
    answering: Answering
    level: float
    extractor: Graph
    models: Mapping[str, Graph]

    @property
    def id(self) -> str:
        """The digest of everything."""
        return self.files.id

    def describe(self, x: Any) -> Array:
        """Reduced latents of records."""
        return finite(self.extractor(self.form.prepared(x)).astype(np.float64))

    def scores(self, x: Any, worth: float | None = None) -> Scores:
        """What records say of the clusters; `worth` is how many different ones they count as, where not all do."""
        latents = self.describe(x)
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.offer.scores(latents, float(len(latents)) if worth is None else worth)
        finite(np.array([*found.likelihood, found.misfit.mean, found.misfit.variance]))
        return found

    def assign(self, scores: Scores) -> Assigned:
        """Where a client with these scores belongs."""
        raw, score = self.offer.answer(scores)
        posterior = raw.astype(np.float32).astype(np.float64)  # as the answer of a client travels
        posterior /= posterior.sum()
        cluster = self.clusters[int(posterior.argmax())]
        score = score if cluster.calibrated else 1.0
        novel = score < self.level
        weights = self.answering.weights(posterior, float(posterior.max()), novel)
        return Assigned(cluster, posterior, score, novel, weights)

    def predict(self, x: Any, weights: Mapping[str, float]) -> Probabilities:
        """Probabilities of the classes, a row a record, from a mixture of models."""
        prepared = self.form.prepared(x)
        return self.mixed((weight, self.model(name)(prepared)) for name, weight in weights.items())

    def mixed(self, answers: Iterable[tuple[float, Probabilities]]) -> Probabilities:
        """Σ w softmax(scores), of pairs of weight and scores; Σ w sigmoid(scores) where there are several labels."""
        total: Any = np.float32(0)
        for weight, scores in answers:
            finite(scores)
            total = total + np.float32(weight) * (expit(scores) if self.several_labels else softmax(scores, axis=1))
        return np.asarray(total, dtype=np.float32)

    def model(self, name: str) -> Graph:
        """A model by its id."""
        if name not in self.models:
            raise unknown("model", name, self.models)
        return self.models[name]

    def of_member(self, cluster: int) -> dict[str, float]:
        """The mixture that a member of a cluster, by its place, is answered with."""
        posterior = np.eye(len(self.clusters))[cluster]
        return self.answering.weights(posterior, 1.0, False)


def finite(values: NDArray[Any]) -> NDArray[Any]:
    """What a graph found, where it found numbers: of records that are far too large it finds none."""
    if not np.isfinite(values).all():
        raise FedfluxError("some numbers are too large for the models; scale the data as in training")
    return values


def open_bundle(path: str | PathLike[str], trusted: Any = None, models: bool = True) -> Bundle:
    """Open a bundle, a folder or a zip. With a `trusted` public key, only if its owner signed it."""
    return build_bundle(read_files(Path(path), trusted), str(path), models)


def build_bundle(files: Files, where: str, models: bool = True) -> Bundle:
    """A bundle from files whose digests are right; `models=False` leaves their graphs for later."""
    try:
        card = loads(files[CARD])
        form = InputForm.from_plain(**card["input"])
        tensors = load_tensors(files[MOMENTS])
        clusters = tuple(Cluster(**one) for one in card["clusters"])
        answering = _answering(card["answering"], card["models"], tensors)
        offer = _offer(card["placement"], tensors)
        class_names, level = tuple(map(str, card["class_names"])), float(card["placement"]["level"])
        several = bool(card["several_labels"])
        _check(len(clusters), len(class_names), offer, answering)
    except SafetensorError as error:
        raise FedfluxError(f"{where}: {MOMENTS} is no safetensors file; do not trust this bundle") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, FedfluxError):
            raise
        words = f"{CARD} or {MOMENTS} does not hold what a bundle holds ({type(error).__name__}: {error})"
        raise FedfluxError(f"{where}: {words}; make it again") from error
    _check_weights(files, where)
    extractor = Graph.of(files[f"{EXTRACTOR}.onnx"], where, EXTRACTOR)
    names = answering.models if models else ()
    graphs = {name: Graph.of(files[f"models/{name}.onnx"], where, name) for name in names}
    return Bundle(files, card, form, clusters, class_names, several, offer, answering, level, extractor, graphs)


def _answering(told: Mapping[str, Any], models: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any]) -> Answering:
    names = tuple(str(one["id"]) for one in models)
    general = None if told["general"] is None else names.index(told["general"])
    parts, usual = (tensors[name].astype(np.float64) for name in ("parts", "usual"))
    return Answering(names, parts, general, float(told["share"]), usual, bool(told["novel_to_usual"]))


def _offer(told: Mapping[str, Any], tensors: Mapping[str, Any]) -> Offer:
    mixtures = ClassMixtures(**{name: tensors[name] for name in MIXTURES})
    return Offer(mixtures, tensors["prior"], Temperature(**told["temperature"]), UsualMisfit(**told["usual"]))


def _check(clusters: int, classes: int, offer: Offer, answering: Answering) -> None:
    shapes = (offer.prior.shape, answering.usual.shape, (len(offer.mixtures),))
    right = clusters > 0 and classes > 0 and answering.parts.shape == (clusters, len(answering.models))
    if not right or any(shape != (clusters,) for shape in shapes):
        raise ValueError(f"{clusters} clusters, but arrays of {shapes} and {answering.parts.shape}")


def _check_weights(files: Files, where: str) -> None:
    """Every file of weights is one, and no other program in its place."""
    for name, content in files.contents.items():
        if name.endswith(".safetensors") and name != MOMENTS:
            try:
                load_tensors(content)
            except (SafetensorError, KeyError) as error:  # KeyError: a type of number that numpy has not
                raise FedfluxError(f"{where}: {name} is no safetensors file; do not trust this bundle") from error
