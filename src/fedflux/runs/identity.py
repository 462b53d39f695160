"""Which run is which: what determines its numbers, what it may be compared with, and what to call it."""

from collections.abc import Collection
from dataclasses import asdict
from hashlib import sha256
from json import dumps
from re import sub
from typing import Any

from fedflux.algorithms import READS, make_algorithm, registry
from fedflux.algorithms.base import OF_STEPS
from fedflux.algorithms.registry import algorithm_digest, runs_paper_baseline
from fedflux.clustering import clusterer_digest, clusterers
from fedflux.data.shifts.drift import Drift
from fedflux.data.shifts.patterns import has_level, shift_parts
from fedflux.data.sources import BY_LEVEL, SOURCES
from fedflux.data.sources import GROUP as SOURCE_GROUP
from fedflux.errors import FedfluxError
from fedflux.models import GROUP as MODEL_GROUP
from fedflux.models import MODELS, REVISIONS
from fedflux.plugins import find, path_of, source_digest
from fedflux.runs.config import SETTINGS, RunConfig
from fedflux.runs.presets import OWN_DATA, PRESETS, preset, tuned_rate
from fedflux.settings import dashed

HOW_AND_WHERE = frozenset(name for name, one in SETTINGS.items() if not one.counts)
"""Settings that say how and where to run; they do not determine the numbers."""
GRID = ("algorithm", "shift", "level", "seed")
"""What a comparison varies."""
REVISED = {("sharing", "auto"): 3, ("sharing", "trunk"): 2, ("assignment", "mixture"): 2}
"""Values of settings that do something else than when runs were first kept under them. A method's revision would part
it from runs with other values, too."""
_WRITTEN = {"auto": "looks", "trigger": "auto"}
"""How `cluster_round` is kept: what is called `trigger` now was `auto` when runs were first kept."""
_CHOSEN = frozenset().union(*READS.values())


def determines(config: RunConfig) -> dict[str, Any]:
    """The settings that determine the numbers; those that the algorithm does not read are left out."""
    unread = _CHOSEN - READS[config.algorithm] | _unread_of_shift(config)
    counts = {key: value for key, value in asdict(config).items() if key not in HOW_AND_WHERE | unread}
    if config.algorithm == "flux" and config.clusterer != "kmeans":
        counts.pop("clusters", None)
    elif config.algorithm != "flux" and counts.get("clusters") == "true":
        counts["clusters"] = None  # methods that need a number get the true one anyway
    if not _runs_paper_baseline(config):
        counts["preset"] = None  # what it sets is among the settings already
    elif config.algorithm == "ifca":
        counts.pop("clusters", None)  # always ten there
    if config.clusterer != "adaptive-dbscan":
        counts.pop("eps_scale", None)
    if config.variation == "fixed" or (config.algorithm == "flux" and config.clusterer != "calibrated"):
        counts.pop("variation", None)  # as if there were no such setting
    if not config.server_momentum:
        counts.pop("server_momentum", None)  # as if there were no such setting
    if config.passes is None or "finetune" not in READS[config.algorithm]:
        counts.pop("passes")
    if config.clip is None:
        counts.pop("clip")
    if not config.reads("momentum"):
        counts.pop("momentum")
    for name in OF_STEPS & counts.keys():
        if counts[name] == SETTINGS[name].default:
            counts.pop(name)  # as if there were no such setting
    if not config.unseen:
        counts.pop("unseen")
    if config.scale in ("auto", "pixels"):
        counts.pop("scale")  # what comes of it is in the data's checksum
    if config.min_members == 1:
        counts.pop("min_members", None)
    if config.drift_test == "chunk":
        counts.pop("drift_test", None)
    if config.drift is None:
        counts.pop("drift")
    else:
        counts["drift"] = Drift.parse(config.drift).spec
    if config.novel == "nearest" and config.algorithm != "flux-dynamic":  # who is called novel changes no model then
        counts = {key: value for key, value in counts.items() if key not in ("novel", "novelty_level")}
    return _with_privacy(counts, config)


def _with_privacy(counts: dict[str, Any], config: RunConfig) -> dict[str, Any]:
    """The promise as it is kept; without one, nothing of it. Noise is drawn afresh: equal private runs differ."""
    privacy = config.privacy()
    left_out = {"dp", "epsilon", "delta"} if privacy is None else {"delta"} if privacy.mechanism == "paper" else set()
    left_out = left_out | ({"privacy_unit"} if privacy is None or privacy.unit == "record" else set())
    kept = {key: value for key, value in counts.items() if key not in left_out}
    if privacy is not None:
        kept["dp"] = privacy.mechanism
        if privacy.mechanism == "gaussian":
            kept.pop("bounds", None)
    return kept


def _runs_paper_baseline(config: RunConfig) -> bool:
    """Whether --preset paper-baselines makes this another method."""
    return runs_paper_baseline(config.algorithm, config.preset == "paper-baselines")


def _is_tuned(config: RunConfig) -> bool:
    """Whether the learning rate is the method's own, and not one that everybody shares or that was asked for."""
    return config.preset == "tuned" and config.lr == tuned_rate(config.dataset, config.algorithm)


