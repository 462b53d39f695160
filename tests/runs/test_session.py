"""What is said of a run that was stopped, and of one that goes on, is what is on disk."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.runs.making import read_rounds
from tests.runs.test_resume import run, unfinished

from fedflux.errors import StoppedError
from fedflux.runs.storage.checkpoint import CheckpointFolder


def events(folder: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]


def fail_saving(patch: pytest.MonkeyPatch, round: int, fault: BaseException) -> None:
    """Raise while the checkpoint of a round is written, after its line of the log was."""
    original = CheckpointFolder.save

    def save(self: CheckpointFolder, checkpoint: Any, digest: str) -> None:
        if checkpoint.round == round:
            raise fault
        original(self, checkpoint, digest)

    patch.setattr(CheckpointFolder, "save", save)


@pytest.mark.parametrize(
    ("round", "kept"), [(1, "nothing yet"), (2, r"the first round \("), (4, r"the first 3 rounds \(")]
)
def test_a_full_disk_counts_the_rounds_that_a_resumption_has(round: int, kept: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fail_saving(patch, round, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with pytest.raises(StoppedError, match=f"No space left on device .*; kept: {kept}"):
            run(tmp_path / "run")
    assert len(read_rounds(tmp_path / "run")) == round
    run(tmp_path / "run", resume=True)
    if round > 1:
        assert f"resumed after round {round - 1}" in events(tmp_path / "run")


def test_ctrl_c_while_saving_names_the_round_before(tmp_path: Path) -> None:
    unfinished(tmp_path / "run", 2)
    for _ in range(2):  # the first sitting saves round 3, the second begins there and saves none
        with pytest.MonkeyPatch.context() as patch:
            fail_saving(patch, 4, KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt, match="stopped after round 3; "):
                run(tmp_path / "run", resume=True)


def test_another_torch_is_noted(tmp_path: Path) -> None:
    unfinished(tmp_path / "run", 2)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    now, config["ran_on"]["torch"] = config["ran_on"]["torch"], "1.0"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    run(tmp_path / "run", resume=True)
    note = f"begun with torch 1.0, going on with {now}: the last digits may differ"
    assert events(tmp_path / "run") == ["started", "resumed after round 2", note, "finished"]
