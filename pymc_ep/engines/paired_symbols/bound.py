"""The lower bound on the log density of paired symbols, with all of its constants (Paquet et al. 2014, eq. 13)."""

import numpy as np
from scipy.special import digamma, gammaln, xlogy

from pymc_ep.engines.paired_symbols.updates import (
    background_terms,
    cell_terms,
    expected_log,
    squares,
)
from pymc_ep.engines.paired_symbols.values import Block, GammaFactor, PairCounts, PairedPrior, Popularity
from pymc_ep.kernels.paired_symbols import Background, Symbols

__all__ = ["log_bound"]


def log_bound(
    pairs: PairCounts,
    prior: PairedPrior,
    symbols: tuple[Symbols, Symbols],
    popularities: tuple[Popularity, Popularity],
    gammas: tuple[GammaFactor, ...],
    of_items: Background,
    sums: np.ndarray,
    xi: float,
) -> float:
    """Return the bound at given factors, whose cells have their tightest xi_ij.

    Parameters
    ----------
    pairs : PairCounts
    prior : PairedPrior
    symbols, popularities : pair
        Of users and items.
    gammas : tuple of GammaFactor
        Posteriors of the learned precisions.
    of_items : Background
        Of the items.
    sums : ndarray, (I, 4)
        `pair_sums` of the users.
    xi : float
        xi* of the cells without observed pairs.
    """
    users, _ = popularities
    censored = cell_terms(sums, xi) + background_terms(symbols[0], of_items, xi)
    total = sums[:, 0].sum() + prior.n_censored * float(users.censored @ censored)
    sides = zip((prior.users, prior.items), symbols, popularities, (pairs.users, pairs.items))
    for side, own, popularity, counts in sides:
        s, n = popularity.censored, prior.n_censored
        total += float((counts + n * s) @ expected_log(popularity.concentration)) - n * float(xlogy(s, s).sum())
        total -= _dirichlet_divergence(popularity.concentration, side.concentration)
        for block, moments in ((side.factors, own[:2]), (side.bias, own[2:])):
            total -= _gaussian_divergence(block, *moments, gammas)
    return total - sum(_gamma_divergence(own, other) for own, other in zip(gammas, prior.gammas))


def _dirichlet_divergence(own: np.ndarray, other: np.ndarray) -> float:
    constants = gammaln(own.sum()) - gammaln(own).sum() - gammaln(other.sum()) + gammaln(other).sum()
    return float(constants + (own - other) @ expected_log(own))


def _gaussian_divergence(
    block: Block, mean: np.ndarray, variance: np.ndarray, gammas: tuple[GammaFactor, ...]
) -> float:
    """Return E log q - E log p of independent Gaussians.

    Entries of variance zero are points, which have no E log q; constants, of infinite prior precision, are left out.
    """
    free, points = variance > 0, (variance == 0) & np.isfinite(block.precision)
    precision, log_precision = np.ones(()), np.zeros(())
    if block.learned >= 0:
        gamma = gammas[block.learned]
        precision, log_precision = gamma.shape / gamma.rate, digamma(gamma.shape) - np.log(gamma.rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = precision * squares(block, mean, variance)
        own = np.log(block.precision) + log_precision
        divergences = square - own - np.log(variance) - 1.0
    return 0.5 * float(divergences[free].sum() + (square - own + np.log(2.0 * np.pi))[points].sum())


def _gamma_divergence(own: GammaFactor, other: GammaFactor) -> float:
    terms = (
        (own.shape - other.shape) * digamma(own.shape)
        - gammaln(own.shape)
        + gammaln(other.shape)
        + other.shape * (np.log(own.rate) - np.log(other.rate))
        + own.shape * (other.rate - own.rate) / own.rate
    )
    return float(np.sum(terms))
