"""Record numbers of version 0.1 on another kind of processor: `python -m tests.golden.record OLD`, one thread.

OLD is a checkout of the commit that `numbers.json` names. Its code is run, not today's, on the cells of `cells.py`; the
numbers are added to the file under this machine's arithmetic, or take the place of those that stand there.
"""

import json
import os
import platform
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.golden.arithmetic import arithmetic
from tests.golden.cells import KEYS, MNIST, cells

NUMBERS = Path(__file__).with_name("numbers.json")
COMMIT = "12152b9"


def seeded(draw: str) -> Any:
    """Noise that follows from what it is added to."""

    def noise(values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        values = np.asarray(values, dtype=np.float64)
        generator = np.random.default_rng(int.from_bytes(sha256(values.tobytes()).digest()[:8], "little"))
        drawn: NDArray[np.float64] = values + getattr(generator, draw)(0.0, scale, values.shape)
        return drawn

    return noise


def main(old: str) -> None:
    """Run every cell with the old code."""
    sys.path.insert(0, str(Path(old) / "src"))
    import fedflux
    from fedflux.algorithms import private  # type: ignore[attr-defined]

    if not Path(str(fedflux.__file__)).is_relative_to(Path(old).resolve()):
        raise SystemExit(f"{fedflux.__file__} is not the code in {old}")
    torch.set_num_threads(1)
    private.gaussian_noise, private.laplace_noise = seeded("normal"), seeded("laplace")
    wanted = cells()
    if "FEDFLUX_DATA" in os.environ:
        wanted["mnist lenet5"] = {**MNIST, "data_dir": os.environ["FEDFLUX_DATA"]}
    runs = {}
    for number, (name, options) in enumerate(wanted.items(), 1):
        with TemporaryDirectory() as folder:
            found = fedflux.run(**options, engine="loop", device="cpu", out=f"{folder}/run", store="none")
        runs[name] = {key: found[key] for key in KEYS}
        print(f"{number}/{len(wanted)} {name}", file=sys.stderr)
    here = {
        **{"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()},
        **{"machine": platform.machine(), "arithmetic": arithmetic(), "commit": COMMIT},
    }
    kept = [one for one in json.loads(NUMBERS.read_text(encoding="utf-8")) if one["arithmetic"] != here["arithmetic"]]
    NUMBERS.write_text(json.dumps([*kept, {**here, "runs": runs}], indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
