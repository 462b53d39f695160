"""Office-Home, CheXpert, ChestX-ray14 and heart disease, from files in their publishers' layout."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedflux
from fedflux.data import Partition, partition
from fedflux.data.sources import find_source, load
from fedflux.data.sources.natural import chest, images
from fedflux.data.sources.natural.heart_disease import CENTRES
from fedflux.errors import FedfluxError

THINGS = [f"Thing_{k:02}" for k in range(22)]


def picture(path: Path, value: int, size: tuple[int, int] = (20, 30), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255 - value)).save(path)


def office(root: Path, last: str = "Real World", each: int = 5) -> Path:
    for number, domain in enumerate(("Art", "Clipart", "Product", last)):
        for label, thing in enumerate(THINGS):
            for k in range(each):
                picture(root / domain / thing / f"{k:05}.png", 60 * number + 2 * label)
    return root


def test_office_home_has_the_first_twenty_classes_by_domain(tmp_path: Path) -> None:
    office(tmp_path / "officehome")
    data = load("officehome", tmp_path)
    assert data.class_names == tuple(THINGS[:20])
    assert data.input_shape == (3, 64, 64)
    assert (len(data.train), len(data.test)) == (4 * 20 * 4, 4 * 20)
    federation = partition(data, Partition(clients=10, seed=42))
    assert federation.truth is not None
    assert sorted(np.bincount(federation.truth).tolist()) == [2, 2, 3, 3]
    for client in range(10):
        found = federation.inputs(client, "train")[:, 0, 0, 0].astype(int) // 60
        assert len(np.unique(found)) == 1
    whole = find_source("fedflux.data.sources.natural.officehome:all_classes")(tmp_path)
    assert whole.classes == 22


@pytest.mark.parametrize("name", ["Real_World", "RealWorld"])
def test_office_home_goes_by_other_names(tmp_path: Path, name: str) -> None:
    data = load("officehome", office(tmp_path / "OfficeHomeDataset_10072016", name, each=1).parent)
    assert np.unique(data.domains.train).tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]


def chexpert(root: Path, patients: int = 30) -> Path:
    """Each patient has a frontal and a lateral image, of a shade that says who it is."""
    findings = ",".join(chest.CHEXPERT_FINDINGS)
    lines = [f"Path,Sex,Age,Frontal/Lateral,AP/PA,{findings}"]
    for k in range(patients):
        sex, age = ("Female", "Male")[k % 2], 30 + 40 * (k // 2 % 2)
        for view in ("frontal", "lateral"):
            name = f"train/patient{k:05}/study1/view1_{view}.jpg"
            picture(root / name, 8 * k, mode="L")
            told = ["1.0" if k % 3 == 0 else "", "", "-1.0" if k % 3 == 1 else "", "0.0", *[""] * 10]
            words = (f"CheXpert-v1.0-small/{name}", sex, str(age), view.title(), "AP" if view == "frontal" else "")
            lines.append(",".join((*words, *told)))
    lines.append(f"CheXpert-v1.0-small/train/patient99999/study1/view1_frontal.jpg,Unknown,0,Frontal,AP,{',' * 13}")
    (root / "train.csv").write_text("\n".join(lines))
    return root


def test_chexpert_by_view_age_and_sex_with_whole_patients(tmp_path: Path) -> None:
    data = load("chexpert", chexpert(tmp_path / "chexpert" / "CheXpert-v1.0-small").parents[1])
    assert data.input_shape == (1, 64, 64)
    assert (len(data.train), len(data.test)) == (50, 10)
    assert data.train.group is not None
    assert data.test.group is not None
    assert not set(data.train.group) & set(data.test.group)
    patient = data.train.x[:, 0, 0, 0].astype(int) // 8
    assert data.class_names == chest.CHEXPERT_FINDINGS
    expected = np.zeros((50, 14), dtype=np.int64)
    expected[:, 0], expected[:, 2] = patient % 3 == 0, patient % 3 == 1  # uncertain counts as a finding
    np.testing.assert_array_equal(data.train.y, expected)
    assert data.domains is not None
    assert data.domains.words == ("view", "age", "sex")
    expected = np.stack([np.tile([0, 1], 25), patient // 2 % 2, patient % 2], axis=1)
    np.testing.assert_array_equal(data.domains.train, expected)
    federation = partition(data, Partition(level=1, clients=4, seed=42))
    assert federation.truth is not None
    assert np.bincount(federation.truth).tolist() == [2, 2]


def nih(root: Path, patients: int = 12, missing: int = 0) -> Path:
    columns = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"
    lines = [columns]
    for k in range(patients):
        for visit in range(2):
            name = f"{k + 1:08}_{visit:03}.png"
            folder = root / ("images" if k % 2 else "images_001/images")
            if len(lines) > missing:
                picture(folder / name, 10 * k, mode="L")
            finding = ("No Finding", "Mass|Nodule", "Hernia")[k % 3]
            age = f"{30 + 40 * (k // 2 % 2):03}{'Y' if visit else ''}"
            lines.append(f"{name},{finding},{visit},{k + 1},{age},{'FM'[k % 2]},{('PA', 'AP')[visit]}")
    (root / "Data_Entry_2017.csv").write_text("\n".join(lines))
    return root


def test_nih_radiographs_by_view_age_and_sex_with_whole_patients(tmp_path: Path) -> None:
    data = load("nih-cxr", nih(tmp_path / "nih-cxr").parent)
    assert (len(data.train), len(data.test)) == (20, 4)
    patient = data.train.x[:, 0, 0, 0].astype(int) // 10
    named = [{"Mass", "Nodule"}, {"Hernia"}, set()]
    found = [[name in named[(k - 1) % 3] for name in chest.NIH_FINDINGS] for k in patient]
    np.testing.assert_array_equal(data.train.y, found)
    assert data.domains is not None
    expected = np.stack([np.tile([0, 1], 10), patient // 2 % 2, patient % 2], axis=1)
    np.testing.assert_array_equal(data.domains.train, expected)
    assert data.domains.tests == 280


def test_images_that_were_not_fetched_are_left_out_and_counted(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"nih-cxr: 5 of 24 images are not in"):
        data = load("nih-cxr", nih(tmp_path, missing=5))
    assert len(data.train) + len(data.test) == 19


def test_a_run_on_radiographs(tmp_path: Path) -> None:
    nih(tmp_path / "nih-cxr", patients=16)
    settings: dict[str, Any] = {
        "dataset": "nih-cxr",
        "data_dir": str(tmp_path),
        "level": 1,
        "clients": 4,
        "rounds": 1,
        "epochs": 1,
    }
    result = fedflux.run(**settings, model="mlp", samples_per_client=8, algorithm="fedavg", out=tmp_path / "run")
    assert result["clusters_true"] == 2
    assert 0 <= result["known"] <= 100


def test_decoded_images_are_kept_and_files_that_changed_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "WORTH", 3)
    paths = [tmp_path / f"{k}.png" for k in range(3)]
    for k, path in enumerate(paths):
        picture(path, 50 * k, mode="L")
    first = images.read_images(tmp_path, paths, grey=True)
    with monkeypatch.context() as without:
        without.setattr(images, "decode", None)
        np.testing.assert_array_equal(images.read_images(tmp_path, paths, grey=True), first)
    picture(paths[1], 200, size=(90, 90), mode="L")
    again = images.read_images(tmp_path, paths, grey=True)
    assert again[1].max() == 200
    assert len(list(tmp_path.glob(".fedflux-64-*.npy"))) == 2
    monkeypatch.setattr(images, "written_whole", _refused)
    picture(paths[1], 100, mode="L")
    assert images.read_images(tmp_path, paths, grey=True)[1].max() == 100


def _refused(path: Path) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("officehome", "fetch it from https://www.hemanthdv.org/officeHomeDataset.html and put its folders Art"),
        ("chexpert", "fetch CheXpert-v1.0-small from https://stanfordmlgroup.github.io/competitions/chexpert"),
        ("nih-cxr", "fetch Data_Entry_2017.csv and the image archives from https://nihcc.app.box.com"),
    ],
)
def test_what_nobody_may_hand_on_is_said_in_one_line(tmp_path: Path, name: str, words: str) -> None:
    for place in (None, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FedfluxError, match=words) as told:
            load(name, place)
        assert "\n" not in str(told.value)


def test_tables_that_are_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("Path,Sex\n")
    with pytest.raises(FedfluxError, match="has no column 'Age'"):
        load("chexpert", tmp_path)
    nih(tmp_path, patients=1)
    with pytest.raises(FedfluxError, match="images of one patient"):
        load("nih-cxr", tmp_path)
    (tmp_path / "Data_Entry_2017.csv").write_text("")
    with pytest.raises(FedfluxError, match="not a readable table"):
        load("nih-cxr", tmp_path)


def hospitals(root: Path, rows: int = 30, broken: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number, centre in enumerate(CENTRES):
        generator = np.random.default_rng(number)
        lines = []
        for k in range(rows):
            values = [f"{value:.1f}" for value in generator.normal(10 * number, 1, 14)]
            values[2], values[6], values[13] = str(1 + k % 4), str(k % 3), str(k % 5 if k % 2 else 0)
            values[10] = values[11] = values[12] = "?"
            values[5] = "?" if k == 7 else values[5]
            lines.append(",".join(values))
        (root / f"processed.{centre}.data").write_text(broken or "\n".join(lines) + "\n")
    return root


def test_heart_disease_by_flambys_recipe(tmp_path: Path) -> None:
    data = load("heart-disease", hospitals(tmp_path / "heart_disease").parent)
    assert data.client_names == CENTRES
    assert data.class_names == ("healthy", "diseased")
    assert data.input_shape == (14 - 3 - 1 - 2 + 3 + 2,)
    for client in range(4):
        mine = data.train.x[data.train.client == client]
        assert len(mine) == int(0.66 * 29)
        np.testing.assert_allclose(mine.mean(axis=0), 0, atol=1e-5)
    assert data.scaling.kind == "none"


def test_heart_disease_runs_with_its_preset(tmp_path: Path) -> None:
    hospitals(tmp_path)
    result = fedflux.run(
        dataset="heart-disease", data_dir=str(tmp_path), algorithm="local", rounds=1, out=tmp_path / "r"
    )
    assert len(result["known_per_client"]) == 4


@pytest.mark.parametrize(("broken", "words"), [("1,2,3\n", "3 columns"), ("a,b\n", "not UCI's table")])
def test_other_tables_are_not_uci_s(tmp_path: Path, broken: str, words: str) -> None:
    with pytest.raises(FedfluxError, match=words):
        load("heart-disease", hospitals(tmp_path, broken=broken))


@pytest.mark.skipif("FEDFLUX_DATA" not in os.environ, reason="needs UCI's tables: name their folder by FEDFLUX_DATA")
def test_the_real_tables_have_flambys_counts() -> None:
    data = load("heart-disease", Path(os.environ["FEDFLUX_DATA"]))
    assert data.train.client is not None
    assert data.test.client is not None
    counts = [*zip(np.bincount(data.train.client).tolist(), np.bincount(data.test.client).tolist(), strict=True)]
    assert counts == [(199, 104), (172, 89), (30, 16), (85, 45)]
