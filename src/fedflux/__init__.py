"""fedflux: clustered federated learning under distribution shift.

The names in `__all__` are stable. All but `run` are loaded when they are first asked for, so that `import fedflux` is
light: torch is loaded by whatever needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedflux.errors import FedfluxError

if TYPE_CHECKING:
    from fedflux.data.federation import Federation
    from fedflux.placement import Placement

__version__ = "0.2.0.dev0"
__all__ = ["Federation", "FedfluxError", "Placement", "__version__", "run"]

_HOMES = {
    "Federation": "fedflux.data.federation",
    "Placement": "fedflux.placement",
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


def run(federation: "Federation | None" = None, *, model: object = None, **options: Any) -> dict[str, Any]:
    """Train one algorithm on one federation; options are the flags of `fedflux run`, the answer its JSON.

    Without a federation the dataset is named, as on the command line. `model` is a name, an `nn.Module`, or a class or
    function that makes one from what it takes of `input_shape` and `classes`.

    >>> fedflux.run(dataset="digits", shift="px", level=3, algorithm="flux")["known"]  # doctest: +SKIP
    """
    from fedflux.library.run import run

    return run(federation, model=model, **options)