def _has_level(config: RunConfig) -> bool:
    """Whether the level says anything: of a shift that is simulated, or of how records differ by nature."""
    return has_level(config.shift, config.strength, config.alpha) or config.dataset in BY_LEVEL


def _unread_of_shift(config: RunConfig) -> set[str]:
    """Settings of the partition that this shift does not read."""
    parts, soft = set(shift_parts(config.shift)), config.strength is not None
    drawn_apart = bool(parts & {"pygx", "pxgy"}) or soft
    unread = set()
    if not _has_level(config):
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


def identity(config: RunConfig, checksum: str, code: str | None = None) -> str:
    """One name for all runs that must give the same numbers: data, settings that count, the revisions of the
    algorithm and the model, and the code of an algorithm, a clusterer or a model that is not ours, however it is named.

    `code` is the digest of a model that was handed in. `config` has its model and number of clients decided
    (`build_federation` does that).
    """
    of_model = _code_of_model(config.model) if code is None else [code]
    of_method = [digest] if (digest := algorithm_digest(config.algorithm)) else []
    counts = determines(config)
    counts["algorithm"] = registry.whole_name(config.algorithm)
    if "clusterer" in counts:
        counts["clusterer"] = clusterers.whole_name(config.clusterer)
    counts["dataset"] = _whole_name(config.dataset, SOURCES, SOURCE_GROUP)
    if code is None:
        counts["model"] = _whole_name(config.model, MODELS, MODEL_GROUP)
    if config.cluster_round in _WRITTEN and "cluster_round" in counts:
        once = config.privacy() is not None or config.algorithm == "flux-dynamic"  # who look once, when C(r) fires
        counts["cluster_round"] = _WRITTEN["trigger" if once else str(config.cluster_round)]
    revised = [[name, number] for (name, value), number in REVISED.items() if counts.get(name) == value]
    of_clusterer = [digest] if config.reads("clusterer") and (digest := clusterer_digest(config.clusterer)) else []
    return _digest([counts, checksum, revision(config), *of_model, *of_method, *of_clusterer, *revised])


def _whole_name(name: str, ours: Collection[str], group: str) -> str:
    """One name for a thing of others', whether an entry point offers it or it is named by where it is."""
    try:
        found = None if name in ours else find(group, name, name)
    except FedfluxError:  # whoever needs it says what is wrong with it
        return name
    return path_of(found) if hasattr(found, "__qualname__") else name


def _code_of_model(name: str) -> list[int | str]:
    """The revision of a model of ours that has changed, or a digest of the file that another's is written in."""
    if name in MODELS:
        return [REVISIONS[name]] if name in REVISIONS else []
    try:
        found = find(MODEL_GROUP, name, "model")
    except FedfluxError:  # whoever builds the model says what is wrong with it
        return []
    return [] if found is None else [source_digest(found)]


def deployed_identity(config: RunConfig) -> str:
    """The same for a run over nodes, whose data nobody here knows; no run here has it."""
    return identity(config, "nodes")


def folder_name(config: RunConfig, checksum: str, code: str | None = None) -> str:
    """A readable folder that runs of different identities never share."""
    level = config.level if _has_level(config) else ""
    readable = f"{config.dataset}-{config.shift}{level}-{config.algorithm}-s{config.seed}"
    return f"{sub('[+:]', '-', readable)}-{identity(config, checksum, code)[:8]}"


def shift_words(config: RunConfig) -> str:
    """`px level 4`; `none`, which has no level."""
    level = f" level {config.level}" if _has_level(config) else ""
    return f"{config.shift}{level}"


def label(config: RunConfig) -> str:
    """The algorithm, with what was set differently from its defaults: `flux (clusterer kmeans, clusters true)`."""
    counts, usual = determines(config), preset(config.dataset)
    own = sorted((_CHOSEN | {"preset"}) & counts.keys())
    chosen = [f"{dashed(key)} {counts[key]}" for key in own if counts[key] != usual[key]]
    return f"{config.algorithm} ({', '.join(chosen)})" if chosen else config.algorithm


def group(config: RunConfig, checksum: str) -> str:
    """In words, the settings that runs must share to be comparable: all but the grid and the algorithms' own."""
    counts, usual = determines(config), preset(config.dataset)
    apart = {*GRID, *_CHOSEN, "preset", "dataset", "clients", *(["lr"] if _is_tuned(config) else [])}
    shared = {key: value for key, value in counts.items() if key not in apart}
    shared |= {"preset": "tuned"} if _is_tuned(config) else {}
    differing = [
        f"{dashed(key)} {value}"
        for key, value in shared.items()
        if value != usual[key] and not (key == "model" and usual[key] == "auto")
    ]
    own = PRESETS.get(config.dataset, OWN_DATA) is OWN_DATA
    data = f"{config.dataset} {checksum[:6]}" if own else config.dataset
    return ", ".join([data, f"{config.clients} clients", *differing])


def _digest(content: Any) -> str:
    return sha256(dumps(content, sort_keys=True).encode()).hexdigest()[:32]
