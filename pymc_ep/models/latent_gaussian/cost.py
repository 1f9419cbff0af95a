"""Cost of a fit of a latent Gaussian form, from its sizes, before anything large is formed."""

from pymc_ep.contracts.cost import Cost
from pymc_ep.evidence.budget import fits_of, most_posteriors
from pymc_ep.models.latent_gaussian.compiled import CompiledLatentGaussian
from pymc_ep.models.latent_gaussian.precision_design import INNER_SCALE

__all__ = ["cost_of"]

_DENSE_COPIES = 12
"""Matrices of the size of the predictors' covariance, (n, n), in memory at a time: 11 were measured for a walk and for
a Matern process, with 4000 and 2500 observations."""
_DESIGN_COPIES, _PRECISION_COPIES = 4, 4
"""Copies of a dense design, and of the precision of its coefficients, in memory at a time."""
_VECTORS = 60
"""Arrays of the size of the predictors or the unknowns that exist at a time: moments, sites and their history."""
_SWEEPS = 8
"""Sweeps of a fit, on average."""
_DRAW = 8
"""Time of the posterior at one draw of the hyperparameters, with its moments and draws, in sweeps."""
_FIXED, _FIXED_BY_SEARCH = (5e-3, 8e-6), (0.015, 8e-5)
"""Pairs (a, b) of the time a + b n, in s, of a fit of n sites with hyperparameters fixed: by quadrature alone, and
with a search for peaks. With two coefficients and n = 100 and 2000 a Poisson likelihood takes 0.008 and 0.022 s, a Beta
0.022 and 0.177."""
_EMULATOR = 0.4, 0.08
"""Pair (a, b) of the time a p + b p^2, in s, of emulating the evidence of p hyperparameters."""
_OF_GAUSSIANS, _BY_QUADRATURE, _BY_SEARCH = (1e-3, 0.0), (0.02, 1.2e-5), (0.04, 3.5e-5)
"""Pairs (a, b) of the time a + b n, in s, of one fit of n sites in an integration over hyperparameters, with its share
of the time of gradients, draws and results: for Gaussian sites, quadrature, and a search for peaks. Measured with 20
groups and n = 200 and 2000: bits 0.018 and 0.033 s, counts 0.040 and 0.042, Weibull 0.021 and 0.084, zero-inflated
counts 0.023 and 0.072. Before moments ran in compiled loops both b were five to ten times as large."""
_PER_SECOND, _FEW_PER_SECOND = 7e10, 7e5
"""Rates r and q of one core of a server of 2023: w multiplications take w / r + w^1/2 / q seconds. The second term
dominates where multiplications are few."""


def cost_of(form: CompiledLatentGaussian, hyper: str) -> Cost:
    """Return the cost of a fit with the given treatment of the hyperparameters."""
    n, p = form.sizes
    cure = "Take fewer observations, or a prior of less rank, such as pm.gp.HSGP for a Gaussian process."
    if form.scaled_outside:
        cure = f"{INNER_SCALE} {cure}"
    if (precision := form.precision) is not None:
        memory, arrays = precision.bytes + _VECTORS * 8 * (n + p), precision.sentence
        cure = "Take fewer latent variables, or ones of which each depends on few others."
    elif (blocks := form.blocks) is not None:
        t = len(blocks.border)
        memory, arrays = 32 * (p * t + t**2) + 400 * n, f"{blocks.sentence}, of {n} predictors"
        memory += 8 * _DESIGN_COPIES * n * t if form.on_jax else 0
    elif form.solver.name == "observations":
        memory, arrays = 8 * _DENSE_COPIES * n**2, f"{_DENSE_COPIES} matrices of {n} x {n}"
    else:
        memory = 8 * (_DESIGN_COPIES * n * p + _PRECISION_COPIES * p**2)
        arrays = f"{_DESIGN_COPIES} designs of {n} x {p} and {_PRECISION_COPIES} matrices of {p} x {p}"
    fits = fits_of(form, hyper)
    return Cost(
        memory,
        _seconds(form, hyper, fits),
        f"A fit of {n} observations needs",
        arrays,
        f"some {fits} fits of {_SWEEPS} sweeps each" if fits > 1 else f"some {_SWEEPS} sweeps",
        cure,
        cure if fits == 1 else f"hyper='fixed' makes one fit. {cure}",
        form.on_jax,
    )


def _seconds(form: CompiledLatentGaussian, hyper: str, fits: int) -> float:
    n, p = form.sizes[0], form.start.size
    sites = [group.site for group in form.form.factors]
    searched, gaussian = any(site.scanned for site in sites), all(site.gaussian for site in sites)
    sweeps = _SWEEPS * fits * (form.work / _PER_SECOND + form.work**0.5 / _FEW_PER_SECOND)
    if hyper != "integrate" or not p:
        least, each = _FIXED_BY_SEARCH if searched else (_FIXED[0], 0.0) if gaussian else _FIXED
        return sweeps + fits * (least + each * n)
    least, each = _BY_SEARCH if searched else _OF_GAUSSIANS if gaussian else _BY_QUADRATURE
    draws = _DRAW * most_posteriors(form) * form.work / _PER_SECOND
    return sweeps + fits * (least + each * n) + draws + _EMULATOR[0] * p + _EMULATOR[1] * p**2
