"""Updates of the paired-symbol model apart from its rows: backgrounds, censored pairs, xi*, precisions.

Equations follow Paquet, Koenigstein and Winther (2014), appendix B, with misprints corrected.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import digamma, log_expit, softmax

from pymc_ep.models.paired_symbols.engine.values import Block, Popularity
from pymc_ep.models.paired_symbols.kernel import Background, Symbols, curvature

__all__ = [
    "Crossed",
    "Diagonal",
    "background",
    "background_terms",
    "best_xi",
    "cell_terms",
    "censored_bound",
    "censored_logits",
    "constant_popularity",
    "crossed",
    "squares",
]

_ROUNDS, _SAME = 1_000, 1e-10
"""Largest number of iterations for a fixed point of popularities, and largest change of a logarithm at its end."""
_COMPLETE = 1e-8
"""Probability that a censored pair lies in a cell without observed pairs, up to which xi* is not updated, as it has no
effect."""


def background(symbols: Symbols, weights: np.ndarray) -> Background:
    """Return the `Background` of the symbols of one side, given their weights t, (J,)."""
    mean, bias = symbols.mean, symbols.bias
    weighted = weights[:, None] * mean
    # sum_j t_j E v_j v_j^T, with E v v^T = (E v) (E v)^T + diag(Var v).
    outer = (weighted.T @ mean).astype(float) + np.diag(weights @ symbols.variance)
    square = float(weights @ (bias.astype(float) ** 2 + symbols.bias_variance))
    return Background(outer, weights @ mean, bias @ weighted, float(weights @ bias), square, float(weights.sum()))


class Crossed(NamedTuple):
    """E a and E a^2 of the preference a of a censored pair, whose cell (i, j) has the probability s_i t_j."""

    mean: float
    square: float


class Diagonal(NamedTuple):
    """E a and E a^2, (I,) each, of the preference a of each symbol for an independent one of the same posterior."""

    mean: np.ndarray
    square: np.ndarray

    @classmethod
    def of(cls, symbols: Symbols) -> "Diagonal":
        """Return E a and E a^2 of pairs of a symbol with itself, which `crossed` and `background_terms` include."""
        m, a, bias, bias_variance = (array.astype(float) for array in symbols)
        # a = u^T u' + b + b': E a^2 = (E a)^2 + sum_k Var u_k (2 (E u_k)^2 + Var u_k) + 2 Var b.
        mean = np.einsum("ik,ik->i", m, m) + 2.0 * bias
        return cls(mean, mean**2 + np.einsum("ik,ik->i", a, 2.0 * m**2 + a) + 2.0 * bias_variance)

    def terms(self, xi: float) -> np.ndarray:
        """Return Om*_ii, (I,), the expected bound of log sig(-a) at xi*."""
        return _height(xi) - curvature(xi) * self.square - 0.5 * self.mean


def crossed(users: Background, items: Background) -> Crossed:
    """Return E a and E a^2 of a censored pair from the backgrounds of both sides."""
    # E (u^T v + b + c)^2 = tr(E[u u^T] E[v v^T]) + 2 (E[u]^T E[c v] + E[b u]^T E[v] + E[b] E[c]) + E b^2 + E c^2.
    square = (
        np.sum(users.outer * items.outer)
        + 2.0 * (users.mean @ items.mean_bias + users.mean_bias @ items.mean + users.bias * items.bias)
        + users.bias_square
        + items.bias_square
    )
    return Crossed(float(users.mean @ items.mean + users.bias + items.bias), float(square))


def best_xi(pair: Crossed, square: float, weight: float, before: float) -> float:
    """Return xi*, the root mean square of a over censored pairs in cells without observed pairs.

    `square` and `weight` are sums of s_i t_j E a_ij^2 and of s_i t_j over the cells with observed pairs. If other cells
    have hardly any probability, return `before`.
    """
    # xi*^2 = (E a^2 - sum_G s_i t_j E a_ij^2) / (1 - sum_G s_i t_j), over the cells G with observed pairs.
    mass, rest = 1.0 - weight, pair.square - square
    return float(np.sqrt(rest / mass)) if mass > _COMPLETE and rest > 0.0 else before


def cell_terms(sums: np.ndarray, xi: float) -> np.ndarray:
    """Return sum_j t_j (Om_ij - Om*_ij), (I,), over cells with observed pairs.

    Om_ij is the expected bound of log sig(-a_ij) at the cell's own xi_ij, and Om*_ij the bound at xi*. `sums`, (I, 4),
    are the `pair_sums`.
    """
    # Om_ij = log sig(xi_ij) - xi_ij / 2 - E a_ij / 2 at xi_ij^2 = E a_ij^2; E a_ij / 2 is also in Om*_ij.
    return sums[:, 1] - sums[:, 3] * _height(xi) + curvature(xi) * sums[:, 2]


def background_terms(symbols: Symbols, other: Background, xi: float) -> np.ndarray:
    """Return sum_j t_j Om*_ij, (I,), the expected bound of log sig(-a) at xi* for each own symbol."""
    mean, bias = symbols.mean.astype(float), symbols.bias.astype(float)
    along, lam = mean @ other.mean, curvature(xi)
    # sum_j t_j E a_ij^2, with sum_j t_j = 1.
    square = (
        np.einsum("ik,ik->i", mean @ other.outer, mean)
        + symbols.variance @ np.diag(other.outer)
        + 2.0 * (bias * along + mean @ other.mean_bias + bias * other.bias)
        + bias**2
        + symbols.bias_variance
        + other.bias_square
    )
    return _height(xi) - lam * square - 0.5 * (along + bias + other.bias)


def censored_bound(pair: Crossed, cells: np.ndarray, xi: float) -> float:
    """Return sum_ij s_i t_j Om_ij, the expected bound of log sig(-a) of a censored pair.

    `cells`, (4,), are sums of the columns of `pair_sums`, the last three weighted by the own symbols' posterior.
    """
    _, height, square, weight = map(float, cells)
    lam = float(curvature(xi))
    # Cells with observed pairs have their own xi_ij, all others xi*.
    return height + _height(xi) * (1.0 - weight) - lam * (pair.square - square) - 0.5 * pair.mean


def _height(xi: float) -> float:
    # log sig(xi) - xi / 2 + lam(xi) xi^2, the bound of log sig(a) at a = 0.
    return float(log_expit(xi) - 0.5 * xi + curvature(xi) * xi**2)


def constant_popularity(prior: np.ndarray, counts: np.ndarray, n_censored: float) -> Popularity:
    """Return the fixed point of popularities and censored symbols where preferences are left out.

    With E a = 0 in all cells (appendix C) the posterior of a censored symbol is proportional to exp(E log pi_i), with
    popularities pi, and depends on no preference. exp(digamma(x)) is nearly x - 1/2, so that the first guess is close.
    """
    censored = softmax(digamma(prior + counts))
    for _ in range(_ROUNDS):
        before, censored = censored, softmax(digamma(prior + counts + n_censored * censored))
        if np.abs(np.log(censored / before)).max() <= _SAME:
            break
    return Popularity.of(prior, counts, n_censored, censored)


def censored_logits(
    concentration: np.ndarray,
    total: float,
    symbols: Symbols,
    other: Background,
    sums: np.ndarray,
    xi: float,
    *,
    constant: bool,
) -> np.ndarray:
    """Return logarithms of the posterior of the symbol of a censored pair, (I,), up to its normaliser.

    Parameters
    ----------
    concentration : ndarray, (I,)
        Concentrations of the Dirichlet posterior of popularities; `total` is their sum over all symbols.
    symbols : Symbols
        Own symbols.
    other : Background
        Background of the other side.
    sums : ndarray, (I, 4)
        `pair_sums` of the own symbols.
    xi : float
        Parameter xi* of the cells without observed pairs.
    constant : bool
        Whether the preferences are left out, as if E a = 0 in all cells (appendix C): rare symbols are then not pruned.
    """
    # E log pi_i + sum_j t_j Om_ij, where E log pi_i = digamma(alpha_i) - digamma(sum_i alpha_i).
    logits = digamma(concentration) - digamma(total)
    return logits if constant else logits + cell_terms(sums, xi) + background_terms(symbols, other, xi)


def squares(block: Block, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return p E (u - m)^2 in the block's shape; p is the prior precision without a learned factor, m the mean."""
    return block.precision * ((mean - block.mean) ** 2 + variance)
