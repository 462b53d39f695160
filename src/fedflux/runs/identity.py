"""Which run is which: what determines its numbers, what it may be compared with, and what to call it."""

from dataclasses import asdict
from hashlib import sha256
from json import dumps
from typing import Any

from fedflux.algorithms import HARNESS, READS, make_algorithm
from fedflux.data.shifts.drift import Drift
from fedflux.data.shifts.patterns import shift_parts
from fedflux.runs.config import RunConfig
from fedflux.runs.presets import preset, tuned_rate
from fedflux.models import REVISIONS

HOW_AND_WHERE = frozenset(("data_dir", "engine", "device", "out", "store", "track", "resume"))
"""Settings that say how and where to run; they do not determine the numbers."""
GRID = ("algorithm", "shift", "level", "seed")
"""What a comparison varies."""
_CHOSEN = frozenset().union(*READS.values())


def determines(config: RunConfig) -> dict[str, Any]:
    """The settings that determine the numbers; those that the algorithm does not read are left out."""
    unread = _CHOSEN - READS[config.algorithm] | _unread_of_shift(config)
    told = {key: value for key, value in asdict(config).items() if key not in HOW_AND_WHERE | unread}
    if config.algorithm == "flux" and config.clusterer != "kmeans":
        told.pop("clusters", None)
    elif config.algorithm != "flux" and told.get("clusters") == "true":
        told["clusters"] = None  # methods that need a number are told the true one anyway
    if not _runs_the_harness(config):
        told["preset"] = None  # a tuned rate is among the settings already
    elif config.algorithm == "ifca":
        told.pop("clusters", None)  # always ten there
    if config.clusterer != "adaptive-dbscan":
        told.pop("eps_scale", None)
    if not config.server_momentum:
        told.pop("server_momentum", None)  # as if there were no such setting
    if config.clip is None:
        told.pop("clip")
    if config.drift is None:
        told.pop("drift")
    else:
        told["drift"] = Drift.parse(config.drift).spec
    if config.novel == "nearest" and config.algorithm != "flux-dynamic":  # who is called novel changes no model then
        told = {key: value for key, value in told.items() if key not in ("novel", "novelty_level")}
    return _with_privacy(told, config)


def _with_privacy(told: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """The promise as it is kept; without one, nothing of it. Noise is drawn afresh: equal private runs differ."""
    privacy = config.privacy()
    left_out = {"dp", "epsilon", "delta"} if privacy is None else {"delta"} if privacy.mechanism == "paper" else set()
    kept = {key: value for key, value in told.items() if key not in left_out}
    if privacy is not None:
        kept["dp"] = privacy.mechanism
        if privacy.mechanism == "gaussian":
            kept.pop("bounds", None)
    return kept


def _runs_the_harness(config: RunConfig) -> bool:
    """Whether --preset flux-paper makes this another method."""
    return config.preset == "flux-paper" and config.algorithm in HARNESS


def _is_tuned(config: RunConfig) -> bool:
    """Whether the learning rate is the method's own, and not one that everybody shares or that was told."""
    return config.preset == "tuned" and config.lr == tuned_rate(config.dataset, config.algorithm)


def _unread_of_shift(config: RunConfig) -> set[str]:
    """Settings of the partition that this shift does not read."""
    parts, soft = set(shift_parts(config.shift)), config.strength is not None
    drawn_apart = bool(parts & {"pygx", "pxgy"}) or soft
    unread = set()
    if parts == {"none"} or (parts == {"dirichlet"} and config.alpha is not None) or (parts == {"py"} and soft):
        unread.add("level")
    if not drawn_apart:
        unread.add("patterns")
    if not (("py" in parts and not soft) or (drawn_apart and config.patterns == "shared")):
        unread.add("bank")
    if "dirichlet" not in parts:
        unread.add("alpha")
    return unread


def revision(config: RunConfig) -> int:
    """The revision of the algorithm's rules."""
    return make_algorithm(config.algorithm, config.settings()).revision


def identity(config: RunConfig, checksum: str) -> str:
    """One name for all runs that must give the same numbers: data, settings that count, the algorithm's revision and
    the model's.

    `config` has its model and number of clients decided (`build_federation` does that).
    """
    of_model = [REVISIONS[config.model]] if config.model in REVISIONS else []
    return _digest([determines(config), checksum, revision(config), *of_model])


def folder_name(config: RunConfig, checksum: str) -> str:
    """A readable folder that runs of different identities never share."""
    place = f"{config.dataset}-{config.shift.replace('+', '-')}{config.level}"
    return f"{place}-{config.algorithm}-s{config.seed}-{identity(config, checksum)[:8]}"


def label(config: RunConfig) -> str:
    """The algorithm, with what was set differently from its defaults: `flux (clusterer kmeans, clusters true)`."""
    told, usual = determines(config), _defaults(config)
    own = sorted((_CHOSEN | {"preset"}) & told.keys())
    chosen = [f"{key.replace('_', '-')} {told[key]}" for key in own if told[key] != usual[key]]
    return f"{config.algorithm} ({', '.join(chosen)})" if chosen else config.algorithm


def group(config: RunConfig, checksum: str) -> str:
    """In words, the settings that runs must share to be comparable: all but the grid and the algorithms' own."""
    told, usual = determines(config), _defaults(config)
    own = {*GRID, *_CHOSEN, "preset", "dataset", "clients", *(["lr"] if _is_tuned(config) else [])}
    shared = {key: value for key, value in told.items() if key not in own}
    shared |= {"preset": "tuned"} if _is_tuned(config) else {}
    differing = [
        f"{key.replace('_', '-')} {value}"
        for key, value in shared.items()
        if value != usual[key] and not (key == "model" and usual[key] == "auto")
    ]
    data = config.dataset if config.dataset not in ("npz", "folder") else f"{config.dataset} {checksum[:6]}"
    return ", ".join([data, f"{config.clients} clients", *differing])


def _defaults(config: RunConfig) -> dict[str, Any]:
    return asdict(RunConfig(**{**preset(config.dataset), "dataset": config.dataset}))


def _digest(content: Any) -> str:
    return sha256(dumps(content, sort_keys=True).encode()).hexdigest()[:32]
