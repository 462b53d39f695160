"""Files are whole or absent, and folders of others are left alone."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedflux.errors import FedfluxError
from fedflux.files import (
    append_line,
    is_remnant,
    jsonable,
    make_folder,
    read_lines,
    write_json,
    write_npz,
    written_whole,
)


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_an_exception_while_writing_leaves_the_old_file_whole(tmp_path: Path, failure) -> None:
    target = tmp_path / "data.bin"
    target.write_bytes(b"old")

    def write_half() -> None:
        with written_whole(target) as handle:
            handle.write(b"half of the n")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_appears_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "data.bin"
    with written_whole(target) as handle:
        handle.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_content_that_is_not_json_leaves_the_old_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_json(target, {"known": 1})
    with pytest.raises(TypeError):
        write_json(target, {"known": object()})
    assert json.loads(target.read_text()) == {"known": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_a_line_that_was_cut_off_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert append_line(path, {"event": "one"}) == path.read_bytes() == b'{"event": "one"}\n'
    with path.open("ab") as handle:
        handle.write(b'{"event": "tw')
    added = append_line(path, {"event": "three"})
    append_line(path, {"event": "four"})
    assert [line["event"] for line in read_lines(path)] == ["one", "three", "four"]
    assert added == b'\n{"event": "three"}\n'
    assert read_lines(tmp_path / "absent.jsonl") == []


def test_arrays_come_back(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", {"mean": np.eye(2, dtype=np.float32)})
    with np.load(tmp_path / "a.npz") as archive:
        assert np.array_equal(archive["mean"], np.eye(2))


def test_numpy_becomes_plain_json_and_nan_null() -> None:
    value = {1: np.float32(0.5), "a": np.array([1, 2]), "b": (float("nan"), [np.nan, np.int64(3)]), "c": None}
    assert jsonable(value) == {"1": 0.5, "a": [1, 2], "b": [None, [None, 3]], "c": None}
    assert json.loads(json.dumps(jsonable(value), allow_nan=False)) == jsonable(value)


def test_a_new_an_empty_and_an_own_folder_may_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        assert make_folder(folder, "fedflux run", "config.json", {"command"}) == folder
    write_json(folder / "config.json", {"command": "fedflux run", "seed": 1})
    make_folder(folder, "fedflux run", "config.json", {"command"})
    assert [file.name for file in folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("thesis.tex", "mine"),
        ("config.json", '{"editor": "vim"}'),
        ("config.json", "[1]"),
        ("config.json", "not json"),
    ],
)
def test_a_folder_of_others_is_left_alone(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(FedfluxError, match="holds other files"):
        make_folder(tmp_path, "fedflux run", "config.json", {"command"})
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == content


def test_the_file_that_tries_whether_a_folder_can_be_written_is_no_file_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    original = os.open

    def look(path: str, *more: int) -> int:
        seen.append(Path(path))
        return original(path, *more)

    monkeypatch.setattr(os, "open", look)
    make_folder(tmp_path, "fedflux run", "config.json", {"command"})
    made = [path for path in seen if path.parent == tmp_path]
    assert made
    assert all(map(is_remnant, made))


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(FedfluxError, match=f"cannot write fedflux run to {path}"):
            make_folder(path, "fedflux run", "config.json", {"command"})
    assert (tmp_path / "file").read_text() == "mine"
