"""Help ends with calls that work, and shells are taught the commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shown_commands import fault_of

from fedflux.cli.examples import EXAMPLES
from fedflux.cli.main import COMMANDS

SOURCE = Path(__file__).parents[2] / "src"


def said(*arguments: str, **environment: str) -> str:
    """What the command line prints in a process of its own."""
    told = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "100", **environment}
    call = [sys.executable, "-m", "fedflux", *arguments]
    return subprocess.run(call, env=told, capture_output=True, text=True, timeout=120).stdout


def test_every_command_has_examples() -> None:
    assert set(COMMANDS) <= set(EXAMPLES)


@pytest.mark.parametrize("call", [call for name in COMMANDS for call, _ in EXAMPLES[name]])
def test_an_example_of_the_help_names_commands_and_flags_that_exist(call: str) -> None:
    assert fault_of(call) is None


def test_the_help_of_a_command_ends_with_its_examples() -> None:
    shown = " ".join(said("report", "--help").split())
    for call, words in EXAMPLES["report"]:
        assert f"{call} {words}" in shown


def test_shells_complete_commands_and_flags() -> None:
    asked = {"_FEDFLUX_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    program = "import sys; sys.argv = ['fedflux']; from fedflux.__main__ import main; main()"

    def completed(words: str, position: str) -> list[str]:
        told = {**os.environ, **asked, "PYTHONPATH": str(SOURCE), "COMP_WORDS": words, "COMP_CWORD": position}
        done = subprocess.run([sys.executable, "-c", program], env=told, capture_output=True, text=True, timeout=120)
        return done.stdout.split()

    assert completed("fedflux pre", "1") == ["predict"]
    assert "--data-dir" in completed("fedflux run --data", "2")
