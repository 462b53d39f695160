"""fedflux: clustered federated learning under distribution shift."""

from typing import Any

__version__ = "0.2.0.dev0"
__all__ = ["FedfluxError", "__version__", "run"]

from fedflux.errors import FedfluxError


def run(**options: Any) -> dict[str, Any]:
    """Train one algorithm on one federation; options are the flags of `fedflux run`, the answer its JSON.

    >>> fedflux.run(dataset="digits", shift="px", level=3, algorithm="flux")["known"]  # doctest: +SKIP
    """
    from fedflux.runs.config import make_config, warn_unread
    from fedflux.runs.runner import run_config

    config = make_config(options)
    warn_unread(config)
    return run_config(config)
