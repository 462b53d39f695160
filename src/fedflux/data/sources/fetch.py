"""Finding a dataset's original files: in the user's folder, in the per-user cache, or by download."""

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedflux.errors import FedfluxError


@dataclass(frozen=True)
class Remote:
    """One file as its publisher offers it, with the checksum it must have."""

    url: str
    md5: str

    @property
    def filename(self) -> str:
        """The name the file keeps on disk: the last part of its address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Originals:
    """The original files of one dataset: the layouts they come in, the sub-folders they may lie in, where to get them.

    A layout is complete when all its files lie in one folder; `a.gz` may lie there unpacked, as `a`.
    """

    name: str
    layouts: tuple[tuple[str, ...], ...]
    subfolders: tuple[str, ...]
    remotes: tuple[Remote, ...]


def find_files(originals: Originals, data_dir: Path | None) -> tuple[Path, ...]:
    """The files of the first complete layout, in its order; downloaded when no folder holds one.

    Without a `data_dir` they are looked for, and stored, in the per-user cache.
    """
    if data_dir is not None and not data_dir.is_dir():
        problem = "is not a folder" if data_dir.exists() else "does not exist"
        raise FedfluxError(f"{originals.name}: data folder {data_dir} {problem}; give the folder that holds the files")
    root = _cache_root(originals.name) if data_dir is None else data_dir
    return _look(originals, root) or _download(originals, root)


def _look(originals: Originals, root: Path) -> tuple[Path, ...] | None:
    # Sub-folders first: a folder of the dataset's name is surer than loose files, which MNIST and Fashion-MNIST share.
    for layout in originals.layouts:
        for folder in (*(root / sub for sub in originals.subfolders), root):
            files = [_present(folder, filename) for filename in layout]
            complete = tuple(file for file in files if file is not None)
            if len(complete) == len(layout):
                return complete
    return None


def _present(folder: Path, filename: str) -> Path | None:
    for candidate in (filename, filename.removesuffix(".gz")):
        if os.path.isfile(folder / candidate):
            return folder / candidate
    return None


def _cache_root(name: str) -> Path:
    try:
        from pooch import os_cache
    except ImportError:
        raise _no_pooch(name) from None
    return Path(os_cache("fedflux"))


def _no_pooch(name: str) -> FedfluxError:
    return FedfluxError(f"{name}: downloading needs pooch; run `pip install pooch`, or give the folder of the files")


def _download(originals: Originals, root: Path) -> tuple[Path, ...]:
    """Download what `root/name` lacks; all files are staged beside it, so a failure leaves nothing behind."""
    try:
        import pooch
    except ImportError:
        raise _no_pooch(originals.name) from None
    pooch.get_logger().setLevel("WARNING")  # the bar says what is going on
    target = root / originals.name
    missing = [remote for remote in originals.remotes if _present(target, remote.filename) is None]
    url = missing[0].url
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fedflux-", dir=root) as staging:
            for remote in missing:
                url = remote.url
                downloader = pooch.HTTPDownloader(progressbar=True, chunk_size=1 << 16)
                known = f"md5:{remote.md5}"
                pooch.retrieve(url, known, fname=remote.filename, path=staging, downloader=downloader)
            target.mkdir(exist_ok=True)
            for remote in missing:
                os.replace(Path(staging, remote.filename), target / remote.filename)
    except (OSError, ValueError) as error:
        wanted = " or ".join(", ".join(layout) for layout in originals.layouts)
        places = f"{root} and its sub-folders {', '.join(originals.subfolders)}"
        failure = f"could not be downloaded from {url}: {_reason(error)}"
        raise FedfluxError(f"{originals.name}: {wanted} not found in {places}, and {failure}") from error
    files = (_present(target, remote.filename) for remote in originals.remotes)
    return tuple(file for file in files if file is not None)


def _reason(error: OSError | ValueError) -> str:
    """A download's failure in a few words; the libraries' own messages run over several lines."""
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code}"
    if isinstance(error, exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    if isinstance(error, ValueError) and not isinstance(error, exceptions.RequestException):
        return "the downloaded file has the wrong checksum"
    return " ".join(str(error).split())
