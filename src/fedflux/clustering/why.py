"""Why two clusters differ: which labels and which classes, hence which shift, in words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np

from fedflux.clustering.evidence.comparison import Index, Pool, compare
from fedflux.clustering.variation import UNKNOWN, Variation
from fedflux.clustering.variation.spreads import SPREAD_FREEDOM, log_spreads

MAX_PAIRS = 300
"""Explained where nobody asks for more."""
MOST = 0.8
"""From this share of the shared classes on, a change of appearance counts as one of all records: P(X)."""
STILL = 0.15
"""Records as a whole stay where they are if their mean moves by less than this share of what moves of the changed
classes that have nothing to do with each other would add up to."""
ALIKE = 0.2
"""They scatter alike if variances, direction by direction, are within this share of their mean."""
CLEAR = 3.0
"""How many times its sampling noise that sum must be, for the mean's standing still to say anything."""
MATCH = 0.5
"""A class is taken for relabelled if another class of the other cluster is nearer than this share of its distance."""


@dataclass(frozen=True)
class Vocabulary:
    """What the data calls things."""

    class_names: tuple[str, ...] | None = None
    """None: classes are called by their numbers."""
    images: bool = False
    """Whether records are images, which have looks."""

    def name(self, label: int) -> str:
        """Of a class; of records with none of several labels, which are one kind more."""
        names = self.class_names or ()
        return names[label] if label < len(names) else "none" if names else str(label)

    def listed(self, labels: Iterable[int]) -> str:
        """Classes by name."""
        return ", ".join(self.name(int(label)) for label in labels)


NUMBERS = Vocabulary()
"""Nothing is known of what the data calls things."""


@dataclass(frozen=True)
class Why:
    """One pair of clusters."""

    clusters: tuple[int, int]
    shift: str
    """`P(X)`, `P(Y)`, `P(Y|X)`, `P(X|Y)`, two of them joined by ` + `, or `none` where no test tells them apart."""
    classes: tuple[int, ...]
    """The classes whose records differ."""
    words: str


def explain(
    pool: Pool,
    alpha: float,
    clusters: Sequence[int] | None = None,
    variation: Variation = UNKNOWN,
    vocabulary: Vocabulary = NUMBERS,
    most: int = MAX_PAIRS,
) -> list[Why]:
    """Every pair of clusters, or of some of them, up to so many pairs; what clients vary by anyway is no reason."""
    pairs = list(islice(combinations(range(len(pool)) if clusters is None else clusters, 2), most))
    if not pairs:
        return []
    first, second = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    evidence = compare(pool, first, second, variation)
    answers = []
    for row, pair in enumerate(pairs):
        comparable = np.flatnonzero(evidence.classes[row] < 0).astype(np.int64)
        changed = np.flatnonzero(evidence.classes[row] < np.log(alpha / max(len(comparable), 1) / len(pairs))).astype(
            np.int64
        )
        labels_differ = bool(evidence.labels[row] < np.log(alpha / len(pairs)))
        spreads_differ = bool(evidence.spreads[row] < np.log(alpha / len(pairs)))
        found = _explain_pair(pool, pair, comparable, changed, labels_differ, spreads_differ, vocabulary)
        answers.append(found)
    return answers


def _explain_pair(
    pool: Pool,
    pair: tuple[int, int],
    comparable: Index,
    changed: Index,
    labels_differ: bool,
    spreads_differ: bool,
    vocabulary: Vocabulary,
) -> Why:
    shifts, words = [], []
    name, listed = vocabulary.name, vocabulary.listed
    look, differ = ("images", "look different") if vocabulary.images else ("features", "differ")
    if len(changed):
        swaps = _relabelled(pool, pair, changed)
        if 2 * len(swaps) >= len(changed):
            shifts.append("P(Y|X)")
            one, other = pair
            told = ", ".join(f"{name(u)} of cluster {one} is {name(v)} of cluster {other}" for u, v in swaps.items())
            same = "images" if vocabulary.images else "records"
            words.append(f"the same {same} carry other labels: class {told}")
        elif _same_records(pool, pair, changed):
            shifts.append("P(Y|X)")
            words.append(f"features of all records together are alike, but not those of classes {listed(changed)}")
        elif len(changed) >= MOST * len(comparable):
            shifts.append("P(X)")
            words.append(f"{look} {differ} in {len(changed)} of {len(comparable)} shared classes")
        else:
            shifts.append("P(X|Y)")
            plural = "class" if len(changed) == 1 else "classes"
            words.append(f"{look} of {plural} {listed(changed)} {differ}, those of the other shared classes do not")
    if spreads_differ:
        shifts += [] if {"P(X)", "P(X|Y)"} & set(shifts) else ["P(X)"]
        known = pool.freedom[list(pair)].min(axis=0) >= SPREAD_FREEDOM
        spread = log_spreads(pool)[:, known]
        apart = spread[pair[1]] - spread[pair[0]]
        wider, times = int(apart.mean() > 0), float(np.exp(np.abs(apart.mean()) / 2))
        words.append(f"classes scatter {times:.1f} times as widely in cluster {pair[wider]}")
    if labels_differ:
        shifts.insert(0, "P(Y)")
        words.insert(0, _label_words(pool, pair, vocabulary))
    if not shifts:
        return Why(pair, "none", (), f"clusters {pair[0]} and {pair[1]}: no single test tells them apart")
    text = f"clusters {pair[0]} and {pair[1]} differ in {' and '.join(shifts)}: {'; '.join(words)}"
    return Why(pair, " + ".join(shifts), tuple(int(u) for u in changed), text)


