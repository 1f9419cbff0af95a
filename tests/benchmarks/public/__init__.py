"""Models that others wrote, with their priors; importing the package lists them all in `MODELS`."""

from tests.benchmarks.public import posteriordb_counts, posteriordb_hierarchical, posteriordb_linear
from tests.benchmarks.public.base import FOLDERS, MODELS, PublicModel, reference_draws

__all__ = [
    "FOLDERS",
    "MODELS",
    "PublicModel",
    "posteriordb_counts",
    "posteriordb_hierarchical",
    "posteriordb_linear",
    "reference_draws",
]
