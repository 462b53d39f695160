"""Is a kept number still what comes out? One finished cell is run again, where and as it ran."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedflux.errors import FedfluxError
from fedflux.files import jsonable
from fedflux.runs.runner import run_config
from fedflux.runs.session import Listener
from fedflux.runs.storage.store import Store
from fedflux.studies.compare import Cell

ALLOWED = 0.5
"""Points by which a score may differ on CUDA; on a CPU bits must be the same."""
SCORES = ("known", "test", "known_per_client", "test_per_client")


def verify(cells: list[Cell], store: Store, on_round: Listener | None = None) -> dict[str, Any]:
    """Run the quickest finished cell again. Cells with private noise are left out: it is drawn afresh."""
    kept = {cell.identity: found for cell in cells if (found := store.get(cell.identity)) is not None}
    open_ones = [cell for cell in cells if cell.identity in kept and cell.config.privacy() is None]
    if not open_ones:
        raise FedfluxError(f"--verify: no cell that could be run again is finished in {store.path}")
    cell = min(open_ones, key=lambda one: float(kept[one.identity]["seconds"]))
    before, ran_on = kept[cell.identity]["result"], kept[cell.identity]["config"]["ran_on"]
    with TemporaryDirectory(prefix="fedflux-") as folder:
        as_it_ran = replace(cell.config, engine=ran_on["engine"], device=ran_on["device"])
        anew = replace(as_it_ran, out=str(Path(folder) / "run"), store="none", resume=False)
        again = run_config(anew, on_round)
    pairs = [(again[name], before[name]) for name in ("known", "test")]
    differences = [abs(now - then) for now, then in pairs if now is not None and then is not None]
    exact = all(jsonable(again[name]) == jsonable(before[name]) for name in SCORES)
    most = max(differences, default=0.0)
    on_cpu = ran_on["device"] == "cpu"
    return {
        "cell": cell.name,
        "identity": cell.identity,
        "device": ran_on["device"],
        "engine": ran_on["engine"],
        "before": {name: before[name] for name in ("known", "test")},
        "again": {name: again[name] for name in ("known", "test")},
        "same_bits": exact,
        "difference": most,
        "allowed": 0.0 if on_cpu else ALLOWED,
        "verified": exact if on_cpu else exact or most <= ALLOWED,
    }
