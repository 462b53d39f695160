"""What is told of bad input is one line, whatever is quoted in it."""

import pickle

import pytest

from fedflux.errors import FedfluxError


@pytest.mark.parametrize("odd", ["two\nlines", "\r", "\x1b[31m", "\u2028", "\udc80", "\x00"])
def test_line_breaks_and_control_characters_are_written_out(odd: str) -> None:
    told = str(FedfluxError(f"--patterns '{odd}' does not fit…"))
    assert told.isprintable()
    assert len(told.splitlines()) == 1
    assert odd.encode("unicode_escape").decode() in told


def test_everything_else_is_as_it_was_written() -> None:
    words = "client 'Łódź': 3 × 4 − 1 … 北"
    assert str(FedfluxError(words)) == words
    assert str(pickle.loads(pickle.dumps(FedfluxError("a\nb")))) == str(FedfluxError("a\nb"))
