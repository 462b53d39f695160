"""Draw every picture of the documents: `python -m docs.pictures` after `make demo`."""

import argparse
from pathlib import Path

from docs.pictures.calibrated import calibrated_test
from docs.pictures.counting import groups, several_labels
from docs.pictures.descriptors import descriptor
from docs.pictures.diagrams import after_training, deployment, library, own_data, serving
from docs.pictures.drifting import drifting
from docs.pictures.look import save
from docs.pictures.noise import noise
from docs.pictures.overview import overview
from docs.pictures.placement import placement
from docs.pictures.rounds import rounds
from docs.pictures.sharing import sharing
from docs.pictures.shifts import shifts

PICTURES = {
    "overview": overview,
    "shifts": shifts,
    "descriptor": descriptor,
    "calibrated-test": calibrated_test,
    "placement": placement,
    "sharing": sharing,
    "rounds": rounds,
    "drift": drifting,
    "groups": groups,
    "several-labels": several_labels,
    "noise": noise,
    "own-data": own_data,
    "library": library,
    "after-training": after_training,
    "deployment": deployment,
    "serving": serving,
}
"""Every picture by its file's name, and what draws it from a folder of runs."""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/demo"), help="what `make demo` filled")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "images")
    parser.add_argument("--only", choices=PICTURES, help="one of them")
    asked = parser.parse_args()
    for name, draw in PICTURES.items():
        if asked.only in (None, name):
            print(save(draw(asked.runs), asked.out / f"{name}.svg"))
