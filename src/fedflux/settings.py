"""Settings, declared once: the default, the meaning and the check of each stand beside its field.

An owner of settings (data, training, method, …) is a frozen dataclass on `Declared` with fields made by `setting`.
The command line, TOML files, Python and Flower's run config are made from what `declared` reads off it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from re import fullmatch
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from fedflux.errors import FedfluxError, unknown

T = TypeVar("T")
D = TypeVar("D", bound="Declared")

Panel = Literal[
    "Data",
    "Method",
    "Training",
    "Run",
    "Data in detail",
    "Training in detail",
    "Clustering",
    "Descriptors",
    "Privacy",
    "Keeping and tracking",
    "Experiments",
]
"""Where `--help` shows a setting: what people use first comes first, what experiments need comes last."""
PANELS: tuple[Panel, ...] = get_args(Panel)

Plain = bool | int | float | str
"""What a configuration without null, such as Flower's, can hold."""

Check = Callable[[Any, str], None]
"""Refuses a value that is not None; the second argument is how it was given, such as `--lr 0.0`."""

Written = Callable[[str, object], str]
"""How somebody gave a value: `--batch-size 0`, or `batch-size = 0`."""


def as_flag(name: str, value: object) -> str:
    """As on the command line."""
    return f"--{dashed(name)} {value}"


def as_key(name: str, value: object) -> str:
    """As in a configuration file."""
    return f"{dashed(name)} = {value}"


def dashed(name: str) -> str:
    """A field's name as flags and keys are written."""
    return name.replace("_", "-")


@dataclass(frozen=True)
class Setting:
    """What is declared of one setting."""

    default: object
    help: str
    panel: Panel
    check: Check | None = None
    names: Collection[str] = ()
    """The names that are known, where there is a registry; `{names}` in the help stands for them."""
    unset: str = ""
    """What happens where the default is None, in words for the help."""
    alias: Mapping[str, str] = field(default_factory=dict)
    """Other names of some values."""
    counts: bool = True
    """Whether it determines a run's numbers; else it says how and where to run."""
    metavar: str | None = None
    """What the help calls the value; None: its type."""
    name: str = ""
    type: object = None

    @property
    def key(self) -> str:
        """The name with dashes."""
        return dashed(self.name)

    @property
    def flag(self) -> str:
        """The name as a flag."""
        return f"--{self.key}"

    @property
    def choices(self) -> list[str]:
        """The words that are allowed, where they are listed: by a registry, or in the type."""
        if self.names:
            return list(self.names)
        return _literals(self.type)

    def read(self, value: object, written: Written = as_flag) -> Any:
        """The value in the setting's type, checked."""
        if isinstance(value, str):
            value = self.alias.get(value, value)
        fitting = typed(self.name, value, self.type, written)
        if self.check is not None and fitting is not None:
            self.check(fitting, written(self.name, fitting))
        return fitting


def setting(
    default: T,
    help: str,
    *,
    panel: Panel,
    check: Check | None = None,
    names: Collection[str] = (),
    unset: str = "",
    alias: Mapping[str, str] | None = None,
    counts: bool = True,
    metavar: str | None = None,
) -> T:
    """A dataclass field that is declared once, for every way in which it can be set; see `Setting`."""
    about = Setting(default, help, panel, check, names, unset, alias or {}, counts, metavar)
    made: T = field(default=default, metadata={Setting: about})
    return made


@dataclass(frozen=True)
class Declared:
    """Settings of one owner; values that do not fit are refused when it is made, whoever makes it.

    >>> @dataclass(frozen=True)
    ... class Oven(Declared):
    ...     degrees: float = setting(180.0, "how hot it gets", panel="Run", check=above(0))
    >>> Oven(degrees=200)
    Oven(degrees=200.0)
    >>> Oven(degrees=-5)
    Traceback (most recent call last):
    fedflux.errors.FedfluxError: --degrees -5.0: give a value above 0
    """

    def __post_init__(self) -> None:
        for one in declared(type(self)):
            object.__setattr__(self, one.name, one.read(getattr(self, one.name)))


def declared(owner: type) -> tuple[Setting, ...]:
    """The settings of an owner, in the order of its fields."""
    return _declared(owner)


@cache
def _declared(owner: type) -> tuple[Setting, ...]:
    types = get_type_hints(owner)
    found = ((one.name, one.metadata.get(Setting)) for one in fields(owner))
    return tuple(replace(about, name=name, type=types[name]) for name, about in found if about is not None)


def defaults(owner: type) -> dict[str, Any]:
    """The default of every setting of an owner."""
    return {one.name: one.default for one in declared(owner)}


