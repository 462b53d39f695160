"""A run's folder has one user at a time, however many want it, and vanishes only when nothing came of it."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from fedflux.errors import FedfluxError
from fedflux.files import write_json
from fedflux.runs.storage.folder import BusyError, held

PROCESSES, TRIES, FOLDERS = 4, 300, 3


def crowd(root: str, start: Any, answers: Any) -> None:
    """Enter the same new folders as others; some leave a run there, most leave nothing."""
    faults, entered = [], 0
    start.wait()
    for attempt in range(TRIES):
        folder = Path(root) / f"run{attempt % FOLDERS}-{attempt // 50}"
        owner = folder.with_suffix(".owner")
        try:
            with held(folder):
                os.close(os.open(owner, os.O_CREAT | os.O_EXCL))  # fails where another is inside
                if attempt % 50 > 45:
                    write_json(folder / "config.json", {"algorithm": "flux", "command": "run"})
                    (folder / "rounds.jsonl").write_text("")
                owner.unlink()
                entered += 1
        except BusyError:
            pass
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")
    answers.put((faults, entered))


def test_many_processes_enter_new_folders_one_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(PROCESSES), context.Queue()
    workers = [context.Process(target=crowd, args=(str(tmp_path), start, answers)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert [fault for faults, _ in found for fault in faults] == []
    assert sum(entered for _, entered in found) > TRIES
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {".lock", "config.json", "rounds.jsonl"}


def test_a_lock_whose_file_was_removed_while_it_was_waited_for_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    original = FileLock.acquire

    def late(self: Any, *args: Any, **options: Any) -> Any:
        answer = original(self, *args, **options)
        if not taken:
            (tmp_path / "run" / ".lock").unlink()
            (tmp_path / "run").rmdir()
        taken.append(self)
        return answer

    monkeypatch.setattr(FileLock, "acquire", late)
    with held(tmp_path / "run") as folder:
        assert (folder / ".lock").exists()
        assert [lock.is_locked for lock in taken] == [False, True]


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"algorithm": "flux", "command": "run"})
    (tmp_path / "checkpoints").mkdir()
    kept = tmp_path / "checkpoints" / "round-0003.safetensors"
    kept.write_text("")
    for place in (tmp_path, tmp_path / "checkpoints"):
        (place / ".round-0004.safetensors.8456.tmp").write_text("half")
    with held(tmp_path):
        assert not list(tmp_path.rglob("*.tmp"))
    assert kept.exists()


def test_a_folder_of_which_nothing_came_is_removed_and_another_stays(tmp_path: Path) -> None:
    with held(tmp_path / "empty"):
        pass
    with held(tmp_path / "full") as folder:
        write_json(folder / "config.json", {"algorithm": "flux", "command": "run"})
    assert sorted(os.listdir(tmp_path)) == ["full"]


def test_a_folder_of_others_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FedfluxError, match="holds other files and no fedflux run"), held(tmp_path):
        pass
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_path_at_or_below_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(FedfluxError, match=f"cannot write fedflux run to {path}: "), held(path):
            pass
