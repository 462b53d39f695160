"""Holds up a framework that drives its own rounds, so that they happen one at a time, when asked for."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread


class _EndError(BaseException):
    """Raised inside the framework's own thread to end it."""


class Gate:
    """Runs `drive` in a thread; wherever that calls `arrive`, it waits to be let on."""

    def __init__(self, drive: Callable[[], None]) -> None:
        self._drive = drive
        self._arrived: SimpleQueue[BaseException | None] = SimpleQueue()
        self._let_on: SimpleQueue[bool] = SimpleQueue()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Run up to the first arrival."""
        self._thread.start()
        self._wait()

    def step(self) -> None:
        """Run from one arrival to the next: a round."""
        self._let_on.put(True)
        self._wait()

    def arrive(self) -> None:
        """The framework is between two rounds."""
        self._arrived.put(None)
        if not self._let_on.get():
            raise _EndError

    def close(self, patience: float = 10.0) -> None:
        """End the framework's thread."""
        self._let_on.put(False)
        self._thread.join(patience)

    def _wait(self) -> None:
        error = self._arrived.get()
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            self._drive()
            self._arrived.put(RuntimeError("it ended by itself"))
        except _EndError:
            pass
        except BaseException as error:
            self._arrived.put(error)
