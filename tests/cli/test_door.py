"""The door of the command line: light, and its list of commands agrees with the commands."""

import os
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from fedflux.cli.main import COMMANDS, load_command

SOURCE = Path(__file__).parents[2] / "src"
HELP = """
import sys
from fedflux.__main__ import main
sys.argv = ["fedflux", "--help"]
try:
    main()
except SystemExit:
    print([name for name in ("torch", "sklearn", "pandas", "matplotlib", "numpy") if name in sys.modules])
"""


def test_help_loads_nothing_heavy_and_names_every_command() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", HELP], env=environment, capture_output=True, text=True, timeout=60)
    assert literal_eval(done.stdout.splitlines()[-1]) == [], done.stderr
    for name, told in COMMANDS.items():
        assert f" {name} " in done.stdout
        assert told.help in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_begins_its_help_as_the_list_does(name: str) -> None:
    words = COMMANDS[name].help.rstrip(".").split()
    own = str(load_command(name).help).replace(",", "").replace(":", "").split()
    assert own[:3] == [word.strip(",:") for word in words[:3]]


def test_no_command_is_missing_from_the_list() -> None:
    modules = {told.module for told in COMMANDS.values()}
    groups = {
        path.parent.name if path.stem == "__init__" else path.stem
        for path in (SOURCE / "fedflux" / "cli").rglob("*.py")
        if "app = typer.Typer" in path.read_text()
    }
    assert groups - {"main"} == modules
