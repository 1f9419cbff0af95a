"""What a fit of a latent Gaussian form takes, from its sizes, before anything large is formed."""

import logging
from typing import TYPE_CHECKING, NamedTuple

from pymc_ep.hyper.budget import choose, most_draws, most_fits
from pymc_ep.numerics.memory import require_memory

if TYPE_CHECKING:
    from pymc_ep.forms.latent_gaussian.compiled import CompiledLatentGaussian

__all__ = ["Cost", "cost_of", "foresee"]

_log = logging.getLogger(__name__)

_DENSE_COPIES = 12
"""Matrices of the predictors' covariance held at a time: 11 were measured for a walk and for a Matern process, with
4000 and 2500 observations."""
_DESIGN_COPIES, _PRECISION_COPIES = 4, 4
"""Copies of a dense design, and of the precision of its coefficients, held at a time."""
_OPTIMISED, _SWEEPS = 20, 8
"""Fits of a search for the mode, and sweeps of a fit, as they are on average."""
_DRAW = 8
"""Sweeps that the posterior at one draw of the hyperparameters takes the time of, with its moments and draws."""
_SITE_SECONDS = 3e-6
"""Time of the moments of one site by quadrature, s."""
_PER_SECOND = 7e10
"""Multiplications a second, counted so, of one core of a server of 2023: a walk of 4000 took 170 s, of 2000 18 s."""
_LONG = 60.0
"""Time of a fit from which it is told beforehand, s."""


class Cost(NamedTuple):
    """An estimate, of memory within a factor of two, of time of three or so on one core.

    Attributes
    ----------
    memory : int
        Largest memory at a time, B.
    arrays : str
        What takes most of it.
    fits : int
        Fits at different hyperparameters.
    seconds : float
    """

    memory: int
    arrays: str
    fits: int
    seconds: float

    @property
    def sentence(self) -> str:
        """Memory and time, in words."""
        return f"about {_in_bytes(self.memory)} of memory and {_in_time(self.seconds)}"


def cost_of(form: "CompiledLatentGaussian", hyper: str = "auto") -> Cost:
    """Return the cost of a fit with the given treatment of the hyperparameters."""
    hyper = choose(form, chains=False)[0] if hyper == "auto" else hyper
    n, p = form.sizes
    if (blocks := form.blocks) is not None:
        t = len(blocks.border)
        memory, arrays = 32 * (p * t + t**2) + 400 * n, f"{blocks.sentence}, of {n} predictors"
    elif form.solver.name == "observations":
        memory, arrays = 8 * _DENSE_COPIES * n**2, f"{_DENSE_COPIES} matrices of {n} x {n}"
    else:
        memory = 8 * (_DESIGN_COPIES * n * p + _PRECISION_COPIES * p**2)
        arrays = f"{_DESIGN_COPIES} designs of {n} x {p} and {_PRECISION_COPIES} matrices of {p} x {p}"
    fits = most_fits(form) // 2 if hyper == "integrate" else _OPTIMISED if hyper == "optimize" else 1
    sweeps = _SWEEPS * fits
    seconds = sweeps * n * _SITE_SECONDS * any(not group.site.gaussian for group in form.form.factors)
    if form.start.size and hyper == "integrate":
        sweeps += _DRAW * most_draws(form)
    return Cost(memory, arrays, fits, seconds + sweeps * form.work / _PER_SECOND)


def foresee(form: "CompiledLatentGaussian", hyper: str) -> None:
    """Refuse a fit that exceeds the free memory, and tell one that takes minutes.

    Raises
    ------
    InvalidDataError
    """
    cost, n = cost_of(form, hyper), form.sizes[0]
    cure = "Take fewer observations, or a prior of less rank, such as pm.gp.HSGP for a Gaussian process."
    require_memory(cost.memory, f"A fit of {n} observations needs", cost.arrays, cure)
    if cost.seconds > _LONG:
        _log.warning(
            "This fit takes about %s: some %d fits of %d sweeps each, with %s. Ctrl-C returns what was reached. %s",
            _in_time(cost.seconds),
            cost.fits,
            _SWEEPS,
            cost.arrays,
            cure if cost.fits == 1 else f"hyper='fixed' makes one fit. {cure}",
        )


def _in_bytes(size: float) -> str:
    return f"{size / 1e9:.2g} GB" if size >= 1e8 else f"{max(1, round(size / 1e6))} MB"


def _in_time(seconds: float) -> str:
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(1, round(seconds))} s"
