"""A run's configuration: preset, then config file, then flags; checked once, in full, before anything is touched."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from re import fullmatch
from shlex import quote
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from fedflux.algorithms import ALGORITHMS, READS, DescriptorSettings, Settings
from fedflux.data import Partition
from fedflux.data.shifts.drift import Drift
from fedflux.data.shifts.levels import check_level
from fedflux.data.shifts.patterns import shift_parts
from fedflux.engine import Training
from fedflux.errors import FedfluxError, unknown
from fedflux.runs.presets import preset, tuned_rate
from fedflux.files import read_object
from fedflux.descriptors.privacy.accounting import Privacy, opendp
from fedflux.clustering import ALPHA, Clusterer, check_clusterer
from fedflux.clustering.drift import FALSE_ALARMS
from fedflux.clustering.placement.novelty import LEVEL


@dataclass(frozen=True)
class RunConfig:
    """Everything a run is told. Field names are the flags, with underscores."""

    dataset: str = "digits"
    data_dir: str | None = None
    shift: str = "px"
    level: int = 4
    clients: int | None = None
    seed: int = 42
    patterns: Literal["independent", "shared"] = "independent"
    bank: int = 5
    strength: float | None = None
    alpha: float | None = None
    quantity_skew: float = 0.0
    data_fraction: float = 1.0
    duplicate: int = 1
    samples_per_client: int | None = None
    drift: str | None = None
    participation: float = 1.0
    algorithm: str = "flux"
    preset: Literal["tuned", "flux-paper"] | None = None
    clusters: int | Literal["true"] | None = None
    clusterer: str = "calibrated"
    significance: float = ALPHA
    assignment: Literal["calibrated", "euclidean"] = "calibrated"
    answer: Literal["cluster", "both"] = "cluster"
    novel: Literal["nearest", "global"] = "nearest"
    novelty_level: float = LEVEL
    cluster_round: int | Literal["auto"] = "auto"
    eps_scale: float = 1.0
    components: int = 10
    covariance: Literal["diagonal", "full"] = "diagonal"
    bounds: Literal["coordinate", "scalar"] = "coordinate"
    projector: Literal["synthetic", "discriminant"] = "synthetic"
    redescribe: int = 1
    false_alarms: float = FALSE_ALARMS
    dp: Literal["gaussian", "paper"] | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    model: str = "auto"
    rounds: int = 10
    epochs: int = 2
    batch_size: int = 64
    lr: float = 0.005
    momentum: float = 0.9
    clip: float | None = None
    server_momentum: float = 0.0
    finetune: int = 0
    engine: str = "auto"
    device: str = "auto"
    precision: Literal["fp32", "fp32-strict", "bf16"] = "fp32"
    until: Literal["clustered"] | None = None
    out: str | None = None
    store: str | None = None
    track: str | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        for name, low in (("rounds", 1), ("epochs", 1), ("batch_size", 1), ("components", 1), ("redescribe", 0)):
            if getattr(self, name) < low:
                raise FedfluxError(f"--{name.replace('_', '-')} {getattr(self, name)}: give {low} or more")
        if self.finetune < 0:
            raise FedfluxError(f"--finetune {self.finetune}: give 0 or more epochs")
        if self.finetune and self.answers_both():
            raise FedfluxError("--finetune goes on from one model a client: leave out --answer both")
        if not 0 < self.participation <= 1:
            raise FedfluxError(f"--participation {self.participation} is outside 0 to 1")
        if not (isfinite(self.lr) and self.lr > 0):
            raise FedfluxError(f"--lr {self.lr}: give a value above 0")
        if not 0 <= self.momentum < 1:
            raise FedfluxError(f"--momentum {self.momentum} is outside 0 to 1")
        if self.clip is not None and not (isfinite(self.clip) and self.clip > 0):
            raise FedfluxError(f"--clip {self.clip}: give a value above 0")
        if not 0 <= self.server_momentum < 1:
            raise FedfluxError(f"--server-momentum {self.server_momentum} is outside 0 to 1")
        if not (isfinite(self.eps_scale) and self.eps_scale > 0):
            raise FedfluxError(f"--eps-scale {self.eps_scale}: give a value above 0")
        if not 0 < self.significance < 1:
            raise FedfluxError(f"--significance {self.significance} is outside 0 to 1")
        if not 0 < self.false_alarms < 1:
            raise FedfluxError(f"--false-alarms {self.false_alarms} is outside 0 to 1")
        if not 0 < self.novelty_level < 1:
            raise FedfluxError(f"--novelty-level {self.novelty_level} is outside 0 to 1")
        if self.cluster_round != "auto" and not 1 <= self.cluster_round <= self.rounds:
            raise FedfluxError(f"--cluster-round {self.cluster_round} is outside the rounds 1 to {self.rounds}")
        if isinstance(self.clusters, int) and self.clusters < 1:
            raise FedfluxError(f"--clusters {self.clusters}: give 1 or more")
        if self.algorithm == "flux" and self.clusterer == "kmeans" and self.clusters is None:
            raise FedfluxError("kmeans needs the number of clusters: --clusters M, or --clusters true")
        if self.algorithm == "flux-dynamic" and (self.clusterer == "kmeans" or self.clusters is not None):
            raise FedfluxError(
                "the number of clusters changes with drift: flux-dynamic takes no --clusters and no kmeans"
            )
        if self.algorithm == "flux-dynamic" and self.redescribe == 0:
            raise FedfluxError("--redescribe 0: flux-dynamic finds drift by describing clients anew; give 1 or more")
        if self.dp is not None and self.epsilon is None:
            raise FedfluxError(f"--dp {self.dp} needs a budget: --epsilon E")
        if self.privacy() is not None:
            opendp()
            if self.covariance == "full":
                raise FedfluxError("--epsilon protects diagonal descriptors: leave out --covariance full")
            if self.projector != "synthetic":
                raise FedfluxError(f"--projector {self.projector} asks for more than --epsilon protects: leave it out")
        check_level(self.level)
        check_clusterer(self.clusterer)
        if self.algorithm not in ALGORITHMS:
            raise unknown("algorithm", self.algorithm, ALGORITHMS)
        if self.until == "clustered" and "cluster_round" not in READS[self.algorithm]:
            raise FedfluxError(f"--until clustered: {self.algorithm} makes no descriptors to cluster; use flux")
        self.partition()
        if self.drift is not None:
            Drift.parse(self.drift).check_rounds(self.rounds)
            if Drift.parse(self.drift).spec == "test" and "pygx" in shift_parts(self.shift):
                raise FedfluxError(f"--drift test: {self.shift} has no test phase, since features cannot show P(Y|X)")

    def partition(self) -> Partition:
        """How the dataset becomes a federation."""
        return Partition(
            shift=self.shift,
            level=self.level,
            clients=self.clients,
            seed=self.seed,
            patterns=self.patterns,
            bank=self.bank,
            strength=self.strength,
            alpha=self.alpha,
            quantity_skew=self.quantity_skew,
            data_fraction=self.data_fraction,
            duplicate=self.duplicate,
            samples_per_client=self.samples_per_client,
            drift=self.drift,
        )

    def answers_both(self) -> bool:
        """Whether a general model is trained beside the clusters' and heard with them."""
        return self.answer == "both" and "answer" in READS.get(self.algorithm, ())

    def privacy(self) -> Privacy | None:
        """What is promised of descriptors, where the algorithm makes any; None without --epsilon."""
        if self.epsilon is None:
            return None
        promised = Privacy(self.dp or "gaussian", self.epsilon, self.delta, self._releases())
        return promised if "epsilon" in READS.get(self.algorithm, ()) else None

    def _releases(self) -> int:
        """How often a client may describe the same examples: the budget is for all of these together."""
        again = (self.rounds - 1) // self.redescribe if self.redescribe else 0
        # flux-dynamic asks those that drifted for all they hold, after the fresh examples that showed it
        return 1 + {"flux-dynamic": 2 * again, "flux-soft": again}.get(self.algorithm, 0)

    def settings(self, true_clusters: int | None = None) -> Settings:
        """What the algorithm is told; methods that need a number of clusters get the true one unless told another."""
        return Settings(
            rounds=self.rounds,
            training=Training(self.epochs, self.batch_size, self.lr, self.momentum, self.clip),
            seed=self.seed,
            flux_paper=self.preset == "flux-paper",
            clusters=self.clusters if isinstance(self.clusters, int) else true_clusters,
            clusterer=Clusterer(
                self.clusterer,
                self.clusters if isinstance(self.clusters, int) else None,
                self.eps_scale,
                self.significance,
            ),
            calibrated_assignment=self.assignment == "calibrated",
            redescribe=self.redescribe,
            false_alarms=self.false_alarms,
            everyone=self.participation == 1,
            beside=self.answer == "both",
            novel=self.novel,
            novelty_level=self.novelty_level,
            server_momentum=self.server_momentum,
            true_count=self.clusters == "true",
            cluster_round=None if self.cluster_round == "auto" else self.cluster_round,
            descriptor=DescriptorSettings(
                components=self.components,
                full_covariance=self.covariance == "full",
                scalar_bounds=self.bounds == "scalar",
                discriminant=self.projector == "discriminant",
                privacy=self.privacy(),
            ),
        )

    def command(self) -> str:
        """The command that repeats this run: every choice that differs from the dataset's defaults."""
        defaults = asdict(RunConfig(**{**preset(self.dataset), "dataset": self.dataset}))
        given = {k: v for k, v in asdict(self).items() if v is not None and v != defaults[k] and k != "resume"}
        flags = {"dataset": self.dataset, **given}
        return " ".join(["fedflux run", *(f"--{k.replace('_', '-')} {quote(str(v))}" for k, v in flags.items())])


