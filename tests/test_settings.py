"""Settings are declared once: what a declaration says, refuses and reads, whoever asks."""

import doctest
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fedflux import settings
from fedflux.algorithms.settings import MethodSettings
from fedflux.clustering.settings import ClusteringSettings
from fedflux.data.settings import DataSettings
from fedflux.descriptors.settings import DescriptionSettings
from fedflux.engine.settings import MachineSettings, TrainingSettings
from fedflux.errors import FedfluxError
from fedflux.runs.settings import AllSettings, RunSettings
from fedflux.settings import (
    PANELS,
    Check,
    Declared,
    above,
    as_key,
    at_least,
    between,
    check,
    declared,
    from_mapping,
    known,
    must,
    passes,
    plain_defaults,
    setting,
    share,
    typed,
)

OWNERS: tuple[type[Declared], ...] = (
    *(DataSettings, MethodSettings, ClusteringSettings, DescriptionSettings),
    *(TrainingSettings, MachineSettings, RunSettings),
)


@dataclass(frozen=True)
class Kitchen(Declared):
    """An owner of settings."""

    degrees: float = setting(180.0, "how hot the oven gets", panel="Run", check=above(0))
    eggs_beaten: int | Literal["all"] | None = setting(None, "how many", panel="Data", check=at_least(1))
    dish: Literal["cake", "bread"] = setting("cake", "what is made", panel="Data", alias={"gateau": "cake"})
    cook: str | None = setting(None, "who makes it", panel="Run", counts=False)
    lit: bool = False


def test_the_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(settings).attempted > 0
    assert doctest.testmod(settings).failed == 0


def test_a_declaration_says_all_there_is_to_know() -> None:
    degrees, eggs, dish, cook = declared(Kitchen)
    assert (degrees.name, degrees.default, degrees.panel) == ("degrees", 180.0, "Run")
    assert degrees.help == "how hot the oven gets"
    assert (eggs.name, eggs.key, eggs.flag, eggs.default) == ("eggs_beaten", "eggs-beaten", "--eggs-beaten", None)
    assert (eggs.choices, dish.choices, cook.choices) == (["all"], ["cake", "bread"], [])
    assert (degrees.counts, cook.counts) == (True, False)


def test_values_are_read_and_checked_whoever_makes_the_settings() -> None:
    made = Kitchen(degrees=200, eggs_beaten="3", dish="gateau", cook="")  # type: ignore[arg-type]
    assert made == Kitchen(200.0, 3, "cake", None)
    assert isinstance(made.degrees, float)
    with pytest.raises(FedfluxError, match=r"--degrees -1\.0: give a value above 0"):
        Kitchen(degrees=-1)
    with pytest.raises(FedfluxError, match="--dish 'soup' does not fit: give cake or bread"):
        Kitchen(dish="soup")  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        made.degrees = 3.0  # type: ignore[misc]


def test_an_heir_has_the_settings_of_all_its_owners() -> None:
    @dataclass(frozen=True)
    class Garden(Declared):
        rows: int = setting(2, "of beans", panel="Run", check=at_least(1))

    @dataclass(frozen=True)
    class House(Garden, Kitchen):
        pass

    assert [one.name for one in declared(House)] == ["degrees", "eggs_beaten", "dish", "cook", "rows"]
    for wrong in ({"rows": 0}, {"degrees": 0}):
        with pytest.raises(FedfluxError, match="give"):
            House(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "good", "bad", "words"),
    [
        (at_least(2), [2, 7, "auto"], [1, -5, float("nan")], "--x {}: give 2 or more"),
        (at_least(0, "{given}: give {low} or more eggs"), [0], [-1], "--x {}: give 0 or more eggs"),
        (above(0), [0.1, 1], [0.0, -1.0, float("inf"), float("nan")], "--x {}: give a value above 0"),
        (share(), [0.1, 1], [0.0, 1.1, float("nan")], "--x {} is outside 0 to 1"),
        (between(0, 1), [0, 1, 0.5], [-0.1, 1.1, float("nan")], "--x {} is outside 0 to 1"),
        (between(0, 1, "[)"), [0, 0.9], [1, -0.1], "--x {} is outside 0 to 1"),
        (between(0, 1, "()"), [0.5], [0, 1], "--x {} is outside 0 to 1"),
        (must(lambda value: value % 2 == 0, "{value} is odd"), [2], [3], "{} is odd"),
        (known("spice", {"salt": 1, "pepper": 2}), ["salt"], ["slat"], "unknown spice '{}': did you mean 'salt'?"),
    ],
)
def test_checks_refuse_in_one_line(how: Check, good: list[Any], bad: list[Any], words: str) -> None:
    for value in good:
        how(value, f"--x {value}")
    for value in bad:
        with pytest.raises(FedfluxError) as caught:
            how(value, f"--x {value}")
        assert str(caught.value) == words.format(value)


