"""From a dataset to a federation: a pure function of (dataset, shift, level, clients, seed) on every device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from fedflux.data.dataset import Dataset
from fedflux.data.federation import CACHE_BYTES, Federation
from fedflux.data.held_out import KnownPatterns, Numbers, Population, Roles, own_roles, simulated_roles
from fedflux.data.lazy import Lazy, Picked
from fedflux.data.shifts.allocation import (
    ClientRows,
    deal_dirichlet,
    deal_domains,
    deal_existing,
    deal_shares,
    select_labels,
    split_validation,
)
from fedflux.data.shifts.drift import Drift, Epoch, Epochs
from fedflux.data.shifts.levels import DIRICHLET_ALPHA
from fedflux.data.shifts.patterns import Pattern, PatternDraw, ShiftSettings, shift_parts
from fedflux.data.shifts.sampling import DrawnRows, RowPool
from fedflux.data.splits import Rows
from fedflux.data.tasks.kinds import kinds
from fedflux.data.truth import true_clusters
from fedflux.errors import FedfluxError
from fedflux.streams import stream

T = TypeVar("T")
VALIDATION_SHARE = 0.2
EAGER = 2000
"""Clients up to which all are made at once, so that what is wrong with any is found before a run begins."""


@dataclass(frozen=True)
class Partition:
    """How a dataset becomes a federation."""

    shift: str = "none"
    level: int = 4
    clients: int | None = None
    """None: the data's own clients where it has them, else 10."""
    seed: int = 42
    patterns: Literal["independent", "shared"] = "independent"
    bank: int = 5
    strength: float | None = None
    alpha: float | None = None
    """Dirichlet's concentration; None: by the level."""
    quantity_skew: float = 0.0
    data_fraction: float = 1.0
    """The share of the training data that is dealt; test parts stay whole."""
    duplicate: int = 1
    """How often a client holds each of its training examples (the paper repeats them so that many clients with few
    examples train as long as few with many); validation and test examples are there once."""
    samples_per_client: int | None = None
    """None: the examples are dealt, each to one client. Else every client draws this many for training and validation
    from all of them, different clients the same one at times, and in proportion to the dataset's parts for test."""
    drift: str | None = None
    """When clients draw their patterns anew (`Drift.parse`); None: never."""
    unseen: int = 0
    """Clients that are held out of training, besides those that the data has in its test part alone: as many more are
    dealt, or taken from the data's own."""

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients < 1:
            raise FedfluxError(f"{self.clients} clients: a federation needs 1 or more")
        if self.seed < 0:
            raise FedfluxError(f"seed {self.seed}: give 0 or more")
        if self.unseen < 0:
            raise FedfluxError(f"{self.unseen} unseen clients: give 0 or more")
        if not 0 < self.data_fraction <= 1:
            raise FedfluxError(f"data fraction {self.data_fraction} is outside 0 to 1")
        if self.duplicate < 1:
            raise FedfluxError(f"duplicate {self.duplicate}: give 1 (no copies) or more")
        if self.samples_per_client is not None and self.samples_per_client < 1:
            raise FedfluxError(f"{self.samples_per_client} samples per client: give 1 or more")
        if not 0 <= self.quantity_skew <= 1:
            raise FedfluxError(f"quantity skew {self.quantity_skew} is outside 0 to 1")
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise FedfluxError(f"alpha {self.alpha}: Dirichlet needs a finite value above 0")
        if self.patterns not in ("independent", "shared"):
            raise FedfluxError(f"unknown patterns '{self.patterns}': choose independent or shared")
        shift_parts(self.shift)
        if self.drift is not None:
            Drift.parse(self.drift)
            if self.shift in ("none", "dirichlet"):
                raise FedfluxError(f"--drift draws patterns anew, and {self.shift} has none: name another shift")
        if self.shift == "dirichlet" and self.quantity_skew > 0:
            raise FedfluxError("dirichlet decides the clients' sizes itself; leave quantity skew at 0")


def partition(dataset: Dataset, how: Partition) -> Federation:
    """The clients that train: a pattern and rows for each, P(Y) applied inside each split.

    Up to `EAGER` clients are made and checked here; of more, each is made when a cohort asks for it.
    """
    return populate(dataset, how).training


