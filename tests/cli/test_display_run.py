"""What the terminal says of a run of people's own data."""

from typing import Any

import pytest

from fedflux.cli import display, display_run

PEOPLE = ["Ada", "Béla", "Chiara", "4", "[bold]Eve", "Fatima"]


def result(**more: Any) -> dict[str, Any]:
    phases = {
        f"{phase}{part}": value
        for phase in ("known", "test")
        for part, value in (("", 80.0), ("_worst", 70.0), ("_quantile10", 71.0))
    }
    return {
        **phases,
        **{"known_per_client": [90.0, None, 70.0, 80.0, 80.0, 80.0], "test_per_client": None},
        **{"assignment": [0, 1, 0, 0, 1, -1], "client_names": PEOPLE, "clusters_found": 2, "clusters_true": None},
        **{"why": None, "verdict": None, "seconds": 1.0, "device": "cpu", "engine": "loop", "run_dir": "r"},
        **{f"seconds_{phase}": 0.0 for phase in ("training", "descriptor", "clustering")},
        **{"bytes_up": 10, "bytes_down": 20, **more},
    }


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> str:
    monkeypatch.setattr(display.stdout, "width", 160)
    display_run.show_run(told)
    return capsys.readouterr().out


def test_clients_are_named_by_cluster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = shown(capsys, monkeypatch, result())
    assert "70.0 % (Chiara)" in words
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in words.splitlines() if "│" in line]
    assert ["0", "3", "Ada, Chiara, 4", "80.0 %"] in rows
    assert ["1", "2", "Béla, [bold]Eve", "80.0 %"] in rows
    assert ["none", "1", "Fatima", "80.0 %"] in rows


def test_why_there_is_no_test_phase_and_what_is_scored(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = dict.fromkeys(("test", "test_worst", "test_quantile10"))
    told = result(**none, no_test_phase="features cannot show it", score="macro ROC AUC", clusters_found=1)
    words = shown(capsys, monkeypatch, told)
    assert "no test phase: features cannot show it" in words
    assert "Macro ROC AUC on the clients' test parts" in words
    assert "1 cluster found" in words


def test_many_clusters_and_clients_are_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{k}" for k in range(60)]
    assignment = [k if k < 20 else 20 for k in range(60)]
    told = result(client_names=names, assignment=assignment, known_per_client=[80.0] * 60, clusters_found=21)
    words = shown(capsys, monkeypatch, told)
    assert "p20, p21, p22, p23, p24, p25, p26, p27 and 32 more" in words
    assert "and 9 more clusters" in words


def test_who_has_no_name_or_is_all_alone_is_not_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for told in (result(client_names=None), result(assignment=list(range(6)))):
        assert "Who is in which cluster" not in shown(capsys, monkeypatch, told)
