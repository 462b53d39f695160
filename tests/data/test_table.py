"""People's own tables: CSV files, their columns and what they say of whom."""

from pathlib import Path

import numpy as np
import pytest

from fedflux import Federation
from fedflux.data.dataset import UNLABELLED
from fedflux.data.sources import load

ROWS = [(k, k % 3 + 0.5, "true" if k % 2 else "false", f"c{k % 2}", "ill" if k % 4 < 2 else "well") for k in range(40)]


def write(path: Path, header: str = "age,weight,smokes,client,label", rows=ROWS, delimiter: str = ",") -> Path:
    lines = [header.replace(",", delimiter), *(delimiter.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_by_its_path_or_its_folder(tmp_path: Path, delimiter: str) -> None:
    dataset = load("csv", write(tmp_path / "own.csv", delimiter=delimiter))
    assert (dataset.client_names, dataset.class_names) == (("c0", "c1"), ("ill", "well"))
    assert (dataset.input_shape, dataset.train.x.dtype.name) == ((3,), "float64")
    whole = np.concatenate([dataset.train.x, dataset.test.x])
    assert sorted(whole.tolist()) == sorted(
        [float(k), weight, float(smokes == "true")] for k, weight, smokes, *_ in ROWS
    )
    assert load("csv", tmp_path).checksum == dataset.checksum


def test_whole_numbers_stay_integers(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "token,next,label", [(k, 7, k % 2) for k in range(20)])
    dataset = load("csv", path)
    assert dataset.train.x.dtype == np.int64
    assert dataset.class_names == ("0", "1")


def test_columns_under_other_names(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "age,weight,smokes,site,outcome")
    federation = Federation.from_csv(path, label="outcome", client="site", features=["weight", "age"])
    assert federation.names == ("c0", "c1")
    assert federation.input_shape == (2,)
    assert set(federation.dataset.train.x[:, 0].tolist()) == {0.5, 1.5, 2.5}


def test_numbers_of_clients_are_sorted_as_numbers(tmp_path: Path) -> None:
    rows = [(k, client, k % 2) for client in (10, 9, 100) for k in range(10)]
    assert Federation.from_csv(write(tmp_path / "own.csv", "x,client,label", rows)).names == ("9", "10", "100")


def test_a_column_tells_the_test_part(tmp_path: Path) -> None:
    rows = [(*row, "Test" if k < 10 else "train") for k, row in enumerate(ROWS)]
    dataset = Federation.from_csv(write(tmp_path / "own.csv", "age,weight,smokes,client,label,part", rows)).dataset
    assert sorted(dataset.test.x[:, 0].tolist()) == list(range(10))


def test_a_second_table_is_the_test_part(tmp_path: Path) -> None:
    new = [(row[0] + 100, *row[1:3], "new", row[4]) for row in ROWS[:8]]
    test = write(tmp_path / "test.csv", rows=[*ROWS[:4], *new])
    federation = Federation.from_csv(write(tmp_path / "own.csv"), test=test)
    assert (len(federation.dataset.train), len(federation.dataset.test)) == (40, 12)
    assert federation.names == ("c0", "c1")
    assert federation.dataset.client_names == ("c0", "c1", "new")


def test_a_client_without_labels(tmp_path: Path) -> None:
    rows = [(*row[:4], "" if row[3] == "c0" else row[4]) for row in ROWS]
    federation = Federation.from_csv(write(tmp_path / "own.csv", rows=rows))
    assert federation.names == ("c1",)
    assert (federation.dataset.test.y == UNLABELLED).sum() == 20


def test_groups_and_clusters(tmp_path: Path) -> None:
    rows = [(k, f"c{k % 4}", f"p{k // 8}", k % 2, k % 3) for k in range(80)]
    federation = Federation.from_csv(write(tmp_path / "own.csv", "x,client,group,cluster,label", rows))
    assert federation.truth is not None
    assert federation.truth.tolist() == [0, 1, 0, 1]
    groups = federation.groups(0, "train")
    assert groups is not None
    assert len(np.unique(groups)) > 3
