"""How many fits and draws an integration over hyperparameters may take, by the size of a model.

Sizes are counted, not timed, so that a result does not depend on the machine.
"""

from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.engines.base import Status

__all__ = ["MOST_DIMENSIONS", "choose", "most_draws", "most_fits"]

MOST_DIMENSIONS = 25
"""Hyperparameters beyond which too few points are left to cover the posterior."""
_OPERATIONS, _SWEEPS = 2e12, 10.0
"""Floating-point operations that the fits may take, minutes in all, and sweeps of a fit."""
_LEAST_FITS, _MOST_FITS = (10, 6), (60, 25)
"""Fits, in all and for each hyperparameter, below which nothing can be said, and beyond which little is gained."""
_SAMPLED = 5e4
"""Fits that a thousand draws by NUTS take, with as many before them, to an order of magnitude."""
_MOST_UNKNOWNS = 6000
"""Values and gradients that an emulator takes: their matrix is factorised in each round, in seconds at that size."""
_LEAST_DRAWS, _MOST_DRAWS = 50, 1000
"""Draws of hyperparameters at which latent variables are drawn, each by a posterior of its own."""


def _operations(form: CompiledSiteForm) -> float:
    """Return the operations of a fit, to an order of magnitude."""
    return _SWEEPS * form.sweep * form.work


def _least_fits(form: CompiledSiteForm) -> int:
    return _LEAST_FITS[0] + _LEAST_FITS[1] * form.start.size


def most_fits(form: CompiledSiteForm) -> int:
    """Return how many fits are allowed after the search for the mode."""
    p = form.start.size
    affordable = _OPERATIONS / _operations(form)
    most = min(_MOST_FITS[0] + _MOST_FITS[1] * p, _MOST_UNKNOWNS // (p + 1), affordable)
    return int(max(most, _least_fits(form)))


def most_draws(form: CompiledSiteForm) -> int:
    """Return at how many draws of the hyperparameters latent variables are drawn: no more than draws by default."""
    affordable = min(_OPERATIONS / _operations(form), _MOST_DRAWS, 4 * form.most_draws)
    return int(max(affordable, _LEAST_DRAWS))


def choose(form: CompiledSiteForm, *, chains: bool) -> tuple[str, Status]:
    """Return what becomes of hyperparameters by default, and why they are not integrated over, if they are not.

    `chains` says whether they may be sampled.
    """
    p, least = form.start.size, _least_fits(form)
    if p > MOST_DIMENSIONS:
        many = f"{p} hyperparameters are too many for an emulator of the evidence"
        if chains and _SAMPLED * _operations(form) < _OPERATIONS:
            return "sample", Status(True, f"{many}: they are sampled by NUTS on it")
        without = "" if chains else ", with draws and without checkpoint="
        return "optimize", Status(
            False,
            f"{many}: they are at their mode, with a Gaussian about it; sample them with hyper='sample'{without}, or "
            f"take hyper='optimize' if a mode will do",
        )
    if least * _operations(form) > _OPERATIONS:
        return "optimize", Status(
            True,
            f"hyperparameters at their mode, with a Gaussian about it, as fits of this size are dear; "
            f"hyper='integrate' makes {least} of them or more",
        )
    return "integrate", Status(True, "")
