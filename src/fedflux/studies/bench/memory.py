"""Peak memory of a process and all its descendants."""

import sys
from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")


def peak_bytes(root: int) -> int:
    """The sum of every living process's own peak of resident memory.

    Pages that processes share count once for each of them. Without /proc only the calling process is seen.
    """
    if not (PROC / "self/status").exists():
        import resource  # not on every system

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(_peak(process) for process in descendants(root))


def descendants(root: int) -> list[int]:
    """A process and all below it, parents first."""
    children = defaultdict(list)
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            children[_status(int(folder.name)).get("PPid")].append(int(folder.name))
    found = [root]
    for process in found:
        found += children[str(process)]
    return found


def _peak(process: int) -> int:
    return int(_status(process).get("VmHWM", "0 kB").split()[0]) * 1024


def _status(process: int) -> dict[str, str]:
    try:
        lines = (PROC / str(process) / "status").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
