"""Gaussian posteriors, evidence and predictions for PyMC models, by expectation propagation."""

from pymc_ep.exceptions import ConvergenceWarning, InvalidDataError, NumericalError, UnsupportedModelError

__all__ = ["ConvergenceWarning", "InvalidDataError", "NumericalError", "UnsupportedModelError"]
