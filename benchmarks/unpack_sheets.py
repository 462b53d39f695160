"""Writes images that were packed into sheets of 64×64 tiles as the files that their publishers offer.

    python -m benchmarks.unpack_sheets officehome FOLDER_OF_SHEETS OUT/officehome
    python -m benchmarks.unpack_sheets nih-cxr FOLDER_OF_SHEETS OUT/nih-cxr

`--dataset officehome` and `--dataset nih-cxr` then read OUT. A sheet holds tiles row by row; `labels.csv.gz` says what
each is. Sheets are small enough to be taken to a machine with a GPU; tiles were compressed once, and are kept as they
are.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

SIDE = 64


def tiles(sheet: Path) -> NDArray[np.uint8]:
    """(tiles, 64, 64[, 3])."""
    pixels = np.asarray(Image.open(sheet))
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    parted = pixels.reshape(rows, SIDE, columns, SIDE, *pixels.shape[2:]).swapaxes(1, 2)
    return parted.reshape(rows * columns, SIDE, SIDE, *pixels.shape[2:])


def officehome(folder: Path, out: Path) -> None:
    """A folder a domain, in it a folder a class."""
    for sheet, rows in pd.read_csv(folder / "labels.csv.gz").groupby("sprite"):
        images = tiles(folder / str(sheet))
        for index, name, source in zip(rows["index"], rows["class"], rows["source_file"], strict=True):
            file = out / Path(str(sheet)).stem / name / f"{Path(source).stem}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[index]).save(file)


def nih(folder: Path, out: Path) -> None:
    """The images in one folder, and the columns of the official table that are read."""
    table, images = pd.read_csv(folder / "labels.csv.gz"), tiles(folder / "images.jpg")
    findings = list(table.columns[6:])
    (out / "images").mkdir(parents=True, exist_ok=True)
    for index, name in zip(table["index"], table["image"], strict=True):
        Image.fromarray(images[index]).save(out / "images" / name)
    named = [
        "|".join(name for name in findings if row[name]) or "No Finding" for row in table[findings].to_dict("records")
    ]
    official = {
        "Image Index": table["image"],
        "Finding Labels": named,
        "Patient ID": table["patient"],
        "Patient Age": table["age"],
        "Patient Gender": table["gender"],
        "View Position": table["view"],
    }
    pd.DataFrame(official).to_csv(out / "Data_Entry_2017.csv", index=False)


def main() -> None:
    """Unpack one dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=["officehome", "nih-cxr"])
    parser.add_argument("sheets", type=Path)
    parser.add_argument("out", type=Path)
    told = parser.parse_args()
    {"officehome": officehome, "nih-cxr": nih}[told.dataset](told.sheets, told.out)


if __name__ == "__main__":
    main()
