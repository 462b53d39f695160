"""fedflux: clustered federated learning under distribution shift.

The names in `__all__` are stable. All but `run` and `compare` are loaded when they are first asked for, so that
`import fedflux` is light: torch is loaded by whatever needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedflux.errors import FedfluxError
from fedflux.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pandas import DataFrame

    from fedflux.data.federation import Federation
    from fedflux.library.callbacks import EarlyStopping
    from fedflux.library.compare import Federations
    from fedflux.library.describer import Describer
    from fedflux.library.flux_clustering import FluxClustering
    from fedflux.library.result import Result
    from fedflux.library.trained import TrainedRun, load
    from fedflux.placement import Placement
    from fedflux.runs.metrics import Metrics
    from fedflux.runs.session import Listener, Progress

__all__ = [
    "Describer",
    "EarlyStopping",
    "Federation",
    "FedfluxError",
    "FluxClustering",
    "Placement",
    "Progress",
    "Result",
    "TrainedRun",
    "__version__",
    "compare",
    "load",
    "run",
]

_HOMES = {
    "Describer": "fedflux.library.describer",
    "EarlyStopping": "fedflux.library.callbacks",
    "Federation": "fedflux.data.federation",
    "FluxClustering": "fedflux.library.flux_clustering",
    "Placement": "fedflux.placement",
    "Progress": "fedflux.runs.session",
    "Result": "fedflux.library.result",
    "TrainedRun": "fedflux.library.trained",
    "load": "fedflux.library.trained",
}
"""The module of every name that is loaded on demand; a type checker reads the imports above."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedflux' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def run(
    federation: "Federation | None" = None,
    *,
    model: object = None,
    algorithm: object = None,
    clusterer: object = None,
    on_round: "Listener | Sequence[Listener]" = (),
    metrics: "Metrics | None" = None,
    progress: bool | None = None,
    out: "str | Path | None" = None,
    **options: Any,
) -> "Result":
    """Train one algorithm on one federation, and evaluate it.

    Without a federation the dataset is named, as on the command line.

    Parameters
    ----------
    federation : Federation, optional
        Your own clients.
    model : optional
        A name, an `nn.Module`, or a class or function that makes one from what it takes of `input_shape` and `classes`.
    algorithm, clusterer : optional
        A name, `package.module:Class`, a class, or an object.
    on_round : callable or list of them, optional
        Called with a `Progress` after every round; where one answers True, training ends there.
    metrics : mapping, optional
        Scores of your own by name: functions of a client's labels and the probabilities that it answers with.
    progress : bool, optional
        Whether to show a bar; by default in terminals and notebooks.
    out : path, optional
        The folder of the run: with `resume=True` it goes on after its last whole round. Without it nothing is written
        but temporary files, which go with the result.
    **options
        The flags of `fedflux run`, with `_` for `-`.

    Returns
    -------
    Result
        The figures by name, and tables, a picture, a report, the trained models.

    Examples
    --------
    >>> result = fedflux.run(dataset="digits", shift="px", level=1, clients=4, rounds=5)
    >>> result.known > 60, result["clusters_found"] <= 4
    (True, True)
    """
    from fedflux.library.run import run

    return run(
        federation,
        model=model,
        algorithm=algorithm,
        clusterer=clusterer,
        on_round=on_round,
        metrics=metrics,
        progress=progress,
        out=out,
        **options,
    )


def compare(
    federation: "Federations | None" = None,
    *,
    algorithms: "Sequence[object]" = ("fedavg", "flux"),
    shifts: "Sequence[str] | str | None" = None,
    levels: "Sequence[int] | str | int | None" = None,
    seeds: "Sequence[int] | str | int | None" = None,
    model: object = None,
    clusterer: object = None,
    reference: str | None = None,
    jobs: int = 1,
    progress: bool | None = None,
    out: "str | Path | None" = None,
    **options: Any,
) -> "DataFrame":
    """Compare methods: a pandas table with a line for each algorithm, dataset, shift and level, mean ± deviation.

    Without a federation the dataset is named, and shifted in every way asked for. The table's `attrs` hold the figures
    of every seed and the paired differences to the reference.

    Parameters
    ----------
    federation : Federation or mapping, optional
        One federation, or a mapping from names to several.
    algorithms : sequence
        Names, classes or objects, as `run` takes one.
    shifts, levels, seeds : sequence or str, optional
        Lists, or text as on the command line: `"px,py"`, `"1-8"`, `"42-46"`.
    model, clusterer : optional
        As in `run`, the same for all.
    reference : str, optional
        The algorithm that the others are held beside: by default FedAvg, or else the first.
    jobs : int
        Processes that run at once; more than one takes names alone, and a script with a main guard.
    progress : bool, optional
        Whether to show a bar; by default in terminals and notebooks.
    out : path, optional
        The folder of all runs and their store: what is finished there is not run again, what was stopped goes on.
        Without it nothing is written but temporary files.
    **options
        The flags of `fedflux run`, with `_` for `-`.

    Returns
    -------
    pandas.DataFrame

    Examples
    --------
    >>> table = fedflux.compare(dataset="digits", shifts="px", levels="1", seeds="42,43", clients=3, rounds=2)
    >>> table["algorithm"].tolist(), table["seeds"].tolist()
    (['fedavg', 'flux'], [[42, 43], [42, 43]])
    """
    from fedflux.library.compare import compare

    return compare(
        federation,
        algorithms=algorithms,
        shifts=shifts,
        levels=levels,
        seeds=seeds,
        model=model,
        clusterer=clusterer,
        reference=reference,
        jobs=jobs,
        progress=progress,
        out=out,
        **options,
    )
