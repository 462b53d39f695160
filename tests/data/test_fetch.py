"""Finding and downloading original files, from a server on this machine."""

import hashlib
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.data.making import FILES, error_of, idx_contents, write_idx

from fedflux.data.sources import fetch, idx, load


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """An HTTP server on this machine: its address and the folder it serves."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = tmp_path / "served"
    served.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served))) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/", served
        running.shutdown()
        thread.join()


def offered(url: str, served: Path) -> fetch.Originals:
    """MNIST's files as a small download from `url`, with the checksums of what lies in `served`."""
    write_idx(served, idx_contents())
    md5s = {filename: hashlib.md5((served / filename).read_bytes()).hexdigest() for filename in FILES}
    return replace(idx.MNIST, remotes=tuple(fetch.Remote(url + filename, md5s[filename]) for filename in FILES))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_absent_files_are_downloaded_once(server, data_dir, monkeypatch, capfd) -> None:
    url, served = server
    monkeypatch.setattr(idx, "MNIST", offered(url, served))
    first = load("mnist", data_dir)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "B/s" in captured.err, "the progress bar goes to stderr"
    assert sorted(path.name for path in data_dir.iterdir()) == ["mnist"]
    assert sorted(path.name for path in (data_dir / "mnist").iterdir()) == sorted(FILES)
    for file in served.iterdir():
        file.unlink()
    assert load("mnist", data_dir).checksum == first.checksum
    assert capfd.readouterr().err == ""


def test_only_missing_files_are_downloaded(server, data_dir) -> None:
    url, served = server
    originals = offered(url, served)
    (data_dir / "mnist").mkdir()
    (served / FILES[0]).rename(data_dir / "mnist" / FILES[0])
    assert [file.name for file in fetch.find_files(originals, data_dir)] == list(FILES)


def test_without_a_data_folder_the_user_cache_is_used(server, tmp_path, monkeypatch) -> None:
    import pooch

    url, served = server
    monkeypatch.setattr(idx, "MNIST", offered(url, served))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "caches" / project)
    assert len(load("mnist").train) == 6
    assert sorted(path.name for path in (tmp_path / "caches" / "fedflux" / "mnist").iterdir()) == sorted(FILES)


def test_a_wrong_checksum_leaves_nothing(server, data_dir) -> None:
    url, served = server
    originals = offered(url, served)
    (served / FILES[2]).write_bytes(b"something else")
    message = error_of(lambda: fetch.find_files(originals, data_dir))
    assert message.endswith(f"could not be downloaded from {url}{FILES[2]}: the downloaded file has the wrong checksum")
    assert list(data_dir.iterdir()) == []


def test_a_missing_page_leaves_nothing(server, data_dir) -> None:
    url, served = server
    originals = offered(url, served)
    (served / FILES[3]).unlink()
    message = error_of(lambda: fetch.find_files(originals, data_dir))
    assert message.endswith(f"{url}{FILES[3]}: the server answered 404")
    assert list(data_dir.iterdir()) == []


def test_a_refused_connection_names_files_places_and_address(data_dir, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    originals = offered(f"http://127.0.0.1:{port}/", tmp_path / "unserved")
    message = error_of(lambda: fetch.find_files(originals, data_dir))
    assert all(filename in message for filename in FILES)
    assert f"not found in {data_dir} and its sub-folders mnist" in message
    assert message.endswith(f"could not be downloaded from http://127.0.0.1:{port}/{FILES[0]}: no connection")
    assert list(data_dir.iterdir()) == []


def test_a_target_that_cannot_be_written(server, data_dir) -> None:
    url, served = server
    originals = offered(url, served)
    (data_dir / "mnist").write_text("a file where the folder should be")
    assert "could not be downloaded" in error_of(lambda: fetch.find_files(originals, data_dir))
    assert [path.name for path in data_dir.iterdir()] == ["mnist"]


def test_missing_pooch_is_named(data_dir, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert "pip install pooch" in error_of(lambda: load("mnist", data_dir))
    assert "pip install pooch" in error_of(lambda: load("mnist"))