def test_a_check_may_be_any_function_that_raises() -> None:
    passes(int)("3", "--x 3")
    with pytest.raises(ValueError, match="invalid literal"):
        passes(int)("three", "--x three")


@pytest.mark.parametrize(
    ("value", "wanted", "read"),
    [
        (3, int, 3),
        ("3", int, 3),
        ("-3", int, -3),
        (np.int64(3), int, 3),
        (3, float, 3.0),
        ("1e-3", float, 0.001),
        (".5", float, 0.5),
        (np.float32(0.5), float, 0.5),
        ("3", str, "3"),
        (Path("a/b"), str | None, "a/b"),
        (None, int | None, None),
        ("", float | None, None),
        ("", str, ""),
        (True, bool, True),
        ("true", int | Literal["true"] | None, "true"),
        ("4", int | Literal["true"] | None, 4),
        ("auto", int | Literal["auto"], "auto"),
        (0.1, Literal["0.1", "paper"] | None, "0.1"),
    ],
)
def test_values_come_in_the_forms_people_write(value: object, wanted: object, read: object) -> None:
    found = typed("x", value, wanted)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("value", "wanted", "words"),
    [
        (3.5, int, "a whole number"),
        (True, int, "a whole number"),
        (None, int, "a whole number"),
        ("²", int, "a whole number"),
        ("fast", float, "a number"),
        ("nan", float, "a number"),
        (True, float | None, "a number"),
        ([1], float, "a number"),
        (5, str, "text"),
        (1, bool, "true or false"),
        (True, Literal["true"] | int, "true or a whole number"),
        ("odd", Literal["a", "b"], "a or b"),
    ],
)
def test_values_that_do_not_fit_say_what_would(value: object, wanted: object, words: str) -> None:
    with pytest.raises(FedfluxError) as caught:
        typed("some_thing", value, wanted)
    assert str(caught.value) == f"--some-thing '{value}' does not fit: give {words}"


def test_a_configuration_is_answered_in_its_own_words() -> None:
    with pytest.raises(FedfluxError, match=r"^eggs-beaten = 0: give 1 or more$"):
        from_mapping(Kitchen, {"eggs-beaten": 0}, as_key)
    with pytest.raises(FedfluxError, match=r"^degrees = 'hot' does not fit: give a number$"):
        from_mapping(Kitchen, {"degrees": "hot"}, as_key)


def test_settings_from_a_mapping() -> None:
    assert from_mapping(Kitchen, {"eggs-beaten": "all", "dish": "bread"}) == Kitchen(180.0, "all", "bread")
    assert from_mapping(Kitchen, {"eggs_beaten": 2}) == Kitchen(eggs_beaten=2)
    with pytest.raises(FedfluxError, match="unknown setting 'dihs': did you mean 'dish'"):
        from_mapping(Kitchen, {"dihs": "cake"})
    assert from_mapping(Kitchen, {"dihs": "cake"}, strict=False) == Kitchen()


def test_another_object_is_held_to_the_same_checks() -> None:
    @dataclass
    class Oven:
        degrees: float
        brand: str = "any"

    check(Oven(20.0), Kitchen)
    with pytest.raises(FedfluxError, match=r"--degrees 0\.0: give"):
        check(Oven(0), Kitchen)


def test_keys_for_a_configuration_without_null() -> None:
    keys = dict(plain_defaults(Kitchen, without=["dish"]))
    assert keys == {"degrees": 180.0, "eggs-beaten": "", "cook": ""}
    assert from_mapping(Kitchen, keys) == Kitchen()


@pytest.mark.parametrize("owner", OWNERS)
def test_every_owners_keys_give_its_defaults_back(owner: type[Declared]) -> None:
    keys = dict(plain_defaults(owner))
    assert [type(value) for value in keys.values() if not isinstance(value, bool | int | float | str)] == []
    assert from_mapping(owner, {**keys, "somebody-elses": 1}, as_key, strict=False) == owner()


def test_every_setting_has_one_owner_a_meaning_and_a_place() -> None:
    every = [one.name for owner in OWNERS for one in declared(owner)]
    assert sorted(every) == sorted(one.name for one in declared(AllSettings))
    assert len(set(every)) == len(every) == len(fields(AllSettings))
    for one in declared(AllSettings):
        assert one.help
        assert one.panel in PANELS
        assert one.read(one.default) == one.default