def populate(dataset: Dataset, how: Partition) -> Population:
    """The clients that train, and those that are held out of training."""
    roles = _roles(dataset, how)
    _check_images(dataset, how)
    _check_labels(dataset, how)
    drift = Drift() if how.drift is None else Drift.parse(how.drift)
    drawn = [_draw(dataset, how, roles, epoch) for epoch in range(drift.epochs)]
    truths: Sequence[Numbers | None] = [None] * drift.epochs
    if _has_truth(dataset, how):
        own = None if dataset.client_clusters is None else dataset.client_clusters[roles.order]
        if dataset.domains is not None:
            own = dataset.domains.of_clients(how.level, len(roles.order), how.seed)[roles.order]
        truths = true_clusters([patterns for _, patterns in drawn], len(roles.training), own)
    epochs = tuple(Epoch(*one, truth) for one, truth in zip(drawn, truths, strict=True))
    everyone = _federation(dataset, how, roles.order, Epochs(drift, epochs))
    if not len(roles.unseen):
        return Population(everyone, everyone)
    training = Epochs(drift, tuple(_first(one, len(roles.training)) for one in epochs))
    return Population(_federation(dataset, how, roles.training, training), everyone)


def _federation(dataset: Dataset, how: Partition, clients: Numbers, epochs: Epochs) -> Federation:
    names, now = dataset.client_names, epochs.drawn[0]
    return Federation(
        dataset=dataset,
        rows=now.rows,
        patterns=now.patterns,
        seed=how.seed,
        channels=_channels(dataset, how),
        names=None if names is None else tuple(names[k] for k in clients),
        duplicate=how.duplicate,
        cache_bytes=CACHE_BYTES if len(clients) <= EAGER else CACHE_BYTES // 4,  # hardly anyone of so many comes back
        _epochs=None if how.drift is None else epochs,
        _truth=now.truth,
    )


def _draw(dataset: Dataset, how: Partition, roles: Roles, epoch: int) -> tuple[Sequence[ClientRows], Sequence[Pattern]]:
    """Everybody's rows and patterns in one epoch: the same deal, another draw of patterns."""
    draw: Callable[[int], Pattern] = PatternDraw(how.shift, how.seed, _settings(dataset, how), epoch)
    if len(roles.unseen) and _settings(dataset, how).few(how.shift):
        draw = KnownPatterns(draw, roles.training, frozenset(roles.unseen.tolist()), how.seed, epoch)
    patterns: Sequence[Pattern] = Lazy(len(roles.order), draw)
    if len(patterns) <= EAGER:
        patterns = tuple(patterns)
    rows = Lazy(len(patterns), _rows(dataset, how, patterns, frozenset(roles.unseen.tolist())))
    return _in_order(rows, roles.order), _in_order(patterns, roles.order)


def _in_order(items: Sequence[T], order: Numbers) -> Sequence[T]:
    """The same items in another order, made when they are asked for where there are very many."""
    found = Lazy(len(order), Picked(items, order))
    return tuple(found) if len(order) <= EAGER else found


def _first(epoch: Epoch, count: int) -> Epoch:
    """An epoch of the first clients alone."""
    order = np.arange(count)
    truth = None if epoch.truth is None else epoch.truth[:count]
    return Epoch(_in_order(epoch.rows, order), _in_order(epoch.patterns, order), truth)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Client k's rows, dealt or drawn; refuses a client that is to train and that P(Y) leaves without examples."""

    dataset: Dataset
    how: Partition
    patterns: Sequence[Pattern]
    shares: tuple[list[Rows], list[Rows]] | None
    drawn: Sequence[DrawnRows]
    """What is drawn from where it is not dealt: by domain, where the data has some."""
    domain: Numbers | None
    """Of every client, which of them it draws from."""
    unseen: frozenset[int]

    def __call__(self, client: int) -> ClientRows:
        if self.drawn:
            rows = self.drawn[0 if self.domain is None else int(self.domain[client])].rows(
                client, self.patterns[client]
            )
        else:
            rows = self._dealt(client)
        if len(rows.train) == 0 and client not in self.unseen:
            raise _nothing(self.dataset, client, self.how)
        return rows

    def _dealt(self, client: int) -> ClientRows:
        assert self.shares is not None
        train, test = self.shares
        mine, validation = split_validation(
            train[client], VALIDATION_SHARE, self.how.seed, client, self.dataset.train.group
        )
        y = self.dataset.train.y
        parts = {"train": (mine, y), "validation": (validation, y), "test": (test[client], self.dataset.test.y)}
        rows = {}
        for name, (part, labels) in parts.items():
            rng = stream(self.how.seed, f"label shift {name}", client=client)
            rows[name] = select_labels(part, labels, self.patterns[client], rng)
        return ClientRows(**rows)


