"""A federation on disk, for use elsewhere: one .npz per client and a JSON manifest."""

from pathlib import Path
from typing import Any

import numpy as np

from fedflux.data import Federation, Split
from fedflux.data.partition import Partition
from fedflux.data.shifts.appearance import Look
from fedflux.data.shifts.patterns import Pattern
from fedflux.files import write_json, write_npz

MANIFEST = "manifest.json"
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def export_federation(federation: Federation, how: Partition, folder: Path) -> dict[str, Any]:
    """Write every client's splits (x_train, y_train, …, group_train where records have one), then the manifest.

    The manifest so marks a whole export.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    for earlier in folder.glob("client_*.npz"):
        earlier.unlink()
    clients: list[dict[str, Any]] = []
    for k in range(len(federation)):
        name = f"client_{k:05d}.npz"
        arrays: dict[str, Any] = {}
        for split in SPLITS:
            data = federation.materialise(k, split).repeated()
            arrays |= {f"x_{split}": data.x.numpy(), f"y_{split}": data.y.numpy()}
            group = federation.groups(k, split)
            if group is not None:
                arrays[f"group_{split}"] = np.tile(group, federation.copies(split))
        write_npz(folder / name, arrays)
        clients.append(
            {
                "file": name,
                "name": federation.names[k] if federation.names else str(k),
                "cluster": None if federation.truth is None else int(federation.truth[k]),
                "pattern": _readable(federation.patterns[k]),
                **{split: federation.size(k, split) for split in SPLITS},
            }
        )
    manifest: dict[str, Any] = {
        "dataset": federation.dataset.name,
        "checksum": federation.dataset.checksum,
        "classes": federation.classes,
        "class_names": federation.class_names,
        "input_shape": federation.input_shape,
        **{key: getattr(how, key) for key in how.__dataclass_fields__ if key != "clients"},
        "clients": clients,
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def _readable(pattern: Pattern) -> dict[str, Any]:
    """The fields of a pattern that say something."""
    plain, said = Pattern(), {}
    for name in pattern.__dataclass_fields__:
        value = getattr(pattern, name)
        if value != getattr(plain, name):
            said[name] = _plain(value)
    return said


def _plain(value: Any) -> Any:
    if isinstance(value, Look):
        return {"rotation": value.rotation, "colour": value.colour}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
