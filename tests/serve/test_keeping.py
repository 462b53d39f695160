"""What a service keeps: keys by digest, a log that survives a kill, and a watch that says when clients drift."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

from fedflux.errors import FedfluxError
from fedflux.serve.bundle import Bundle
from fedflux.serve.keeping.audit import Audit, Entry
from fedflux.serve.keeping.keys import Keys
from fedflux.serve.keeping.watch import ALARM, LEAST, Watch, bet


def entry(score: float | None, cluster: str = "cluster-0", at: float = 0.0) -> Entry:
    return Entry(at, "k", "b", cluster, score is not None and score < 0.05, score)


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    secret = keys.add("one", ("assign",), 5)
    found = Keys(tmp_path).find(secret)
    assert found is not None
    assert (found.name, found.scopes, found.rate, found.revoked) == ("one", ("assign",), 5.0, False)
    assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0
    for wrong in ({"name": "one"}, {"name": ""}, {"name": "two", "scopes": ("all",)}, {"name": "two", "rate": 0}):
        with pytest.raises(FedfluxError):
            keys.add(**wrong)
    keys.revoke("one")
    assert [key.revoked for key in keys.all()] == [True]
    with pytest.raises(FedfluxError, match="no key"):
        keys.revoke("one")
    assert keys.add("one") != secret
    (tmp_path / "keys.json").write_text("[]")
    with pytest.raises(FedfluxError, match="damaged"):
        Keys(tmp_path).all()


def test_changes_at_once_undo_none_of_each_other(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "state")
    for number in range(12):
        keys.add(f"old-{number}")
    with ThreadPoolExecutor(6) as pool:
        adding = pool.map(lambda number: Keys(tmp_path / "state").add(f"new-{number}"), range(12))
        revoking = pool.map(lambda number: Keys(tmp_path / "state").revoke(f"old-{number}"), range(12))
        assert len({*adding}) == 12
        assert list(revoking) == [None] * 12
    found = {key.name: key.revoked for key in keys.all()}
    assert found == {
        **{f"old-{number}": True for number in range(12)},
        **{f"new-{number}": False for number in range(12)},
    }
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "a.sqlite")
    written = [entry(0.5, at=1.0), entry(None, "cluster-1", 2.0), Entry(3.0, "k", "other", "c", False, 0.1)]
    for one in written:
        audit.write(one)
    assert audit.of_bundle("b") == written[:2]
    audit.close()
    (tmp_path / "b.sqlite").write_bytes(b"no database at all, but long enough to be read as one" * 50)
    with pytest.raises(FedfluxError, match="audit log"):
        Audit(tmp_path / "b.sqlite")


WRITING = """
import sys
from pathlib import Path
from fedflux.serve.keeping.audit import Audit, Entry
audit, n = Audit(Path(sys.argv[1])), 0
while True:
    audit.write(Entry(float(n), "k", "b", "c", False, 0.5))
    n += 1
    print(n, flush=True)
"""


@pytest.mark.parametrize("after", [0.05, 0.2, 0.4])
def test_a_killed_writer_loses_at_most_the_last_entry(after: float, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITING, str(tmp_path / "a.sqlite")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(after)
    os.kill(process.pid, signal.SIGKILL)
    told = [int(line) for line in process.stdout.read().split()]
    process.wait()
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        times = [row[0] for row in database.execute("SELECT time FROM assignments ORDER BY id")]
    assert times == list(range(len(times))), "no hole"
    assert len(times) >= max(told, default=1)
    Audit(tmp_path / "a.sqlite").write(entry(0.5))


@pytest.mark.parametrize("p", [LEAST, 0.01, 0.3, 0.9])
def test_a_bet_is_the_integral_that_it_says(p: float) -> None:
    assert bet(p) == pytest.approx(quad(lambda e: e * p ** (e - 1), 0, 1)[0], rel=1e-6)


def test_bets_are_fair() -> None:
    assert quad(bet, LEAST, 1, limit=200)[0] + LEAST * bet(LEAST) <= 1.0
    assert bet(1.0) == pytest.approx(bet(0.9989), rel=0.01)


def test_clients_as_before_raise_no_alarm_and_others_soon_do() -> None:
    rng = np.random.default_rng(0)
    usual = Watch({"cluster-0": 5}, {"cluster-0": 0})
    for score in rng.random(20_000):
        usual.add(entry(round(score, 3)))
    assert usual.told()["retrain"] is False
    drifted = Watch({"cluster-0": 5}, {"cluster-0": 0})
    for at, score in enumerate([*rng.random(1000), *(rng.random(200) ** 4)]):
        drifted.add(entry(round(score, 3), at=float(at)))
        if drifted.drifted is not None:
            break
    told = drifted.told()
    assert told["retrain"] is True
    assert told["evidence"] >= ALARM
    assert 1000 < at < 1100
    assert abs(told["drifted_since"] - 1000) < 40
    assert "train again" in told["why"]
    drifted.add(entry(0.9))
    assert drifted.told()["retrain"] is True, "it stays said"


def test_another_mix_of_clusters_is_told_apart_from_drift() -> None:
    watch = Watch({"cluster-0": 20, "cluster-1": 20}, {"cluster-0": 0, "cluster-1": 0})
    assert watch.mix() is None
    for k in range(60):
        watch.add(entry(0.5, f"cluster-{int(k % 12 == 0)}"))
    told = watch.told()
    assert told["mix_p_value"] < 1e-4
    assert told["retrain"] is False
    assert "prior is out of date" in told["why"]


def test_a_watch_goes_on_after_a_restart(bundle: Bundle) -> None:
    entries = [entry(score, bundle.clusters[0].name, at) for at, score in enumerate((0.5, 0.001, 0.002, None, 0.9))]
    gone_on, afresh = Watch.of(bundle, entries[:3]), Watch.of(bundle, entries)
    for one in entries[3:]:
        gone_on.add(one)
    assert gone_on == afresh
    assert Counter(afresh.seen)[bundle.clusters[0].name] == 5
