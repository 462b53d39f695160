"""A run's configuration: preset, then config file, then flags; checked once, in full, before anything is touched."""

import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from shlex import quote
from typing import Any

from fedflux.algorithms import READS, DescriptorSettings, Settings
from fedflux.clustering import Clusterer
from fedflux.clustering.settings import with_kmeans
from fedflux.data import Partition
from fedflux.data.shifts.drift import Drift
from fedflux.data.shifts.patterns import shift_parts
from fedflux.data.sources import find_source
from fedflux.descriptors.privacy.accounting import Privacy, opendp
from fedflux.engine import Training
from fedflux.errors import FedfluxError, unknown
from fedflux.files import read_object
from fedflux.runs.presets import preset, usual
from fedflux.runs.settings import AllSettings
from fedflux.settings import as_flag, dashed, declared

SETTINGS = {one.name: one for one in declared(AllSettings)}
"""Every setting of a run by its name."""
DECIDING = ("dataset", "preset", "algorithm", "optimiser")
"""What says how the others are when nobody asks for them."""


@dataclass(frozen=True)
class RunConfig(AllSettings):
    """Everything that is set for a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for check in (_check_method, _check_clusterer, _check_privacy, _check_data):
            check(self)

    def partition(self) -> Partition:
        """How the dataset becomes a federation."""
        return Partition(**{field.name: getattr(self, field.name) for field in fields(Partition)})

    def reads(self, setting: str) -> bool:
        """Whether the method reads a setting that not every method reads; momentum is read by SGD alone."""
        if setting == "momentum":
            return self.optimiser == "sgd" or not self.reads("optimiser")
        return setting in READS[self.algorithm]

    def privacy(self) -> Privacy | None:
        """What is promised of descriptors, where the algorithm makes any; None without --epsilon."""
        if self.epsilon is None or not self.reads("epsilon"):
            return None
        mechanism, seed = self.dp or "gaussian", self.seed if self.privacy_unit == "group" else 0
        return Privacy(mechanism, self.epsilon, self.delta, self._releases(), self.privacy_unit, seed)

    def _releases(self) -> int:
        """How often a client may describe the same examples: the budget is for all of these together."""
        again = (self.rounds - 1) // self.redescribe if self.redescribe else 0
        # flux-dynamic asks those that drifted for all they hold, after the fresh examples that showed it
        return 1 + {"flux-dynamic": 2 * again, "flux-soft": again}.get(self.algorithm, 0)

    def training(self) -> Training:
        """How clients train."""
        return Training(
            self.epochs,
            self.batch_size,
            self.lr,
            self.momentum,
            self.clip,
            kind=self.optimiser,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            rounds=self.rounds,
        )

    def settings(self, true_clusters: int | None = None) -> Settings:
        """What the algorithm is given; methods that need a number of clusters get the true one where none is set."""
        number = self.clusters if isinstance(self.clusters, int) else None
        return Settings(
            rounds=self.rounds,
            training=self.training(),
            seed=self.seed,
            paper_baselines=self.preset == "paper-baselines",
            clusters=true_clusters if number is None else number,
            clusterer=Clusterer(self.clusterer, number, self.eps_scale, self.significance, self.variation),
            true_count=self.clusters == "true",
            cluster_round=self.cluster_round if isinstance(self.cluster_round, int) else None,
            look_again=self.cluster_round == "auto" and self.privacy() is None,
            assignment=self.assignment,
            min_members=self.min_members,
            regroup=self.late == "regroup",
            redescribe=self.redescribe,
            false_alarms=self.false_alarms,
            drift_test=self.drift_test,
            everyone=self.participation == 1,
            sharing=self.sharing,
            novel=self.novel,
            novelty_level=self.novelty_level,
            server_momentum=self.server_momentum,
            descriptor=DescriptorSettings(
                components=self.components,
                full_covariance=self.covariance == "full",
                scalar_bounds=self.bounds == "scalar",
                projector=self.projector,
                privacy=self.privacy(),
            ),
        )

    def given(self) -> dict[str, Any]:
        """What somebody asked for: every setting that is not as the dataset and the preset have it."""
        brought = usual(self.dataset, self.preset, self.algorithm, self.optimiser)
        brought["preset"] = None
        return {key: value for key, value in asdict(self).items() if value != brought[key]}

    def command(self) -> str:
        """The command that repeats this run."""
        chosen = {"dataset": self.dataset, **self.given()}
        flags = [
            as_flag(key, quote(str(value))) for key, value in chosen.items() if value is not None and key != "resume"
        ]
        return " ".join(["fedflux run", *flags])


def _check_method(config: RunConfig) -> None:
    """What the method cannot do."""
    if config.finetune and config.passes is not None:
        raise FedfluxError("--passes says how long clients are fine-tuned: leave out --finetune")
    if isinstance(config.cluster_round, int) and not 1 <= config.cluster_round <= config.rounds:
        raise FedfluxError(f"--cluster-round {config.cluster_round} is outside the rounds 1 to {config.rounds}")
    if config.algorithm == "flux-dynamic" and config.redescribe == 0:
        raise FedfluxError("--redescribe 0: flux-dynamic finds drift by describing clients anew; give 1 or more")
    if config.until == "clustered" and not config.reads("cluster_round"):
        raise FedfluxError(f"--until clustered: {config.algorithm} makes no descriptors to cluster; use flux")


def _check_clusterer(config: RunConfig) -> None:
    """Whether the clusterer gets the number it needs, and none where the number changes."""
    if config.algorithm == "flux" and config.clusterer == "kmeans" and config.clusters is None:
        raise FedfluxError("kmeans needs the number of clusters: --clusters M, or --clusters true")
    if config.algorithm == "flux-dynamic" and (config.clusterer == "kmeans" or config.clusters is not None):
        raise FedfluxError("the number of clusters changes with drift: flux-dynamic takes no --clusters and no kmeans")


def _check_privacy(config: RunConfig) -> None:
    """Whether the promise can be kept."""
    if config.dp is not None and config.epsilon is None:
        raise FedfluxError(f"--dp {config.dp} needs a budget: --epsilon E")
    if config.privacy_unit == "group" and (config.epsilon is None or config.dp == "paper"):
        raise FedfluxError("--privacy-unit group is for the Gaussian release: give --epsilon E, without --dp paper")
    if config.privacy() is None:
        return
    opendp()
    if config.covariance == "full":
        raise FedfluxError("--epsilon protects diagonal descriptors: leave out --covariance full")
    if config.projector == "discriminant":
        raise FedfluxError(f"--projector {config.projector} asks for more than --epsilon protects: leave it out")


def _check_data(config: RunConfig) -> None:
    """Whether the parts of the partition go together, and with the rounds."""
    config.partition()
    if config.unseen and "pygx" in shift_parts(config.shift):
        raise FedfluxError(f"--unseen {config.unseen}: {config.shift} has no test phase: features cannot show P(Y|X)")
    if config.drift is None:
        return
    drift = Drift.parse(config.drift)
    drift.check_rounds(config.rounds)
    if drift.spec == "test" and "pygx" in shift_parts(config.shift):
        raise FedfluxError(f"--drift test: {config.shift} has no test phase, since features cannot show P(Y|X)")


def make_config(options: Mapping[str, Any], config_file: Path | None = None) -> RunConfig:
    """Presets of the dataset and by name, overridden by the file, overridden by the options that are not None."""
    from_file = read_config_file(config_file) if config_file else {}
    given = {**from_file, **{key: value for key, value in options.items() if value is not None}}
    for key in given:
        if key not in SETTINGS:
            raise unknown("setting", key, SETTINGS)
    if given.get("algorithm", "flux") == "flux":
        given = with_kmeans(given)
    requested = {key: SETTINGS[key].read(value) for key, value in {**_begun(given), **given}.items()}
    if requested.pop("answer", None) == "both" and requested.setdefault("sharing", "general") != "general":
        raise FedfluxError(f"--answer both is --sharing general: leave out --sharing {requested['sharing']}")
    brought = usual(*(requested.get(key) for key in DECIDING))
    return RunConfig(**{**brought, **requested})


def _begun(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was set for the run to be resumed: `--out FOLDER --resume` is enough to go on."""
    if not given.get("resume") or given.get("out") is None:
        return {}
    begun = read_object(Path(given["out"]) / "config.json") or {}
    return {key: value for key, value in begun.items() if key in SETTINGS and key != "out"}


