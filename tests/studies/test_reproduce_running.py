"""A study is run once, compared, written, verified; the command line says what it will do and ends as others do."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedflux.cli import main as cli
from fedflux.errors import FedfluxError
from fedflux.runs.config import RunConfig
from fedflux.runs.storage.store import Store
from fedflux.studies.paper.contents import find_study
from fedflux.studies.reproduce import Plan, Wanted, make_plan, reproduce
from fedflux.studies.reproduce.estimate import estimated
from fedflux.studies.reproduce.verify import verify
from fedflux.studies.workers import Tell, work_here

TINY = Wanted("smoke", algorithms=("fedavg",))


def here(runs: Sequence[RunConfig], jobs: int, tell: Tell) -> None:
    work_here(runs, tell, None, None)


def planned(out: Path, *names: str, wanted: Wanted = TINY) -> Plan:
    return make_plan([find_study(name) for name in names], wanted, {"device": "cpu"}, out, 1)


def test_a_study_is_run_once_compared_and_written(tmp_path: Path) -> None:
    answer, rows = reproduce(planned(tmp_path, "m11"), work=here)
    assert (answer["planned"], answer["ran"], answer["failed"]) == (1, 1, [])
    known, test = answer["cells"]
    kept = Store(tmp_path).cells()[0]
    assert (known["ours"], test["ours"]) == (kept["known"], kept["test"])
    assert (known["table"], known["row"], known["column"], known["paper"]) == (
        "tab:m11", "FedAvg", "level 4, known", 82.48,
    )  # fmt: skip
    assert known["verdict"].startswith("not comparable: tier smoke; digits in place of MNIST")
    assert [row["identity"] for row in rows] == [kept["identity"]]
    assert len(rows[0]["validation"]) == 4
    folder = Path(answer["path"])
    assert "FedAvg, ours" in (folder / "m11.tex").read_text()
    assert json.loads((folder / "m11.json").read_text())["cells"] == answer["cells"]
    again, _ = reproduce(planned(tmp_path, "m11"), work=here)
    assert (again["ran"], again["finished_before"], again["cells"]) == (0, 1, answer["cells"])


def test_a_finished_cell_comes_out_again_bit_for_bit_and_another_number_is_noticed(tmp_path: Path) -> None:
    plan = planned(tmp_path, "m11")
    with pytest.raises(FedfluxError, match="no cell that could be run again is finished"):
        verify(plan.prepared.cells, plan.store)
    reproduce(plan, work=here)
    found = verify(plan.prepared.cells, plan.store)
    assert (found["verified"], found["same_bits"], found["difference"]) == (True, True, 0.0)

    class Changed(Store):
        def get(self, identity: str) -> dict[str, Any] | None:
            cell = super().get(identity)
            assert cell is not None
            return {**cell, "result": {**cell["result"], "known": cell["result"]["known"] + 0.1}}

    changed = verify(plan.prepared.cells, Changed(tmp_path))
    assert (changed["verified"], changed["difference"]) == (False, pytest.approx(0.1))
    assert changed["allowed"] == 0


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    answer, rows = reproduce(planned(tmp_path, "main_chex"), work=here)
    assert (answer["planned"], rows) == (0, [])
    assert all("fetch CheXpert" in cell["verdict"] for cell in answer["cells"])


def test_hours_are_told_beforehand_by_a_timed_round_and_then_by_finished_cells(tmp_path: Path) -> None:
    plan = planned(tmp_path, "m11")
    first = estimated(plan.prepared.cells, plan.prepared.sizes, plan.store)
    assert first.source == "a timed round"
    reproduce(plan, work=here)
    second = estimated(plan.prepared.cells, plan.prepared.sizes, plan.store)
    assert second.source == "finished cells"
    assert second.hours(plan.prepared.cells, 2) == pytest.approx(second.hours(plan.prepared.cells, 1) / 2)
    seconds = plan.store.cells()[0]["seconds"]
    assert second.hours(plan.prepared.cells, 1) * 3600 == pytest.approx(max(seconds, 1.01), abs=0.01)


def test_images_are_drawn_without_a_run(tmp_path: Path) -> None:
    answer, _ = reproduce(planned(tmp_path, "appendix_ANDA_mnist"), work=here)
    assert answer["planned"] == 0
    assert (Path(answer["path"]) / "appendix_ANDA_mnist.png").stat().st_size > 10_000


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedflux", "reproduce", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_the_list_is_json_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(monkeypatch, "--list", "--json") == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["studies"]) == 35
    assert called(monkeypatch, "--list") == 0
    assert "fig:appendix_ANDA_cifar10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m14"], "unknown table or figure 'm14'"),
        ([], "name a table or figure"),
        (["2type"], "describes and has no results"),
        (["m11", "--tier", "huge"], "unknown tier 'huge'"),
        (["m11", "--algorithms", "fedavgg"], "--algorithms 'fedavgg' is unknown"),
        (["m11", "--dataset", "digitz"], "did you mean 'digits'"),
        (["m11", "--presets", "mine"], "unknown preset 'mine'"),
        (["m11", "--levels", "1"], "has nothing of what is asked for"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    assert called(monkeypatch, *arguments, "--out", str(tmp_path / "out")) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert words in error[-1]
    assert len([line for line in error if line.startswith("fedflux:")]) == 1
    assert not (tmp_path / "out").exists()
