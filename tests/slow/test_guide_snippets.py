"""Python that the guides show runs, a page's blocks in order, with names that stand for the reader's own things."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.slow.test_snippets import PAGES as WHOLE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Page:
    """What the reader is taken to have, and what must hold when all blocks have run."""

    before: str
    after: str = ""
    instead: dict[str, str] = field(default_factory=dict)
    """Words of the page that stand for a machine of the reader's, and what they are here."""


OWN = '''
"""What a reader would have in a module."""

from dataclasses import dataclass

import numpy as np
from torch import nn

from fedflux.algorithms import FedAvg


@dataclass(frozen=True)
class MyMethod(FedAvg):
    """A method of the reader's."""


def make_model(input_shape, classes):
    """A model of the reader's."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 32), nn.ReLU(), nn.Linear(32, classes))
'''
DIGITS = """
import numpy as np
from own import MyMethod, make_model
from sklearn.datasets import load_digits
from sklearn.utils import shuffle

images, classes = shuffle(*load_digits(return_X_y=True), random_state=0)
x, y = images[0::6], classes[0::6]
x2, y2 = 16 - images[1::6], classes[1::6]
x_new, y_new = images[2::6], classes[2::6]
x3, y3 = images[3::6], classes[3::6]
"""
TRAINED = (
    DIGITS
    + """
import fedflux

clients = {"north": (x, y), "south": (x3, y3), "east": (x2, y2)}
fedflux.run(fedflux.Federation.from_clients(clients), rounds=6, lr=0.1, out="runs/clinics", progress=False)
"""
)
PAGES = {
    "docs/after-training.md": Page(
        TRAINED + "x_a, x_b = x_new[:50], 16 - x_new[:50]\n",
        """
assert run.clusters == {"north": 0, "south": 0, "east": 1}  # as the page has it
assert found.cluster == 0 and not found.novel
assert list(run.assign({"a": x_a, "b": x_b}).cluster) == [0, 1]
assert run.predict(x_new, y_new).shape == run.predict(x_new).shape == (len(x_new), 10)
""",
    ),
    "docs/baselines.md": Page(DIGITS),
    "docs/deploy.md": Page("from fedflux.deploy.node import NodeData\nfrom torch import nn\n"),
    "docs/library.md": Page(
        DIGITS
        + """
sides = [images[k::6] if k % 2 else 16 - images[k::6] for k in range(6)]
clients = [(side[:200], classes[k::6][:200], side[200:]) for k, side in enumerate(sides)]
encode = None
x_late, y_late = x_new, y_new
""",
        """
assert set(table["algorithm"]) == {"fedavg", "flux", "own:MyMethod"}
assert flux.n_clusters_ == 2
""",
    ),
    "docs/own-data.md": Page(
        DIGITS
        + """
import torch
from torch.utils.data import TensorDataset

torch_dataset = TensorDataset(torch.tensor(x2), torch.tensor(y2))
""",
        """
assert list(result.clients.index) == ["north", "south"]
assert [placed["cluster"] for placed in result["unseen_placements"]] == [result.clients.loc["north", "cluster"]]
""",
    ),
    "docs/own-method.md": Page(
        "",
        """
from fedflux.algorithms.checks import check_algorithm

check_algorithm(HalfStep.make)
""",
    ),
    "docs/serving.md": Page(
        TRAINED
        + """
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tests.serve.serving import serving

subprocess.run("openssl genpkey -algorithm ed25519 -out signing.pem".split(), check=True)
subprocess.run("openssl pkey -in signing.pem -pubout -out signing.pub".split(), check=True)
subprocess.run("fedflux export runs/clinics --out bundle.zip --sign signing.pem".split(), check=True)
open_until_the_end = ExitStack()
service = open_until_the_end.enter_context(serving(Path("bundle.zip"), Path("state")))
""",
        """
open_until_the_end.close()
assert answer.cluster == 0 and probabilities.shape == (len(x), 10)
assert any((Path.home() / ".cache" / "clinic").iterdir())
""",
        {'"https://models.example"': "service.url", '"…"': "service.key"},
    ),
    "docs/several-labels.md": Page(
        DIGITS
        + """
import fedflux

findings = ["even", "small", "zero"]
y, y2 = (np.stack([labels % 2 == 0, labels < 5, labels == 0], axis=1).astype(int) for labels in (y, y2))
""",
        "assert result['score'] == 'macro ROC AUC' and 50 < result['known'] <= 100\n",
    ),
}
NOT_HERE = {
    (
        "docs/deploy.md",
        "from fedflux.deploy.flower.grid import InProcessGrid",
    ): "needs Flower, see tests/deploy"
}
"""Blocks that do not run here, by a line of theirs, and why."""


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)


def left_out(page: str, block: str) -> bool:
    return any(page == of and line in block.splitlines() for of, line in NOT_HERE)


def test_every_page_that_shows_python_is_run() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
    assert {page for page in found if blocks_of(page)} == {*WHOLE, *PAGES}


@pytest.mark.parametrize(("page", "line"), NOT_HERE)
def test_a_block_that_is_left_out_is_there(page: str, line: str) -> None:
    assert sum(line in block.splitlines() for block in blocks_of(page)) == 1


@pytest.mark.parametrize("page", PAGES)
def test_what_a_guide_shows_runs(page: str, tmp_path: Path) -> None:
    told = PAGES[page]
    shown = "\n".join(block for block in blocks_of(page) if not left_out(page, block))
    for words, here in told.instead.items():
        assert words in shown
        shown = shown.replace(words, here)
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "shown.py").write_text(f"{told.before}\n{shown}\n{told.after}", encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "shown.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
