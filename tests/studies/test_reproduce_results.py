"""Finished cells as CSV, the pages made of them, and what is committed: a page that its CSV does not give fails."""

from pathlib import Path
from typing import Any

import pytest

from fedflux.errors import FedfluxError
from fedflux.studies.paper.contents import find_study
from fedflux.studies.reproduce.asking import PRESETS
from fedflux.studies.reproduce.cells import wishes
from fedflux.studies.reproduce.pages import OVERVIEW, pages, write_pages
from fedflux.studies.reproduce.rows import COLUMNS, CURVE, SCORES, keep, read_rows
from fedflux.studies.reproduce.tiers import Wanted, narrowed

COMMITTED = Path(__file__).parents[2] / "results"


def made_up(known: float = 90.0, identity: str = "a") -> list[dict[str, Any]]:
    """A row for every cell of one seed of a table."""
    found = wishes([narrowed(find_study("scaling_1200"), Wanted("quick"))], PRESETS)
    plain = dict.fromkeys(COLUMNS)
    return [
        {**plain, **{k: v for k, v in asked.items() if k in COLUMNS}, "asked": name, "identity": identity + name}
        | {"known": known, "seconds": 1.5, CURVE: [10.25, 20.5], "device": "cpu"}
        for name, asked in found.items()
    ]


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    rows = made_up(known=90.12345678901234)
    assert keep(rows, tmp_path) == [tmp_path / "mnist.csv"]
    read = read_rows(tmp_path)
    assert len(read) == len(rows) == 4 * 3
    for row in rows:
        for name in (*SCORES, CURVE, "asked", "identity", "device"):
            assert read[row["asked"]][name] == row[name], name


def test_a_row_stays_until_its_identity_is_another(tmp_path: Path) -> None:
    keep(made_up(90.0, "a"), tmp_path)
    before = (tmp_path / "mnist.csv").read_bytes()
    assert keep(made_up(50.0, "a"), tmp_path) == []
    assert (tmp_path / "mnist.csv").read_bytes() == before
    keep(made_up(50.0, "b"), tmp_path)
    assert {row["known"] for row in read_rows(tmp_path).values()} == {50.0}


def test_a_file_of_something_else_is_no_table_of_cells(tmp_path: Path) -> None:
    (tmp_path / "mnist.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FedfluxError, match=r"mnist\.csv is no table of finished cells"):
        read_rows(tmp_path)


def test_pages_say_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    keep(made_up(), tmp_path)
    (tmp_path / "own.md").write_text("mine\n")
    names = {path.name for path in write_pages(tmp_path)}
    assert names == {OVERVIEW, "scaling_1200.md"}
    page = (tmp_path / "scaling_1200.md").read_text()
    assert "| FLUX | P(X), known | 90.0 | 42 | level 3 | 96.1 | not comparable: how many rounds" in page
    assert "`tab:m11`" in (tmp_path / OVERVIEW).read_text()
    (tmp_path / "mnist.csv").unlink()
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.glob("*.md")} == {OVERVIEW, "own.md"}


def test_a_page_names_the_method_that_beats_flux() -> None:
    rows = made_up()
    for row in rows:
        row["known"] = 95.0 if row["algorithm"] == "fedavg" else 90.0
    page = pages({row["asked"]: row for row in rows})["scaling_1200.md"]
    assert "- P(X), known: FedAvg (95.0; FLUX 90.0)" in page


def test_data_that_stands_in_has_columns_of_its_own_and_other_methods_rows() -> None:
    chosen = Wanted("full", datasets=("nih-cxr",), algorithms=("flux", "feroma"), seeds=(42,), presets=("default",))
    asked = wishes([narrowed(find_study("main_chex"), chosen)], ("default",))
    plain = dict.fromkeys(COLUMNS)
    rows = {
        name: {**plain, **one, "asked": name, "known": 70.0, "test": 60.0, CURVE: []} for name, one in asked.items()
    }
    page = pages(rows)["main_chex.md"]
    assert "| low, known | low, test |" in page
    assert "low, known (NIH ChestX-ray14) |" in page
    assert "| FEROMA | low, known (NIH ChestX-ray14) | 70.0 | 42 | level 1 | – | not comparable: " in page
    assert "NIH ChestX-ray14 in place of CheXpert" in page


def test_committed_pages_are_what_their_csv_gives() -> None:
    made = pages(read_rows(COMMITTED))
    there = {path.name: path.read_text(encoding="utf-8") for path in COMMITTED.glob("*.md")}
    assert sorted(there) == sorted(made)
    for name, text in made.items():
        assert there[name] == text, f"{name}: make it anew with fedflux reproduce --results results"


def test_a_changed_number_is_noticed() -> None:
    rows = {row["asked"]: row for row in made_up()}
    before = pages(rows)
    next(iter(rows.values()))["known"] += 1
    assert pages(rows) != before