def _rows(dataset: Dataset, how: Partition, patterns: Sequence[Pattern], unseen: frozenset[int]) -> _Rows:
    train, test = dataset.train, dataset.test
    if how.samples_per_client is None:
        shares = _deal(dataset, how, len(patterns))
        for client, share in enumerate(shares[0]):
            if len(share) == 0 and client not in unseen:
                raise _nothing(dataset, client, how)
        return _Rows(dataset, how, patterns, shares, (), None, unseen)
    everything = _fraction(np.arange(len(train)), how, 0), np.arange(len(test))
    if dataset.domains is None:
        tests = max(1, round(how.samples_per_client * len(test) / len(train))) if len(test) else 0
        return _Rows(dataset, how, patterns, None, (_drawn(dataset, how, everything, tests),), None, unseen)
    of_train, of_test = dataset.domains.of_records(how.level)
    own = dataset.domains.of_clients(how.level, len(patterns), how.seed)
    tests = dataset.domains.tests or max(1, round(how.samples_per_client * len(test) / len(train)))
    pools = []
    for domain in range(int(own.max()) + 1):
        rows = everything[0][of_train[everything[0]] == domain], np.flatnonzero(of_test == domain)
        pools.append(_drawn(dataset, how, rows, tests))
    return _Rows(dataset, how, patterns, None, pools, own, unseen)


def _drawn(dataset: Dataset, how: Partition, rows: tuple[Rows, Rows], tests: int) -> DrawnRows:
    """What clients draw of these rows of the training and the test part."""
    train, test = dataset.train, dataset.test
    count = dataset.task.kinds(dataset.classes)
    assert how.samples_per_client is not None
    return DrawnRows(
        RowPool.of(rows[0], kinds(train.y), count),
        RowPool.of(rows[1], kinds(test.y), count),
        how.samples_per_client,
        tests,
        how.seed,
        VALIDATION_SHARE,
        train.group,
    )


def _nothing(dataset: Dataset, client: int, how: Partition) -> FedfluxError:
    if dataset.client_names is not None and how.shift == "none":
        words = "has no record to train with; give it some, or leave out its name"
        return FedfluxError(f"{dataset.name}: client '{dataset.client_names[client]}' {words}")
    if how.shift == "none":
        return FedfluxError(f"client {client} keeps no training example; use fewer clients or more data")
    return FedfluxError(
        f"client {client} keeps no training example under {how.shift} level {how.level}; "
        "use fewer clients, a lower level or more data"
    )


def _settings(dataset: Dataset, how: Partition) -> ShiftSettings:
    return ShiftSettings(
        level=how.level,
        classes=dataset.classes,
        hundred_rule=_hundred_rule(dataset),
        shared=how.patterns == "shared",
        bank=how.bank,
        strength=how.strength,
    )


def _hundred_rule(dataset: Dataset) -> bool:
    return dataset.name == "cifar100"


def count_clients(dataset: Dataset, how: Partition) -> int:
    """How many clients train: the number asked for, the data's own that are not held out, or 10."""
    return len(_roles(dataset, how).training)


def _roles(dataset: Dataset, how: Partition) -> Roles:
    """Who trains and who is held out, after checking that the data can be dealt so."""
    if how.samples_per_client is not None and (how.shift == "dirichlet" or how.quantity_skew > 0):
        raise FedfluxError("samples per client fix every client's size; dirichlet and quantity skew deal out sizes")
    if dataset.client_names is None:
        clients = 10 if how.clients is None else how.clients
        dealt = round(how.data_fraction * len(dataset.train))
        if clients + how.unseen > dealt and how.samples_per_client is None:
            held = f"{clients + how.unseen} clients but only {dealt} training examples in {dataset.name}"
            raise FedfluxError(f"{held}; samples per client (drawn with reuse) allow more")
        return simulated_roles(clients, how.unseen)
    roles = own_roles(dataset, how.unseen, how.seed)
    named = len(roles.training)
    if how.clients not in (None, named):
        raise FedfluxError(f"{dataset.name} is split over its own {named} clients; {how.clients} were asked for")
    if how.samples_per_client is not None:
        raise FedfluxError(f"{dataset.name} is split by client already; samples per client would draw it anew")
    if how.shift == "dirichlet" or how.quantity_skew > 0:
        raise FedfluxError(f"{dataset.name} is split by client already; dirichlet and quantity skew would deal it anew")
    return roles