def config_of(begun: Mapping[str, Any]) -> RunConfig:
    """The settings that a run was made with, as its folder keeps them."""
    kept = {key: SETTINGS[key].read(value) for key, value in begun.items() if key in SETTINGS}
    try:
        find_source(kept["dataset"])
    except FedfluxError:  # its code is gone, and what was made of the data is still there
        kept["dataset"] = "npz"
    return RunConfig(**{**usual(*(kept.get(key) for key in DECIDING)), **kept})


def read_config_file(path: Path) -> dict[str, Any]:
    """A TOML file with the flags' names as keys, in tables or not; dashes and underscores are the same."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedfluxError(f"cannot read config file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedfluxError(f"config file {path} is not valid TOML: {error}") from error
    flat: dict[str, Any] = {}
    for key, value in _flat(content):
        if key in flat:
            raise FedfluxError(f"config file {path} sets {dashed(key)} twice: leave one")
        flat[key] = value
    return flat


def _flat(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of a file, those of its tables among them; what a table is called is for its readers."""
    for key, value in content.items():
        name = key.replace("-", "_")
        if isinstance(value, dict) and name not in SETTINGS:
            yield from _flat(value)
        else:
            yield name, value


def unread(given: Mapping[str, Any], *configs: RunConfig) -> list[str]:
    """The settings that were asked for, are not the default, and that the methods of none of these runs read."""
    somebody = frozenset({"momentum"}).union(*READS.values())
    wanted = [key for key in given if key in somebody and not any(config.reads(key) for config in configs)]
    return [key for key in wanted if SETTINGS[key].read(given[key]) != preset(configs[0].dataset)[key]]


def unread_in_words(given: Mapping[str, Any], *configs: RunConfig) -> list[str]:
    """A line for each setting that was asked for in vain."""
    methods = list(dict.fromkeys(config.algorithm for config in configs))
    who = f"{methods[0]} does not read" if len(methods) == 1 else f"none of {', '.join(methods)} reads"
    of_adam = f"{configs[0].optimiser} does not read"
    return [f"{of_adam if key == 'momentum' else who} {SETTINGS[key].flag}" for key in unread(given, *configs)]


def warn_unread(config: RunConfig, stacklevel: int = 3) -> None:
    """Warn a caller in Python of settings that were asked for in vain."""
    for line in unread_in_words(config.given(), config):
        warnings.warn(line, stacklevel=stacklevel)
