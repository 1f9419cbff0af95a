"""What a call is answered: a result, a warning, a refusal, or an error that is not of the package."""

import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pymc_ep as pmep

__all__ = ["answer_to_call"]

OWN = (pmep.ClusterError, pmep.InvalidDataError, pmep.NumericalError, pmep.UnsupportedModelError)


def answer_to_call(call: Callable[[], Any]) -> tuple[str, str]:
    """Return what a call gives, and what is said.

    It gives "fits", "warned", "refused" by the package, or an error "of PyMC" or "of ArviZ" where a result or a model
    is given to these; "raw" is any other error.
    """
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:
            said = f"`{type(error).__name__}`: {' '.join(str(error).split())}"
            return _whose(error), said
    said = [str(one.message) for one in heard if issubclass(one.category, pmep.ConvergenceWarning)]
    return ("warned", " ".join(said)) if said else ("fits", "")


def _whose(error: Exception) -> str:
    """Return who refuses: the package if it raises, otherwise the library that the user has called."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, OWN) or modules[-1].partition(".")[0] == "pymc_ep":
        return "refused"
    called = next((m for m in modules if not m.startswith("docs.benchmarks")), "").partition(".")[0]
    return {"arviz": "of ArviZ", "arviz_stats": "of ArviZ", "pymc": "of PyMC"}.get(called, "raw")
