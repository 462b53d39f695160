"""The run's settings: which preset it starts from, what is kept of it; and everybody's together."""

from dataclasses import dataclass
from typing import Literal

from fedflux.algorithms.settings import MethodSettings
from fedflux.clustering.settings import ClusteringSettings
from fedflux.data.settings import DataSettings
from fedflux.descriptors.settings import DescriptionSettings
from fedflux.engine.settings import MachineSettings, TrainingSettings
from fedflux.runs.storage.store import STORE_FILE
from fedflux.runs.tracking import TRACKERS
from fedflux.settings import Declared, setting


@dataclass(frozen=True)
class RunSettings(Declared):
    """One run."""

    preset: Literal["0.1", "paper", "tuned", "paper-baselines"] | None = setting(
        None,
        "0.1: every default as in that version; paper: FLUX to the letter; tuned: each method's own learning rate; "
        "paper-baselines: what the paper's comparison ran under the baselines' names",
        panel="Method",
        alias={"flux-paper": "paper-baselines"},
    )
    until: Literal["clustered"] | None = setting(
        None, "clustered: stop once the clusters are found", panel="Run", unset="the last round"
    )
    out: str | None = setting(
        None,
        "folder of the run",
        panel="Run",
        unset="runs/ and a name made of the settings",
        metavar="PATH",
        counts=False,
    )
    resume: bool = setting(False, "go on with the run in --out after its last whole round", panel="Run", counts=False)
    store: str | None = setting(
        None,
        "SQLite file that finished runs enter, or none",
        panel="Keeping and tracking",
        unset=f"{STORE_FILE} beside the runs",
        metavar="PATH",
        counts=False,
    )
    samples: Literal["auto", "keep", "none"] = setting(
        "auto",
        "a few images of some clients in the run's folder, for the report; auto: of public datasets alone",
        panel="Keeping and tracking",
        counts=False,
    )
    track: str | None = setting(
        None,
        f"{' or '.join(TRACKERS)}, or both with a comma between",
        panel="Keeping and tracking",
        counts=False,
    )


@dataclass(frozen=True)
class AllSettings(
    RunSettings,
    MachineSettings,
    TrainingSettings,
    DescriptionSettings,
    ClusteringSettings,
    MethodSettings,
    DataSettings,
):
    """Every owner's settings, flat: the names are the flags, with underscores; the data's come first."""
