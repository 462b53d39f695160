"""What a run came to, in words: who stands alone, what sets clusters apart, what is natural, what is shared, and
whether more could be learned.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import numpy as np

from fedflux.algorithms.base import Described
from fedflux.clustering.variation import Variation

MOST_SHIFTS = 3
"""Kinds of differences that are named."""
RISING = 3.0
"""Points that validation gains over the last third of the rounds of a run that could learn more."""


def variation_figures(variation: Variation) -> dict[str, Any]:
    """What clients of one cluster differ by besides chance, as a result holds it."""
    return {
        "estimated": variation.estimated,
        "means": variation.means if variation.estimated else None,
        "labels": variation.labels if variation.estimated else None,
        "floor": variation.floor,
    }


def verdict(
    described: Described, why: Sequence[Mapping[str, Any]], parts: Mapping[str, Any] | None, tested: bool
) -> str:
    """A few sentences; `tested`: clusters were found by tests that know of natural variation."""
    sizes = np.unique(described.labels[described.labels >= 0], return_counts=True)[1]
    words = [_grouping(sizes.tolist()), _differences(why, comb(len(sizes), 2))]
    if tested and len(sizes) < sizes.sum():
        words.append(_natural(described.clusters.variation))
    return " ".join([*filter(None, words), *_shared(parts, len(sizes))])


def _grouping(sizes: list[int]) -> str:
    clients, alone = sum(sizes), sizes.count(1)
    if clients == 1:
        return "One client: there is nothing to cluster."
    if len(sizes) == 1:
        return f"One cluster: nothing sets these {clients} clients apart, and one model serves all."
    if alone == clients:
        return f"Every client is its own cluster ({clients} of {clients}): one model a cluster is local training."
    if 2 * alone > clients:
        return (
            f"{len(sizes)} clusters of {clients} clients, {alone} of them alone: one model a cluster is nearly local "
            "training."
        )
    told = f", {alone} of them alone" if alone else ""
    return f"{len(sizes)} clusters of {clients} clients{told}."


def _differences(why: Sequence[Mapping[str, Any]], there: int) -> str:
    """Which shifts set pairs of clusters apart, the most frequent first; of very many only some were looked at."""
    kinds = Counter(shift for pair in why for shift in str(pair["shift"]).split(" + ") if shift != "none")
    if not kinds:
        return ""
    if len(why) == 1:
        return f"They differ in {' and '.join(kinds)}."
    pairs = len(why)
    looked_at = f"{pairs}" if pairs >= there else f"the first {pairs}"
    named = [
        f"{shift} in {f'all {pairs}' if count == there else f'{count} of {looked_at}'} pairs"
        for shift, count in kinds.most_common(MOST_SHIFTS)
    ]
    return f"Clusters differ in {', '.join(named)}."


def _natural(variation: Variation) -> str:
    if not variation.estimated:
        return "Too little is known of how clients of one cluster vary by nature: sampling noise alone was granted."
    told = []
    if variation.means > 0:
        told.append(f"class means by {variation.means:.2g} deviations in every latent direction")
    if variation.labels > 0:
        told.append(f"label shares by {variation.labels:.2g} of √(p(1 − p))")
    if not told:
        return "Clients of one cluster differ by no more than chance."
    return f"Clients of one cluster differ by nature as well, {' and '.join(told)}; that was granted."


def _shared(parts: Mapping[str, Any] | None, clusters: int) -> list[str]:
    """How much of the answers comes from models that clusters train together."""
    if parts is None or clusters < 2:
        return []
    together = sum(part for name, part in parts["mean"].items() if name != "own")
    return [f"What clusters share has {100 * together:.0f} % of the answers."]


def unfinished(validation: Sequence[float]) -> str:
    """What to say of a run whose validation, in percent after each round, still rises when it ends; mostly nothing."""
    third = len(validation) // 3
    gained = validation[-1] - validation[-1 - third] if third else 0.0
    if not gained >= RISING:  # NaN is no gain
        return ""
    rounds = "round" if third == 1 else f"{third} rounds"
    more = "more rounds or a higher learning rate would teach more"
    return f"Validation gained {gained:.1f} points in the last {rounds}: {more}."
