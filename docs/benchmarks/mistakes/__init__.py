"""Mistakes that users of PyMC and Bambi make, collected from their forums and issues, each as a call of pymc_ep."""

from docs.benchmarks.mistakes import assorted, data, formulas, priors, results, structure, values
from docs.benchmarks.mistakes.common import MISTAKES, Mistake

__all__ = ["MISTAKES", "Mistake", "assorted", "data", "formulas", "priors", "results", "structure", "values"]
