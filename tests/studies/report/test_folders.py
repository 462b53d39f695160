from pathlib import Path

import pytest
from tests.studies.report.making import write_run

from fedflux.errors import FedfluxError
from fedflux.studies.report import find_runs
from fedflux.studies.report.folders import distinct, find_folders


def test_runs_are_found_at_and_below_a_path_in_order(tmp_path: Path) -> None:
    for name in ("b/two", "b/one", "a"):
        write_run(tmp_path / name)
    assert find_runs([tmp_path]) == [tmp_path / "a", tmp_path / "b/one", tmp_path / "b/two"]
    assert find_runs([tmp_path / "a"]) == [tmp_path / "a"]
    assert [folder.name for folder in find_folders([tmp_path / "b", tmp_path / "a"])] == ["one", "two", "a"]


def test_a_run_named_twice_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    assert find_runs([run, tmp_path, tmp_path / "." / "r"]) == [run]


def test_unfinished_runs_and_other_programs_are_no_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "done")
    write_run(tmp_path / "going", finished=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"algorithm": "x"}')
    (tmp_path / "other" / "result.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    write_run(tmp_path / ".hidden" / "r")
    assert find_runs([tmp_path]) == [tmp_path / "done"]
    assert [(f.name, f.finished) for f in find_folders([tmp_path])] == [("done", True), ("going", False)]


def test_a_path_without_runs_is_refused_in_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "good" / "r")
    write_run(tmp_path / "bad" / "r", finished=False)
    with pytest.raises(FedfluxError, match="nowhere does not exist"):
        find_runs([tmp_path / "good", tmp_path / "nowhere"])
    with pytest.raises(FedfluxError, match="bad holds no finished run") as caught:
        find_runs([tmp_path / "good", tmp_path / "bad"])
    assert "\n" not in str(caught.value)


def test_names_are_made_to_fit_a_link_and_kept_apart() -> None:
    taken: set[str] = set()
    assert [distinct(name, taken) for name in ("a/b", "a b", "<>", "..")] == ["a-b", "a-b-2", "run", "run-2"]
