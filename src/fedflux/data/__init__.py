"""What clients hold: sources, shifts, federations."""

from fedflux.data.cohort import Cohort, Held
from fedflux.data.dataset import Dataset, Examples
from fedflux.data.federation import Federation
from fedflux.data.held_out import Population
from fedflux.data.labelled import Features, Labelled, Split
from fedflux.data.partition import Partition, partition, populate

__all__ = [
    "Cohort",
    "Dataset",
    "Examples",
    "Features",
    "Federation",
    "Held",
    "Labelled",
    "Partition",
    "Population",
    "Split",
    "partition",
    "populate",
]
