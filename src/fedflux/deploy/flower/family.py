"""A process with all it has started: Flower gives its app processes sessions of their own, beyond a group's end."""

import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

Member = tuple[int, str]
"""A process id and when the process began, so that a number that was given away again is not mistaken for it."""


def family(pids: Iterable[int]) -> list[Member]:
    """These processes and their descendants, parents first."""
    table = _table()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, str] = {}
    waiting = list(pids)
    while waiting:
        pid = waiting.pop(0)
        if pid in table and pid not in found:
            found[pid] = table[pid][1]
            waiting += children.get(pid, [])
    return list(found.items())


def kill_family(members: Iterable[Member]) -> None:
    """SIGKILL for those that are still what they were; parents first, so that none is started again."""
    table = _table()
    for pid, began in members:
        if pid in table and table[pid][1] == began:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _table() -> dict[int, tuple[int, str]]:
    """Parent and beginning of every process."""
    if not Path("/proc/self/stat").exists():
        lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,lstart="], capture_output=True, text=True, check=True)
        rows = (line.split(maxsplit=2) for line in lines.stdout.splitlines())
        return {int(pid): (int(parent), began) for pid, parent, began in rows}
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            found[int(path.parent.name)] = (int(fields[1]), fields[19])
    return found
