"""What a run says of its privacy: what was spent, between which neighbours, by which mechanism, and for what."""

from typing import Any

from fedflux.descriptors.privacy.accounting import ADJACENCY, Privacy
from fedflux.descriptors.privacy.mechanism import sigma_of, spent_by
from fedflux.descriptors.privacy.release import SENSITIVITY

KEYS = ("epsilon", "epsilon_nominal", "delta", "adjacency", "mechanism", "privacy_scope")


CHOICE = (
    "clients that are asked without labels release no descriptor, only their choice (a probability of every cluster "
    "and how well they fit any), which is computed from their images without noise and not covered"
)
"""What a scope says besides where unlabelled clients choose by themselves."""


PUBLIC = (
    "public, because the mechanism is built on them: the set of classes, the shape of an input and whether it is grey, "
    "and how many distinct {units} each part of a client holds"
)
"""What the guarantee takes for known to everybody."""
ADJACENT = {
    "record": f"{ADJACENCY} (one distinct example of a client against another; its number of examples stays)",
    "group": f"{ADJACENCY}-group (all records of one group of a client, however many, against those of another group; "
    "its number of groups stays)",
}
"""Which datasets of a client the guarantee cannot tell apart."""


def privacy_report(
    privacy: Privacy | None,
    classes: int,
    components: int,
    releases: int,
    choosing: bool = False,
    repeated: int = 0,
    scalings: int = 0,
) -> dict[str, Any]:
    """The privacy keys of a result; all None without privacy. `choosing`: unlabelled clients tell their choice only.

    `repeated` are releases that interrupted attempts may have made besides: they were made, so they count. `scalings`:
    how often inputs' means and deviations were released out of the same budget.
    """
    if privacy is None:
        return dict.fromkeys(KEYS)
    if privacy.mechanism == "gaussian":
        told = _gaussian(privacy, releases, repeated, scalings)
    else:
        told = _paper(privacy, classes, components)
    report = dict(zip(KEYS, told, strict=True))
    return {**report, "privacy_scope": f"{report['privacy_scope']}; {CHOICE}"} if choosing else report


def _gaussian(privacy: Privacy, made: int, repeated: int, scalings: int) -> tuple[Any, ...]:
    if made > privacy.releases:
        raise RuntimeError(f"{made} releases of the same records, but the noise was made for {privacy.releases}")
    sigma = sigma_of(privacy)
    times = "" if scalings < 2 else f" ({scalings} times: attempts were interrupted, which epsilon counts)"
    scaled = f"the means and deviations by which inputs are scaled{times}, and " if scalings else ""
    scope = (
        f"{scaled}the descriptors of each client's own examples{_one_each(privacy)}, "
        f"{_times(made, privacy.releases, repeated)}; {PUBLIC.format(units=privacy.unit + 's')}; "
        "model updates, accuracies and everything computed from the global model are not covered"
    )
    return (
        # of all that were planned: how many it came to may depend on what was released, and is no promise
        spent_by(privacy, privacy.releases + repeated, scalings),
        privacy.epsilon,
        privacy.delta,
        ADJACENT[privacy.unit],
        f"gaussian: releases of sums with noise of deviation {sigma:.6g} at sensitivity {SENSITIVITY:.6g} (OpenDP)",
        scope,
    )


def _one_each(privacy: Privacy) -> str:
    return ", one record of each group" if privacy.unit == "group" else ""


def _times(made: int, planned: int, repeated: int) -> str:
    if planned == 1:
        told = "released once" if made else "none was made"
    else:
        told = f"{planned} releases of the same examples composed, of which {made} were made"
    if not repeated:
        return told
    again = "an attempt that was interrupted" if repeated == 1 else "attempts that were interrupted"
    return (
        f"up to {made + repeated} releases of the same examples: the noise was made for {planned}, and {again} may "
        f"have released {repeated} more, which epsilon counts"
    )


def _paper(privacy: Privacy, classes: int, components: int) -> tuple[Any, ...]:
    coordinates = 2 * (classes + 1) * components
    scope = (
        f"none that holds, so epsilon is null: {privacy.epsilon:g} is asked for each of {coordinates} coordinates, and "
        f"even {coordinates} times that is not enough, since class means and deviations move by more than Range/s when "
        "a record is replaced, and exact latent bounds, label counts, correlations and, where inputs are standardised, "
        "their exact sums leave the client beside them; "
        "model updates are not covered"
    )
    return (
        None,
        privacy.epsilon,
        None,
        f"{ADJACENCY} (as the paper claims)",
        f"paper: Laplace noise of scale Range/(s ε) on each of {coordinates} coordinates",
        scope,
    )
