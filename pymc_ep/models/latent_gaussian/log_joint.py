"""Priors of noise blocks, and the exact log joint density of draws of hyperparameters and noise.

The joint density is of the model's free variables, on PyMC's unconstrained scale. A latent variable is its mean
plus noise w, a shift, and so has the density of the noise. Where w = L v, the model's variable is v, the block's
origin.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.linalg

from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.models.latent_gaussian.values import NoiseDraws, NoiseMoments
from pymc_ep.numerics.memory import chunks

__all__ = ["BUDGET", "NoisePrior", "log_joint", "log_standard_normal"]

BUDGET = 5e8
"""Largest work of `log_joint`: the sum over draws and varying blocks of d^3 for a block of d correlated values, of d^2
for a covariance that is diagonal by value, and of d for one that is diagonal by its graph.

It applies where hyperparameters vary, as each draw then needs Cholesky factors of its own. 4000 draws of 50 values
reach it, a fifth of a second."""
_BATCH_SIZE = 2**18
"""Doubles of covariances that are evaluated in one call, 2 MiB: it bounds memory at many draws."""


class NoisePrior:
    """Prior of one noise block: w ~ N(0, C), with C possibly singular, or w = L v.

    Parameters
    ----------
    block : NoiseMoments
    """

    def __init__(self, block: NoiseMoments):
        self.block = block
        if block.flat:
            return
        diagonal = block.covariance.diagonal()
        self.diagonal = bool(np.count_nonzero(block.covariance) == np.count_nonzero(diagonal))
        if block.factor is not None:
            return
        if self.diagonal:
            self._pivots = np.flatnonzero(diagonal)
            self._scale = np.sqrt(diagonal)
        else:
            # Pivoted, so that a singular covariance (repeated inputs) needs no jitter.
            factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(block.covariance, lower=1, tol=-1.0)
            self._pivots = pivots[:rank] - 1
            self._rows = pivots - 1
            self._scale = np.tril(factor)[:, :rank]

    @property
    def size(self) -> int:
        """Dimension d of the noise."""
        return self.block.covariance.shape[0]

    @property
    def singular(self) -> bool:
        """Whether w ~ N(0, C) has no density on R^d, as C is singular; False for a flat prior and for w = L v."""
        return self.block.factor is None and not self.block.flat and len(self._pivots) < self.size

    def draw(self, size: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return draws of the noise, (size, d), and, where the block has one, of its origin, (size, k)."""
        if self.block.factor is not None:
            origin = rng.standard_normal((size, self.block.factor.shape[1]))
            return origin @ self.block.factor.T, origin
        if self.diagonal:
            return (rng.standard_normal((size, self.size)) * self._scale,)
        # P^T C P = F F^T with the pivots' permutation P, so that w = P F e, e ~ N(0, I), has the covariance C.
        draws = np.empty((size, self.size))
        draws[:, self._rows] = rng.standard_normal((size, self._scale.shape[1])) @ self._scale.T
        return (draws,)

    def log_density(self, noise: np.ndarray, origin: np.ndarray | None = None) -> np.ndarray:
        """Return the log density, (s,), of the origin where it is given, else of the noise.

        For a singular C it is the density of the pivoted values, which determine the other values. For a flat prior it
        is the log of (2 pi)^{-d/2}, as in coefficient space.
        """
        if self.block.flat:
            return np.full(len(noise), -0.5 * self.size * np.log(2 * np.pi))
        if origin is not None:
            return log_standard_normal(origin)
        # log N(w; 0, F F^T) = log N(F^-1 w; 0, I) - sum_i log F_ii, for the pivoted values; F may be diagonal.
        free = noise[:, self._pivots]
        if self.diagonal:
            scale = self._scale[self._pivots]
            return log_standard_normal(free / scale) - np.log(scale).sum()
        factor = self._scale[: len(self._pivots)]
        whitened = scipy.linalg.solve_triangular(factor, free.T, lower=True).T
        return log_standard_normal(whitened) - np.log(factor.diagonal()).sum()


def log_standard_normal(rows: np.ndarray) -> np.ndarray:
    """Return the log density, (s,), of independent standard normals at rows, (s, d)."""
    return -0.5 * np.einsum("ij,ij->i", rows, rows) - 0.5 * rows.shape[1] * np.log(2 * np.pi)


