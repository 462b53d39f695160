"""How a run's inputs are scaled: asked of clients where the data does not say it, and kept with the run."""

import warnings
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np

from fedflux.data import Cohort, Dataset
from fedflux.data.scaling import Scaling
from fedflux.descriptors.inputs import AskSpread, read_spread
from fedflux.engine import Engine
from fedflux.errors import FedfluxError
from fedflux.files import read_object, write_json
from fedflux.runs.storage.folder import SCALING_FILE

LARGE = 100.0
"""Inputs that reach so far from zero, unscaled, teach most models nothing."""


@dataclass(frozen=True)
class FoundScaling:
    """A scaling, and what it cost: how many bytes each of so many clients sent."""

    scaling: Scaling
    clients: int = 0
    bytes_each: int = 0


def find_scaling(cohort: Cohort, engine: Engine) -> FoundScaling:
    """The scaling of these clients' inputs; asked of them where the data does not declare it."""
    declared = cohort.federation.dataset.scaling
    if declared.known:
        return FoundScaling(declared)
    answers = engine.ask(AskSpread(cohort.federation.input_shape[0]), cohort)
    if not len(answers):
        raise FedfluxError("no client told what its inputs are like, so they cannot be standardised: give a --scale")
    whole = reduce(add, (read_spread(one) for one in answers.arrays))
    if len(whole.constant):
        listed = ", ".join(str(one) for one in whole.constant[:5].tolist())
        words = f"{len(whole.constant)} of {len(whole.count)} features never change ({listed}…): they teach nothing"
        warnings.warn(words.replace("…", "" if len(whole.constant) <= 5 else ", …"), stacklevel=2)
    return FoundScaling(whole.scaling(), len(answers), sum(array.nbytes for array in answers.arrays[0].values()))


def kept_scaling(folder: Path, cohort: Cohort, engine: Engine) -> FoundScaling:
    """The scaling that a run began with, or else the one it begins with, which is kept."""
    kept = read_object(folder / SCALING_FILE)
    if kept is not None:
        try:
            scaling = Scaling.from_plain(kept)
            return FoundScaling(scaling, int(kept["clients"]), int(kept["bytes_each"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FedfluxError(f"{folder / SCALING_FILE} is damaged: start the run anew, without --resume") from error
    found = find_scaling(cohort, engine)
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
