"""One run from Python, on a federation that is handed in or on a dataset by its name."""

from typing import Any

from fedflux.data import Federation
from fedflux.models import OwnModel
from fedflux.runs.config import make_config, warn_unread
from fedflux.runs.runner import run_config


def run(federation: Federation | None = None, *, model: object = None, **options: Any) -> dict[str, Any]:
    """Train one algorithm on one federation; see `fedflux.run`."""
    own = None if model is None or isinstance(model, str) else OwnModel.of(model)
    name = model if own is None else own.name
    dataset = None if federation is None else federation.dataset
    if federation is not None:
        options = {"dataset": "npz", **options}
    config = make_config({**options, "model": name})
    warn_unread(config, stacklevel=4)
    return run_config(config, None, dataset, model=own)
