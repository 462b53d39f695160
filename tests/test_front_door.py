"""`import fedflux` and `fedflux --help` are light; the names that people rely on are all there."""

import resource
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

import fedflux

SOURCE = Path(__file__).parents[1] / "src"
HEAVY = ("torch", "sklearn", "scipy", "pandas", "matplotlib")


def loaded_by(statement: str) -> list[str]:
    """The heavy packages that a new interpreter has loaded after a statement."""
    told = f"import sys\n{statement}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", told], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [str(name) for name in literal_eval(done.stdout.splitlines()[-1])]


def test_importing_fedflux_loads_nothing_heavy() -> None:
    assert loaded_by("import fedflux; dir(fedflux); fedflux.run; fedflux.FedfluxError") == []


def test_this_test_would_notice_a_heavy_import() -> None:
    assert loaded_by("import fedflux, scipy") == ["scipy"]


@pytest.mark.parametrize("name", fedflux.__all__)
def test_every_stable_name_can_be_loaded(name: str) -> None:
    assert getattr(fedflux, name) is not None
    assert name in dir(fedflux)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = fedflux.nonsense


@pytest.mark.parametrize(("arguments", "most"), [(["-c", "import fedflux"], 0.3), (["-m", "fedflux", "--help"], 0.6)])
def test_it_opens_quickly(arguments: list[str], most: float) -> None:
    """In seconds of a core, the best of five: others may be busy on this machine."""
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = {"PYTHONPATH": str(SOURCE)}
        subprocess.run([sys.executable, *arguments], env=told, capture_output=True, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(found) < most
