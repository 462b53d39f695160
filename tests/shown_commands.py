"""Calls of the command line as documents show them, held against what the command line takes."""

import re
import shlex
from functools import cache
from typing import Any

from fedflux.cli.main import COMMANDS, load_command


@cache
def _command(name: str) -> Any:
    return load_command(name)


def fault_of(call: str) -> str | None:
    """What is wrong with a call of `fedflux`: a command or a flag that does not exist, or None."""
    words = shlex.split(call, comments=True)
    if not words or words[0] != "fedflux":
        return f"{call!r} is no call of fedflux"
    rest = words[1:]
    if rest and rest[0].startswith("-"):
        return None if rest[0] in ("--help", "-h", "--version", "--install-completion") else f"no flag {rest[0]}"
    if not rest or rest[0] == "COMMAND":
        return None
    if rest[0] not in COMMANDS:
        return f"no command {rest[0]}"
    command = _command(rest[0])
    parts = getattr(command, "commands", None)
    if parts is not None:
        if len(rest) < 2 or rest[1] not in parts:
            return f"no command {' '.join(rest[:2])}"
        command, rest = parts[rest[1]], rest[1:]
    known = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
    unknown = [word for word in rest[1:] if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"{call!r}: no flag {', '.join(unknown)}" if unknown else None


def calls_in(text: str) -> list[str]:
    """The calls in a document's blocks of shell, with lines that go on put together."""
    blocks = re.findall(r"```(?:sh|shell|bash)\n(.*?)```", text, flags=re.S)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(r"fedflux( |$)", line)]
