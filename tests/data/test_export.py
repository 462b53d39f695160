"""A federation on disk: what is read back is what clients hold, and the manifest comes last."""

import json
from typing import Any

import numpy as np
import pytest
from tests.data.making import owned, pictures

from fedflux.data import Partition, export, partition
from fedflux.data.export import MANIFEST, SPLITS, export_federation
from fedflux.data.shifts.patterns import MIXES
from fedflux.files import write_npz


@pytest.mark.parametrize("shift", ["none", "px", "py", "pygx", "pxgy", "dirichlet", *MIXES])
def test_what_is_read_back_is_the_federation(tmp_path, shift) -> None:
    how = Partition(shift, 6, 4, seed=9)
    federation = partition(pictures(), how)
    export_federation(federation, how, tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    files = [client["file"] for client in manifest["clients"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([MANIFEST, *files])
    for k, client in enumerate(manifest["clients"]):
        with np.load(tmp_path / client["file"], allow_pickle=False) as arrays:
            assert sorted(arrays) == sorted(f"{part}_{split}" for part in "xy" for split in SPLITS)
            for split in SPLITS:
                data = federation.materialise(k, split)
                assert np.array_equal(arrays[f"x_{split}"], data.x.numpy())
                assert np.array_equal(arrays[f"y_{split}"], data.y.numpy())
                assert arrays[f"x_{split}"].dtype == np.uint8
                assert client[split] == len(data)
        assert client["cluster"] == (None if federation.truth is None else federation.truth[k])
    assert manifest["input_shape"] == list(federation.input_shape)
    assert (manifest["dataset"], manifest["classes"]) == ("pictures", 10)
    assert (manifest["shift"], manifest["level"], manifest["seed"]) == (shift, 6, 9)
    assert manifest["checksum"] == pictures().checksum


def test_the_manifest_reads_like_the_patterns(tmp_path) -> None:
    def written(shift: str) -> list[dict[str, Any]]:
        how = Partition(shift, 6, 4)
        federation = partition(pictures(), how)
        export_federation(federation, how, tmp_path)
        clients = json.loads((tmp_path / MANIFEST).read_text())["clients"]
        return [{**client["pattern"], "true": federation.patterns[k]} for k, client in enumerate(clients)]

    for client in written("px+py"):
        look = client["true"].look
        assert client["look"] == {"rotation": look.rotation, "colour": look.colour}
        assert client["kept"] == list(client["true"].kept)
    for client in written("pxgy"):
        pairs = [[label, {"rotation": k.rotation, "colour": k.colour}] for label, k in client["true"].class_looks]
        assert client["class_looks"] == pairs
    for client in written("pygx"):
        assert client["relabel"] == list(client["true"].relabel)
    for client in written("none"):
        assert list(client) == ["true"]


def test_own_clients_keep_their_names(tmp_path) -> None:
    federation = partition(owned([5, 6], [1, 0]), Partition())
    manifest = export_federation(federation, Partition(), tmp_path)
    assert [client["name"] for client in manifest["clients"]] == ["hospital 0", "hospital 1"]
    assert [client["cluster"] for client in manifest["clients"]] == [1, 0]


@pytest.mark.parametrize("earlier", [False, True])
def test_an_export_that_breaks_off_leaves_no_manifest(tmp_path, monkeypatch, earlier) -> None:
    how = Partition("py", 6, 4)
    federation = partition(pictures(), how)
    if earlier:
        export_federation(federation, how, tmp_path)
        assert (tmp_path / MANIFEST).exists()
    seen = []

    def break_off(path, arrays) -> None:
        seen.append(path)
        if len(seen) == 3:
            raise OSError("disk full")
        write_npz(path, arrays)

    monkeypatch.setattr(export, "write_npz", break_off)
    with pytest.raises(OSError, match="disk full"):
        export_federation(federation, how, tmp_path)
    assert not (tmp_path / MANIFEST).exists()
    assert (tmp_path / "client_00001.npz").exists()
