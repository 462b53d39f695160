"""Draw every picture of the documents: `python -m docs.pictures` after `make demo`."""

import argparse
from pathlib import Path

from docs.pictures.look import save
from docs.pictures.overview import overview

PICTURES = {
    "overview": overview,
}
"""Every picture by its file's name, and what draws it from a folder of runs."""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/demo"), help="what `make demo` filled")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images")
    asked = parser.parse_args()
    for name, draw in PICTURES.items():
        print(save(draw(asked.runs), asked.out / f"{name}.svg"))
