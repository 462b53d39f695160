"""What may listen to a run: `on_round` is told of every round, and ends the training by answering True."""

from dataclasses import dataclass

from fedflux.errors import FedfluxError
from fedflux.runs.session import Progress


@dataclass(frozen=True)
class EarlyStopping:
    """Ends a run once clients' mean validation accuracy has not grown for some rounds.

    It looks at the accuracies alone, so that a run that was killed and goes on stops in the same round.

    Examples
    --------
    >>> stop = EarlyStopping(patience=2)
    >>> stop(Progress(3, 10, 79.0, 1, accuracies=(80.0, 79.5, 79.0)))
    True
    """

    patience: int = 5
    """How many rounds without growth are borne."""
    least: float = 0.0
    """By how many points the best accuracy must be beaten to count as growth."""

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise FedfluxError(f"EarlyStopping(patience={self.patience}): give 1 or more")

    def __call__(self, progress: Progress) -> bool:
        """Whether it has been long enough."""
        best, since = float("-inf"), 0
        for accuracy in progress.accuracies:
            since = 0 if accuracy > best + self.least else since + 1
            best = max(best, accuracy) if since == 0 else best
        return since >= self.patience
