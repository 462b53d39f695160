"""What clients hold: sources, shifts, federations."""

from fedflux.data.dataset import Dataset, Examples
from fedflux.data.federation import Cohort, Features, Federation, Held, Labelled, Split
from fedflux.data.partition import Partition, partition

__all__ = [
    "Cohort",
    "Dataset",
    "Examples",
    "Features",
    "Federation",
    "Held",
    "Labelled",
    "Partition",
    "Split",
    "partition",
]
