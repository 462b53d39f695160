"""Placement is served and asked for where neither torch nor scikit-learn is installed."""

import subprocess
import sys

from fedflux import clustering
from fedflux.clustering import clusterers

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["torch", "sklearn", "pandas"]))
from fedflux.clustering.placement.offer import Offer
print(Offer.__name__)
"""


def test_placement_is_imported_without_torch_or_scikit_learn() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Offer\n", done.stderr


def test_names_of_the_room_are_loaded_on_demand() -> None:
    assert all(getattr(clustering, name) is getattr(clusterers, name) for name in clustering.__all__)
    assert set(clustering.__all__) <= set(dir(clustering))
