"""One figure of the paper, with the words that say what it is a mean over."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedflux.studies.summary import level_words, listed

NUMBERS = {3: "three", 4: "four"}
TIME = "time_log2_seconds"


@dataclass(frozen=True)
class Figure:
    """One algorithm's line in one cell of a table, in percent as printed; None where the paper prints N/A.

    The paper does not say what its ± is over, so it is kept as printed and not called a deviation over seeds.
    """

    table: str
    algorithm: str
    dataset: str | None
    clients: int | None
    """None where the paper does not say and nothing shows it."""
    shift: str | None
    """None for a mean over shifts and for natural federations."""
    levels: tuple[int, ...]
    """The levels a figure is a mean over; empty where they are not stated, or not the same for every shift."""
    known: float | None
    known_std: float | None
    test: float | None
    test_std: float | None
    accuracy: float | None = None
    """The only score of tables that do not say which phase they show."""
    accuracy_std: float | None = None
    clients_stated: bool = True
    """False where the number of clients follows from the text without being given."""
    over: tuple[str, ...] = ()
    """The shifts a mean over shifts is over."""
    test_over: tuple[str, ...] = ()
    """The same for the test phase, which P(Y|X) does not have."""
    at: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The level of each shift, where every shift was run at a level of its own."""
    participation: float = 1.0
    repeated: int = 1
    """How often a client's data was repeated."""
    metric: str = "accuracy"
    setting: str = ""
    """What else the scope has to say."""
    plain: bool = False
    """Comparable with a plain comparison: nothing but dataset, shift, clients and participation was chosen."""
    note: str = ""
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What belongs to one table only, such as `epsilon`, `clusterer` or `data_fraction`."""

    @property
    def scope(self) -> str:
        """What the figure is a mean over, and under which conditions."""
        words = [self._mean_words(), self.setting, self._client_words()]
        words.append(f"participation {self.participation:g}" if self.participation < 1 else "")
        words.append(f"local data repeated ×{self.repeated}" if self.repeated > 1 else "")
        words += [_condition(key, value) for key, value in self.more.items() if key != TIME]
        words.append("macro ROC AUC" if self.metric == "roc_auc" else "")
        words.append("phase not stated" if self.accuracy is not None else "")
        if self.test is not None and "pygx" in (self.shift or "").split("+"):
            words.append("test phase as printed, though features cannot show P(Y|X)")
        return f"{', '.join(filter(None, words))} (Table {self.table.removeprefix('tab:')})"

    def _client_words(self) -> str:
        if self.clients is None:
            return "number of clients not stated"
        return f"{self.clients:,} clients{'' if self.clients_stated else ' (inferred)'}"

    def _mean_words(self) -> str:
        if self.shift is not None:
            if not self.levels:
                return "level not stated"
            return level_words(self.levels) if len(self.levels) == 1 else f"mean over {level_words(self.levels)}"
        if not self.over:
            return ""
        both = self.known is not None or self.accuracy is not None
        over = self.over if both else self.test_over
        levels = f" and {level_words(self.levels)}" if self.levels else " at one level each" if self.at else ""
        details = [f"{shift} {self.at[shift]}" for shift in over if shift in self.at]
        inside = [", ".join(details) if details or over == self.over else listed(over)]
        if both and self.test is not None and self.test_over != over:
            inside.append(f"test over {listed(self.test_over)}")
        brackets = "; ".join(filter(None, inside))
        return f"mean over {NUMBERS[len(over)]} shifts{levels}{f' ({brackets})' if brackets else ''}"

    def as_dict(self) -> dict[str, Any]:
        """Everything, with the scope in words and the table's own keys beside the common ones."""
        own = {k: v for k, v in asdict(self).items() if k not in ("more", "plain")}
        return {**own, "levels": list(self.levels), "scope": self.scope, **self.more}


def _condition(key: str, value: Any) -> str:
    """`epsilon 0.1`, `clusterer hdbscan`: what one table varies."""
    shown = "none" if value is None else listed(value) if isinstance(value, list) else value
    return f"{key.replace('_', ' ')} {shown}"
