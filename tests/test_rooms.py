"""Imports point one way, and what is heavy or optional is imported where it is used."""

import ast
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted((SOURCE / "fedflux").rglob("*.py"))
RANKS = (
    {"errors", "version"},
    {"files", "savable", "streams", "settings", "plugins", "placement"},
    {"operations"},
    {"models", "data"},
    {"descriptors"},
    {"engine", "clustering"},
    {"algorithms"},
    {"runs"},
    {"studies", "deploy"},
    {"library"},
    {"serve"},
    {"cli", "client"},
)
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
LATE = {"kneed", "pooch", "plotly", "flwr", "opendp", "dp_accounting", "tensorboard", "mlflow", "ray", "pfl", "ot"}
LATE |= {"dask", "distributed"}
LATE |= {"onnx", "onnxruntime", "fastapi", "starlette", "uvicorn", "prometheus_client", "httpx"}
SERVICE = SOURCE / "fedflux" / "serve" / "service"
HOME = {"flwr": SOURCE / "fedflux" / "deploy" / "flower"}
HOME |= dict.fromkeys(("fastapi", "starlette", "uvicorn", "prometheus_client"), SERVICE)
"""Where an optional package may be loaded on import: rooms that nobody enters without it."""


def imported(node: ast.AST) -> list[str]:
    """The dotted names one import statement may load; relative imports are not used here."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def wrong_way(room: str, source: str) -> list[str]:
    """Imports that leave a room for one beside or above it."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        for name in imported(node):
            package, *rest = name.split(".")
            if package == "fedflux" and rest:
                other = rest[0]
                assert other in RANK, f"{other} has no place among the rooms"
                if other != room and RANK[other] >= RANK[room]:
                    wrong.append(f"{room} imports {name}")
    return wrong


def at_module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs on import: all but the bodies of functions."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from at_module_level(child)


def early(source: str, at_home: Collection[str] = ()) -> list[str]:
    """Packages loaded on import that should be loaded on use."""
    names = [name for node in at_module_level(ast.parse(source)) for name in imported(node)]
    return [name for name in names if name.split(".")[0] in LATE - set(at_home)]


def test_the_source_is_where_this_test_looks() -> None:
    assert {"__main__.py", "errors.py"} <= {file.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_one_way(file: Path) -> None:
    room = file.relative_to(SOURCE / "fedflux").with_suffix("").parts[0]
    if room in ("__init__", "__main__"):  # the two doors may open on any room
        return
    assert wrong_way(room, file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_optional_packages_are_imported_where_they_are_used(file: Path) -> None:
    at_home = {package for package, room in HOME.items() if file.is_relative_to(room)}
    assert early(file.read_text(encoding="utf-8"), at_home) == []


def test_nobody_else_enters_a_room_that_needs_an_optional_package() -> None:
    for file in FILES:
        if not file.is_relative_to(HOME["flwr"]):
            names = [name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) for name in imported(node)]
            assert [name for name in names if name.startswith("fedflux.deploy.flower")] == [], file


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("descriptors", "from fedflux.engine import Stack"),
        ("engine", "import fedflux.clustering.evidence.comparison"),
        ("data", "def f():\n    from fedflux.models import MLP"),
        ("files", "from fedflux import streams"),
        ("errors", "from fedflux.files import write_json"),
        ("algorithms", "from fedflux.runs.config import RunConfig"),
        ("deploy", "from fedflux.studies.compare import compare"),
        ("runs", "from fedflux.deploy.flower.engine import FlowerEngine"),
    ],
)
def test_an_import_the_wrong_way_is_noticed(room: str, source: str) -> None:
    assert len(wrong_way(room, source)) == 1


def test_no_room_is_crowded() -> None:
    packages = {file.parent for file in FILES}
    counts = {str(one.relative_to(SOURCE)): len(list(one.glob("*.py"))) for one in packages if one.name != "baselines"}
    assert {name: count for name, count in counts.items() if count > 15} == {}


def test_an_early_import_is_noticed() -> None:
    assert early("try:\n    import kneed.x\nexcept ImportError:\n    pass") == ["kneed.x"]
    assert early("class A:\n    from pooch import retrieve") == ["pooch.retrieve"]
    assert early("def f():\n    import kneed") == []


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["kneed", "pooch", "plotly", "flwr", "opendp"]))
from fedflux.cli import main as cli
run = ["run", "--rounds", "1", "--cluster-round", "1", "--clients", "3", "--device", "cpu"]
cli.app([*run, "--clusterer", "hdbscan", "--out", "ok", "--json"], standalone_mode=False)
sys.stderr.write("--- second run\\n")
sys.argv = ["fedflux", *run, "--clusterer", "adaptive-dbscan", "--out", "needs-kneed", "--json"]
cli.main()
"""


def test_the_core_works_without_the_light_helpers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (tmp_path / "ok" / "result.json").exists(), done.stderr
    message = done.stderr.partition("--- second run\n")[2]
    assert message == "fedflux: adaptive-dbscan needs kneed: pip install kneed\n"
    assert done.returncode == 2
    assert not (tmp_path / "needs-kneed" / "result.json").exists()
