import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.studies.report.making import make_samples, write_run

from fedflux.errors import FedfluxError
from fedflux.studies.report import collect, without_timings
from fedflux.studies.report.descriptor_map import plane
from fedflux.studies.report.samples import all_samples


def one(folder: Path, **options: Any) -> dict[str, Any]:
    """The data of a report about a single run."""
    run: dict[str, Any] = collect([write_run(folder, **options)])["runs"][0]
    return run


def test_the_same_runs_give_the_same_data_but_for_timings(tmp_path: Path) -> None:
    for place, seconds in (("a", 1.0), ("b", 7.0)):
        for algorithm in ("flux", "fedavg"):
            write_run(tmp_path / place / "runs" / algorithm, algorithm=algorithm, seconds=seconds)
    first, second = (collect([tmp_path / place / "runs"]) for place in ("a", "b"))
    assert first != second
    assert without_timings(first) == without_timings(second)
    assert json.loads(json.dumps(first, allow_nan=False)) == json.loads(json.dumps(first))


def test_scores_clusters_and_costs_are_those_of_the_run(tmp_path: Path) -> None:
    run = one(tmp_path / "r", clients=5, clusters=2)
    assert run["scores"]["known"] == 82.0
    assert run["scores"]["known_worst"] == 80.0
    rows = run["clusters"]["rows"]
    assert [(row["cluster"], row["members"], row["truth"]) for row in rows] == [
        (0, [0, 2, 4], [(0, 3)]),
        (1, [1, 3], [(1, 2)]),
    ]
    assert [row["known"] for row in rows] == [82.0, 82.0]
    assert run["costs"]["up_by_round"] == [500, 500, 500]
    assert (run["costs"]["up_per_member"], run["costs"]["down_per_member"]) == (100, 50)
    assert run["placements"] == {
        **{"count": 5, "own": 5, "right": 5, "clients": [0, 1, 2, 3, 4], "chosen": [0, 1, 0, 1, 0], "clusters": 2},
        **{"by": "distances", "values": [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]},
    }
    assert run["unseen"] is None


def placed(client: int, posterior: list[float | None], **more: Any) -> dict[str, Any]:
    """A record as runs write it now."""
    known = {"novel": False, "novelty_score": 0.5, "calibrated": True, "confidence": max(p or 0 for p in posterior)}
    cluster = max(range(len(posterior)), key=lambda m: posterior[m] or 0)
    return {"client": client, "cluster": cluster, "posterior": posterior, **known, **more}


def test_posteriors_are_shown_where_nobody_was_placed_by_distances(tmp_path: Path) -> None:
    sure, unsure = placed(0, [1.0, 0.0]), placed(1, [0.6, 0.4], novel=True, novelty_score=0.001)
    alone = placed(2, [0.0, 1.0], calibrated=False, novelty_score=1.0)
    silent = placed(3, [None, None], calibrated=False, confidence=None, novelty_score=None)
    found = one(tmp_path / "r", clients=4, result={"test_placements": [sure, unsure, alone, silent]})["placements"]
    assert (found["by"], found["values"]) == ("posterior", [[1.0, 0.0], [0.6, 0.4], [0.0, 1.0], [None, None]])
    assert (found["novel"], found["judged"], found["is_novel"]) == (1, 2, [False, True, None, None])
    assert (found["score"], found["confidence"]) == ([0.5, 0.001, None, None], [100.0, 60.0, 100.0, None])
    both = [{**placed(k, [1.0, 0.0]), "distances": [0.1, 7.0]} for k in range(4)]
    found = one(tmp_path / "both", clients=4, result={"test_placements": both})["placements"]
    assert (found["by"], found["values"][0]) == ("distances", [0.1, 7.0])


def test_verdicts_of_older_runs_count_as_calibrated(tmp_path: Path) -> None:
    older = [
        {"client": k, "cluster": 0, "distances": [1.0], "novel": k == 1, "novelty_score": 0.01, "confidence": 0.9}
        for k in range(3)
    ]
    found = one(tmp_path / "r", clients=3, clusters=1, result={"test_placements": older})["placements"]
    assert (found["novel"], found["judged"], found["is_novel"]) == (1, 3, [False, True, False])


