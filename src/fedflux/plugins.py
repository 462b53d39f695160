"""Things of other people's, found by name: entry points of installed packages, or `package.module:Name`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from inspect import getsourcefile
from pathlib import Path
from re import sub
from types import CodeType
from typing import Any

from fedflux.errors import FedfluxError

_HANDED_IN: dict[tuple[str, str], Any] = {}
"""Classes and objects of a caller's in this process, by what they are and how they are called."""


def hand_in(group: str, name: str, thing: Any) -> str:
    """Have a class or object of the caller's found under a name, as long as this process lives."""
    _HANDED_IN[group, name] = thing
    return name


def path_of(kind: Any) -> str:
    """How a class or function is named by where it is: other processes find it so where they can import it."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find(group: str, name: str, what: str) -> Any:
    """What a name stands for, None where nobody offers it."""
    if (group, name) in _HANDED_IN:
        return _HANDED_IN[group, name]
    if ":" in name:
        return import_named(name, what)
    offered = [one for one in entry_points(group=group) if one.name == name]
    if not offered:
        return None
    try:
        return offered[0].load()
    except Exception as error:  # other people's code may fail in any way
        raise FedfluxError(f"{what} '{name}' of {offered[0].value} cannot be loaded: {in_words(error)}") from error


def offered(group: str) -> list[str]:
    """The names that installed packages offer."""
    return sorted({one.name for one in entry_points(group=group)})


def import_named(name: str, what: str) -> Any:
    """The object that `package.module:Name` names; the current folder is looked in, too, while it is imported."""
    module_name, _, attribute = name.partition(":")
    try:
        with current_folder_importable():
            return getattr(import_module(module_name), attribute)
    except Exception as error:
        raise FedfluxError(f"{what} '{name}' is not package.module:Name: {in_words(error)}") from error


@contextmanager
def current_folder_importable() -> Iterator[None]:
    """The current folder on the search path, for a while."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def source_digest(thing: Any) -> str:
    """A digest of the file that a class or function is written in, or of its code where there is none: in a notebook,
    or typed in.
    """
    try:
        path = getsourcefile(thing)
    except TypeError:
        path = None
    if path is not None and Path(path).is_file():
        return sha256(Path(path).read_bytes()).hexdigest()[:16]
    return sha256(repr(_code_of(thing)).encode()).hexdigest()[:16]


def _code_of(thing: Any) -> Any:
    """What is known of how something is written without its file, the same in every process."""
    if isinstance(thing, CodeType):
        return [thing.co_code.hex(), thing.co_names, [_code_of(one) for one in thing.co_consts]]
    if isinstance(thing, type):
        near = [kind for kind in thing.__mro__ if kind.__module__ == thing.__module__]
        return [[kind.__qualname__, *map(_code_of, _parts(kind))] for kind in near]
    if isinstance(thing, frozenset | set):
        return sorted(map(repr, thing))
    if isinstance(thing, tuple):
        return [_code_of(one) for one in thing]
    code = getattr(getattr(thing, "__func__", getattr(thing, "fget", thing)), "__code__", None)
    return sub(" at 0x[0-9a-f]+", "", repr(thing)) if code is None else _code_of(code)


def _parts(kind: type) -> list[Any]:
    """Methods and values of a class, by name; what Python adds to every class says nothing."""
    kept = {name: one for name, one in vars(kind).items() if hasattr(one, "__code__") or not name.startswith("__")}
    return [part for name in sorted(kept) for part in (name, kept[name])]


def in_words(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
