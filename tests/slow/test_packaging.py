"""What is built from a clean tree installs, runs outside the checkout, and brings its types with it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("build", reason="needs build: pip install build")
ROOT = Path(__file__).parents[2]
FIRST = ["run", "--dataset", "digits", "--shift", "px", "--clients", "4", "--rounds", "3"]
PROGRAM = """
from pathlib import Path

import numpy as np

import fedflux

clients = {"north": (np.zeros((40, 3)), [0, 1] * 20), "south": (np.ones((40, 3)), [0, 1] * 20)}
federation = fedflux.Federation.from_clients(clients)
result = fedflux.run(federation, rounds=3, out=Path("runs/program"), progress=False)
known: float | None = result.known
run = fedflux.load("runs/program")
placement: fedflux.Placement = run.assign(np.zeros((10, 3)))
clusters: list[int] = placement.cluster.tolist()
names: tuple[str, ...] = run.clients


def enough(progress: fedflux.Progress) -> bool:
    return progress.accuracy > 90


describer = fedflux.Describer(classes=2)
table = fedflux.compare(federation, algorithms=["fedavg"], seeds=[42], rounds=1, progress=False)
print(known, clusters, names, len(table))
"""
WRONG = """
import fedflux

result = fedflux.run(dataset="digits")
score: str = result.known
fedflux.run(federation="digits")
fedflux.EarlyStopping(patience="long")
"""

LIGHT = """
[mypy]
[mypy-torch.*,scipy.*,sklearn.*,matplotlib.*,pandas.*,sympy.*,networkx.*]
follow_imports = skip
"""
"""Our types are asked for, not those of what we build on: reading them takes minutes."""


def said(call: list[str], folder: Path, status: int = 0) -> str:
    """What a program prints, run where no source of ours is to be found."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel made of it, from what git would give to a clone."""
    told = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if told.returncode:
        pytest.skip("not a clone of the repository")
    clean, out = tmp_path_factory.mktemp("clean"), tmp_path_factory.mktemp("dist")
    for name in filter(None, told.stdout.split("\0")):
        if (ROOT / name).is_file():
            (clean / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, clean / name)
    said([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(clean)], out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel, and sees the packages it needs where they are installed already."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    own = folder / "bin" / "python"
    said([str(own), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], folder)
    site = Path(said([str(own), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))  # .pth files in there, such as ours, are not read
    return own


def test_the_wheel_holds_all_that_is_read_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    for path in (source / "fedflux").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(source).as_posix() in names, f"{path.name} is not in the wheel"
    assert all(name.startswith(("fedflux/", "fedflux-")) for name in names)


def test_the_sdist_holds_what_a_builder_needs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"} <= names
    assert not [name for name in names if name.startswith(("tests/", "runs/", ".venv"))]


def test_the_wheel_names_every_extra_that_messages_name(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    extras = set(Parser().parsestr(archive.read(metadata).decode()).get_all("Provides-Extra") or [])
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras == set(declared["optional-dependencies"])
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    asked = {extra for text in texts for told in re.findall(r"fedflux\[([a-z,]+)\]", text) for extra in told.split(",")}
    assert asked <= extras


def test_the_wheel_runs_where_no_source_is(python: Path, tmp_path: Path) -> None:
    place = said([str(python), "-c", "import fedflux; print(fedflux.__file__)"], tmp_path)
    assert Path(place.strip()).is_relative_to(python.parents[1])
    command = str(python.with_name("fedflux"))
    assert said([command, "--version"], tmp_path).strip() == declared_version()
    assert "known association" in said([command, *FIRST, "--out", "runs/first"], tmp_path)
    said([command, "report", "runs/first"], tmp_path)
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    assert "[" in said([str(python), "-c", PROGRAM], tmp_path)


@pytest.mark.parametrize(
    ("package", "calls"),
    [
        ("opendp", [[*FIRST, "--epsilon", "10", "--out", "runs/one"]]),
        ("tensorboard", [[*FIRST, "--track", "tensorboard", "--out", "runs/one"]]),
        ("mlflow", [[*FIRST, "--track", "mlflow", "--out", "runs/one"]]),
        ("onnxruntime", [[*FIRST, "--out", "runs/one"], ["export", "runs/one", "--out", "bundle.zip"]]),
        ("ot", [["fidelity", "--clients", "3", "--rounds", "1", "--levels", "2", "--points", "40"]]),
    ],
)
def test_the_feature_of_an_extra_runs_from_the_wheel(
    package: str, calls: list[list[str]], python: Path, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    for call in calls:
        said([str(python.with_name("fedflux")), *call], tmp_path)


def test_a_program_of_a_user_is_checked_against_our_types(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "mypy.ini").write_text(LIGHT)
    call = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--cache-dir", "cache"]
    assert "Success" in said([*call, "right.py"], tmp_path)
    found = said([*call, "wrong.py"], tmp_path, status=1)
    assert {int(line) for line in re.findall(r"wrong\.py:(\d+): error", found)} == {5, 6, 7}, found


def declared_version() -> str:
    """The version that the project declares."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
