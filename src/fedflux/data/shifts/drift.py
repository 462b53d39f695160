"""When clients' patterns change during a run: `--drift SPEC`, and what every client holds before and after.

An *epoch* is one draw of everybody's patterns, from the shift's own bank or pool; epoch 0 is the federation without
drift. A *stage* is what clients hold at one moment: an epoch, or two of them while one gradually takes over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from re import fullmatch

import numpy as np
from numpy.typing import NDArray

from fedflux.data.shifts.allocation import ClientRows
from fedflux.data.shifts.patterns import Pattern
from fedflux.errors import FedfluxError
from fedflux.streams import stream

FORMS = "after:4 or after:4,7, gradual:4-7, recurring:3, test, or one of the first three with +test"


@dataclass(frozen=True)
class Stage:
    """Epoch `old`, with a `share` of each client's examples showing epoch `new` already."""

    old: int
    new: int
    share: float = 1.0

    @property
    def settled(self) -> bool:
        """Whether all examples show one epoch."""
        return self.old == self.new


@dataclass(frozen=True)
class Drift:
    """When patterns are drawn anew, and how quickly the new ones take over."""

    after: tuple[int, ...] = ()
    """Rounds after which everyone has new patterns."""
    gradual: tuple[int, int] | None = None
    """The first and the last of the rounds over which the new patterns take over, in expectation in equal steps."""
    recurring: int | None = None
    """Two sets of patterns take turns, each for so many rounds."""
    test: bool = False
    """Test parts show patterns drawn once more after training."""

    @staticmethod
    def parse(text: str) -> "Drift":
        """Read a SPEC such as `after:4,7+test`."""
        told: dict[str, str] = {}
        for part in text.split("+"):
            kind, colon, value = part.strip().partition(":")
            if kind in told:
                raise FedfluxError(f"--drift '{text}' names {kind} twice: give {FORMS}")
            told[kind] = value or colon
        test = told.pop("test", None)
        if test or len(told) > 1:
            raise FedfluxError(f"--drift '{text}' does not fit: give {FORMS}")
        for kind, value in told.items():
            return _of_kind(text, kind, value, test is not None)
        return Drift(test=True)

    def stage(self, round: int) -> Stage:
        """What clients hold in a round; rounds count from 1."""
        if self.gradual is not None:
            first, last = self.gradual
            if first <= round < last:
                return Stage(0, 1, (round - first + 1) / (last - first + 1))
            return Stage(1, 1) if round >= last else Stage(0, 0)
        if self.recurring is not None:
            turn = (max(round, 1) - 1) // self.recurring % 2
            return Stage(turn, turn)
        epoch = sum(round > change for change in self.after)
        return Stage(epoch, epoch)

    def at_test(self, rounds: int) -> Stage:
        """What unseen clients hold after so many rounds of training."""
        return Stage(self._trained, self._trained) if self.test else self.stage(rounds)

    def changes(self, rounds: int) -> list[int]:
        """The rounds in which clients hold otherwise than in the one before."""
        return [r for r in range(2, rounds + 1) if self.stage(r) != self.stage(r - 1)]

    @property
    def _trained(self) -> int:
        """Epochs that training can meet."""
        return 1 + len(self.after) + (self.gradual is not None) + (self.recurring is not None)

    @property
    def epochs(self) -> int:
        """How often patterns are drawn, the first time included."""
        return self._trained + self.test

    @property
    def spec(self) -> str:
        """The SPEC in one way of writing it."""
        parts = [f"after:{','.join(map(str, self.after))}"] if self.after else []
        parts += [] if self.gradual is None else [f"gradual:{self.gradual[0]}-{self.gradual[1]}"]
        parts += [] if self.recurring is None else [f"recurring:{self.recurring}"]
        return "+".join([*parts, *(["test"] if self.test else [])])

    def check_rounds(self, rounds: int) -> None:
        """Refuse a drift that a run of so many rounds does not meet."""
        if self._trained > 1 and rounds < 2:
            raise FedfluxError(f"--drift {self.spec}: no drift fits into one round: give --rounds 2 or more")
        ends = (*self.after, *(self.gradual or ())[1:], *(() if self.recurring is None else (self.recurring,)))
        late = max(ends, default=0)
        limit = rounds if self.gradual else rounds - 1
        if late > limit:
            raise FedfluxError(
                f"--drift: a drift at round {late} comes too late for {rounds} rounds: give {limit} or less"
            )