def _relabelled(pool: Pool, pair: tuple[int, int], changed: Index) -> dict[int, int]:
    """Changed classes u of the first cluster whose records are found under another label v in the second."""
    a, b = pair
    held = np.flatnonzero(pool.weight[b] >= 1)
    found = {}
    for u in changed:
        spread = (pool.covariance[a, u] + pool.covariance[b, held]) / 2
        length = spread.shape[-1]
        ridge = 1e-6 * np.trace(spread, axis1=1, axis2=2)[:, None, None] / length + 1e-30
        gap = pool.mean[a, u] - pool.mean[b, held]
        distance = (gap * np.linalg.solve(spread + ridge * np.eye(length), gap[..., None])[..., 0]).sum(axis=1)
        nearest = int(held[distance.argmin()])
        own = distance[held == u]
        if nearest != u and len(own) and distance.min() < MATCH**2 * own[0]:
            found[int(u)] = nearest
    # exchanged labels map the changed classes onto each other, one to one; a turned 6 that looks like a 9 does not
    moved = {u: v for u, v in found.items() if v in changed}
    return moved if len(set(moved.values())) == len(moved) else {}


def _same_records(pool: Pool, pair: tuple[int, int], changed: Index) -> bool:
    """Whether classes differ and all records together do not: other labels for the same records, if no plain exchange.

    With Σ the clusters' average covariance of all records, π_u a class's share and Δ_u the difference of its means,
    the difference m of the overall means is small: mᵀΣ⁻¹m ≪ Σ_u π_u² Δ_uᵀΣ⁻¹Δ_u, both without what sampling
    adds. Records that really look different move the overall mean, too.
    """
    sides = list(pair)
    labels = np.maximum(pool.labels[sides], 0)
    counts = labels.sum(axis=1)
    if len(changed) < 2 or not (counts > 0).all():
        return False
    shares, means = labels / counts[:, None], np.nan_to_num(pool.mean[sides])
    overall = np.einsum("gu,gul->gl", shares, means)
    apart = means - overall[:, None]
    within = np.nan_to_num(pool.covariance[sides]) + apart[..., :, None] * apart[..., None, :]
    scatter = np.einsum("gu,guij->gij", shares, within)
    length = scatter.shape[-1]
    average = scatter.mean(axis=0)
    average = average + (1e-6 * np.trace(average) / length + 1e-30) * np.eye(length)
    precision = np.linalg.inv(average)
    whitening = np.linalg.inv(np.linalg.cholesky(average))
    if np.abs(np.linalg.eigvalsh(whitening @ scatter[0] @ whitening.T) - 1).mean() > ALIKE:
        return False
    noise = length * (1 / counts).sum()
    shift = overall[0] - overall[1]
    moves = means[0, changed] - means[1, changed]
    share = shares.mean(axis=0)[changed] ** 2
    noise_of_moves = (share * length * (1 / np.maximum(pool.weight[sides][:, changed], 1e-12)).sum(axis=0)).sum()
    sum_of_moves = (share * np.einsum("ui,ij,uj->u", moves, precision, moves)).sum() - noise_of_moves
    return bool(sum_of_moves > CLEAR * noise and shift @ precision @ shift - noise < STILL * sum_of_moves)


def _label_words(pool: Pool, pair: tuple[int, int], vocabulary: Vocabulary) -> str:
    counts = pool.labels[list(pair)]
    counts = np.where(counts > 2 * np.sqrt(pool.label_noise[list(pair), None]), counts, 0)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    only = [[int(u) for u in np.flatnonzero((shares[i] > 0) & (shares[1 - i] == 0))] for i in (0, 1)]
    told = [f"only cluster {pair[i]} has {vocabulary.listed(only[i])}" for i in (0, 1) if only[i]]
    if told:
        return "label shares differ (" + "; ".join(told) + ")"
    most = int(np.abs(shares[0] - shares[1]).argmax())
    first, second = (f"{100 * share:.1f} %" for share in shares[:, most])
    return f"label shares differ (most in class {vocabulary.name(most)}: {first} and {second})"
