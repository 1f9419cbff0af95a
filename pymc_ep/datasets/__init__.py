"""Data sets for examples and tests: those that come with the package, and loaders of those whose terms forbid it."""

from pymc_ep.datasets.coal import load_coal
from pymc_ep.datasets.counts import load_gowalla, load_lastfm, load_melbourne_pedestrians

__all__ = ["load_coal", "load_gowalla", "load_lastfm", "load_melbourne_pedestrians"]
