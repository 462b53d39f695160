"""The one exception that means "the input is wrong": the command line prints it as one line and exits with 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedfluxError(ValueError):
    """Bad input: the message says what is wrong, where, and what would be right."""


def unknown(kind: str, name: str, known: Iterable[str]) -> FedfluxError:
    """The error for a name that is not in a registry, with the nearest known name as a hint."""
    choices = sorted(known)
    near = get_close_matches(name, choices, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(choices)}"
    return FedfluxError(f"unknown {kind} '{name}': {hint}")
