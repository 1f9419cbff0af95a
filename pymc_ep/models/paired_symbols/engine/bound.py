"""The lower bound on the log density of paired symbols, with all of its constants (Paquet et al. 2014, eq. 13).

`SideTerms` are sums over the symbols of one side, and can be added over parts of the users. `log_bound` adds the terms
that need both sides.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln, xlogy

from pymc_ep.models.paired_symbols.engine.updates import Crossed, censored_bound, squares
from pymc_ep.models.paired_symbols.engine.values import Block, GammaFactor, PairedPrior, Rows, Side

__all__ = ["BlockTerms", "SideTerms", "log_bound", "side_terms", "updated_gammas"]


class BlockTerms(NamedTuple):
    """Terms of the bound, summed over the factors, or the biases, of one side; fixed entries have no terms.

    Entries of infinite prior precision are fixed.

    Attributes
    ----------
    squares : ndarray, (K,) or ()
        Sum over rows of p E (u - m)^2, with the prior mean m and the prior precision p without its learned factor.
    n : float
        Number of entries of each column that are not fixed.
    constants : float
        Sum of 2 (E log q - E log prior), with the posterior q, without its terms in p E (u - m)^2 and in the learned
        precision. Entries of variance zero are points, which have no E log q.
    """

    squares: np.ndarray
    n: float
    constants: float


class SideTerms(NamedTuple):
    """Terms of the bound, summed over the symbols of one side.

    Attributes
    ----------
    popularity : float
        Terms of popularities and censored symbols, without log gamma functions of the sums of all concentrations,
        which `log_bound` adds.
    factors, bias : BlockTerms
    """

    popularity: float
    factors: BlockTerms
    bias: BlockTerms


def side_terms(side: Side, rows: Rows, counts: np.ndarray, number: float, total: float) -> SideTerms:
    """Return the bound's terms, summed over the symbols of one side, or over a part of the users.

    Parameters
    ----------
    side : Side
        Prior of the symbols.
    rows : Rows
        Posterior factors of the symbols.
    counts : ndarray, (I,)
        Number of observed pairs of each symbol.
    number : float
        Number D' of censored pairs.
    total : float
        Sum of the posterior concentrations of all symbols of the side.
    """
    (concentration, s), symbols = rows.popularity, rows.symbols
    expected_log = digamma(concentration) - digamma(total)
    # sum_i (c_i + D' s_i) E log pi_i - D' s_i log s_i.
    popularity = float((counts + number * s) @ expected_log) - number * float(xlogy(s, s).sum())
    # -KL(Dir(alpha) || Dir(alpha0)) without log Gamma(sum alpha0) - log Gamma(sum alpha), which `log_bound` adds.
    popularity += float(np.sum(gammaln(concentration) - gammaln(side.concentration)))
    popularity -= float((concentration - side.concentration) @ expected_log)
    factors = _block_terms(side.factors, symbols.mean, symbols.variance)
    return SideTerms(popularity, factors, _block_terms(side.bias, symbols.bias, symbols.bias_variance))


def _block_terms(block: Block, mean: np.ndarray, variance: np.ndarray) -> BlockTerms:
    finite = np.isfinite(block.precision)
    precision = np.where(finite, block.precision, 1.0)
    # 2 (E log q - E log p) - p E (u - m)^2 = -1 - log v - log p, and log 2 pi - log p for points.
    free = variance > 0
    log_q = np.where(free, -1.0 - np.log(np.where(free, variance, 1.0)), np.log(2.0 * np.pi))
    scaled_squares = np.where(finite, squares(block._replace(precision=precision), mean, variance), 0.0)
    n = float(finite.sum()) / max(1, scaled_squares[0].size) if len(scaled_squares) else 0.0
    return BlockTerms(scaled_squares.sum(axis=0), n, float(np.where(finite, log_q - np.log(precision), 0.0).sum()))


def log_bound(
    prior: PairedPrior,
    gammas: tuple[GammaFactor, ...],
    sides: tuple[SideTerms, ...],
    totals: tuple[float, ...],
    number: float,
    cells: np.ndarray,
    pair: Crossed,
    xi: float,
) -> float:
    """Return the bound at given posterior factors, with the tightest xi_ij in cells with observed pairs.

    Parameters
    ----------
    prior : PairedPrior
    gammas : tuple of GammaFactor
        Posteriors of the learned precisions.
    sides : tuple of SideTerms
        Terms of users and of items, or one entry where both are the same symbols.
    totals : tuple of float
        Sum of the posterior concentrations of each side.
    number : float
        Number D' of censored pairs.
    cells : ndarray, (4,)
        Sums of the columns of `pair_sums`, the last three weighted by the posterior s of a censored own symbol.
    pair : Crossed
        E a and E a^2 of a censored pair.
    xi : float
        Parameter xi* of the cells without observed pairs.
    """
    # sum_ij c_ij (log sig(xi_ij) - xi_ij / 2 + E a_ij / 2) + D' sum_ij s_i t_j Om_ij.
    total = float(cells[0]) + number * censored_bound(pair, cells, xi)
    for side, terms, mass in zip((prior.users, prior.items), sides, totals):
        total += terms.popularity + float(gammaln(side.concentration.sum()) - gammaln(mass))
        for block, factor in ((side.factors, terms.factors), (side.bias, terms.bias)):
            total -= _gaussian_divergence(block, factor, gammas)
    return total - sum(_gamma_divergence(factor, other) for factor, other in zip(gammas, prior.gammas))


def updated_gammas(prior: PairedPrior, sides: tuple[SideTerms, ...]) -> tuple[GammaFactor, ...]:
    """Return the posteriors of the learned precisions, which are Gamma densities, as all factors are Gaussian."""
    out = [[np.array(gamma.shape, dtype=float), np.array(gamma.rate, dtype=float)] for gamma in prior.gammas]
    for side, terms in zip((prior.users, prior.items), sides):
        for block, block_terms in ((side.factors, terms.factors), (side.bias, terms.bias)):
            if block.learned < 0:
                continue
            shape, rate = out[block.learned]
            # shape + n / 2 and rate + squares / 2 for each column, or summed over columns for a scalar precision.
            shape += 0.5 * block_terms.n * (1 if shape.ndim else block_terms.squares.size)
            rate += 0.5 * (block_terms.squares if rate.ndim else block_terms.squares.sum())
    return tuple(GammaFactor(*pair) for pair in out)


def _gaussian_divergence(block: Block, terms: BlockTerms, gammas: tuple[GammaFactor, ...]) -> float:
    """Return E log q - E log p of a block of independent Gaussians, with the posterior q and the prior p."""
    if block.learned < 0:
        return 0.5 * float(terms.squares.sum() + terms.constants)
    shape, rate = gammas[block.learned]
    # E tau = shape / rate, E log tau = digamma(shape) - log rate.
    precision, log_precision = (
        np.broadcast_to(values, terms.squares.shape) for values in (shape / rate, digamma(shape) - np.log(rate))
    )
    return 0.5 * float(np.sum(precision * terms.squares - terms.n * log_precision) + terms.constants)


def _gamma_divergence(posterior: GammaFactor, prior: GammaFactor) -> float:
    # KL(Gamma(a, b) || Gamma(a0, b0)) = E log q - E log p, with shapes a, a0 and rates b, b0.
    terms = (
        (posterior.shape - prior.shape) * digamma(posterior.shape)
        - gammaln(posterior.shape)
        + gammaln(prior.shape)
        + prior.shape * (np.log(posterior.rate) - np.log(prior.rate))
        + posterior.shape * (prior.rate - posterior.rate) / posterior.rate
    )
    return float(np.sum(terms))
