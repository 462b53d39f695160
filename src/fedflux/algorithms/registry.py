"""Methods by name: ours, those of installed packages, and any class that is named by where it is.

A package offers a method by an entry point of the group `fedflux.algorithms`; `package.module:Class` names one that is
not installed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from fedflux.algorithms.base import OF_STEPS, Algorithm, Settings
from fedflux.data.tasks import Task
from fedflux.errors import FedfluxError, unknown
from fedflux.plugins import find, hand_in, offered, path_of, source_digest

C = TypeVar("C", bound=type)
GROUP = "fedflux.algorithms"

NEEDED = (
    *("make", "revision", "states", "reads", "own_rule", "uses_truth", "init", "round", "complete"),
    *("known", "unseen", "assignment", "described", "models", "summary"),
)
"""What a method must have (`Algorithm` says what each is for)."""
ALGORITHMS: dict[str, type[Algorithm[Any]]] = {}
"""The methods that come with fedflux."""
PAPER_BASELINES: dict[str, Callable[[Settings], Algorithm[Any]]] = {}
"""What the paper's comparison ran under some of their names."""


def algorithm(name: str) -> Callable[[C], C]:
    """Register a class under a name."""

    def register(kind: C) -> C:
        ALGORITHMS[name] = kind
        return kind

    return register


def find_algorithm(name: str) -> type[Algorithm[Any]]:
    """The class of that name."""
    found = ALGORITHMS.get(name) or find(GROUP, name, "algorithm")
    if found is None:
        raise unknown("algorithm", name, ALGORITHMS)
    missing = [attribute for attribute in NEEDED if not hasattr(found, attribute)]
    if missing:
        raise FedfluxError(f"algorithm '{name}' has no {', '.join(missing)}: see docs/own-method.md")
    kind: type[Algorithm[Any]] = found
    return kind


@dataclass(frozen=True)
class _Given:
    """A method that was handed in as an object: its settings are filled in, the rest of it stays."""

    instance: Any

    def make(self, settings: Settings) -> Algorithm[Any]:
        """The same method with these settings."""
        made: Algorithm[Any] = replace(self.instance, settings=settings)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.instance, name)


def name_of(method: object) -> str:
    """The name under which a run finds a method: its own, or that of a class or object that is handed in."""
    if isinstance(method, str):
        return method
    if isinstance(method, type):
        name = next((name for name, kind in ALGORITHMS.items() if kind is method), path_of(method))
        return name if is_ours(name) else hand_in(GROUP, name, method)
    if not is_dataclass(method) or "settings" not in {one.name for one in fields(method)}:
        kind = type(method).__name__
        raise FedfluxError(f"algorithm: {kind} is no method; give a name, a class, or a dataclass with settings")
    own = _own_fields(method)
    words = ", ".join(f"{key}={value!r}" for key, value in own.items())
    return hand_in(GROUP, f"{path_of(type(method))}{f'({words})' if words else ''}", _Given(method))


def _own_fields(method: Any) -> dict[str, Any]:
    return {one.name: getattr(method, one.name) for one in fields(method) if one.name != "settings"}


def is_offered(name: str) -> bool:
    """Whether a package, or the place that the name gives, has a method of that name."""
    return ":" in name or name in offered(GROUP)


def is_ours(name: str) -> bool:
    """Whether a method comes with fedflux."""
    return name in ALGORITHMS


def algorithm_digest(name: str) -> str | None:
    """The digest of the source of a method that is not ours: its numbers follow from it."""
    if is_ours(name):
        return None
    found: Any = find_algorithm(name)
    return source_digest(type(found.instance) if isinstance(found, _Given) else found)


def whole_name(name: str) -> str:
    """One name for a method however it was named: by an entry point, by where it is, or handed in."""
    if is_ours(name):
        return name
    found: Any = find_algorithm(name)
    return name_of(found.instance if isinstance(found, _Given) else found)


def runs_paper_baseline(name: str, settings_ask: bool) -> bool:
    """Whether another method runs under this name, as in the paper's comparison."""
    return settings_ask and name in PAPER_BASELINES


def make_algorithm(name: str, settings: Settings) -> Algorithm[Any]:
    """The method of that name."""
    if runs_paper_baseline(name, settings.paper_baselines):
        return PAPER_BASELINES[name](settings)
    return find_algorithm(name).make(settings)


def check_task(name: str, settings: Settings, task: Task) -> None:
    """Refuse data with several labels a record for methods that take labels for classes."""
    if not task.several or (_able(find_algorithm(name)) and not runs_paper_baseline(name, settings.paper_baselines)):
        return
    words = f"--algorithm {name} takes one label a record, and these records have several"
    raise FedfluxError(f"{words}: choose {', '.join(one for one, kind in ALGORITHMS.items() if _able(kind))}")


def _able(kind: type[Algorithm[Any]]) -> bool:
    return bool(getattr(kind, "several_labels", False))


class _Reads(Mapping[str, frozenset[str]]):
    """What each method reads, asked for by name."""

    def __getitem__(self, name: str) -> frozenset[str]:
        method: Any = find_algorithm(name)
        reads: frozenset[str] = method.reads
        return reads | (OF_STEPS - getattr(method, "fixes", frozenset()))

    def __iter__(self) -> Any:
        return iter(ALGORITHMS)

    def __len__(self) -> int:
        return len(ALGORITHMS)


READS: Mapping[str, frozenset[str]] = _Reads()