def test_held_out_clients_are_listed_one_by_one(tmp_path: Path) -> None:
    told = {
        "unseen_per_client": [90.0, None, 70.0],
        "unseen_truth": [1, None, 7],
        "unseen_names": ["a", "b", "c"],
        "unseen_placements": [placed(5, [0.0, 1.0]), placed(7, [0.7, 0.3])],
    }
    found = one(tmp_path / "r", clients=5, clusters=2, result=told)["unseen"]
    assert (found["count"], found["clients"], found["names"]) == (3, [5, 6, 7], ["a", "b", "c"])
    assert (found["truth"], found["new"]) == ([1, None, 7], [False, False, True])
    assert found["scores"] == [90.0, None, 70.0]
    placements = found["placements"]
    assert (placements["clients"], placements["chosen"], placements["by"]) == ([5, 7], [1, 0], "posterior")
    assert (placements["right"], placements["comparable"]) == (1, 1)
    plain = {**told, "unseen_names": None, "unseen_truth": None, "unseen_placements": None}
    found = one(tmp_path / "plain", clients=5, result=plain)["unseen"]
    assert found["names"] is found["truth"] is found["new"] is found["placements"] is None
    unanswered = {**plain, "unseen_per_client": None, "unseen_truth": [1, 1, 1]}
    assert one(tmp_path / "none", clients=5, result=unanswered)["unseen"] is None


def test_placements_of_a_test_drift_are_judged_by_what_the_test_phase_met(tmp_path: Path) -> None:
    placed = [{"client": k, "cluster": 0, "distances": [1.0, 2.0]} for k in range(5)]
    told = {"clients": 5, "clusters": 2, "drift": "after:2+test"}  # trained in clusters 0, 1, 0, 1, 0
    run = one(tmp_path / "r", **told, result={"test_placements": placed, "test_truth": [0, 0, 0, 1, 2]})
    assert (run["placements"]["own"], run["placements"]["right"]) == (None, 3)
    run = one(tmp_path / "same", **told, result={"test_placements": placed, "test_truth": [0, 1, 0, 1, 0]})
    assert (run["placements"]["own"], run["placements"]["right"]) == (3, 3)
    run = one(tmp_path / "untold", **told, result={"test_placements": placed})
    assert (run["placements"]["own"], run["placements"]["right"]) == (None, None)


def test_curves_are_means_over_the_members_of_a_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", clients=4)
    lines = [
        {"round": 1, "validation": {"0": 10.0, "1": 30.0, "2": None}},
        {"round": 2, "validation": {"0": 20.0, "2": 40.0}},
        {"round": 2, "validation": {"0": 50.0, "2": 70.0}},  # repeated after a resumption: the later counts
    ]
    (folder / "rounds.jsonl").write_text("\n".join(map(json.dumps, lines)))
    curves = collect([folder])["runs"][0]["curves"]
    assert curves["rounds"] == [1, 2]
    assert curves["clients"] == [[10.0, 50.0], [30.0, None], [None, 70.0], [None, None]]
    assert curves["clusters"] == {"0": [10.0, 60.0], "1": [30.0, None]}
    assert curves["mean"] == [20.0, 60.0]


def test_many_clients_become_bands_and_lists_are_capped(tmp_path: Path) -> None:
    run = one(tmp_path / "r", clients=2000, clusters=3, describe=False)
    assert run["curves"]["clients"] is None
    assert set(run["curves"]["bands"]) == {"0.1", "0.25", "0.75", "0.9"}
    first = [10 + k % 7 for k in range(2000)]
    assert run["curves"]["bands"]["0.25"][0] == np.quantile(first, 0.25)
    assert run["clients"]["count"] == 2000
    assert run["clients"]["shown"] == len(run["clients"]["known"]) == 300
    assert len(run["placements"]["clients"]) == 120
    assert run["placements"]["count"] == run["placements"]["own"] == 2000
    assert (run["clusters"]["rows"][0]["size"], len(run["clusters"]["rows"][0]["members"])) == (667, 40)
    assert len(json.dumps(run)) < 60_000


def test_a_method_without_clusters_is_shown_by_the_true_ones(tmp_path: Path) -> None:
    run = one(tmp_path / "r", algorithm="fedavg", clients=4, clusters=2)
    assert run["grouped_by"] == "truth"
    assert run["clients"]["group"] == [0, 1, 0, 1]
    assert run["clients"]["found"] == [0, 0, 0, 0]
    assert [group["cluster"] for group in run["samples"]["groups"]] == [0, 1]


def test_federations_without_truth_and_runs_without_scores_are_shown(tmp_path: Path) -> None:
    names = ("known", "test", "known_per_client", "test_per_client", "known_worst", "test_placements", "truth")
    run = one(tmp_path / "r", samples=False, describe=False, result=dict.fromkeys(names))
    assert run["scores"]["known"] is run["placements"] is run["samples"] is run["map"] is None
    assert run["clusters"]["rows"][0]["truth"] is run["clusters"]["rows"][0]["known"] is None


def test_the_map_puts_clients_of_one_distribution_together(tmp_path: Path) -> None:
    run = one(tmp_path / "r", clients=6, clusters=2)
    x, truth = np.array(run["map"]["x"]), np.array(run["map"]["truth"])
    gap = abs(x[truth == 0].mean() - x[truth == 1].mean())
    assert gap > 5 * max(x[truth == 0].std(), x[truth == 1].std())
    assert 0.5 < run["map"]["explained"][0] <= 1


