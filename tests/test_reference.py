"""Every public name is documented, with an example that runs as it stands."""

import doctest
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedflux

PUBLIC = sorted(set(fedflux.__all__) - {"__version__"})
"""The version is no object of ours that could have a docstring; its module has one, and an example."""
NEEDS = {"Federation.from_huggingface": "datasets"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def members(name: str) -> Iterator[tuple[str, Any]]:
    """A name and, of a class, its public methods and properties, those of our own base classes included."""
    thing = getattr(fedflux, name)
    yield name, thing
    if not inspect.isclass(thing):
        return
    for member in dir(thing):
        homes = [base for base in thing.__mro__ if member in vars(base)]
        ours = homes and homes[0].__module__.startswith("fedflux")
        if not member.startswith("_") and ours and _is_code(vars(homes[0])[member]):
            yield f"{name}.{member}", inspect.getattr_static(thing, member)


def _is_code(member: Any) -> bool:
    return callable(member) or isinstance(member, property | staticmethod | classmethod)


def docstring(thing: Any) -> str:
    """What a name says of itself, nothing of its bases."""
    if isinstance(thing, staticmethod | classmethod):
        thing = thing.__func__
    return thing.__dict__.get("__doc__", "") if inspect.isclass(thing) else thing.__doc__ or ""


def examples(name: str, thing: Any) -> list[doctest.Example]:
    """The examples of a name, none of them left out when they are run."""
    found = doctest.DocTestParser().get_examples(docstring(thing) or "", name)
    return [example for example in found if not example.options.get(doctest.SKIP)]


DOCUMENTED = {path: thing for name in PUBLIC for path, thing in members(name)}
WITH_EXAMPLES = [path for path, thing in DOCUMENTED.items() if examples(path, thing)]


@pytest.mark.parametrize("path", DOCUMENTED)
def test_a_public_name_says_what_it_is(path: str) -> None:
    words = docstring(DOCUMENTED[path])
    assert words.strip(), f"fedflux.{path} has no docstring"
    assert "+SKIP" not in words, f"an example of fedflux.{path} is never run"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name: str) -> None:
    assert name in WITH_EXAMPLES, f"fedflux.{name} has no example"


@pytest.mark.parametrize("path", WITH_EXAMPLES)
def test_an_example_runs_as_it_stands(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path in NEEDS:
        pytest.importorskip(NEEDS[path])
    monkeypatch.chdir(tmp_path)
    known = {
        "np": np,
        "pandas": pd,
        "fedflux": fedflux,
        "Path": Path,
        **{name: getattr(fedflux, name) for name in PUBLIC},
    }
    said: list[str] = []
    test = doctest.DocTest(examples(path, DOCUMENTED[path]), known, path, None, None, None)
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=said.append)
    assert not said, "".join(said)


def test_the_version_has_an_example() -> None:
    module = import_module("fedflux.version")
    assert doctest.testmod(module, extraglobs={"fedflux": fedflux}).attempted > 0
    assert doctest.testmod(module, extraglobs={"fedflux": fedflux}).failed == 0


def test_a_name_without_a_docstring_or_with_a_wrong_example_would_be_noticed() -> None:
    class Bare:
        pass

    class Wrong:
        """Counts.

        >>> 1 + 1
        3
        """

    assert docstring(Bare) in ("", None)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(
        doctest.DocTest(examples("Wrong", Wrong), {}, "Wrong", None, None, None), out=said.append
    )
    assert said
