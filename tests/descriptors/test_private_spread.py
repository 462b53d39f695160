"""Means and deviations with privacy: the sensitivity holds, one budget pays for all, units of any size are found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedflux import Federation, FedfluxError, run
from fedflux.descriptors.inputs import AskOctaves
from fedflux.descriptors.privacy import spread
from fedflux.descriptors.privacy.accounting import Privacy, spent
from fedflux.descriptors.privacy.mechanism import sigma_of, spent_by
from fedflux.descriptors.privacy.release import SENSITIVITY

pytest.importorskip("opendp", reason="needs OpenDP: pip install 'fedflux[privacy]'")
FEATURES = 3
PRIVATE = Privacy("gaussian", 1.0, scaling=True)
Array = NDArray[np.float64]

record = st.lists(st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, -1.0, 2.0**41, 1e-9]), min_size=12, max_size=12)


@settings(deadline=None, max_examples=200)
@given(record, record)
def test_replacing_one_record_moves_the_sums_by_no_more_than_the_sensitivity(one: Any, other: Any) -> None:
    a, b = (np.array([values]).reshape(1, FEATURES, 4) for values in (one, other))
    octaves = spread.octave_sums(a) - spread.octave_sums(b)
    assert np.linalg.norm(octaves) <= spread.octaves_sensitivity(FEATURES)
    reach = np.array([1.0, 2.0**30, 1e-3])
    assert np.linalg.norm(spread.clipped_sums(a, reach) - spread.clipped_sums(b, reach)) <= spread.sums_sensitivity(
        FEATURES
    )


def test_the_sensitivities_are_reached() -> None:
    ones = np.ones((1, FEATURES))
    moved = spread.octave_sums(ones) - spread.octave_sums(8 * ones)
    assert np.linalg.norm(moved) == pytest.approx(spread.octaves_sensitivity(FEATURES), rel=1e-5)
    turned = spread.clipped_sums(ones, np.ones(FEATURES)) - spread.clipped_sums(-ones, np.ones(FEATURES))
    assert np.linalg.norm(turned) == pytest.approx(spread.sums_sensitivity(FEATURES), rel=1e-5)


@pytest.mark.parametrize("releases", [1, 3])
def test_scaling_and_descriptors_spend_one_budget_together(releases: int) -> None:
    """In ρ, which adds up: of Gaussian noise it is sensitivity² / 2σ²."""
    private, whole = (Privacy("gaussian", 2.0, releases=releases, scaling=scaling) for scaling in (True, False))
    rho = releases * SENSITIVITY**2 / (2 * sigma_of(private) ** 2)
    for sensitivity in (spread.octaves_sensitivity(5), spread.sums_sensitivity(5)):
        rho += sensitivity**2 / (2 * spread.sigma_of_spread(private, sensitivity) ** 2)
    assert rho == pytest.approx(releases * SENSITIVITY**2 / (2 * sigma_of(whole) ** 2), rel=1e-6)
    assert spent_by(private, releases, 1) == pytest.approx(2.0, rel=1e-6)
    assert spent_by(private, releases, 1) <= 2.0 + 1e-9 < spent_by(private, releases, 2)
    assert spent_by(whole, releases, 0) == spent(sigma_of(whole), SENSITIVITY, whole.delta, releases)


def scaled(x: Array, clients: int, privacy: Privacy) -> tuple[Array, Array]:
    parts = np.array_split(x, clients)
    told = [spread.noisy(spread.octave_sums(one), spread.octaves_sensitivity(x.shape[1]), privacy) for one in parts]
    reach = spread.reach_of(told, len(x), privacy)
    sums = [
        spread.noisy(spread.clipped_sums(one, reach), spread.sums_sensitivity(x.shape[1]), privacy) for one in parts
    ]
    found = spread.scaling_of(sums, len(x), reach, privacy)
    return np.array(found.mean), np.array(found.deviation)


@pytest.mark.parametrize("times", [1e-4, 1.0, 1e6])
def test_units_of_any_size_are_found(times: float) -> None:
    rng = np.random.default_rng(1)
    x = times * rng.normal([0.0, 50.0, -3.0], [1.0, 20.0, 2.0], (40_000, FEATURES))
    mean, deviation = scaled(x, 8, Privacy("gaussian", 5.0, scaling=True))
    assert (np.abs(mean - x.mean(axis=0)) < 0.2 * x.std(axis=0)).all()
    assert (np.abs(np.log(deviation / x.std(axis=0))) < np.log(1.3)).all()


def test_noise_never_makes_a_deviation_small() -> None:
    rng = np.random.default_rng(2)
    x = np.stack([rng.normal(1000, 1e-3, 2_000), np.zeros(2_000), rng.normal(size=2_000)], axis=1)
    mean, deviation = scaled(x, 4, PRIVATE)
    assert (np.abs((x - mean) / deviation) < 10).all()


def test_too_few_records_are_refused_with_what_it_takes() -> None:
    with pytest.raises(FedfluxError, match=r"200 records of 3 features are too few .* --scale none"):
        scaled(np.ones((200, FEATURES)), 4, PRIVATE)


def test_a_budget_that_leaves_nothing_for_it_is_refused() -> None:
    with pytest.raises(FedfluxError, match="a budget of which a share is theirs"):
        AskOctaves(3, Privacy("gaussian", 1.0))


def clients(count: int = 1_500) -> dict[str, tuple[Array, NDArray[np.bool_]]]:
    rng = np.random.default_rng(5)
    x = [rng.normal([60.0, 5.0], [20.0, 1.5], (count, 2)) for _ in range(4)]
    return {f"c{k}": (one, (one[:, 1] > 5) ^ (k > 1)) for k, one in enumerate(x)}


SETTINGS: dict[str, Any] = {"rounds": 3, "cluster_round": 1, "device": "cpu", "progress": False, "epsilon": 20.0}


def test_a_private_run_of_a_table_sends_no_exact_sum_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedflux.descriptors.inputs.AskSpread.answer", None)
    result = run(Federation.from_clients(clients()), **SETTINGS, out=tmp_path / "run")
    assert 19.9 < result["epsilon"] <= 20
    assert "the means and deviations by which inputs are scaled, and the descriptors" in result["privacy_scope"]
    bytes_of_pixels = run(Federation.from_clients(clients(), scale="none"), **SETTINGS)["privacy_scope"]
    assert "scaled" not in bytes_of_pixels


def test_a_scaling_that_was_begun_twice_is_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    told = {**SETTINGS, "out": tmp_path / "run"}
    with monkeypatch.context() as patch:
        patch.setattr("fedflux.descriptors.privacy.spread.scaling_of", stop)
        with pytest.raises(KeyboardInterrupt):
            run(Federation.from_clients(clients()), **told)
    result = run(Federation.from_clients(clients()), **told, resume=True)
    assert result["epsilon"] > 20.1
    assert "(2 times: attempts were interrupted, which epsilon counts)" in result["privacy_scope"]


def test_of_each_group_one_record_enters(tmp_path: Path) -> None:
    people = {name: np.arange(1_500) // 3 for name in clients()}
    told = {**SETTINGS, "privacy_unit": "group", "out": tmp_path / "run"}
    run(Federation.from_clients(clients(), groups=people), **told)
    crowds = {name: np.arange(1_500) // 150 for name in clients()}
    with pytest.raises(FedfluxError, match=r"\b24 groups of 2 features are too few"):
        run(Federation.from_clients(clients(), groups=crowds), **{**told, "epsilon": 2.0})


def test_too_few_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(FedfluxError, match="too few to be standardised"):
        run(Federation.from_clients(clients(20)), **{**SETTINGS, "epsilon": 0.5}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
