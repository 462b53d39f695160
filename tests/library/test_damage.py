"""A run folder that was tampered with, cut, mixed with another or written by a newer version is refused in one line."""

import json
import shutil
from pathlib import Path

import pytest
from tests.library.damage import READERS, STORE_FILE, Fault, compared, files_of, flips, judge, make_run, merged

import fedflux
from fedflux.errors import FedfluxError
from fedflux.runs.storage.digests import FORMAT
from fedflux.studies.recluster import recluster

OWN_DIGESTS = "checkpoints"
"""What lies below vouches for itself, and only goes on with a run."""


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("intact"))


@pytest.fixture
def run(intact: Path, tmp_path: Path) -> Path:
    """A run that may be harmed; the new clients' file lies beside it."""
    shutil.copy(intact.parent / "new.npz", tmp_path / "new.npz")
    return Path(shutil.copytree(intact, tmp_path / "run"))


def faults_of(run: Path, intact: Path, what: str) -> tuple[int, list[Fault]]:
    """How many of all readers refuse, and what went wrong."""
    return judge(READERS, run, {name: read(intact) for name, read in READERS.items()}, what)


def test_a_flipped_byte_is_never_a_traceback_and_never_another_answer(run: Path) -> None:
    refused, faults = flips(run, 80, seed=7)
    assert faults == []
    assert refused > 80


def test_a_flipped_byte_of_a_store_is_never_a_traceback_and_never_another_cell(run: Path, intact: Path) -> None:
    store = Path(shutil.copy(intact.parent / STORE_FILE, run.parent / STORE_FILE))
    refused, faults = flips(store, 60, seed=3, readers={"merge and export": merged, "compare": compared})
    assert faults == []
    assert refused > 30


def test_a_store_whose_tables_have_lost_their_names_is_refused(intact: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(intact.parent / STORE_FILE, tmp_path / STORE_FILE))
    before = store.read_bytes()
    for word in (b"CREATE TABLE cells", b"identity, dataset", b"PRIMARY KEY", b"cells"):
        place = before.index(word) + 3
        store.write_bytes(before[:place] + bytes([before[place] ^ 0x80]) + before[place + 1 :])
        for read in (merged, compared):
            with pytest.raises(FedfluxError) as told:
                read(store)
            assert "\n" not in str(told.value)


@pytest.mark.slow
def test_ten_thousand_flipped_bytes(run: Path) -> None:
    refused, faults = flips(run, 10_000, seed=1)
    assert faults == []
    assert refused > 10_000


@pytest.mark.parametrize(
    "how", ["cut", "gone", *(pytest.param(how, marks=pytest.mark.slow) for how in ("emptied", "longer"))]
)
def test_a_file_that_is_not_whole_is_refused(how: str, run: Path, intact: Path) -> None:
    for path in files_of(run):
        content = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes({"cut": content[: len(content) // 2], "emptied": b"", "longer": content + b"\n"}[how])
        harmless = path.parent.name == OWN_DIGESTS or (how == "longer" and path.name == "files.json")
        if not harmless:
            with pytest.raises(FedfluxError, match=rf"{path.name}|not finished"):
                fedflux.load(run)
        refused, faults = faults_of(run, intact, f"{path.name} {how}")
        assert faults == []
        assert harmless or refused > 0
        shutil.rmtree(run)
        shutil.copytree(intact, run)


def test_a_file_of_another_run_is_refused(run: Path, intact: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_run(tmp_path / "other", seed=43, finetune=1)
    assert (other / "personal-tuned.safetensors").exists()
    for path in files_of(other):
        if path.parent.name == OWN_DIGESTS:
            continue
        shutil.copy(path, run / path.name)
        refused, faults = faults_of(run, intact, f"{path.name} of another run")
        assert faults == []
        if path.name not in ("personal-tuned.safetensors", "scaling.json"):  # is not read; is the same in both
            assert refused > 0, path.name
        shutil.rmtree(run)
        shutil.copytree(intact, run)


def test_a_run_of_a_newer_version_is_refused_by_name(run: Path) -> None:
    told = json.loads((run / "files.json").read_text())
    (run / "files.json").write_text(json.dumps({**told, "format": FORMAT + 1, "more": {}}))
    words = rf"run has format {FORMAT + 1} of finished runs, this version reads {FORMAT}: update fedflux"
    for read in (fedflux.load, lambda path: recluster(path, "calibrated", None)):
        with pytest.raises(FedfluxError, match=words):
            read(run)


def test_files_that_a_report_does_not_read_may_be_taken_away(run: Path) -> None:
    for name in ("models.safetensors", "trained.safetensors"):
        (run / name).unlink()
    assert READERS["report"](run)
    with pytest.raises(FedfluxError, match=r"models.safetensors cannot be read: No such file"):
        fedflux.load(run)


def test_a_run_that_is_not_finished_says_how_to_finish_it(run: Path) -> None:
    (run / "result.json").unlink()
    (run / "files.json").unlink()
    with pytest.raises(FedfluxError, match=r"not finished, or result.json is gone: fedflux run --out .*run --resume"):
        fedflux.load(run)


@pytest.mark.parametrize("ran_on", [None, "loop", {}, {"engine": "loop"}, {"device": "cpu"}], ids=str)
def test_a_run_that_does_not_say_what_it_ran_on_is_not_gone_on_with(ran_on: object, run: Path) -> None:
    told = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**told, "ran_on": ran_on}))
    with pytest.raises(FedfluxError, match=r"config.json is damaged: it does not say any more what the run ran on"):
        fedflux.run(out=run, resume=True, store="none")


def test_what_is_no_run_folder_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FedfluxError, match=r"is no run folder, or its config.json is missing or damaged"):
            fedflux.load(path)
