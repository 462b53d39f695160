"""Do clients drift away from what the bundle was made of? A test that may be looked at after every client.

Where nothing has drifted, scores of clients are p-values. A bet e(p) = ∫ ε p^(ε−1) dε, which is 1 on average for such,
grows when many are small. The bets since a possible change are multiplied, W ← max(W, 1) e(p), and when W reaches A,
clients have drifted: where nothing changes that happens once in A clients on average, or less often, however long one
watches (an e-detector: Shin, Ramdas, Rinaldo, 2024). W starts again from 1 where the change is likeliest to lie.
"""

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from scipy.special import chdtrc

from fedflux.serve.bundle import Bundle
from fedflux.serve.keeping.audit import Entry

ALARM = 100_000.0
"""A: clients between two false alarms, on average, at least."""
LEAST = 5e-4
"""The smallest p-value counted with: scores are told in thousandths."""
MIX = 1e-4
"""The p-value below which the mix of clusters is another."""


def bet(score: float) -> float:
    """∫ ε p^(ε−1) dε over [0, 1]."""
    p = max(score, LEAST)
    if p > 0.999:  # the limit is 1/2
        return 0.5
    return (1 - p + p * log(p)) / (p * log(p) ** 2)


@dataclass
class Watch:
    """Of one bundle."""

    clusters: dict[str, int]
    """Members of every cluster at training."""
    seen: dict[str, int]
    scored: int = 0
    novel: int = 0
    wealth: float = 1.0
    since: float | None = None
    """When W last began: if clients drift, about since then."""
    drifted: float | None = None
    """When W reached A; it stays said until another bundle."""
    drifted_since: float | None = None

    @staticmethod
    def of(bundle: Bundle, entries: list[Entry]) -> "Watch":
        """Begun, or gone on with after a restart."""
        watch = Watch({one.name: one.members for one in bundle.clusters}, {one.name: 0 for one in bundle.clusters})
        for entry in entries:
            watch.add(entry)
        return watch

    def add(self, entry: Entry) -> None:
        """One more client."""
        self.seen[entry.cluster] = self.seen.get(entry.cluster, 0) + 1
        if entry.score is None:
            return
        self.scored += 1
        self.novel += entry.novel
        if self.wealth <= 1.0 or self.since is None:
            self.since = entry.time
        self.wealth = min(max(self.wealth, 1.0) * bet(entry.score), 1e300)
        if self.wealth >= ALARM and self.drifted is None:
            self.drifted, self.drifted_since = entry.time, self.since

    def mix(self) -> float | None:
        """p-value of the same mix of clusters now as at training (χ²); None where too few clients are seen."""
        table = np.array([[self.clusters.get(name, 0), count] for name, count in self.seen.items()], dtype=float)
        table = table[table.sum(axis=1) > 0]
        if len(table) < 2 or table[:, 1].sum() < 5 * len(table):
            return None
        expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
        return float(chdtrc(len(table) - 1, ((table - expected) ** 2 / expected).sum()))

    def told(self) -> dict[str, Any]:
        """What the service says of it."""
        mix = self.mix()
        return {
            "retrain": self.drifted is not None,
            "why": self._why(mix),
            "clients": sum(self.seen.values()),
            "scored": self.scored,
            "novel": self.novel,
            "evidence": self.wealth,
            "alarm_at": ALARM,
            "drifted_since": self.drifted_since,
            "mix_p_value": mix,
            "seen": dict(self.seen),
            "trained": dict(self.clusters),
        }

    def _why(self, mix: float | None) -> str:
        if self.drifted is not None:
            return "clients' data have drifted away from what the bundle was made of: train again with clients of now"
        if mix is not None and mix < MIX:
            return "clients are as they were, but other clusters are asked for: the prior is out of date"
        return "clients' data are like those that the bundle was made of" if self.scored else "no client was scored yet"
