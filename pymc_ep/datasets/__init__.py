"""Data sets for examples and tests."""

from pymc_ep.datasets.coal import load_coal

__all__ = ["load_coal"]
