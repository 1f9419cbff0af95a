"""Models that others wrote, with their priors; importing the package lists them all in `MODELS`."""

from tests.benchmarks.public import (
    bambi_docs,
    gallery,
    posteriordb_counts,
    posteriordb_hierarchical,
    posteriordb_linear,
)
from tests.benchmarks.public.base import FOLDERS, MODELS, PublicModel, reference_draws

__all__ = [
    "FOLDERS",
    "MODELS",
    "PublicModel",
    "bambi_docs",
    "gallery",
    "posteriordb_counts",
    "posteriordb_hierarchical",
    "posteriordb_linear",
    "reference_draws",
]
