"""The descriptors' settings: what clients say about their data, and how privately."""

from dataclasses import dataclass
from typing import Literal

from fedflux.descriptors.projector import COMPONENTS
from fedflux.settings import Declared, above, at_least, between, setting


@dataclass(frozen=True)
class DescriptionSettings(Declared):
    """How descriptors are made; the defaults are the paper's."""

    components: int = setting(COMPONENTS, "length l of the reduced latent", panel="Descriptors", check=at_least(1))
    covariance: Literal["diagonal", "full"] = setting("diagonal", "diagonal or full", panel="Descriptors")
    bounds: Literal["coordinate", "scalar"] = setting(
        "coordinate", "S1: coordinate by coordinate, or the release's one scalar", panel="Descriptors"
    )
    projector: Literal["auto", "synthetic", "discriminant"] = setting(
        "auto",
        "S2: synthetic (the paper's), discriminant, for few examples a class, or auto: whichever suits",
        panel="Experiments",
    )
    epsilon: float | None = setting(
        None,
        "differential privacy of descriptors, not of models: the budget",
        panel="Privacy",
        unset="none",
        check=above(0),
    )
    delta: float = setting(
        1e-5, "gaussian: the chance that the guarantee may fail", panel="Privacy", check=between(0, 1, "()")
    )
    privacy_unit: Literal["record", "group"] = setting(
        "record",
        "gaussian: whom it protects, one record or a whole group (one record of each is then described)",
        panel="Privacy",
    )
    dp: Literal["gaussian", "paper"] | None = setting(
        None,
        "gaussian: one release with a real guarantee; paper: its noise on every coordinate",
        panel="Privacy",
        unset="gaussian",
    )
