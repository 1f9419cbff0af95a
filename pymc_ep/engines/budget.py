"""How many fits and draws an integration over hyperparameters may take, by the size of a model.

Sizes are counted, not timed, so that a result does not depend on the machine.
"""

from pymc_ep.engines.base import Status
from pymc_ep.forms.compiled import CompiledLatentGaussian

__all__ = ["MOST_DIMENSIONS", "most_draws", "most_fits", "why_not_integrated"]

MOST_DIMENSIONS = 25
"""Hyperparameters beyond which too few points are left to cover the posterior."""
_OPERATIONS, _SWEEPS = 2e12, 10.0
"""Floating-point operations that the fits may take, minutes in all, and sweeps of a fit."""
_LEAST_FITS, _MOST_FITS = (10, 6), (60, 25)
"""Fits, in all and for each hyperparameter, below which nothing can be said, and beyond which little is gained."""
_MOST_UNKNOWNS = 6000
"""Values and gradients that an emulator takes: their matrix is factorised in each round, in seconds at that size."""
_LEAST_DRAWS, _MOST_DRAWS = 50, 1000
"""Draws of hyperparameters at which latent variables are drawn, each by a posterior of its own."""


def _operations(form: CompiledLatentGaussian) -> float:
    """Return the operations of a fit, to an order of magnitude."""
    return _SWEEPS * form.sweep * form.work


def _least_fits(form: CompiledLatentGaussian) -> int:
    return _LEAST_FITS[0] + _LEAST_FITS[1] * form.start.size


def most_fits(form: CompiledLatentGaussian) -> int:
    """Return how many fits are allowed after the search for the mode."""
    p = form.start.size
    affordable = _OPERATIONS / _operations(form)
    most = min(_MOST_FITS[0] + _MOST_FITS[1] * p, _MOST_UNKNOWNS // (p + 1), affordable)
    return int(max(most, _least_fits(form)))


def most_draws(form: CompiledLatentGaussian) -> int:
    """Return at how many draws of the hyperparameters latent variables are drawn: no more than draws by default."""
    affordable = min(_OPERATIONS / _operations(form), _MOST_DRAWS, 4 * form.most_draws)
    return int(max(affordable, _LEAST_DRAWS))


def why_not_integrated(form: CompiledLatentGaussian) -> Status:
    """Say why hyperparameters are not integrated over by default, and whether their mode may do; empty if they are."""
    p, least = form.start.size, _least_fits(form)
    if p > MOST_DIMENSIONS:
        return Status(
            False,
            f"{p} hyperparameters are too many to be integrated over: they are at their mode, with a Gaussian about "
            f"it; sample them with hyper='sample', or take hyper='optimize' if a mode will do",
        )
    if least * _operations(form) > _OPERATIONS:
        return Status(
            True,
            f"hyperparameters at their mode, with a Gaussian about it, as fits of this size are dear; "
            f"hyper='integrate' makes {least} of them or more",
        )
    return Status(True, "")
