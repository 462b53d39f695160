"""What the command line answers with one line: bad input (status 2), and what stopped a run (status 1)."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedfluxError(ValueError):
    """Bad input: the message says what is wrong, where, and what would be right.

    Examples
    --------
    >>> fedflux.run(dataset="digits", algorithm="fluxx")
    Traceback (most recent call last):
    fedflux.errors.FedfluxError: unknown algorithm 'fluxx': did you mean 'flux'?
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(in_one_line(str(message)))


class StoppedError(RuntimeError):
    """The run could not go on (a full disk, …); the message says what is kept."""


def in_one_line(text: str) -> str:
    """A message that quotes what somebody gave, in which line breaks and control characters are written out."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def unknown(kind: str, name: str, known: Iterable[str]) -> FedfluxError:
    """The error for a name that is not in a registry, with the nearest known name as a hint."""
    choices = sorted(known)
    near = get_close_matches(name, choices, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(choices)}"
    return FedfluxError(f"unknown {kind} '{name}': {hint}")
