"""`--preset paper`: the paper's FLUX to the letter, late clients included."""

from pathlib import Path
from typing import Any

from tests.runs.making import read_rounds

import fedflux
from fedflux.runs.config import make_config

LATE: dict[str, Any] = {
    **{"shift": "px", "level": 3, "clients": 20, "participation": 0.2, "rounds": 6, "cluster_round": 1},
    **{"device": "cpu", "engine": "loop", "store": "none"},
}


def events(folder: Path) -> list[str]:
    return [words for record in read_rounds(folder) for words in record["events"]]


def test_late_clients_are_placed_and_never_clustered_anew(tmp_path: Path) -> None:
    ours = fedflux.run(**LATE, out=tmp_path / "ours")
    paper = fedflux.run(**LATE, late="place", out=tmp_path / "paper")
    assert any("found anew" in words for words in events(tmp_path / "ours"))
    assert not any("found anew" in words for words in events(tmp_path / "paper"))
    assert min(ours["assignment"]) >= 0
    assert min(paper["assignment"]) >= 0


def test_it_sets_what_the_paper_has() -> None:
    config = make_config({"preset": "paper", "dataset": "mnist"})
    told = (config.clusterer, config.assignment, config.late, config.projector, config.answer, config.novel)
    assert told == ("adaptive-dbscan", "euclidean", "place", "synthetic", "cluster", "nearest")
    assert make_config({"preset": "paper", "clusterer": "hdbscan"}).clusterer == "hdbscan"
