"""Several records of one person: X-rays of NIH, patients dealt at random, with and without saying who is who.

python -m benchmarks.groups --data DATA/nih_cxr64 --deals 100          (from the repository's root)
python -m benchmarks.groups --data DATA/nih_cxr64 --deals 20 --drift

One LeNet-5, trained for a few epochs on all images, serves every deal. For K = 5, 10 and 20 clients, labelled with the
view or with "any finding", prints in how many deals the clusterer splits clients that differ in nothing (without groups
given, with groups counted as ρ = 1, and with ρ estimated by each client), and the share of client pairs decided rightly
once one half of the clients is moved by `--shift` within-class deviations in a random direction. `--drift` instead
prints in how many rounds somebody is said to drift when ten clients tell their patients chunk by chunk, in order.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.real_data import XRays, deal_patients, load_xrays
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from fedflux.clustering.calibrated import CalibratedClustering
from fedflux.clustering.change.drift import FALSE_ALARMS, History, add_descriptors, alarms, log_change, stronger
from fedflux.descriptors.bounds import Bounds
from fedflux.descriptors.descriptor import Descriptors, effective_counts, make_descriptors
from fedflux.descriptors.groups import alikeness
from fedflux.descriptors.moments import MomentStatistic, moments
from fedflux.descriptors.projector import Projector, fit_projector
from fedflux.models import build_model

Array = NDArray[np.float64]
Index = NDArray[np.int64]

CLASSES = 2
CHUNK, DRIFTING = 60, 10
RULES = ("no groups", "ρ = 1", "ρ estimated")


@dataclass(frozen=True, eq=False)
class Records:
    """Reduced latents, labels and patients of all X-rays."""

    reduced: Array
    labels: Index
    patient: Index

    def take(self, some: NDArray[np.bool_]) -> "Records":
        """Those of one client."""
        return Records(self.reduced[some], self.labels[some], self.patient[some])


def described(xrays: XRays, labels: Index, epochs: int, seed: int) -> Records:
    """Train a model and reduce the latents of all images."""
    x = ((torch.from_numpy(np.array(xrays.x)).float() / 255 - 0.5) / 0.5)[:, None]
    y = torch.from_numpy(labels)
    model = build_model("lenet5", (1, 64, 64), CLASSES, seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(y)), len(y) // 64):
            optimiser.zero_grad()
            torch.autograd.backward(cross_entropy(model(x[batch]), y[batch]))
            optimiser.step()
    with torch.no_grad():
        encode = model.get_submodule("features")
        latents = torch.cat([encode(x[k : k + 500]) for k in range(0, len(x), 500)])
    projector = fit_projector(Bounds(latents.amin(dim=0).numpy(), latents.amax(dim=0).numpy()))
    return Records(projector.project(latents).numpy(), labels, xrays.patient)


def effective(mine: Records, rule: str) -> Array:
    """A client's effective counts."""
    rows = np.arange(len(mine.labels))
    if rule == RULES[0]:
        return effective_counts(rows, mine.labels, CLASSES)
    if rule == RULES[1]:
        return effective_counts(rows, mine.labels, CLASSES, mine.patient)
    alike = alikeness(mine.reduced, mine.labels, mine.patient)
    return effective_counts(rows, mine.labels, CLASSES, mine.patient, alike.within, alike.overall)


def descriptors_of(clients: list[Records], rule: str) -> Descriptors:
    """As the clients would describe themselves."""
    length = clients[0].reduced.shape[1]
    statistic = MomentStatistic(Projector(np.zeros(length), np.eye(length)), CLASSES)
    sums = [statistic.add(None, torch.from_numpy(c.reduced), torch.from_numpy(c.labels)) for c in clients]
    return make_descriptors([moments(one) for one in sums], [effective(mine, rule) for mine in clients])


def one_deviation(records: Records, rng: np.random.Generator) -> Array:
    """A random direction of the length of one within-class deviation."""
    classes = [records.reduced[records.labels == u] for u in range(CLASSES)]
    within = sum(np.cov(z.T, bias=True) * len(z) for z in classes) / len(records.labels)
    move = rng.normal(size=records.reduced.shape[1])
    return np.asarray(move / np.sqrt(move @ np.linalg.solve(within, move)))


