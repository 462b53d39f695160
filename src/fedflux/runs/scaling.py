"""How a run's inputs are scaled: asked of clients where the data does not say it, and kept with the run."""

import warnings
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import add
from pathlib import Path

import numpy as np

from fedflux.algorithms import Settings
from fedflux.data import Cohort, Dataset, Federation
from fedflux.data.scaling import Scaling
from fedflux.descriptors.inputs import AskOctaves, AskSpread, AskSums, read_spread, read_sums
from fedflux.descriptors.privacy import spread
from fedflux.descriptors.privacy.accounting import Privacy
from fedflux.engine import Answers, Engine
from fedflux.errors import FedfluxError
from fedflux.files import read_object, write_json
from fedflux.runs.storage.attempts import SCALING, record_attempt
from fedflux.runs.storage.folder import SCALING_FILE

LARGE = 100.0
"""Inputs that reach so far from zero, unscaled, teach most models nothing."""


@dataclass(frozen=True)
class FoundScaling:
    """A scaling, and what it cost: how many bytes each of so many clients sent."""

    scaling: Scaling
    clients: int = 0
    bytes_each: int = 0


def shared_out(settings: Settings, federation: Federation) -> Settings:
    """The settings of a method; where inputs are standardised with privacy, a share of the budget is for that."""
    privacy = settings.descriptor.privacy
    if privacy is None or privacy.mechanism != "gaussian" or federation.dataset.scaling.known:
        return settings
    if federation.announced is None:  # elsewhere nobody knows yet who will come
        parts = (federation.groups(k, "train") for k in range(len(federation)))
        counts = [federation.stored(k, "train") for k in range(len(federation))]
        if privacy.unit == "group":
            counts = [len(np.unique(one)) for one in parts if one is not None]
        spread.check_enough(sum(counts), federation.input_shape[0], len(federation), privacy)
    return replace(settings, descriptor=replace(settings.descriptor, privacy=replace(privacy, scaling=True)))


def find_scaling(cohort: Cohort, engine: Engine, privacy: Privacy | None = None) -> FoundScaling:
    """The scaling of these clients' inputs; asked of them where the data does not declare it."""
    declared = cohort.federation.dataset.scaling
    if declared.known:
        return FoundScaling(declared)
    features = cohort.federation.input_shape[0]
    if privacy is not None and privacy.scaling:
        return _privately(features, cohort, engine, privacy)
    answers = _told(engine.ask(AskSpread(features, prod(cohort.federation.input_shape[1:])), cohort))
    whole = reduce(add, (read_spread(one) for one in answers.arrays))
    if len(whole.constant):
        listed = ", ".join(str(one) for one in whole.constant[:5].tolist())
        words = f"{len(whole.constant)} of {len(whole.count)} features never change ({listed}…): they teach nothing"
        warnings.warn(words.replace("…", "" if len(whole.constant) <= 5 else ", …"), stacklevel=2)
    return FoundScaling(whole.scaling(), len(answers), _bytes(answers))


def _privately(features: int, cohort: Cohort, engine: Engine, privacy: Privacy) -> FoundScaling:
    """From noisy sums: how large numbers get, and then their means and deviations within that."""
    octaves = _told(engine.ask(AskOctaves(features, privacy), cohort))
    told, counts = zip(*(read_sums(one) for one in octaves.arrays), strict=True)
    reach = spread.reach_of(told, sum(counts), privacy)
    sums = _told(engine.ask(AskSums(features, privacy, reach), cohort))
    told, counts = zip(*(read_sums(one) for one in sums.arrays), strict=True)
    scaling = spread.scaling_of(told, sum(counts), reach, privacy)
    return FoundScaling(scaling, len(octaves), _bytes(octaves) + _bytes(sums))


def _told(answers: Answers) -> Answers:
    if not len(answers):
        raise FedfluxError("no client told what its inputs are like, so they cannot be standardised: give a --scale")
    return answers


def _bytes(answers: Answers) -> int:
    return sum(array.nbytes for array in answers.arrays[0].values())


def kept_scaling(folder: Path, cohort: Cohort, engine: Engine, settings: Settings) -> FoundScaling:
    """The scaling that a run began with, or else the one it begins with, which is kept."""
    kept = read_object(folder / SCALING_FILE)
    if kept is not None:
        try:
            scaling = Scaling.from_plain(kept)
            return FoundScaling(scaling, int(kept["clients"]), int(kept["bytes_each"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FedfluxError(f"{folder / SCALING_FILE} is damaged: start the run anew, without --resume") from error
    privacy = settings.descriptor.privacy
    if privacy is not None and privacy.scaling:
        record_attempt(folder, SCALING)
    found = find_scaling(cohort, engine, privacy)
    told = {"clients": found.clients, "bytes_each": found.bytes_each}
    write_json(folder / SCALING_FILE, {**found.scaling.as_plain(), **told})
    return found


def warn_unscaled(dataset: Dataset) -> None:
    """Say where inputs look as if they should have been scaled and are not."""
    x, kind = dataset.train.x, dataset.scaling.kind
    if kind == "standardise" or x.dtype.kind != "f" or not len(x):
        return
    low, high = float(np.min(x)), float(np.max(x))
    if low == high:
        warnings.warn(f"{dataset.name}: every input is {low:g}: there is nothing to learn from", stacklevel=3)
    elif kind == "pixels" and (low < -1 or high > 2):
        words = f"inputs run from {low:g} to {high:g}, which are no pixels of 0 to 1: try --scale standardise"
        warnings.warn(f"{dataset.name}: {words}", stacklevel=3)
    elif max(-low, high) > LARGE:
        words = f"inputs run from {low:g} to {high:g} and reach the model as they are: try --scale standardise"
        warnings.warn(f"{dataset.name}: {words}", stacklevel=3)