def log_joint(
    form: SiteFunctions,
    priors: Sequence[NoisePrior],
    theta: np.ndarray,
    draws: NoiseDraws,
    log_density: Mapping[str, np.ndarray],
    log_excess: float | np.ndarray,
    *,
    held: bool,
    budget: float,
) -> tuple[np.ndarray | None, str]:
    """Return the log density, (s,), of hyperparameters, latent variables and observations at s draws.

    Parameters
    ----------
    form : SiteFunctions
    priors : sequence of NoisePrior
        Prior of each block, at the mode of the hyperparameters.
    theta : ndarray, (s, p)
    draws : NoiseDraws
        Noise and origins, at the mode of the hyperparameters or shifted to first order.
    log_density : mapping of str to ndarray, (s, *shape)
        Log density of the sites of each factor, at these draws of theta and noise.
    log_excess : float or ndarray, (s,)
        log(PyMC's density of the latent variables / the normalised one), at each row of theta.
    held : bool
        Whether the hyperparameters are fixed at the mode; the density is then conditional on them.
    budget : float
        Largest work, such as the sum over draws and blocks of d^3; see `BUDGET`.

    Returns
    -------
    density : ndarray, (s,), or None
        None where it exceeds the budget, a covariance is singular, or a value is NaN.
    reason : str
        Reason for a missing density, else empty.
    """
    if held:
        densities = [prior.log_density(*draw) for prior, draw in zip(priors, draws)]
        return sum(densities) + log_excess + _sum_sites(log_density), ""
    varying = [i for i, varies in enumerate(form.rows.varying) if varies]
    if len(theta) * sum(priors[i].size ** _cost_exponent(form, priors, i) for i in varying) > budget:
        return None, "a covariance to factorise for each draw is too much work"
    # log p(theta) + log excess + sum_j log p(w_j | theta) + sum_i log t_i(eta_i).
    density = form.rows.log_prior(theta) + log_excess
    for i, (prior, draw) in enumerate(zip(priors, draws)):
        if i not in varying or prior.block.factor is not None:
            density = density + prior.log_density(*draw)
    if varying:
        try:
            varying_density, draws = _at_each_draw(form, varying, theta, draws)
        except np.linalg.LinAlgError:
            return None, "a covariance is singular"
        density = density + varying_density
    if any(priors[i].block.factor is not None for i in varying):
        # Draws of w = L v were shifted to first order; the exact w follows from v and each draw's own L.
        log_density = form.rows.log_density(theta, [draw[0] for draw in draws])
    density = density + _sum_sites(log_density)
    return (None, "it is not finite") if np.any(np.isnan(density)) else (density, "")


def _cost_exponent(form: SiteFunctions, priors: Sequence[NoisePrior], block: int) -> int:
    """Return k, where the density of a block of d values costs d^k for each draw."""
    if form.independent[block]:
        return 1
    return 2 if priors[block].diagonal else 3


def _sum_sites(log_density: Mapping[str, np.ndarray]) -> np.ndarray:
    return sum(values.reshape(len(values), -1).sum(axis=1) for values in log_density.values())


def _at_each_draw(
    form: SiteFunctions, varying: Sequence[int], theta: np.ndarray, draws: NoiseDraws
) -> tuple[np.ndarray, NoiseDraws]:
    """Return log densities, (s,), of the blocks with varying scales, and draws with w = L v, at each draw's theta."""
    density = np.zeros(len(theta))
    exact = [(noise.copy(), *origin) for noise, *origin in draws]
    largest = max(draws[i][0].shape[1] ** (1 if form.independent[i] else 2) for i in varying)
    for rows in chunks(len(theta), largest, _BATCH_SIZE):
        for i, scales in zip(varying, form.rows.scales(theta[rows])):
            noise, *origin = exact[i]
            if origin:
                noise[rows] = np.einsum("sdk,sk->sd", scales, origin[0][rows])
            elif form.independent[i]:
                density[rows] += _log_density_independent(scales, noise[rows])
            else:
                density[rows] += [_log_density_correlated(c, w) for c, w in zip(scales, noise[rows])]
    return density, exact


def _log_density_independent(variances: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return log N(noise; 0, diag(variances)), (s,), for rows of both; raise LinAlgError for a variance of zero."""
    if np.any(variances == 0):
        raise np.linalg.LinAlgError("a variance of zero")
    scale = np.sqrt(variances)
    return log_standard_normal(noise / scale) - np.log(scale).sum(axis=1)


def _log_density_correlated(covariance: np.ndarray, noise: np.ndarray) -> float:
    """Return log N(noise; 0, covariance); raise LinAlgError for a singular covariance."""
    prior = NoisePrior(NoiseMoments(covariance, covariance))
    if prior.singular:
        raise np.linalg.LinAlgError("singular covariance")
    return float(prior.log_density(noise[None])[0])
