"""Row updates of the paired-symbol model (Paquet, Koenigstein and Winther 2014), NumPy bodies.

Symbols i of one side, the own symbols, are updated given the other symbols j. A cell (i, j) has c_ij observed pairs and
the preference a_ij = u_i^T v_j + b_i + b_j. All factors and biases are independent Gaussians. The bound of the logistic
function sig,

    log sig(a) >= log sig(xi) + (a - xi) / 2 - lam(xi) (a^2 - xi^2),    lam(xi) = (sig(xi) - 1/2) / (2 xi),

is quadratic in a, and tightest at xi^2 = E a^2. The own and the other symbol of a censored pair have the posteriors s
and t, so that D' censored pairs have the expected counts D' s_i t_j. All cells without observed pairs share one
parameter xi*, so that they enter through moments of the other symbols, the `Background`:

    outer = sum_j t_j E v_j v_j^T,   mean = sum_j t_j E v_j,   mean_bias = sum_j t_j E b_j v_j,
    bias = sum_j t_j E b_j,          bias_square = sum_j t_j E b_j^2.

Cells with observed pairs add terms of weights w_ij = 2 c_ij lam_ij + 2 D' s_i t_j (lam_ij - lam*), where lam_ij =
lam(xi_ij) and lam* = lam(xi*). Nothing is stored for a cell: xi_ij is computed from the present moments in each use.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit

from pymc_ep.numerics.memory import chunks

__all__ = [
    "NOTHING",
    "SERIES",
    "Background",
    "Cells",
    "Censored",
    "Priors",
    "Statistics",
    "Symbols",
    "curvature",
    "pair_sums",
    "row_statistics",
    "solve_rows",
    "update_in_turn",
    "update_rows",
    "with_symbol",
]

_CHUNK = 2**18
"""Largest number of entries of all K x K matrices of a chunk of cells."""
SERIES = 1e-3
"""Value of xi below which lam(xi) is computed by its series, whose error there is 1e-15."""


class Symbols(NamedTuple):
    """Independent Gaussian factors and biases of all users, or of all items.

    Attributes
    ----------
    mean, variance : ndarray, (I, K)
    bias, bias_variance : ndarray, (I,)
    """

    mean: np.ndarray
    variance: np.ndarray
    bias: np.ndarray
    bias_variance: np.ndarray


class Priors(NamedTuple):
    """Prior means and precisions of `Symbols`; an infinite precision of a bias holds it at its mean.

    Attributes
    ----------
    mean, precision : ndarray, (I, K)
    bias, bias_precision : ndarray, (I,)
    """

    mean: np.ndarray
    precision: np.ndarray
    bias: np.ndarray
    bias_precision: np.ndarray


class Background(NamedTuple):
    """Sums of moments over the symbols of one side, weighted by their posterior t in a censored pair; see the module.

    Attributes
    ----------
    outer : ndarray, (K, K)
    mean, mean_bias : ndarray, (K,)
    bias, bias_square : float
    weight : float
        Sum of the weights t: 1 over all symbols.
    """

    outer: np.ndarray
    mean: np.ndarray
    mean_bias: np.ndarray
    bias: float
    bias_square: float
    weight: float = 1.0


NOTHING = Background(np.zeros((0, 0)), np.zeros(0), np.zeros(0), 0.0, 0.0)
"""Background for functions that do not use one."""


class Censored(NamedTuple):
    """Number and posterior of the censored pairs, for an update of the own symbols.

    Attributes
    ----------
    number : float
        Number D' of censored pairs.
    own, other : ndarray, (I,) and (J,)
        Posteriors s and t of the own and of the other symbol of a censored pair.
    background : Background
        Background of the other symbols.
    xi : float
        Parameter xi* of the cells without observed pairs.
    """

    number: float
    own: np.ndarray
    other: np.ndarray
    background: Background
    xi: float


class Cells(NamedTuple):
    """Cells with observed pairs, in the order of their own symbols.

    Attributes
    ----------
    ends : ndarray of int64, (I + 1,)
        Own symbol i has the cells ``ends[i]:ends[i + 1]``.
    others : ndarray of int32, (G,)
        The other symbol of each cell.
    counts : ndarray, (G,)
        Number c_ij > 0 of observed pairs of each cell.
    """

    ends: np.ndarray
    others: np.ndarray
    counts: np.ndarray


class Statistics(NamedTuple):
    """Sums over the cells of each own symbol; sums over disjoint sets of cells can be added.

    Attributes
    ----------
    precision : ndarray, (I, K (K + 1) / 2)
        Lower triangles of sum w E v v^T, by rows.
    shift, slope : ndarray, (I, K)
        sum (c / 2 - w E b_j) E v and sum w E v.
    of_bias : ndarray, (I, 2)
        sum w and sum (c / 2 - w E (u^T v + b_j)).
    """

    precision: np.ndarray
    shift: np.ndarray
    slope: np.ndarray
    of_bias: np.ndarray

    @staticmethod
    def widths(n_factors: int) -> tuple[int, int, int, int]:
        """Return the number of columns of each of the four fields, for `n_factors` factors."""
        return n_factors * (n_factors + 1) // 2, n_factors, n_factors, 2


def curvature(xi: ArrayLike) -> np.ndarray:
    """Return lam(xi) = tanh(xi / 2) / (4 xi) of values of at least zero."""
    xi = np.asarray(xi, dtype=float)
    small = xi < SERIES
    safe = np.where(small, 1.0, xi)
    # lam(xi) = 1/8 - xi^2 / 96 + O(xi^4), where tanh(xi / 2) / (4 xi) would be 0 / 0.
    return np.where(small, 0.125 - xi**2 / 96.0, np.tanh(0.5 * safe) / (4.0 * safe))


def pair_sums(cells: Cells, own: Symbols, other: Symbols, weights: np.ndarray) -> np.ndarray:
    """Return sums over the cells of each own symbol, (I, 4), at the tightest bounds xi_ij^2 = E a_ij^2.

    The columns are sum c (log sig(xi) - xi / 2 + E a / 2), sum t (log sig(xi) - xi / 2), sum t E a^2 and sum t. Here t
    are the `weights`, (J,), of the other symbols.
    """
    out = np.zeros((len(cells.ends) - 1, 4))
    for i, j, count in _chunks(cells, own.mean.shape[1]):
        mean, square = _moments(own, other, i, j)
        xi = np.sqrt(square)
        height, t = log_expit(xi) - 0.5 * xi, weights[j]
        np.add.at(out, i, np.stack([count * (height + 0.5 * mean), t * height, t * square, t], axis=1))
    return out


def row_statistics(cells: Cells, own: Symbols, other: Symbols, censored: Censored) -> Statistics:
    """Return the sums over the cells of each own symbol from which `solve_rows` updates it.

    Parameters
    ----------
    cells : Cells
    own, other : Symbols
        Symbols before the update.
    censored : Censored
        The background is not used.
    """
    n_own, width = own.mean.shape
    lower = np.tril_indices(width)
    lam, number = curvature(censored.xi), censored.number * np.asarray(censored.own, dtype=float)
    out = Statistics(*(np.zeros((n_own, n)) for n in Statistics.widths(width)))
    for i, j, count in _chunks(cells, width):
        mean, square = _moments(own, other, i, j)
        lam_ij = curvature(np.sqrt(square))
        w = 2.0 * (count * lam_ij + number[i] * censored.other[j] * (lam_ij - lam))
        v = other.mean[j].astype(float)
        # w E v v^T = w ((E v) (E v)^T + diag(Var v)).
        outer = w[:, None, None] * v[:, :, None] * v[:, None, :]
        outer[:, np.arange(width), np.arange(width)] += w[:, None] * other.variance[j]
        np.add.at(out.precision, i, outer[:, *lower])
        np.add.at(out.shift, i, (0.5 * count - w * other.bias[j])[:, None] * v)
        np.add.at(out.slope, i, w[:, None] * v)
        # mean - b_i = E (u_i^T v_j + b_j).
        np.add.at(out.of_bias, i, np.stack([w, 0.5 * count - w * (mean - own.bias[i])], axis=1))
    return out


def solve_rows(
    statistics: Statistics, own: Symbols, priors: Priors, censored: Censored, sequential: bool = False
) -> Symbols:
    """Return the own symbols after updates of the biases, then of the factors, given the sums over their cells.

    Parameters
    ----------
    statistics : Statistics
    own : Symbols
        Symbols before the update.
    priors : Priors
        Priors of the own symbols.
    censored : Censored
        The posterior t of the other symbol is not used.
    sequential : bool
        Whether the factors of a symbol are updated one after the other; by default all at once, which is the joint
        maximum of the bound.
    """
    width = own.mean.shape[1]
    lam, background = curvature(censored.xi), censored.background
    number = censored.number * np.asarray(censored.own, dtype=float)
    # P = 2 D' s lam* outer + sum_j w_j E v_j v_j^T, plus the prior precision below; P E u = m for all factors at once.
    precision = 2.0 * lam * number[:, None, None] * background.outer
    rows, columns = np.tril_indices(width)
    precision[:, rows, columns] += statistics.precision
    precision[:, columns, rows] = precision[:, rows, columns]
    # m = shift - slope E b, where a censored pair has the log density -a / 2 - lam* a^2 up to a constant.
    shift = statistics.shift - number[:, None] * (0.5 * background.mean + 2.0 * lam * background.mean_bias)
    slope = statistics.slope + 2.0 * lam * number[:, None] * background.mean
    # rho E b = pull, with the precision rho = 2 D' s lam* + sum_j w_j; the prior is added to both below.
    rho = statistics.of_bias[:, 0] + 2.0 * lam * number * background.weight
    along = background.bias + own.mean @ background.mean
    pull = statistics.of_bias[:, 1] - number * (0.5 * background.weight + 2.0 * lam * along)
    held = np.isinf(priors.bias_precision)
    bias_precision = np.where(held, 1.0, priors.bias_precision)
    rho += bias_precision
    bias = np.where(held, priors.bias, (pull + bias_precision * priors.bias) / rho)
    precision[:, np.arange(width), np.arange(width)] += priors.precision
    shift += priors.precision * priors.mean - slope * bias[:, None]
    if sequential:
        mean = own.mean.astype(float)
        for k in range(width):
            # mu_k = (m_k - sum_{l != k} P_kl mu_l) / P_kk.
            rest = np.einsum("il,il->i", precision[:, k], mean) - precision[:, k, k] * mean[:, k]
            mean[:, k] = (shift[:, k] - rest) / precision[:, k, k]
    else:
        mean = np.linalg.solve(precision, shift[:, :, None])[:, :, 0]
    # Best variances of independent factors, 1 / P_kk.
    variance = 1.0 / np.einsum("ikk->ik", precision)
    fields = (mean, variance, bias, np.where(held, 0.0, 1.0 / rho))
    return Symbols(*(field.astype(own.mean.dtype) for field in fields))


def update_rows(
    cells: Cells, own: Symbols, other: Symbols, priors: Priors, censored: Censored, sequential: bool = False
) -> Symbols:
    """Return the own symbols after updates of the bounds xi_ij, then of the biases, then of the factors.

    The arguments are as in `row_statistics` and `solve_rows`.
    """
    return solve_rows(row_statistics(cells, own, other, censored), own, priors, censored, sequential)


def with_symbol(background: Background, symbol: Symbols, weight: Any) -> Background:
    """Return a background with one symbol, `Symbols` of one row, added, or for a negative weight removed.

    Arrays may be JAX arrays.
    """
    mean, variance, bias = symbol.mean[0], symbol.variance[0], symbol.bias[0]
    return Background(
        background.outer + weight * (mean[:, None] * mean + np.eye(len(mean)) * variance),
        background.mean + weight * mean,
        background.mean_bias + weight * bias * mean,
        background.bias + weight * bias,
        background.bias_square + weight * (bias**2 + symbol.bias_variance[0]),
        background.weight + weight,
    )


def update_in_turn(
    cells: Cells,
    own: Symbols,
    priors: Priors,
    censored: Censored,
    sequential: bool = False,
    points: tuple[bool, bool] = (False, False),
) -> Symbols:
    """Return symbols of one set, which are paired with each other, after an update of each in turn.

    An update uses the present values of all other symbols. No symbol is paired with itself, so that the background for
    a symbol leaves out the symbol itself.

    Parameters
    ----------
    cells : Cells
        Cells of a symmetric matrix of counts whose diagonal is zero.
    own : Symbols
        Symbols before the update.
    priors : Priors
    censored : Censored
        The number is 2 D', as a pair has two orders. The posteriors s and t are the same. The background is of all
        symbols before the update.
    sequential : bool
        As in `solve_rows`.
    points : (bool, bool)
        Whether factors, and whether biases, are points, of variance zero.
    """
    symbols, background = Symbols(*(array.copy() for array in own)), censored.background
    for i, weight in enumerate(censored.own):
        row, cell_slice = slice(i, i + 1), slice(cells.ends[i], cells.ends[i + 1])
        before = Symbols(*(array[row] for array in symbols))
        background = with_symbol(background, Symbols(*(array.astype(float) for array in before)), -weight)
        row_censored = censored._replace(own=censored.own[row], background=background)
        row_cells = Cells(cells.ends[i : i + 2] - cells.ends[i], cells.others[cell_slice], cells.counts[cell_slice])
        row_priors = Priors(*(array[row] for array in priors))
        after = update_rows(row_cells, before, symbols, row_priors, row_censored, sequential)
        for array, value, is_point in zip(symbols, after, (False, points[0], False, points[1])):
            array[row] = 0.0 if is_point else value
        background = with_symbol(background, Symbols(*(array[row].astype(float) for array in symbols)), weight)
    return symbols


def _moments(own: Symbols, other: Symbols, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return E a and E a^2, (n,) each, of cells (i, j)."""
    m, a, n, b = (array.astype(float) for array in (own.mean[i], own.variance[i], other.mean[j], other.variance[j]))
    mean = np.einsum("ck,ck->c", m, n) + own.bias[i] + other.bias[j]
    # E a^2 = (E a)^2 + sum_k (Var u_k E v_k^2 + Var v_k (E u_k)^2) + Var b_i + Var b_j.
    spread = np.einsum("ck,ck->c", a, n**2 + b) + np.einsum("ck,ck->c", b, m**2)
    return mean, mean**2 + spread + own.bias_variance[i] + other.bias_variance[j]


def _chunks(cells: Cells, width: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield chunks of cells: own symbols, other symbols and counts, (n,) each."""
    rows = np.repeat(np.arange(len(cells.ends) - 1), np.diff(cells.ends))
    for chunk in chunks(len(rows), width**2, _CHUNK):
        yield rows[chunk], cells.others[chunk], cells.counts[chunk].astype(float)
