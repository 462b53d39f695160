"""One run from Python, on a federation that is handed in or on a dataset by its name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
from tqdm.auto import tqdm

from fedflux.algorithms.registry import name_of
from fedflux.clustering import name_of_clusterer
from fedflux.data import Dataset, Federation
from fedflux.data.shifts.patterns import Pattern
from fedflux.data.sources import OWN
from fedflux.errors import FedfluxError
from fedflux.library.result import Result
from fedflux.models import OwnModel
from fedflux.runs.config import make_config, warn_unread
from fedflux.runs.metrics import Metrics
from fedflux.runs.runner import run_config
from fedflux.runs.session import Listener, Progress


def run(
    federation: Federation | None = None,
    *,
    model: object = None,
    algorithm: object = None,
    clusterer: object = None,
    on_round: Listener | Sequence[Listener] = (),
    metrics: Metrics | None = None,
    progress: bool | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Result:
    """Train one algorithm on one federation; see `fedflux.run`."""
    listeners = _checked(federation, on_round, metrics)
    own = None if model is None or isinstance(model, str) else OwnModel.of(model)
    requested = {
        **({} if federation is None else _settings_of(federation)),
        **options,
        "model": model if own is None else own.name,
        "algorithm": None if algorithm is None else name_of(algorithm),
        "clusterer": None if clusterer is None else name_of_clusterer(clusterer),
    }
    with _place(out) as (folder, passing):
        config = make_config({**({"store": "none"} if passing else {}), **requested, "out": str(folder)})
        warn_unread(config, stacklevel=4)
        dataset = None if federation is None else _dataset_of(federation)
        with bar_of(config.rounds, config.algorithm, progress) as show:
            found = run_config(config, _all_of([show, *listeners]), dataset, model=own, metrics=metrics)
        result = Result(found, folder, None if own is None else model)
        if passing:
            finalize(result, rmtree, folder.parent, ignore_errors=True)
    return result


@contextmanager
def _place(out: str | Path | None) -> Iterator[tuple[Path, bool]]:
    """Where the run lies, and whether it goes with its result; where there is none, it goes at once."""
    if out is not None:
        yield Path(out), False
        return
    folder = Path(mkdtemp(prefix="fedflux-"))
    try:
        yield folder / "run", True
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise


def _checked(federation: object, on_round: Any, metrics: object) -> list[Listener]:
    """Whoever listens, once everything that was handed in is of a kind that a run takes."""
    if federation is not None:
        check_federation(federation)
    if metrics is not None and not (isinstance(metrics, Mapping) and all(map(callable, metrics.values()))):
        raise FedfluxError("metrics: give functions by name, as in {'f1': f1}")
    listeners: list[Any] = (
        [on_round] if callable(on_round) else [*on_round] if isinstance(on_round, Iterable) else [None]
    )
    if not all(map(callable, listeners)):
        raise FedfluxError("on_round: give a function, or a list of functions")
    return listeners


def check_federation(told: object) -> None:
    """Refuse what is none."""
    if not isinstance(told, Federation):
        kind = type(told).__name__
        raise FedfluxError(f"{kind} is no federation: Federation.from_clients(…) makes one of clients' records")


def _settings_of(federation: Federation) -> dict[str, Any]:
    """The name of the source whose settings fit people's own data, in a file or not; as many clients as it has."""
    name = federation.dataset.name
    count = {} if federation.names is not None else {"clients": len(federation)}
    return {"dataset": name if name in OWN else "npz", **count}


def _dataset_of(federation: Federation) -> Dataset:
    """All that a federation of people's own data is; it is dealt again, since the run's seed and shift decide how."""
    plain = (pattern == Pattern() for pattern in federation.patterns)
    if federation is not federation.origin or not all(plain):
        words = "its clients are simulated or a part of others: name the dataset and the shift instead"
        raise FedfluxError(f"this federation cannot be run as it is: {words}, as in run(dataset=…, shift=…)")
    return federation.dataset


def _all_of(listeners: Sequence[Listener]) -> Listener:
    """Everybody hears of every round; one that has seen enough ends the run."""

    def tell(progress: Progress) -> bool:
        answers = [listener(progress) for listener in listeners]  # each is told, whatever another says
        return any(isinstance(one, bool | np.bool_) and bool(one) for one in answers)

    return tell


@contextmanager
def bar_of(rounds: int, what: str, wanted: bool | None) -> Iterator[Callable[[Progress], None]]:
    """A progress bar: in a terminal or a notebook, unless `wanted` says always or never."""
    with tqdm(
        total=rounds, desc=what, unit="round", disable=None if wanted is None else not wanted, leave=False
    ) as bar:

        def show(progress: Progress) -> None:
            bar.update(progress.round - bar.n)
            clusters = "cluster" if progress.clusters == 1 else "clusters"
            bar.set_postfix_str(f"{progress.accuracy:.1f} %, {progress.clusters} {clusters}")

        yield show
