"""New clients' files, answered by a trained run: `fedflux predict`."""

from collections.abc import Mapping
from csv import writer
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedflux.data.sources.records import Records, read_records
from fedflux.data.tasks.areas import macro_auc
from fedflux.errors import FedfluxError
from fedflux.files import write_bytes, write_npz
from fedflux.library.newcomers import newcomer, numbered_labels
from fedflux.library.trained import Probabilities, TrainedRun

SUFFIXES = (".npz", ".csv")


def predict_file(run: TrainedRun, data: Path, out: Path | None = None) -> dict[str, Any]:
    """Place the clients of a file or folder by their inputs alone, and write what their records are answered with.

    Labels that the file has are only used to say how many answers are right.
    """
    out = data.parent / f"{data.stem}-predictions.npz" if out is None else out
    if out.suffix not in SUFFIXES:
        raise FedfluxError(f"{out}: predictions go into a .npz or a .csv file")
    if not out.parent.is_dir():
        raise FedfluxError(f"{out}: there is no folder {out.parent} to write to")
    brought = read_records(data, run.input_shape, run.form.feature_names)
    records = {name: _named(run, name, one) for name, one in brought.items()}
    placement, answers = run.answer(
        {name: one.x for name, one in records.items()},
        group={name: one.group for name, one in records.items()} if _grouped(records) else None,
    )
    clients: list[dict[str, Any]] = []
    for k, (name, found) in enumerate(answers.items()):
        line: dict[str, Any] = {"name": name, "cluster": None, "posterior": None, "novel": None, "score": None}
        if placement is not None:
            line |= {
                "cluster": int(placement.cluster[k]),
                "posterior": placement.posterior[k].tolist(),
                "novel": bool(placement.novel[k]) if placement.calibrated[k] else None,
                "score": float(placement.score[k]),
            }
        y = records[name].y
        clients.append({**line, "records": len(found), **_scored(run, y, found)})
    _write(out, answers, run.class_names, run.form.several_labels)
    return {"clients": clients, "path": str(out), "class_names": list(run.class_names)}


def _named(run: TrainedRun, name: str, records: Records) -> Records:
    """The same records with labels as the run calls them; a label that is none of its classes is refused."""
    numbers = numbered_labels(newcomer(name, records.x, records.y), run.form)
    if numbers is None or numbers.ndim > 1:
        return replace(records, y=numbers)
    return replace(records, y=np.array(run.class_names)[numbers])


def _scored(run: TrainedRun, y: NDArray[np.generic] | None, found: Probabilities) -> dict[str, float | None]:
    """In percent: the share of right answers or, of several labels, the macro ROC AUC; None without labels."""
    scores: dict[str, float | None] = {"accuracy": None, "macro_auc": None}
    if y is None:
        return scores
    if run.form.several_labels:
        area = macro_auc(found.astype(np.float64), y.astype(np.int64))
        return {**scores, "macro_auc": None if np.isnan(area) else 100 * area}
    right = np.array(run.class_names)[found.argmax(axis=1)] == y.astype(str)
    return {**scores, "accuracy": 100 * float(right.mean())}


def _answers(probabilities: NDArray[np.float32], names: tuple[str, ...], several: bool) -> NDArray[np.str_]:
    """The likeliest class of each record; of several labels those with a probability of a half or more."""
    if several:
        found = [[name for name, p in zip(names, row, strict=True) if p >= 0.5] for row in probabilities.tolist()]
        return np.array([";".join(one) for one in found], dtype=np.str_)
    return np.asarray(np.array(names)[probabilities.argmax(axis=1)], dtype=np.str_)


def _grouped(records: Mapping[str, Any]) -> bool:
    return any(one.group is not None for one in records.values())


def _write(out: Path, answers: Mapping[str, Probabilities], class_names: tuple[str, ...], several: bool) -> None:
    """Every record's client, its place among the client's records, its answer, and the probabilities."""
    client = np.repeat(list(answers), [len(one) for one in answers.values()])
    row = np.concatenate([np.arange(len(one)) for one in answers.values()])
    probabilities = np.concatenate(list(answers.values()))
    answer = _answers(probabilities, class_names, several)
    if out.suffix == ".npz":
        names = np.array(class_names)
        write_npz(out, {"client": client, "row": row, "answer": answer, "p": probabilities, "class_names": names})
        return
    text = StringIO()
    lines = writer(text, lineterminator="\n")
    lines.writerow(["client", "row", "answer", *(f"p({name})" for name in class_names)])
    for owner, place, said, shares in zip(client, row, answer, _shares(probabilities), strict=True):
        lines.writerow([owner, place, said, *shares])
    write_bytes(out, text.getvalue().encode())


def _shares(probabilities: NDArray[np.float32]) -> list[list[str]]:
    return [[f"{value:.6g}" for value in line] for line in probabilities.tolist()]
