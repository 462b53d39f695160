import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image
from tests.studies.report.making import write_run

from fedflux.errors import FedfluxError
from fedflux.studies.report import collect, write_report
from fedflux.studies.report.exports import export_all
from fedflux.studies.report.latex import escape


def test_figures_and_tables_are_written_and_the_same_again(tmp_path: Path) -> None:
    for algorithm in ("flux", "fedavg"):
        for shift in ("px", "py"):
            write_run(tmp_path / "runs" / f"{algorithm}-{shift}", algorithm=algorithm, shift=shift)
    write_report([tmp_path / "runs"], tmp_path / "report.html", tmp_path / "out")
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")}
    block, kinds = "digits-6-clients", ("png", "svg")
    assert names == {
        *(f"{block}-{name}.tex" for name in ("by-shift", "overall", "paired")),
        *(f"{block}-{score}.{kind}" for score in ("known", "test") for kind in kinds),
        *(f"runs/{a}-{s}-accuracy.{k}" for a in ("flux", "fedavg") for s in ("px", "py") for k in kinds),
        *(f"runs/flux-{s}-map.{k}" for s in ("px", "py") for k in kinds),
    }
    with Image.open(tmp_path / "out" / f"{block}-known.png") as image:
        assert image.size[0] > 1000
    assert ElementTree.parse(tmp_path / "out" / f"{block}-known.svg").getroot().tag.endswith("svg")
    export_all(collect([tmp_path / "runs"]), tmp_path / "again")
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_latex_tables_are_balanced_and_carry_the_figures(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"r{seed}", seed=seed, lift=seed, group="a_b & 50%", algorithm="flux")
    export_all(collect([tmp_path]), tmp_path / "out")
    text = (tmp_path / "out" / "a_b-50-by-shift.tex").read_text()
    assert r"a\_b \& 50\%" in text
    assert r"$84.0 \pm 0.7$" in text
    assert "$P(X)$" in text
    (columns,) = re.findall(r"\\begin\{tabular\}\{(\w+)\}", text)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(columns)}
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_runs_with_little_to_show_are_exported_too(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("known", "test", "known_per_client", "test_per_client", "truth", "test_placements"))
    run = write_run(tmp_path / "r", clients=60, describe=False, result=nothing)
    written = export_all(collect([run]), tmp_path / "out")
    assert [path.name for path in written if path.suffix == ".svg"] == ["r-accuracy.svg"]


def test_text_is_printed_as_it_is() -> None:
    assert escape("50 % of a_b & {c} ~ \\") == r"50 \% of a\_b \& \{c\} \textasciitilde{} \textbackslash{}"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedfluxError, match="cannot write exports"):
        export_all(collect([write_run(tmp_path / "r")]), tmp_path / "file" / "out")


def test_tables_name_the_score(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", result={"score": "macro ROC AUC"})
    write_run(tmp_path / "runs" / "other", algorithm="fedavg", result={"score": "macro ROC AUC"})
    written = export_all(collect([tmp_path / "runs"]), tmp_path / "out")
    captions = [path.read_text() for path in written if path.name.endswith("by-shift.tex")]
    assert ["macro ROC AUC on the clients' test parts" in text for text in captions] == [True]
