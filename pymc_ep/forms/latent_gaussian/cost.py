"""What a fit of a latent Gaussian form takes, from its sizes, before anything large is formed."""

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.forms.latent_gaussian.compiled import CompiledLatentGaussian
from pymc_ep.hyper.budget import most_draws, most_fits

__all__ = ["cost_of", "fits_of"]

_DENSE_COPIES = 12
"""Matrices of the predictors' covariance held at a time: 11 were measured for a walk and for a Matern process, with
4000 and 2500 observations."""
_DESIGN_COPIES, _PRECISION_COPIES = 4, 4
"""Copies of a dense design, and of the precision of its coefficients, held at a time."""
_OPTIMISED, _SWEEPS = 20, 8
"""Fits of a search for the mode, and sweeps of a fit, as they are on average."""
_DRAW = 8
"""Sweeps that the posterior at one draw of the hyperparameters takes the time of, with its moments and draws."""
_FIT_SECONDS, _SITE_SECONDS = 5e-3, 3e-6
"""Time of the smallest fit, and of the moments of one site by quadrature, s."""
_SEARCHED = 10.0
"""Factor of both for densities whose peaks are searched for: most of those by PyMC's own log density."""
_PER_SECOND = 7e10
"""Multiplications a second, counted so, of one core of a server of 2023: a walk of 4000 took 170 s, of 2000 18 s."""


def fits_of(form: CompiledSiteForm, hyper: str) -> int:
    """Return the number of fits at different hyperparameters, as it is on average."""
    if hyper == "fixed" or not form.start.size:
        return 1
    return most_fits(form) // 2 if hyper == "integrate" else _OPTIMISED


def cost_of(form: CompiledLatentGaussian, hyper: str) -> Cost:
    """Return the cost of a fit with the given treatment of the hyperparameters."""
    n, p = form.sizes
    if (blocks := form.blocks) is not None:
        t = len(blocks.border)
        memory, arrays = 32 * (p * t + t**2) + 400 * n, f"{blocks.sentence}, of {n} predictors"
    elif form.solver.name == "observations":
        memory, arrays = 8 * _DENSE_COPIES * n**2, f"{_DENSE_COPIES} matrices of {n} x {n}"
    else:
        memory = 8 * (_DESIGN_COPIES * n * p + _PRECISION_COPIES * p**2)
        arrays = f"{_DESIGN_COPIES} designs of {n} x {p} and {_PRECISION_COPIES} matrices of {p} x {p}"
    fits = fits_of(form, hyper)
    sites = [group.site for group in form.form.factors]
    sweeps, by_quadrature = _SWEEPS * fits, any(not site.gaussian for site in sites)
    seconds = _FIT_SECONDS * fits + _SITE_SECONDS * sweeps * n * by_quadrature
    seconds *= _SEARCHED if any(site.scanned for site in sites) else 1.0
    if form.start.size and hyper == "integrate":
        sweeps += _DRAW * most_draws(form)
    cure = "Take fewer observations, or a prior of less rank, such as pm.gp.HSGP for a Gaussian process."
    return Cost(
        memory,
        seconds + sweeps * form.work / _PER_SECOND,
        f"A fit of {n} observations needs",
        arrays,
        f"some {fits} fits of {_SWEEPS} sweeps each" if fits > 1 else f"some {_SWEEPS} sweeps",
        cure,
        cure if fits == 1 else f"hyper='fixed' makes one fit. {cure}",
    )
