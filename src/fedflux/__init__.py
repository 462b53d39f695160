"""fedflux: clustered federated learning under distribution shift.

The names in `__all__` are stable. All but `run` are loaded when they are first asked for, so that `import fedflux` is
light: torch is loaded by whatever needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedflux.errors import FedfluxError
from fedflux.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedflux.data.federation import Federation
    from fedflux.library.callbacks import EarlyStopping
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

    Without a federation the dataset is named, as on the command line; `options` are the flags of `fedflux run`.

    model
        A name, an `nn.Module`, or a class or function that makes one from what it takes of `input_shape` and `classes`.
    algorithm, clusterer
        A name, `package.module:Class`, a class, or an object.
    on_round
        Called with a `Progress` after every round, or several such; where one answers True, training ends there.
    metrics
        Scores of your own by name: functions of a client's labels and the probabilities that it answers with.
    progress
        Whether to show a bar; by default in terminals and notebooks.
    out
        The folder of the run: with `resume=True` it goes on after its last whole round. Without it nothing is written
        but temporary files, which go with the result.

    >>> fedflux.run(dataset="digits", shift="px", level=3)["known"]  # doctest: +SKIP
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
