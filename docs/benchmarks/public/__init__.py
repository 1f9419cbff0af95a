"""Models that others wrote, with their priors; importing the package lists them all in `MODELS`."""

from importlib import import_module

from docs.benchmarks.public.base import FOLDERS, MODELS, PublicModel

__all__ = ["FOLDERS", "MODELS", "PublicModel"]

for _name in (
    "bambi_docs",
    "bugs",
    "discourse",
    "gallery",
    "gelman_hill",
    "kruschke",
    "mixed_models",
    "posteriordb_counts",
    "posteriordb_hierarchical",
    "posteriordb_linear",
    "rethinking",
    "series",
    "textbooks",
    "two_parameters",
    "vignettes",
):
    import_module(f"docs.benchmarks.public.{_name}")
