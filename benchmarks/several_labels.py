"""NIH's chest X-rays with all 14 findings: FLUX beside FedAvg and local training, by macro ROC AUC.

python -m benchmarks.several_labels --data DATA/nih_cxr64 --seeds 42-44

Clients are groups of view, age and sex, large ones halved by patients; records of a patient stay together. Everything
runs on one thread of a CPU. The interval of a difference is Student's over all clients of all seeds, at 95 %.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from benchmarks.real_data import nih
from numpy.typing import NDArray
from scipy.stats import t

import fedflux
from fedflux.files import write_npz

METHODS = ("local", "fedavg", "flux")


def seeds_of(words: str) -> list[int]:
    """`42-44` or `50,52`."""
    first, dash, last = words.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(one) for one in words.split(",")]


def interval(differences: NDArray[np.float64]) -> str:
    """The mean with its 95 % interval."""
    known = differences[~np.isnan(differences)]
    half = t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known))
    return f"{known.mean():+.2f} ({known.mean() - half:+.2f} to {known.mean() + half:+.2f}, {len(known)} clients)"


def main() -> None:
    """Print a line a run, then the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the sprites and labels.csv.gz")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("42-44"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--optimiser", default="adam")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--runs", type=Path, help="keep runs here; those that are finished already are read")
    told = parser.parse_args()
    scores: dict[str, list[NDArray[np.float64]]] = {name: [] for name in told.methods.split(",")}
    print("seed method clients known worst clusters share of each branch seconds")
    with TemporaryDirectory() as temporary:
        folder = told.runs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in told.seeds:
            file = folder / f"nih-{seed}.npz"
            write_npz(file, nih(told.data, "attributes", "findings", 0, seed))
            for name in scores:
                result = fedflux.run(
                    dataset="npz",
                    data_dir=str(file),
                    shift="none",
                    algorithm=name,
                    model="lenet5",
                    rounds=told.rounds,
                    epochs=told.epochs,
                    optimiser=told.optimiser,
                    lr=told.lr,
                    batch_size=told.batch_size,
                    seed=seed,
                    engine="loop",
                    device="cpu",
                    out=str(folder / f"{name}-{seed}"),
                    store="none",
                    resume=True,
                )
                scores[name].append(np.array(result["known_per_client"], dtype=np.float64))
                parts = (result.get("sharing_parts") or {}).get("mean", {})
                shares = ", ".join(f"{branch} {part:.2f}" for branch, part in parts.items()) or "–"
                clients, found = len(scores[name][-1]), result["clusters_found"]
                figures = f"{result['known']:.2f} {result['worst']:.2f} {found} {shares} {result['seconds']:.0f}"
                print(f"{seed} {name} {clients} {figures}", flush=True)
    for name, of_seeds in scores.items():
        means = [float(np.nanmean(one)) for one in of_seeds]
        print(f"{name}: {np.mean(means):.2f} ± {np.std(means, ddof=1) if len(means) > 1 else 0:.2f}")
        if name != "flux" and "flux" in scores:
            print(f"flux − {name}: {interval(np.concatenate(scores['flux']) - np.concatenate(of_seeds))}")


if __name__ == "__main__":
    main()
