"""A run that was stopped anywhere goes on to the numbers of an uninterrupted one, bit for bit."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.making import read_json, read_rounds

import fedflux
from fedflux.errors import FedfluxError, StoppedError
from fedflux.runs import session
from fedflux.runs.ending.finish import Ending
from fedflux.runs.storage.folder import BusyError, held
from fedflux.studies.report import collect, without_timings

SETTINGS: dict[str, Any] = {
    "shift": "px", "level": 3, "clients": 6, "rounds": 5, "cluster_round": 2, "participation": 0.7, "device": "cpu",
}  # fmt: skip
ALGORITHMS = ("flux", "flux-prior", "oracle", "fedavg", "local")


def run(folder: Path, **options: Any) -> dict[str, Any]:
    return fedflux.run(**{**SETTINGS, "out": folder, **options}).to_dict()


def left(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that must not depend on interruptions: no times, and not where it was."""
    rounds = [{key: value for key, value in record.items() if key != "seconds"} for record in read_rounds(folder)]
    result = {k: v for k, v in read_json(folder / "result.json").items() if "seconds" not in k and k != "run_dir"}
    config = read_json(folder / "config.json")
    arrays = {name: (folder / name).read_bytes() for name in ("models.safetensors", "samples.npz")}
    for path in (*folder.glob("descriptors.npz"), *folder.glob("personal-*.safetensors")):
        arrays[path.name] = path.read_bytes()
    tensors = {path.name: path.read_bytes() for path in (folder / "checkpoints").glob("*.safetensors")}
    for told in (config, result):
        told["command"] = told["command"].split(" --out")[0]
    report = without_timings(collect([folder]))
    return {
        "rounds": rounds, "result": result, "config": {**config, "out": None}, **arrays, **tensors,
        "report": json.dumps(report, sort_keys=True).replace(str(folder), ""),
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What uninterrupted runs leave, by algorithm."""
    found = {}
    for algorithm in ALGORITHMS:
        folder = tmp_path_factory.mktemp("whole") / "run"
        run(folder, algorithm=algorithm)
        found[algorithm] = left(folder)
    return found


def stop_at(monkeypatch: pytest.MonkeyPatch, round: int) -> None:
    """Ctrl-C at the beginning of a round."""
    original = session.cohort_of

    def cohort_of(*args: Any) -> Any:
        cohort = original(*args)
        if cohort.round == round:
            raise KeyboardInterrupt
        return cohort

    monkeypatch.setattr(session, "cohort_of", cohort_of)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("round", [1, 2, 3, 5])
def test_an_interrupted_run_goes_on_to_the_same_numbers(
    algorithm: str, round: int, whole: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, round)
        with pytest.raises(KeyboardInterrupt, match=f"stopped after round {round - 1}; .* --resume"):
            run(folder, algorithm=algorithm)
    run(folder, algorithm=algorithm, resume=True)
    assert left(folder) == whole[algorithm]


def test_a_run_by_adam_and_a_cosine_goes_on_at_the_rates_of_its_rounds(tmp_path: Path) -> None:
    told = {"optimiser": "adamw", "weight_decay": 0.1, "schedule": "cosine", "finetune": 1, "rounds": 4}
    run(tmp_path / "whole" / "run", **told)
    folder = tmp_path / "parts" / "run"
    for round in (2, 4):
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, round)
            with pytest.raises(KeyboardInterrupt):
                run(folder, **told, resume=round > 2)
    run(folder, **told, resume=True)
    assert left(folder) == left(tmp_path / "whole" / "run")


def test_a_run_that_is_stopped_after_every_round_drops_the_same_branches(tmp_path: Path) -> None:
    """Clusters' own models are dropped on the way, and a general one begins."""
    told = {"shift": "py", "data_fraction": 0.3, "lr": 0.05, "rounds": 16, "cluster_round": 1, "participation": 1.0}
    assert "own" in run(tmp_path / "whole" / "run", **told)["sharing_parts"]["dropped"]
    folder = tmp_path / "parts" / "run"
    for round in range(2, 17):
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, round)
            with pytest.raises(KeyboardInterrupt):
                run(folder, **told, resume=True)
    run(folder, **told, resume=True)
    assert left(folder) == left(tmp_path / "whole" / "run")
    for name in ("general.safetensors", "models.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / "run" / name).read_bytes()


def test_out_alone_is_enough_to_go_on(whole: dict[str, Any], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run")
    fedflux.run(out=tmp_path / "run", resume=True)
    assert left(tmp_path / "run") == whole["flux"]
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events == ["started", "resumed after round 3", "finished"]


def test_a_finished_run_is_answered_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path / "run")
    monkeypatch.setattr("fedflux.algorithms.flux.plain.Flux.round", None)
    assert run(tmp_path / "run", resume=True) == result


def test_resume_without_a_run_starts_one(whole: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "run", resume=True)
    assert left(tmp_path / "run") == whole["flux"]


def test_without_resume_a_run_starts_anew(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 4)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", seed=7)
    run(tmp_path / "run")
    assert len(read_rounds(tmp_path / "run")) == 5
    assert "resumed" not in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize(("key", "value"), [("lr", 0.1), ("algorithm", "fedavg"), ("seed", 1), ("rounds", 6)])
def test_other_settings_cannot_be_resumed(key: str, value: Any, tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = left(tmp_path / "run")
    with pytest.raises(FedfluxError, match=f"cannot be resumed: it was begun with {key} .*, not {value}"):
        run(tmp_path / "run", **{"resume": True, key: value})
    assert left(tmp_path / "run") == before


def test_a_newer_revision_does_not_go_on_with_older_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "run")
    monkeypatch.setattr("fedflux.algorithms.flux.plain.Flux.revision", 99)
    with pytest.raises(FedfluxError, match=r"begun with revision \d+, not 99"):
        run(tmp_path / "run", resume=True)


def test_the_recorded_engine_is_used(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run")
    config = read_json(tmp_path / "run" / "config.json")
    config["ran_on"]["device"] = "cuda:7"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FedfluxError, match="device 'cuda:7' is not there"):
        run(tmp_path / "run", resume=True)


def test_until_clustered_stops_where_it_would_have(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ending, "result", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", until="clustered")
    result = run(tmp_path / "run", until="clustered", resume=True)
    assert (result["rounds"], result["known"]) == (2, None)


# damage


def unfinished(folder: Path, rounds: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, rounds + 1)
        with pytest.raises(KeyboardInterrupt):
            run(folder)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("damage", [cut, flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    suffix: str, damage: Any, whole: dict[str, Any], tmp_path: Path
) -> None:
    unfinished(tmp_path / "run", 4)
    damage(tmp_path / "run" / "checkpoints" / f"round-0004{suffix}")
    notes: list[str] = []
    from fedflux.runs.config import make_config
    from fedflux.runs.runner import run_config

    config = make_config({**SETTINGS, "out": tmp_path / "run", "resume": True})
    run_config(config, lambda progress: notes.extend(progress.events))
    assert "resumed after round 3" in notes
    if not (damage is Path.unlink and suffix == ".json"):  # one that is not there cannot be missed
        assert any("round-0004 is damaged" in note and "the one before it" in note for note in notes)
    assert left(tmp_path / "run") == whole["flux"]


def test_two_damaged_checkpoints_start_the_run_anew(whole: dict[str, Any], tmp_path: Path) -> None:
    unfinished(tmp_path / "run", 4)
    for round in (3, 4):
        flip(tmp_path / "run" / "checkpoints" / f"round-000{round}.safetensors")
    run(tmp_path / "run", resume=True)
    assert "starting from the first round" in (tmp_path / "run" / "events.jsonl").read_text()
    assert left(tmp_path / "run") == whole["flux"]


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_round_log_goes_back_to_where_it_is_whole(damage: Any, whole: dict[str, Any], tmp_path: Path) -> None:
    unfinished(tmp_path / "run", 4)
    damage(tmp_path / "run" / "rounds.jsonl")
    run(tmp_path / "run", resume=True)
    assert left(tmp_path / "run") == whole["flux"]


# faults at every write


class Faults:
    """Counts what reaches the disk and fails at one of them: a full disk, or a process that is killed there."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None, killed: bool) -> None:
        self.count, self.at, self.killed = 0, at, killed
        patch.setattr(os, "fsync", self.before(os.fsync))
        patch.setattr(Path, "replace", self.before(Path.replace))

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.step()
            return function(*args)

        return call

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise _KilledError if self.killed else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _KilledError(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def writes(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, None, killed=False)
        run(folder, rounds=3)
    return faults.count


def test_faults_at_every_write_lose_at_most_the_round_in_progress(tmp_path: Path) -> None:
    total = writes(tmp_path / "whole" / "run")
    expected = left(tmp_path / "whole" / "run")
    assert total > 30
    for at in range(1, total + 1):
        folder = tmp_path / f"fault{at}" / "run"
        killed = at % 2 == 0
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, killed)
            with pytest.raises((_KilledError, OSError, StoppedError)):
                run(folder, rounds=3)
        done = len(read_rounds(folder)) if (folder / "rounds.jsonl").exists() else 0
        kept = max((int(path.stem[6:]) for path in folder.glob("checkpoints/*.json")), default=0)
        assert done - kept <= 1
        run(folder, rounds=3, resume=True)
        assert left(folder) == expected, f"write {at} of {total}"
        assert not list(folder.rglob("*.tmp"))


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Faults(patch, 22, killed=False)
        with pytest.raises(StoppedError, match=r"No space left on device .*; kept: the first \d rounds \(--resume"):
            run(tmp_path / "run")


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    with held(tmp_path / "run"), pytest.raises(BusyError, match="another process is working in"):
        run(tmp_path / "run")
    run(tmp_path / "run", rounds=2)


def test_a_kill_between_the_last_event_and_the_result_is_made_good(whole: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    run(tmp_path / "run", resume=True)
    assert left(tmp_path / "run") == whole["flux"]
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events == ["started", "finished", "resumed after round 5", "finished"]


def test_a_finished_run_whose_files_were_changed_is_not_answered_from_disk(tmp_path: Path) -> None:
    run(tmp_path / "run")
    for name in ("result.json", "rounds.jsonl"):
        path = tmp_path / "run" / name
        before = path.read_text()
        path.write_text(before.replace("1", "2", 1))
        with pytest.raises(FedfluxError, match=rf"{name} was changed or cut off since the run; run it again"):
            run(tmp_path / "run", resume=True)
        path.write_text(before)
    assert run(tmp_path / "run", resume=True)["rounds"] == 5
