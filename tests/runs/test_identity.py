"""Runs of one identity must give one set of numbers, and runs of another must not share a folder or a cell."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.runs.test_config import OTHER

from fedflux.algorithms import ALGORITHMS, READS, make_algorithm
from fedflux.models import REVISIONS
from fedflux.runs.config import RunConfig, make_config
from fedflux.runs.identity import (
    HOW_AND_WHERE,
    deployed_identity,
    determines,
    folder_name,
    group,
    identity,
    label,
    shift_words,
)
from fedflux.runs.runner import build_federation


def other(key: str, **told: object) -> tuple[RunConfig, RunConfig]:
    config = make_config(told)
    return config, replace(config, **{key: OTHER[key]})


WHERE_READ: dict[str, dict[str, Any]] = {
    "bank": {"shift": "py"},
    "patterns": {"shift": "pygx"},
    "alpha": {"shift": "dirichlet"},
    "preset": {"algorithm": "apfl"},
    "redescribe": {"algorithm": "flux-dynamic"},
    "false_alarms": {"algorithm": "flux-dynamic"},
    "drift_test": {"algorithm": "flux-dynamic"},
    "novelty_level": {"novel": "global"},
    "dp": {"epsilon": 0.5},
    "delta": {"epsilon": 1.0},
    "privacy_unit": {"epsilon": 1.0},
}
"""Settings that only some shifts or algorithms read."""


@pytest.mark.parametrize("key", [key for key in OTHER if key not in {*HOW_AND_WHERE, "clusters", "eps_scale"}])
def test_settings_that_change_the_numbers_change_the_identity(key: str) -> None:
    one, two = other(key, **WHERE_READ.get(key, {}))
    assert identity(one, "data") != identity(two, "data")
    assert folder_name(one, "data") != folder_name(two, "data")


def test_how_and_where_is_what_changes_no_number() -> None:
    where = ["data_dir", "device", "engine", "out", "resume", "samples", "store", "track"]
    assert sorted(HOW_AND_WHERE) == ["answer", *where]  # an answer of both is a sharing by now


@pytest.mark.parametrize("key", sorted(HOW_AND_WHERE))
def test_how_and_where_a_run_happens_does_not(key: str) -> None:
    one, two = other(key)
    assert identity(one, "data") == identity(two, "data")
    assert folder_name(one, "data") == folder_name(two, "data")


def test_a_model_whose_layers_changed_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(make_config({"model": "mlp"}), "c")
    monkeypatch.setitem(REVISIONS, "mlp", 2)
    assert identity(make_config({"model": "mlp"}), "c") != before


def test_the_radius_counts_for_dbscan_and_the_number_for_kmeans() -> None:
    one, two = other("eps_scale", clusterer="adaptive-dbscan")
    assert identity(one, "data") != identity(two, "data")
    assert identity(make_config({"clusters": 2}), "data") != identity(make_config({"clusters": 3}), "data")
    one, two = other("eps_scale")
    assert identity(one, "data") == identity(two, "data")


def test_who_is_called_novel_counts_where_novel_clients_get_another_model() -> None:
    one, two = (make_config({"novelty_level": level}) for level in (0.05, 0.01))
    assert identity(one, "data") == identity(two, "data")
    assert "novel" not in determines(one)
    assert label(two) == "flux"
    one, two = (make_config({"novelty_level": level, "novel": "global"}) for level in (0.05, 0.01))
    assert len({identity(config, "data") for config in (make_config({}), one, two)}) == 3
    assert label(two) == "flux (novel global, novelty-level 0.01)"


def test_clipping_counts_for_everyone_where_it_is_told() -> None:
    for algorithm in ("flux", "apfl"):
        free, told = (make_config({"algorithm": algorithm, **more}) for more in ({}, {"clip": 10.0}))
        assert (free.settings().training.clip, told.settings().training.clip) == (None, 10)
        assert "clip" not in determines(free)
        assert identity(told, "data") != identity(free, "data")
        assert label(told) == algorithm
        assert group(told, "data") == f"{group(free, 'data')}, clip 10.0"


def test_server_momentum_counts_where_it_is_told_and_read() -> None:
    assert "server_momentum" not in determines(make_config({}))
    told = make_config({"server_momentum": 0.5})
    assert identity(told, "data") != identity(make_config({}), "data")
    assert label(told) == "flux (server-momentum 0.5)"
    assert group(told, "data") == group(make_config({}), "data")
    ifca = [make_config({"algorithm": "ifca", "server_momentum": beta}) for beta in (0.0, 0.5)]
    assert identity(ifca[0], "data") == identity(ifca[1], "data")


@pytest.mark.parametrize("key", ["clusterer", "significance", "assignment", "cluster_round", "components", "bounds"])
def test_settings_that_an_algorithm_does_not_read_do_not_count(key: str) -> None:
    one, two = other(key, algorithm="fedavg")
    assert identity(one, "data") == identity(two, "data")
    assert label(two) == "fedavg"


@pytest.mark.parametrize(
    ("told", "key", "values"),
    [
        ({"shift": "none"}, "level", (1, 8)),
        ({"shift": "dirichlet", "alpha": 0.3}, "level", (1, 8)),
        ({"shift": "py", "strength": 0.5}, "level", (1, 8)),
        ({"shift": "px"}, "bank", (3, 5)),
        ({"shift": "px"}, "patterns", ("independent", "shared")),
        ({"shift": "pygx"}, "bank", (3, 5)),
        ({"shift": "px"}, "alpha", (0.1, 0.2)),
    ],
)
def test_settings_that_a_shift_does_not_read_do_not_count(
    told: dict[str, Any], key: str, values: tuple[Any, Any]
) -> None:
    """Checked against the data itself: both values must deal the same federation."""
    pair = [make_config({**told, key: value, "clients": 5}) for value in values]
    assert identity(pair[0], "data") == identity(pair[1], "data")
    one, two = (build_federation(config)[0] for config in pair)
    for client in range(5):
        for split in ("train", "test"):
            mine, other = (f.materialise(client, split) for f in (one, two))
            assert torch.equal(mine.x, other.x)
            assert torch.equal(mine.y, other.y)


@pytest.mark.parametrize(
    ("told", "key", "values"),
    [
        ({"shift": "dirichlet"}, "level", (1, 8)),
        ({"shift": "px", "strength": 0.5}, "level", (1, 4)),
        ({"shift": "pygx", "patterns": "shared"}, "bank", (2, 5)),
        ({"shift": "px", "strength": 0.5}, "patterns", ("independent", "shared")),
    ],
)
def test_settings_that_a_shift_reads_count(told: dict[str, Any], key: str, values: tuple[Any, Any]) -> None:
    pair = [make_config({**told, key: value, "clients": 5}) for value in values]
    assert identity(pair[0], "data") != identity(pair[1], "data")


def test_every_algorithm_says_what_it_reads() -> None:
    assert READS.keys() == ALGORITHMS.keys()


def test_data_and_revision_count(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({})
    before = identity(config, "a")
    assert before != identity(config, "b")
    monkeypatch.setattr(type(make_algorithm("flux", config.settings())), "revision", 99)
    assert before != identity(config, "a")


def test_a_run_over_nodes_is_none_of_those_here() -> None:
    one, other = make_config({}), make_config({"lr": 0.2})
    assert deployed_identity(one) == deployed_identity(replace(one, engine="flower", out="elsewhere"))
    assert deployed_identity(one) not in (identity(one, "data"), deployed_identity(other))


def test_folder_names_are_readable_and_stable() -> None:
    config = make_config({"shift": "px+py", "level": 3})
    assert folder_name(config, "a").startswith("digits-px-py3-flux-s42-")
    assert folder_name(config, "a") == folder_name(make_config({"shift": "px+py", "level": 3}), "a")


def test_groups_and_labels_say_what_differs() -> None:
    config = make_config({"clients": 12, "clusterer": "hdbscan", "lr": 0.1})
    assert group(config, "data") == "digits, 12 clients, lr 0.1"
    assert label(config) == "flux (clusterer hdbscan)"
    for key in ("shift", "level", "seed", "algorithm"):
        assert group(replace(config, **{key: OTHER[key]}), "data") == group(config, "data")
    assert group(make_config({"dataset": "npz", "clients": 3}), "abcdefgh") == "npz abcdef, 3 clients"


def test_presets_are_told_apart_only_where_they_change_something() -> None:
    def of(**told: Any) -> tuple[str, str, str]:
        config = make_config(told)
        return identity(config, "data"), label(config), group(config, "data")

    assert of(algorithm="fedavg", preset="paper-baselines") == of(algorithm="fedavg")
    plain, paper = of(algorithm="apfl"), of(algorithm="apfl", preset="paper-baselines")
    assert plain[0] != paper[0]
    assert (paper[1], paper[2]) == ("apfl (preset paper-baselines)", plain[2])  # beside each other in one table
    tuned, told = of(algorithm="fedavg", preset="tuned"), of(algorithm="fedavg", preset="tuned", lr=0.2)
    assert tuned[2].endswith("preset tuned")
    assert told[2].endswith("lr 0.2")
    assert told[0] == of(algorithm="fedavg", lr=0.2)[0] != tuned[0]
    ten = of(algorithm="ifca", preset="paper-baselines", clusters=3)
    assert ten == of(algorithm="ifca", preset="paper-baselines")
    assert ten == of(algorithm="ifca", preset="flux-paper")


@pytest.mark.parametrize("name", ["0.1", "paper"])
@pytest.mark.parametrize("algorithm", ["flux", "fedavg", "apfl"])
def test_a_preset_leaves_no_trace_but_the_settings_it_sets(name: str, algorithm: str) -> None:
    config = make_config({"preset": name, "algorithm": algorithm, "dataset": "fmnist"})
    spelt_out = replace(config, preset=None)
    assert determines(config) == determines(spelt_out)
    assert identity(config, "data") == identity(spelt_out, "data")
    assert (label(config), group(config, "data")) == (label(spelt_out), group(spelt_out, "data"))


def test_the_papers_flux_is_told_apart_by_what_it_sets() -> None:
    paper, plain = make_config({"preset": "paper"}), make_config({})
    assert identity(paper, "data") != identity(plain, "data")
    settings = "assignment euclidean, cluster-round trigger, clusterer adaptive-dbscan, late place"
    settings += ", projector synthetic, sharing none"
    assert label(paper) == f"flux ({settings})"
    assert group(paper, "data") == group(plain, "data")
    old = identity(make_config({"preset": "0.1"}), "data")
    assert old == "bfae508f1ad1e90bd088f39d56b86b67" != identity(plain, "data")  # runs of 0.1 are found under it


def test_rules_that_changed_part_new_runs_from_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    default, none = make_config({}), make_config({"sharing": "none", "assignment": "calibrated"})
    before = [identity(config, "data") for config in (default, none)]
    monkeypatch.setattr("fedflux.runs.identity.REVISED", {("sharing", "auto"): 99})
    after = [identity(config, "data") for config in (default, none)]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_a_level_that_means_nothing_is_in_no_name() -> None:
    named = {shift: make_config({"shift": shift, "level": 3}) for shift in ("none", "px")}
    assert folder_name(named["none"], "a").startswith("digits-none-flux-s42-")
    assert [shift_words(named[shift]) for shift in ("none", "px")] == ["none", "px level 3"]
    assert shift_words(make_config({"shift": "dirichlet", "alpha": 0.3})) == "dirichlet"


def test_the_optimiser_counts_where_it_is_told_and_read() -> None:
    plain = make_config({})
    assert not {"optimiser", "weight_decay", "schedule"} & determines(plain).keys()
    for told, words in (
        ({"optimiser": "adam"}, "optimiser adam"),
        ({"weight_decay": 0.1}, "weight-decay 0.1"),
        ({"schedule": "cosine"}, "schedule cosine"),
    ):
        config = make_config(told)
        assert identity(config, "data") != identity(plain, "data")
        assert label(config) == f"flux ({words})"
    one, two = (make_config({"optimiser": "adam", "momentum": momentum}) for momentum in (0.9, 0.5))
    assert identity(one, "data") == identity(two, "data")
    assert identity(make_config({"momentum": 0.5}), "data") != identity(plain, "data")
    fixed = {"algorithm": "pfedme"}
    theirs = make_config({**fixed, "optimiser": "adamw", "weight_decay": 0.1})
    assert identity(theirs, "data") == identity(make_config(fixed), "data")
    assert theirs.lr == make_config(fixed).lr
    assert identity(make_config({**fixed, "schedule": "cosine"}), "data") != identity(make_config(fixed), "data")
