"""What nodes send, read and checked: whatever cannot be is a fault, in words, and nothing of it is used."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedflux.data import Cohort, Split
from fedflux.data.holding import About
from fedflux.deploy.flower.records import ANSWER, MODELS, about, to_records, unpack, unpack_model, version
from fedflux.deploy.node.arrays import model_arrays, parameters
from fedflux.engine.base import Preparation, Query
from fedflux.engine.stack import Parameters
from fedflux.operations import Arrays

T = TypeVar("T")
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class FaultError(Exception):
    """What is wrong with an answer, in words."""


def answer_of(content: Any, request: Any, read: Callable[[Any], T]) -> T:
    """What an answer to a request says."""
    try:
        told, wanted = about(content).get("base"), version(to_records(request))
        if told != wanted:
            raise FaultError(f"its answer is for version {str(told)[:8]}, not {wanted[:8]}")
        return read(content)
    except FaultError:
        raise
    except Exception as error:  # what a stranger sends may fail in any way
        raise FaultError(f"its answer cannot be read: {type(error).__name__}") from error


def known_of(cohort: Cohort, client: int) -> About:
    """What the server knows of a client when it checks an answer."""
    federation = cohort.federation
    sizes = {split: federation.size(client, split) for split in SPLITS}
    return About(sizes, federation.classes, federation.most is None and federation.part is None)


def arrays_of(content: Any, operation: Query | Preparation, known: About, record: str = ANSWER) -> Arrays:
    """An answer's arrays, as the operation's own check lets them pass."""
    arrays = unpack(content.get(record, {}))
    fault = operation.fault(arrays, known)
    if fault is not None:
        raise FaultError(fault)
    return arrays


def models_of(content: Any, count: int, examples: int, sent: Mapping[str, Parameters]) -> list[Parameters]:
    """Trained models: as many as are to come back, made on as many examples as were declared, each like those that
    were sent; one that did not change is named by its digest.
    """
    told = about(content)
    if told.get("examples") != examples or isinstance(told["examples"], bool):
        raise FaultError(f"it counts {told.get('examples')} examples, but said {examples:,} before")
    same = [str(name) for name in told.get("same", [""] * count)]
    changed = [name for name in content if name.startswith(f"{MODELS}/")]
    if len(same) != count or len(changed) != same.count(""):
        raise FaultError(f"its answer holds {len(changed)} models, where {same.count('')} are missing")
    wanted = model_arrays(next(iter(sent.values())))
    rows = iter(f"{MODELS}/{row}" for row in range(len(changed)))
    return [sent[name] if name else _checked(unpack_model(content[next(rows)]), wanted) for name in same]


def _checked(arrays: Arrays, wanted: Arrays) -> Parameters:
    """A model with the names, shapes and types of another, and finite."""
    odd = sorted(arrays.keys() ^ wanted.keys())
    if odd:
        raise FaultError(f"its update is of another model: {', '.join(odd[:3])} {'is' if len(odd) == 1 else 'are'} odd")
    for name, array in arrays.items():
        if array.shape != wanted[name].shape:
            raise FaultError(f"its update has a wrong shape: {name} is {array.shape}, not {wanted[name].shape}")
        if array.dtype != wanted[name].dtype:
            raise FaultError(f"its update has a wrong type: {name} is {array.dtype}, not {wanted[name].dtype}")
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array.astype(np.float64)).all():
            raise FaultError(f"its update holds NaN or infinite numbers in {name}")
    return parameters({name: arrays[name] for name in wanted})


def scores_of(content: Any, count: int, empty: bool, several: bool = False) -> NDArray[np.float64]:
    """One score for each predictor; NaN where the client declared no such examples, and only there, unless targets are
    `several` labels, which may be all alike: then no predictor has a score.
    """
    found = unpack(content[ANSWER])["score"].astype(np.float64)
    right = np.isnan(found) if empty else (found >= 0) & (found <= 1)
    right |= bool(several and np.isnan(found).all())
    if found.shape != (count,) or not right.all():
        raise FaultError(f"its score {found.tolist()} is outside 0 to 1")
    return found