def make_config(options: Mapping[str, Any], config_file: Path | None = None) -> RunConfig:
    """Preset of the dataset, overridden by the file, overridden by the options that are not None."""
    from_file = read_config_file(config_file) if config_file else {}
    given = {**from_file, **{k: v for k, v in options.items() if v is not None}}
    if given.get("clusters") is not None and given.get("algorithm", "flux") == "flux":
        name = given.setdefault("clusterer", "kmeans")  # the one clusterer that takes a number
        if name != "kmeans":
            raise FedfluxError(f"--clusters is for --clusterer kmeans; {name} finds the number by itself")
    known = {field.name: field.type for field in fields(RunConfig)}
    for key in given:
        if key not in known:
            raise unknown("setting", key, known)
    begun = {key: value for key, value in _begun(given).items() if key in known and key != "out"}
    told = {key: _typed(key, value, known[key]) for key, value in {**begun, **given}.items()}
    dataset = told.get("dataset", "digits")
    defaults = preset(dataset)
    if told.get("preset") == "tuned":
        defaults["lr"] = tuned_rate(dataset, told.get("algorithm", RunConfig.algorithm))
    return RunConfig(**{**defaults, **told})


def _begun(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the run to be resumed was told: `--out FOLDER --resume` is enough to go on."""
    if not given.get("resume") or given.get("out") is None:
        return {}
    return read_object(Path(given["out"]) / "config.json") or {}


def read_config_file(path: Path) -> dict[str, Any]:
    """A TOML file with the flags' names as keys; dashes and underscores are the same."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedfluxError(f"cannot read config file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedfluxError(f"config file {path} is not valid TOML: {error}") from error
    return {key.replace("-", "_"): value for key, value in content.items()}


def _typed(key: str, value: Any, wanted: Any) -> Any:
    """The value as the field's type; integers pass for floats, a string of digits for an integer."""
    options = get_args(wanted) if isinstance(wanted, UnionType) or get_origin(wanted) is not Literal else (wanted,)
    options = options or (wanted,)
    for option in options:
        if get_origin(option) is Literal:
            if value in get_args(option):
                return value
        elif option is NoneType:
            if value is None:
                return None
        elif option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif option is int and isinstance(value, str) and fullmatch("-?[0-9]{1,18}", value):
            return int(value)
        elif isinstance(value, option) and isinstance(value, bool) == (option is bool):
            return value
        elif option is str and isinstance(value, Path):
            return str(value)
    words = [str(choice) for o in options if get_origin(o) is Literal for choice in get_args(o)]
    words += [
        {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}[o.__name__]
        for o in options
        if o in (int, float, str, bool)
    ]
    raise FedfluxError(f"--{key.replace('_', '-')} '{value}' does not fit: give {' or '.join(words)}")