def _check_images(dataset: Dataset, how: Partition) -> None:
    if {"px", "pxgy"} & set(shift_parts(how.shift)) and not dataset.holds_images:
        what = f"{dataset.name} holds inputs of shape {dataset.input_shape}"
        raise FedfluxError(f"{how.shift} rotates and colours grey or RGB images; {what}: choose another --shift")


def _check_labels(dataset: Dataset, how: Partition) -> None:
    """Refuse shifts of labels where records have several, or where clients have none."""
    parts = set(shift_parts(how.shift)) - {"none", "px"}
    if dataset.task.several and parts - {"pygx"}:
        words = f"{how.shift} deals records by their one class, and those of {dataset.name} have several labels"
        raise FedfluxError(f"{words}: choose --shift none, px or pygx")
    if parts and dataset.some_unlabelled:
        words = f"{how.shift} deals and changes labels, and some clients of {dataset.name} have none"
        raise FedfluxError(f"{words}: choose --shift none or px")


def _channels(dataset: Dataset, how: Partition) -> int | None:
    parts = shift_parts(how.shift)
    coloured = "px" in parts or ("pxgy" in parts and _hundred_rule(dataset))
    return 3 if coloured else None


def _deal(dataset: Dataset, how: Partition, clients: int) -> tuple[list[Rows], list[Rows]]:
    train, test = dataset.train, dataset.test
    if train.client is not None:
        own_test = test.client if test.client is not None else np.zeros(0, dtype=np.int64)
        shares = deal_existing(train.client, clients), deal_existing(own_test, clients)
        if how.data_fraction == 1:
            return shares
        return [_fraction(rows, how, k) for k, rows in enumerate(shares[0])], shares[1]
    subset = _fraction(np.arange(len(train)), how, 0)
    if dataset.domains is not None:
        if how.shift == "dirichlet":
            words = " and ".join(dataset.domains.words)
            raise FedfluxError(f"{dataset.name} deals its records by {words}; dirichlet would deal them by class")
        own = dataset.domains.of_clients(how.level, clients, how.seed)
        of_train, of_test = dataset.domains.of_records(how.level)
        everything = np.arange(len(test))
        return (
            deal_domains(of_train, own, subset, how.seed, "train", how.quantity_skew, train.group),
            deal_domains(of_test, own, everything, how.seed, "test", 0.0, test.group),
        )
    if how.shift == "dirichlet":
        if train.group is not None:
            raise FedfluxError(f"dirichlet deals classes record by record; {dataset.name} has groups, which stay whole")
        alpha = how.alpha if how.alpha is not None else DIRICHLET_ALPHA[how.level]
        by_class, test_rows = deal_dirichlet((train.y[subset], test.y), dataset.classes, clients, how.seed, alpha)
        return [subset[rows] for rows in by_class], test_rows
    group = None if train.group is None else train.group[subset]
    shares_train = deal_shares(len(subset), clients, how.seed, "train", how.quantity_skew, group)
    return [subset[rows] for rows in shares_train], deal_shares(len(test), clients, how.seed, "test", group=test.group)


def _fraction(rows: Rows, how: Partition, client: int) -> Rows:
    if how.data_fraction == 1:
        return rows
    count = min(len(rows), max(1, round(how.data_fraction * len(rows))))
    return np.sort(stream(how.seed, "data fraction", client=client).choice(rows, size=count, replace=False))


def _has_truth(dataset: Dataset, how: Partition) -> bool:
    """Whether clients fall into clusters: not where every distribution is its own, nor where the data tells nothing."""
    continuous = how.shift == "dirichlet" or (how.strength is not None and how.patterns == "independent")
    return not continuous and (dataset.client_names is None or dataset.client_clusters is not None)
