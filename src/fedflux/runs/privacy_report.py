"""What a run says of its privacy: what was spent, between which neighbours, by which mechanism, and for what."""

from typing import Any

from fedflux.descriptors.privacy.accounting import ADJACENCY, Privacy, spent
from fedflux.descriptors.privacy.mechanism import sigma_of
from fedflux.descriptors.privacy.release import SENSITIVITY

KEYS = ("epsilon", "epsilon_nominal", "delta", "adjacency", "mechanism", "privacy_scope")


CHOICE = (
    "clients that are asked without labels release no descriptor, only their choice (a probability of every cluster "
    "and how well they fit any), which is computed from their images without noise and not covered"
)
"""What a scope says besides where unlabelled clients choose by themselves."""


def privacy_report(
    privacy: Privacy | None, classes: int, components: int, releases: int, choosing: bool = False
) -> dict[str, Any]:
    """The privacy keys of a result; all None without privacy. `choosing`: unlabelled clients tell their choice only."""
    if privacy is None:
        return dict.fromkeys(KEYS)
    told = _gaussian(privacy, releases) if privacy.mechanism == "gaussian" else _paper(privacy, classes, components)
    report = dict(zip(KEYS, told, strict=True))
    return {**report, "privacy_scope": f"{report['privacy_scope']}; {CHOICE}"} if choosing else report


def _gaussian(privacy: Privacy, made: int) -> tuple[Any, ...]:
    if made > privacy.releases:
        raise RuntimeError(f"{made} releases of the same records, but the noise was made for {privacy.releases}")
    sigma = sigma_of(privacy)
    scope = (
        f"the descriptors of each client's own examples, {_times(made, privacy.releases)}; client sizes are public; "
        "model updates, accuracies and everything computed from the global model are not covered"
    )
    return (
        # of all that were planned: how many it came to may depend on what was released, and is no promise
        spent(sigma, SENSITIVITY, privacy.delta, privacy.releases),
        privacy.epsilon,
        privacy.delta,
        f"{ADJACENCY} (one distinct example of a client against another; its number of examples stays)",
        f"gaussian: releases of sums with noise of deviation {sigma:.6g} at sensitivity {SENSITIVITY:.6g} (OpenDP)",
        scope,
    )


def _times(made: int, planned: int) -> str:
    if planned == 1:
        return "released once" if made else "none was made"
    return f"{planned} releases of the same examples composed, of which {made} were made"


def _paper(privacy: Privacy, classes: int, components: int) -> tuple[Any, ...]:
    coordinates = 2 * (classes + 1) * components
    scope = (
        f"none that holds: {privacy.epsilon:g} is spent on each of {coordinates} coordinates, and even their sum takes "
        "Range/s for a bound that class means and deviations exceed; exact latent bounds, label counts and "
        "correlations leave the client beside them; model updates are not covered"
    )
    return (
        coordinates * privacy.epsilon,
        privacy.epsilon,
        0.0,
        f"{ADJACENCY} (as the paper claims)",
        f"paper: Laplace noise of scale Range/(s ε) on each of {coordinates} coordinates",
        scope,
    )