def test_the_plane_is_the_principal_one_with_signs_fixed() -> None:
    points = np.random.default_rng(0).normal(size=(30, 4)) * [5.0, 3.0, 0.1, 0.1]
    found, explained = plane(points)
    centred = points - points.mean(axis=0)
    values = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    np.testing.assert_allclose((found**2).sum(axis=0), values[:2])
    np.testing.assert_allclose(explained, values[:2] / values.sum())
    for axis in (0, 1):  # the strongest coordinate, the first and the second, points to the positive side
        assert np.corrcoef(found[:, axis], points[:, axis])[0, 1] > 0.9
    assert plane(np.ones((3, 4)))[0].tolist() == np.zeros((3, 2)).tolist()


def test_images_are_kept_once_and_fewer_clients_are_shown_when_they_are_too_many() -> None:
    arrays = make_samples(range(6), classes=3, side=8)
    runs = [(arrays, [0, 0, 0, 1, 1, 1])] * 5
    shown, images = all_samples(runs)
    assert len(images) == 18
    assert shown[0] == shown[4]
    size = len("".join(images))
    shown, images = all_samples(runs, budget=size // 2)
    assert len(images) == 6
    assert [[len(group["clients"]) for group in run["groups"]] for run in shown if run] == [[1, 1]] * 5
    shown, images = all_samples(runs, budget=10)
    assert images == []
    assert shown[0] is not None
    assert shown[0]["images_left_out"] == 6


def test_the_first_run_with_a_map_is_opened(tmp_path: Path) -> None:
    for name in ("fedavg", "local"):
        write_run(tmp_path / name, algorithm=name)
    assert collect([tmp_path])["opens"] == "fedavg"
    for name in ("flux-1", "flux-2"):
        write_run(tmp_path / name)
    assert collect([tmp_path])["opens"] == "flux-1"


def test_unfinished_runs_are_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "done")
    write_run(tmp_path / "going", finished=False, rounds=2, seed=7)
    (going,) = collect([tmp_path])["unfinished"]
    assert (going["name"], going["rounds_done"], going["seed"]) == ("going", 2, 7)


def test_the_overview_compares_within_groups_and_with_the_reference(tmp_path: Path) -> None:
    for seed in range(6):
        write_run(tmp_path / f"flux-{seed}", seed=seed, lift=seed)
        write_run(tmp_path / f"fedavg-{seed}", algorithm="fedavg", seed=seed, lift=seed - 2 - 0.1 * seed)
    write_run(tmp_path / "elsewhere", seed=1, group="other settings", lift=9)
    overview = collect([tmp_path])["overview"]
    assert (overview["reference"], overview["algorithms"]) == ("fedavg", ["fedavg", "flux"])
    block = overview["blocks"][0]
    assert [b["runs"] for b in overview["blocks"]] == [12, 1]
    assert [(line["algorithm"], line["known_mean"]) for line in block["by_shift"]] == [
        ("fedavg", 82.75),
        ("flux", 85.0),
    ]
    line = next(line for line in block["paired"] if line["score"] == "known")
    assert (line["algorithm"], line["mean"], line["mark"]) == ("flux", 2.25, "better")
    assert collect([tmp_path], reference="flux")["overview"]["reference"] == "flux"
    assert collect([tmp_path / "elsewhere"])["overview"]["reference"] == "flux"
    with pytest.raises(FedfluxError, match="did you mean 'fedavg'"):
        collect([tmp_path], reference="fedavgg")


def test_the_papers_figures_stand_beside_ours_of_the_same_level_only(tmp_path: Path) -> None:
    for shift, level in (("px+py", 3), ("px+py", 8), ("px", 4)):
        write_run(tmp_path / f"{shift}{level}", shift=shift, level=level, dataset="mnist", clients=10, group="mnist")
    paper = collect([tmp_path])["overview"]["blocks"][0]["paper"]
    flux = [line for line in paper if line["algorithm"] == "flux"]
    mixed = {line["scope"].split(",")[0]: line["own"] for line in flux if line["shift"] == "px+py"}
    assert mixed["level 3"]["scope"] == "level 3, 1 seed"
    assert mixed["level 4"] is None
    (over_levels,) = (line for line in flux if line["shift"] == "px")
    assert over_levels["scope"].startswith("mean over levels 1–8")
    assert over_levels["own"]["scope"] == "level 4, 1 seed"


@pytest.mark.parametrize(("drift", "rounds"), [("after:1", [2]), (None, []), ("whenever", []), (3, [])])
def test_rounds_with_new_patterns_are_marked(drift: Any, rounds: list[int], tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", clients=4)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "drift": drift}))
    assert collect([folder])["runs"][0]["drifts"] == rounds
