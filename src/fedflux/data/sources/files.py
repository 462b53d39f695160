"""The one file of a dataset that is a file."""

from pathlib import Path

from fedflux.errors import FedfluxError


def only_file(kind: str, data_dir: Path | None) -> Path:
    """The path itself, or the only file of that kind in a folder."""
    article = "an" if kind == "npz" else "a"
    if data_dir is None:
        words = f"give the path of the .{kind} file or of the folder that holds it"
        raise FedfluxError(f"{kind}: no data folder given; {words}")
    if not data_dir.exists():
        raise FedfluxError(
            f"{kind}: {data_dir} does not exist; give {article} .{kind} file or the folder that holds it"
        )
    if not data_dir.is_dir():
        return data_dir
    files = sorted(file for file in data_dir.glob(f"*.{kind}") if not file.name.startswith("."))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise FedfluxError(f"{kind}: {data_dir} must hold exactly one .{kind} file, found {found}")
    return files[0]