def deal(records: Records, clients: int, shift: float, rng: np.random.Generator) -> dict[str, tuple[int, float]]:
    """One deal: by rule, how many clusters are found where there is one, and pairs right where there are two."""
    owner = deal_patients(records.patient, clients, rng)
    half = np.arange(clients) % 2
    move = shift * one_deviation(records, rng)
    mine = [records.take(owner == k) for k in range(clients)]
    found = {}
    for rule in RULES:
        plain = descriptors_of(mine, rule)
        moved = replace(plain, mean=plain.mean + half[:, None, None] * move)
        labels, parted = (CalibratedClustering().fit(one).labels_ for one in (plain, moved))
        right = ((parted[:, None] == parted) == (half[:, None] == half))[np.triu_indices(clients, 1)]
        found[rule] = int(labels.max()) + 1, float(right.mean())
    return found


def chunks_of(mine: Records) -> list[Records]:
    """A client's records in the order of their patients, in chunks of whole patients and about `CHUNK` records."""
    order = np.argsort(mine.patient, kind="stable")
    first = np.unique(mine.patient[order], return_index=True)[1]
    wanted = np.searchsorted(first, np.arange(CHUNK, len(order) - CHUNK // 2, CHUNK))
    cuts = np.unique(first[wanted[wanted < len(first)]])
    return [Records(mine.reduced[c], mine.labels[c], mine.patient[c]) for c in np.split(order, cuts)]


def alarms_of(records: Records, rule: str, rng: np.random.Generator) -> tuple[int, int]:
    """Rounds of one deal in which somebody is said to drift, and rounds; an alarm does not begin a history anew."""
    owner = deal_patients(records.patient, DRIFTING, rng)
    told = [chunks_of(records.take(owner == k)) for k in range(DRIFTING)]
    known = descriptors_of([one[0] for one in told], rule)
    history, rounds, said = History.of(known), min(map(len, told)), 0
    for number in range(1, rounds):
        new = descriptors_of([one[number] for one in told], rule)
        history = history.grown(new)
        said += bool(alarms(stronger(log_change(known, new), history.log_change()), FALSE_ALARMS).any())
        known, history = add_descriptors(known, new), history.folded()
    return said, rounds - 1


def show_drift(records: Records, name: str, deals: int, seed: int) -> None:
    """One row for each rule."""
    for rule in RULES:
        draws = [np.random.default_rng([seed, number]) for number in range(deals)]
        said, rounds = np.sum([alarms_of(records, rule, rng) for rng in tqdm(draws, desc=f"{name} {rule}")], axis=0)
        print(f"| {name} | {rule} | {said} of {rounds} rounds |", flush=True)


def main() -> None:
    """Print one row for each configuration and rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--deals", type=int, default=100)
    parser.add_argument("--shift", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--drift", action="store_true", help="chunks of patients in order instead of deals")
    told = parser.parse_args()
    xrays = load_xrays(told.data)
    if told.drift:
        for name, labels in (("view", xrays.view), ("finding", xrays.findings.max(axis=1))):
            show_drift(described(xrays, labels, told.epochs, told.seed), name, told.deals, told.seed)
        return
    print("| label | clients | groups | deals split | clusters, mean | pairs right, two halves |")
    print("|---|---|---|---|---|---|")
    for name, labels in (("view", xrays.view), ("finding", xrays.findings.max(axis=1))):
        records = described(xrays, labels, told.epochs, told.seed)
        for clients in (5, 10, 20):
            draws = [np.random.default_rng([told.seed, clients, number]) for number in range(told.deals)]
            deals = [deal(records, clients, told.shift, rng) for rng in tqdm(draws, desc=f"{name} {clients}")]
            for rule in RULES:
                count, right = np.array([one[rule] for one in deals]).T
                split = f"{(count > 1).sum()} of {told.deals}"
                print(
                    f"| {name} | {clients} | {rule} | {split} | {count.mean():.2f} | {right.mean():.3f} |", flush=True
                )


if __name__ == "__main__":
    main()
