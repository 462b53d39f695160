"""FLUX with `--projector discriminant`: one more question to the members, and sight where examples are few."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.playing import SETTINGS, engine_of, play, saved, small

import fedflux
from fedflux.algorithms import Flux, Settings
from fedflux.algorithms.check_engines import WrappedEngine
from fedflux.algorithms.checks import check_labels_stay_out, check_resumes
from fedflux.algorithms.flux.describe import DescriptorSettings, describe_all
from fedflux.descriptors.discriminant import BREADTH
from fedflux.descriptors.queries import AskDescriptor
from fedflux.descriptors.wire import client_bytes, to_arrays

DISCRIMINANT = DescriptorSettings(components=5, projector="discriminant")
CLUSTERED = replace(SETTINGS, cluster_round=2)


def discriminant(settings: Settings) -> Flux:
    return Flux(replace(settings, descriptor=DISCRIMINANT))


@pytest.mark.parametrize("check", [check_labels_stay_out, check_resumes])
def test_the_promises_of_an_algorithm_hold(check: Any) -> None:
    check(discriminant)


def test_descriptors_stay_as_long_and_scatter_is_counted_once() -> None:
    view = small("px", level=4, clients=6, fraction=1.0)
    engine = engine_of(view)
    cohort = view.cohort(range(6), 1)
    made, descriptors = {}, {}
    for how in (False, True):
        settings = DescriptorSettings(components=5, projector="discriminant" if how else "synthetic")
        found = describe_all(engine.initial(), cohort, cohort, engine, settings)
        assert found is not None
        made[how], told = found
        descriptors[how] = told.descriptors
    assert client_bytes(descriptors[True]) == client_bytes(descriptors[False])
    bounds = made[True].question.bounds
    assert bounds is not None
    latent = len(bounds.low)
    breadth = min(BREADTH, latent)
    assert made[False].up == made[False].down == bounds.nbytes
    assert made[True].up == bounds.nbytes + 4 * (breadth * (breadth + 1) + breadth + 2)
    assert made[True].down == bounds.nbytes + 4 * (5 * latent + latent)
    _, history = play(discriminant(CLUSTERED), view, engine, 3)
    _, plain = play(Flux(replace(CLUSTERED, descriptor=DescriptorSettings(components=5))), view, engine, 3)
    sent = [found.up[0] - other.up[0] for found, other in zip(history, plain, strict=True)]
    assert sent == [0, made[True].scatter_bytes, 0]


@pytest.mark.parametrize(("fraction", "again"), [(1.0, False), (0.3, True)])
def test_by_default_the_projector_is_chosen_by_how_few_examples_there_are(fraction: float, again: bool) -> None:
    view = small("pygx", level=4, clients=10, fraction=fraction)
    engine = engine_of(view)
    cohort = view.cohort(range(10), 1)
    found = {}
    for name in ("auto", "synthetic", "discriminant"):
        settings = DescriptorSettings(components=5, projector=name)
        described = describe_all(engine.initial(), cohort, cohort, engine, settings)
        assert described is not None
        found[name] = described
    chosen, told = found["auto"]
    expected, same = found["discriminant" if again else "synthetic"]
    for mine, theirs in zip(to_arrays(told.descriptors).values(), to_arrays(same.descriptors).values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # what told that examples are few is paid for
    assert chosen.up == expected.up + (client_bytes(told.descriptors) if again else 0)
    assert (chosen.forward, chosen.down) == (expected.forward + again, expected.down)


@pytest.mark.parametrize(("silent", "finer"), [(1, True), (2, False)])
def test_where_many_fall_silent_the_first_descriptions_count(silent: int, finer: bool) -> None:
    class Falling(WrappedEngine):
        """Some members do not describe themselves a second time."""

        times = 0

        def ask(self, query, clients, models=None):
            if isinstance(query, AskDescriptor):
                self.times += 1
                clients = clients.only(list(clients)[silent:]) if self.times == 2 else clients
            return self.inner.ask(query, clients, models)

    view = small("pygx", level=4, clients=10, fraction=0.3)
    engine: Any = Falling(engine_of(view))
    cohort = view.cohort(range(10), 1)
    found = describe_all(engine.initial(), cohort, cohort, engine, DescriptorSettings(components=5, projector="auto"))
    assert found is not None
    assert engine.times == 2
    assert found[1].clients == tuple(range(silent if finer else 0, 10))
    assert (found[0].scatter_bytes > 0) == finer


def test_late_clients_are_described_with_the_same_projector() -> None:
    view = small("px", level=4, clients=6, fraction=1.0)
    engine = engine_of(view)
    members = {1: range(4), 2: range(4), 3: range(6)}
    state, _ = play(discriminant(CLUSTERED), view, engine, 2, members.__getitem__)
    later, _ = play(discriminant(CLUSTERED), view, engine, 3, members.__getitem__, saved(state))
    assert set(later.described) == set(range(6))
    np.testing.assert_array_equal(
        later.extractor.question.projector.components, state.extractor.question.projector.components
    )


def test_few_examples_of_conflicting_labels_are_told_apart_better(tmp_path: Path) -> None:
    """Twenty clients of five dozen digits, many permutations of five labels; who does not ask for it gets a hint."""
    wrong = {"synthetic": 0.0, "discriminant": 0.0}
    for name, seed in product(wrong, (42, 43, 44, 50, 51, 52)):
        folder = tmp_path / f"{name}-{seed}"
        settings: dict[str, Any] = {"shift": "pygx", "level": 5, "clients": 20, "rounds": 8, "until": "clustered"}
        wrong[name] += 1 - fedflux.run(**settings, seed=seed, projector=name, out=folder)["pairs_right"]
        hint = "examples a class: --projector discriminant may see finer"
        assert (hint in (folder / "rounds.jsonl").read_text()) == (name == "synthetic")
    assert wrong["discriminant"] < 0.6 * wrong["synthetic"]