def _of_kind(text: str, kind: str, value: str, test: bool) -> Drift:
    wrong = FedfluxError(f"--drift '{text}' does not fit: give {FORMS}")
    if kind == "after" and fullmatch("[0-9]{1,6}(,[0-9]{1,6})*", value):
        rounds = tuple(map(int, value.split(",")))
        if min(rounds) < 1 or sorted(set(rounds)) != list(rounds):
            raise FedfluxError(f"--drift '{text}': name each round once, from 1 on, in order")
        return Drift(after=rounds, test=test)
    if kind == "gradual" and fullmatch("[0-9]{1,6}-[0-9]{1,6}", value):
        first, last = map(int, value.split("-"))
        if not 1 <= first < last:
            raise FedfluxError(f"--drift '{text}': give the first round, 1 or more, and a later one")
        return Drift(gradual=(first, last), test=test)
    if kind == "recurring" and fullmatch("[0-9]{1,6}", value):
        if int(value) < 1:
            raise FedfluxError(f"--drift '{text}': give 1 round or more")
        return Drift(recurring=int(value), test=test)
    raise wrong


@dataclass(frozen=True, eq=False)
class Epoch:
    """One draw of everybody's patterns, the rows that go with it, and the clusters it makes."""

    rows: Sequence[ClientRows]
    patterns: Sequence[Pattern]
    truth: NDArray[np.int64] | None
    """Equal patterns have equal numbers in all epochs of a run."""


@dataclass(frozen=True, eq=False)
class Epochs:
    """All epochs of a run, and when each is."""

    drift: Drift
    drawn: tuple[Epoch, ...]

    def truth(self, stage: Stage) -> NDArray[np.int64] | None:
        """True clusters at a stage: while patterns change, clients belong together that change alike."""
        old, new = self.drawn[stage.old].truth, self.drawn[stage.new].truth
        if old is None or new is None or stage.settled:
            return new
        every = 1 + max(int(epoch.truth.max()) for epoch in self.drawn if epoch.truth is not None)
        return np.where(old == new, old, every * (1 + old) + new)


def blended(old: int, new: int, share: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
    """Which of `old` examples still show the old pattern and which of `new` ones show the new one.

    Every position takes its turn once, so that the share only grows.
    """
    turn = rng.random(max(old, new))
    return np.flatnonzero(turn[:old] >= share), np.flatnonzero(turn[:new] < share)


def chunk_positions(
    unit: NDArray[np.int64], first: int, last: int, count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Positions of the examples in chunks `first` to `last` − 1 of `count`; those of one unit are in one chunk.

    The unit of an example is its group or, without groups, its row, so that copies stay together.
    """
    distinct, inverse = np.unique(unit, return_inverse=True)
    chunk = rng.permutation(len(distinct)) * count // max(len(distinct), 1)
    mine = chunk[inverse.reshape(-1)]
    return np.flatnonzero((mine >= first) & (mine < last))


def sample_positions(
    rows: NDArray[np.int64],
    group: NDArray[np.int64] | None,
    part: tuple[int, int, int] | None,
    most: int | None,
    seed: int,
    client: int,
) -> NDArray[np.int64]:
    """Positions of a client's training rows that chunks of them hold, or else a sample of at most `most`.

    `group` has a number for every row of the dataset's training part.
    """
    if part is not None:
        unit = rows if group is None else group[rows]
        return chunk_positions(unit, *part, stream(seed, "chunks", client=client))
    if most is None or len(rows) <= most:
        return np.arange(len(rows))
    return np.sort(stream(seed, "limited", client=client).choice(len(rows), most, replace=False))