def check(values: object, owner: type) -> None:
    """Refuse values that an owner would refuse, of those of its settings that this object has."""
    for one in declared(owner):
        if hasattr(values, one.name):
            one.read(getattr(values, one.name))


def from_mapping(owner: type[D], values: Mapping[str, object], written: Written = as_flag, strict: bool = True) -> D:
    """An owner's settings from names with dashes or underscores; others are refused, or left alone if not `strict`."""
    known = {one.name: one for one in declared(owner)}
    given: dict[str, object] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name in known:
            given[name] = known[name].read(value, written)
        elif strict:
            raise unknown("setting", key, known)
    return cast(Callable[..., D], owner)(**given)


def plain_defaults(*owners: type, without: Collection[str] = ()) -> Iterator[tuple[str, Plain]]:
    """Key and default of every setting, for a configuration without null such as Flower's: empty text is none.

    `from_mapping(owner, run_config, as_key, strict=False)` reads them back.
    """
    for owner in owners:
        for one in declared(owner):
            if one.name not in without:
                yield one.key, "" if one.default is None else cast(Plain, one.default)


def options(wanted: object) -> tuple[Any, ...]:
    """The types that a union allows; of another type, itself."""
    return get_args(wanted) if isinstance(wanted, UnionType) or get_origin(wanted) is Union else (wanted,)


def typed(name: str, value: object, wanted: object, written: Written = as_flag) -> Any:
    """The value as the type that is wanted: integers pass for floats, text that is a number for that number, empty
    text for none where none is allowed.
    """
    allowed = options(wanted)
    if NoneType in allowed and (value is None or (isinstance(value, str) and not value)):
        return None
    for option in allowed:
        if get_origin(option) is Literal:
            word = str(value) if isinstance(value, float) else value  # a version such as 0.1 looks like a number
            if word in get_args(option):
                return word
        elif option is bool or isinstance(value, bool):
            if option is bool and isinstance(value, bool):
                return value
        elif option is int and (isinstance(value, Integral) or _is_text(value, "-?[0-9]{1,18}")):
            return int(cast(int, value))
        elif option is float and (isinstance(value, Real) or _is_text(value, _NUMBER)):
            return float(cast(float, value))
        elif option is str and isinstance(value, str | Path):
            return str(value)
    words = [*_literals(wanted), *(_WORDS[option] for option in allowed if option in _WORDS)]
    shown = written(name, f"'{value}'")
    raise FedfluxError(f"{shown} does not fit: give {' or '.join(words)}")


def _literals(wanted: object) -> list[str]:
    return [str(word) for option in options(wanted) if get_origin(option) is Literal for word in get_args(option)]


_WORDS: dict[object, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"


def _is_text(value: object, pattern: str) -> bool:
    return isinstance(value, str) and fullmatch(pattern, value) is not None


def must(holds: Callable[[Any], bool], words: str) -> Check:
    """A check by a condition; `{given}` in the words stands for `--lr 0.0`, `{value}` for the value alone."""

    def refuse(value: object, given: str) -> None:
        if not holds(value):
            raise FedfluxError(words.format(given=given, value=value))

    return refuse


def _number(holds: Callable[[float], bool], words: str) -> Check:
    """A check of numbers; words that stand in for one, such as `auto`, are the type's business."""
    return must(lambda value: isinstance(value, str) or holds(value), words)


def at_least(low: int, words: str = "{given}: give {low} or more") -> Check:
    """A number from `low` on."""
    return _number(lambda value: value >= low, words.replace("{low}", str(low)))


def above(low: float, words: str = "{given}: give a value above {low}") -> Check:
    """A finite number above `low`."""
    return _number(lambda value: isfinite(value) and value > low, words.replace("{low}", str(low)))


def between(low: float, high: float, ends: str = "[]", words: str = "{given} is outside {low} to {high}") -> Check:
    """A number in an interval; `ends` says which ends belong to it, as in `(]`."""

    def inside(value: float) -> bool:
        return low < value < high or (value == low and ends[0] == "[") or (value == high and ends[1] == "]")

    return _number(inside, words.replace("{low}", str(low)).replace("{high}", str(high)))


def share(words: str = "{given} is outside {low} to {high}") -> Check:
    """A share of something: above 0, and 1 at most."""
    return between(0, 1, "(]", words)


def passes(function: Callable[[Any], object]) -> Check:
    """A check by a function that raises for values that do not fit."""

    def refuse(value: object, given: str) -> None:
        function(value)

    return refuse


def known(kind: str, names: Collection[str]) -> Check:
    """One of the names of a registry; the nearest is named where it is another."""

    def refuse(value: Any, given: str) -> None:
        if value not in names:
            raise unknown(kind, value, names)

    return refuse
