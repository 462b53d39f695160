"""The table of examples/table.py over generator seeds: FLUX beside the true clusters and beside everybody alone.

python benchmarks/tables.py --seeds 0-9
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean

EXAMPLE = Path(__file__).parents[1] / "examples" / "table.py"
FIGURES = re.compile(r"flux ([\d.]+) %, true clusters ([\d.]+) %, everybody alone ([\d.]+) %")


def main() -> None:
    """Print a row for each seed, and the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-9", help="first-last")
    first, last = map(int, parser.parse_args().seeds.split("-"))
    rows = []
    print(f"{'seed':>4} {'flux':>7} {'oracle':>7} {'local':>7}")
    for seed in range(first, last + 1):
        done = subprocess.run([sys.executable, str(EXAMPLE), str(seed)], capture_output=True, text=True, check=True)
        found = FIGURES.search(done.stdout)
        assert found is not None, done.stdout
        rows.append([float(figure) for figure in found.groups()])
        print(f"{seed:>4} " + " ".join(f"{figure:7.1f}" for figure in rows[-1]), flush=True)
    print("mean " + " ".join(f"{mean(column):7.1f}" for column in zip(*rows, strict=True)))


if __name__ == "__main__":
    main()
