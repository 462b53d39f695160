"""Algorithms are tested as they are run: on one thread."""

from collections.abc import Iterator

import pytest

from fedflux.engine import one_thread


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield
