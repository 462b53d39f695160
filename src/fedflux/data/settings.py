"""The data's settings: which examples there are, and how they become a federation of shifted clients."""

from dataclasses import dataclass
from typing import Literal

from fedflux.data.shifts.drift import Drift
from fedflux.data.shifts.levels import check_level
from fedflux.data.shifts.patterns import MIXES, SHIFTS, shift_parts
from fedflux.data.sources import SOURCES, find_source
from fedflux.settings import Declared, above, at_least, between, passes, setting, share


@dataclass(frozen=True)
class DataSettings(Declared):
    """What clients hold."""

    dataset: str = setting("digits", "{names}", panel="Data", names=SOURCES, check=passes(find_source))
    data_dir: str | None = setting(
        None,
        "folder of the dataset's files, or its parent (npz: the file)",
        panel="Data",
        metavar="PATH",
        counts=False,
    )
    shift: str = setting("px", "{names}", panel="Data", names=(*SHIFTS, *MIXES), check=passes(shift_parts))
    level: int = setting(4, "strength of the shift, 1 to 8", panel="Data", check=passes(check_level))
    clients: int | None = setting(
        None,
        "number of clients",
        panel="Data",
        unset="10, or the data's own",
        check=at_least(1, "{value} clients: a federation needs {low} or more"),
    )
    seed: int = setting(42, "the paper's folds are 42 to 46", panel="Data", check=at_least(0))
    patterns: Literal["independent", "shared"] = setting(
        "independent", "pygx, pxgy, soft skews: independent draws, or shared from a bank", panel="Data in detail"
    )
    bank: int = setting(
        5,
        "patterns in a bank",
        panel="Data in detail",
        check=at_least(1, "a bank of {value} patterns: give {low} or more"),
    )
    strength: float | None = setting(
        None,
        "0 to 1: soft skew of px or py instead of a hard pattern",
        panel="Data in detail",
        check=between(0, 1),
    )
    alpha: float | None = setting(
        None,
        "Dirichlet's concentration",
        panel="Data in detail",
        unset="by level",
        check=above(0, "alpha {value}: Dirichlet needs a finite value above {low}"),
    )
    quantity_skew: float = setting(
        0.0,
        "0 to 1: unequal client sizes",
        panel="Data in detail",
        check=between(0, 1, words="quantity skew {value} is outside {low} to {high}"),
    )
    data_fraction: float = setting(
        1.0,
        "share of the training data",
        panel="Data in detail",
        check=share("data fraction {value} is outside {low} to {high}"),
    )
    duplicate: int = setting(
        1,
        "times a client holds each of its training examples",
        panel="Data in detail",
        check=at_least(1, "{given}: give {low} (no copies) or more"),
    )
    samples_per_client: int | None = setting(
        None,
        "examples each client draws, with reuse by others",
        panel="Data in detail",
        unset="all are dealt, each once",
        check=at_least(1, "{value} samples per client: give {low} or more"),
    )
    scale: Literal["auto", "pixels", "standardise", "none"] = setting(
        "auto",
        "inputs before a model sees them; auto: bytes are pixels, other numbers are standardised by all clients' means",
        panel="Data in detail",
    )
    drift: str | None = setting(
        None,
        "when clients draw new patterns: after:4,7, gradual:4-7, recurring:3, test, after:4,7+test, …",
        panel="Data in detail",
        unset="never",
        check=passes(Drift.parse),
    )
    unseen: int = setting(
        0,
        "clients held out of training and asked without labels after it: as many more, or of the data's own",
        panel="Data",
        check=at_least(0, "{value} unseen clients: give {low} or more"),
    )
