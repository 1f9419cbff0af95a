"""Shape of a posterior beyond EP's Gaussian: its width and skewness, by pairs of sites.

EP's posterior of predictor i has the variance V_i, and its correlations with other predictors are rho_ij. The tilted
distribution of site i has the standardised third and fourth cumulants h_i3 and h_i4
(`pymc_ep.evidence.ep.cumulants`). To second order, pairs of sites change the posterior variance by

    dV_i / V_i  ~  sum_{j < k} rho_ij rho_ik (h_j3 h_k3 rho_jk^2 + h_j4 h_k4 rho_jk^3 / 3)

(Opper, Paquet and Winther 2013). Observations that nearly repeat one another have positive terms in h_3: EP's posterior
is too narrow. Observations that contradict each other skew their tilted distributions towards each other, which makes
these terms negative: EP's posterior is too wide. To first order, the marginal posterior of predictor i has the skewness

    k_i  ~  sum_j rho_ij^3 h_j3,

to which its own site contributes as well. With d_i the part of dV_i / V_i from third cumulants, the corrected variance
is r(d_i) V_i, where the ratio

    r(d) = (1 + 3 d / 2) / (1 + d / 2)  for d >= 0,      r(d) = 1 / r(-d)  for d < 0,

is 1 + d to first order, and bounded. The correction changes the sites, so that all affine variables stay jointly
Gaussian. Their precisions become

    pi_j - w_j / V_j,      (rho * rho + a I) w = 1 - 1 / r(d),

with the elementwise square rho * rho and a small constant a. To first order in w this gives the corrected variances.
Shifts change with the precisions so that the posterior mean stays the same. No w_j exceeds pi_j V_j, and no w_j is
positive if any pi_j is negative: the corrected posterior is then proper where EP's is. Rows of sites of two predictors
have precisions of either sign (`pymc_ep.sites.rows_of_two`). There w is scaled so that no eigenvalue of
diag(w)^{1/2} rho diag(w)^{1/2}, over the positive w, exceeds one half: below one the posterior is proper.
"""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigvalsh

from pymc_ep.contracts.evidence import FitState
from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.ep.cumulants import inverse_sd
from pymc_ep.evidence.ep.directions import Directions, pairs_of
from pymc_ep.evidence.ep.fit import EvidenceAt, KeptFit, Shape
from pymc_ep.evidence.ep.sweep import Kinds
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior, GaussianPrior
from pymc_ep.sites.rows_of_two import ROWS, precision_of, precision_rows

__all__ = [
    "MOST_PAIRED",
    "correlations",
    "error_of_pairs",
    "most_removed",
    "pair_shape",
    "pair_terms",
    "shape_at",
    "shape_of_two",
    "used_skewness",
    "variance_error",
    "variance_ratio",
    "wide_sites",
]

MOST_PAIRED, _ROWS = 2000, 20
"""Most predictors whose whole matrix of correlations is formed, 32 MB; and the number of predictors whose variance
errors are computed first, the ones with the largest error from pairs that include their own site."""
_LEAST_WIDENED = 0.01
"""Relative error of posterior variances up to which no variance is corrected. It is an error of half a per cent in a
standard deviation, where 4000 draws err by one per cent."""
_SMOOTH = 0.1
"""The constant a of (rho * rho + a I) w, which bounds w where predictors are nearly the same. For a from 0.001 to 0.1,
standard deviations of linear functions of a process agree within 0.3%."""
_NOTHING = 1e-9
"""Size below which a negative pi_j V_j, a site's share of the posterior precision, counts as rounding."""
_MOST_OF_PRECISION = 0.5
"""Largest share of the posterior precision, in any direction, that the correction takes from sites of two predictors.
At relative errors of variances of up to 0.5 it takes 0.31."""
_HALVINGS = 8
"""Number of shares 1, 1/2, 1/4, ... of w that are tried, at most, at hyperparameters other than the centre's, where
predictors may be far more correlated."""
_PASSES = 4
"""Most linear systems solved for w until no element exceeds its bound; after the last, larger elements are cut off."""
_MOST_MORE = 2.0
"""Largest ratio of w at other hyperparameters to w at the centre; hyperparameters with a larger one weigh little."""
_LEAST_SKEWED = 0.01
"""Sum of the absolute skewness of sites up to which posteriors count as Gaussian: no quantile then moves by more
than 0.3 per cent of a standard deviation."""
_LEAST_MARGINAL = 0.02
"""Largest skewness up to which a posterior given many observations counts as Gaussian: quantiles move by 0.6 per cent
of a standard deviation, and quantiles of 4000 draws err by 2 per cent."""
_MOST_OF_ONE = 3.0
"""Largest skewness of one site that is used: half as much again as an exponential distribution's. A tilted density with
more has a far peak, about which the third cumulant tells little."""


def shape_at(at: EvidenceAt, skewness: np.ndarray) -> Shape:
    """Return the shape of the posterior at a fit that converged.

    Where more than `MOST_PAIRED` sites are skewed, their correlations would take too much memory. Each marginal then
    has the skewness of its own site, and EP's width. If the posterior skewness of a sample of the predictors, and of
    all coefficients, is negligible, the whole shape is zero instead.

    Parameters
    ----------
    at : EvidenceAt
    skewness : ndarray, (m,)
        Skewness of the tilted distributions of the distinct predictors.
    """
    posterior = at.run.state.sweep.posterior
    variance, out = np.asarray(posterior.variance), np.zeros((4, len(at.repeats.owner)))
    h3 = used_skewness(skewness, variance)
    skew = np.flatnonzero(h3)
    out[:2, at.repeats.first] = h3
    if len(skew) > MOST_PAIRED:
        return Shape(*(np.zeros_like(out) if _is_negligible(at, h3, skew) else out))
    if len(skew):
        bound = most_removed(np.asarray(at.run.state.precision) * variance)[skew]
        marginal, removed = pair_shape(h3[skew], correlations(at, skew, skew), bound)
        out[1, at.repeats.first[skew]] = marginal
        precision = np.zeros(len(h3))
        precision[skew] = -removed / variance[skew]
        # db = m dpi keeps the slope b - pi m at the mean m, and so the mean.
        out[2:] = at.repeats.shared(precision * np.asarray(posterior.mean)), at.repeats.shared(precision)
    return Shape(*out)


def shape_of_two(at: EvidenceAt, directions: Directions) -> Shape:
    """Return the shape of the posterior at a fit that converged, where sites have two predictors; see `Shape`."""
    posterior, repeats = at.run.state.sweep.posterior, at.repeats
    distinct, every = len(repeats.first), len(repeats.owner)
    skewness, correlation = directions.skewness, directions.correlation
    marginal, shift, precision = np.zeros_like(skewness), np.zeros(every), np.zeros(every)
    if np.abs(skewness).sum() > _LEAST_SKEWED:
        marginal = _marginal_skewness(correlation, skewness)
        if np.abs(directions.variance_errors).max() > _LEAST_WIDENED:
            w = _unbounded_weights(directions)
            # diag(w)^1/2 F F^T diag(w)^1/2 has the eigenvalues of F^T diag(w) F.
            taken, last = directions.root * np.sqrt(np.maximum(w, 0.0))[:, None], directions.root.shape[1] - 1
            largest = float(eigvalsh(taken.T @ taken, subset_by_index=(last, last))[0])
            w *= min(1.0, _MOST_OF_PRECISION / max(largest, _NOTHING))
            pairs = Kinds.of(repeats.sites).pairs(at.problem.observed)
            # Directions have unit posterior variance, so that -w / V is -w; db = m dpi keeps the mean m.
            added = directions.precisions(-w, pairs)
            shift, precision = repeats.shared(added * np.asarray(posterior.mean)), repeats.shared(added)
    else:
        skewness = np.zeros_like(skewness)
    out = np.zeros((2, every + len(skewness) - distinct))
    places = np.append(repeats.first, np.arange(every, out.shape[1]))
    out[:, places] = skewness, marginal
    return Shape(out[0], out[1], shift, precision)


def pair_shape(skewness: np.ndarray, correlation: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior skewness of predictors, (n,), and w, (n,), at most `bound`; see the module.

    `skewness`, (n,), is the skewness of their sites, and `correlation`, (n, n), is under the posterior.
    """
    return _marginal_skewness(correlation, skewness), _removed(skewness, correlation, bound)


def correlations(at: EvidenceAt, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return posterior correlations, (k, m), of the predictors with indices `rows`, (k,), and `columns`, (m,)."""
    posterior = at.run.state.sweep.posterior
    scale = inverse_sd(np.asarray(posterior.variance))
    return np.asarray(at.problem.prior.posterior_rows(posterior)(rows, columns)) * scale[rows, None] * scale[columns]


def _marginal_skewness(correlation: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """Return sum_j rho_ij^3 h_j3, (k,), from correlations rho, (k, m), and the skewness h_j3 of sites, (m,)."""
    return (correlation * correlation * correlation) @ skewness


def _is_negligible(at: EvidenceAt, skewness: np.ndarray, skew: np.ndarray) -> bool:
    """Whether the posterior skewness of all coefficients, and of a sample of the predictors `skew`, is negligible.

    `skewness`, (m,), is the skewness of all sites, and `skew` holds the indices of the skewed ones.
    """
    posterior = at.run.state.sweep.posterior
    marginal = _marginal_skewness(correlations(at, skew[:: len(skew) // _ROWS], skew), skewness[skew])
    third = skewness * inverse_sd(np.asarray(posterior.variance)) ** 3
    return max(np.abs(marginal).max(), _of_coefficients(at.problem.prior, posterior, third)) <= _LEAST_MARGINAL


def used_skewness(skewness: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the skewness of sites, (m,), with zeros where it is not used; all zero if the sum of sizes is negligible.

    A skewness is used if its size is above `_LEAST_SKEWED` / `MOST_PAIRED` and at most `_MOST_OF_ONE`, and the
    predictor has a variance. The lower limit leaves out rounding errors, as of a site with a kink far from all
    posterior mass, so that results do not depend on where such data lie.
    """
    size = np.abs(skewness)
    used = np.where((size > _LEAST_SKEWED / MOST_PAIRED) & (size <= _MOST_OF_ONE) & (variance > 0.0), skewness, 0.0)
    return used if np.abs(used).sum() > _LEAST_SKEWED else np.zeros_like(used)


def wide_sites(
    form: CompiledSiteForm,
    centre: EvidenceAt,
    shape: Shape,
    fits: Sequence[tuple[np.ndarray, FitState, KeptFit]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return shifts and precisions of the sites of k fits, (k, n) each, with the width corrected as at the centre.

    The correction w of a fit is the centre's times the ratio of the mean squares of the skewness of sites, since w is
    of second order in the skewness. Standard deviations mixed over hyperparameters are then within 0.5% of values with
    w computed at each fit, where the correction is up to 6%. Where fits have kept no skewness, w is the centre's, or
    the largest of its shares 1/2, 1/4, ... that leaves enough of the posterior precision.

    Parameters
    ----------
    form : CompiledSiteForm
    centre : EvidenceAt
        The central fit.
    shape : Shape
        Shape at the centre.
    fits : sequence of tuple
        Hyperparameters, state and kept parts of each fit.
    """
    shifts, precisions = (np.array([state[field] for _, state, _ in fits]) for field in range(2))
    if not shape.precision.any():
        return shifts, precisions
    variance, square, pairs = centre.predictors[1], (shape.skewness**2).sum(), pairs_of(form)
    for shift, precision, (theta, _, fit) in zip(shifts, precisions, fits):
        if fit.skewness is None:
            added = _rescaled(shape.precision, variance, fit.variance, pairs)
            added *= _proper_share(form.prior(theta), shift, precision, added)
        else:
            more = min((fit.skewness**2).sum() / square, _MOST_MORE)
            added = _rescaled(more * shape.precision, variance, fit.variance)
            added = np.maximum(added, -most_removed(precision * fit.variance) * inverse_sd(fit.variance) ** 2)
        # db = m dpi keeps the mean m.
        shift += added * fit.mean
        precision += added
    return shifts, precisions


def _proper_share(prior: Prior, shift: np.ndarray, precision: np.ndarray, added: np.ndarray) -> float:
    """Return the largest of the shares 1, 1/2, 1/4, ... of `added`, (n,), that leaves enough posterior precision.

    `added` are changes of the sites' precisions. They may take at most the fraction `_MOST_OF_PRECISION` of the
    posterior precision in any direction. 0 if no share is allowed.
    """
    for share in 0.5 ** np.arange(_HALVINGS):
        # With c = `_MOST_OF_PRECISION`, P + s A / c > 0 means that -s A, which is taken from P, is below c P.
        ahead = precision + share / _MOST_OF_PRECISION * added
        if bool(prior.posterior(shift, ahead, log_concave=False).proper):
            return float(share)
    return 0.0


def _rescaled(
    precision: np.ndarray, variance: np.ndarray, other: np.ndarray, pairs: Sequence[slice] = ()
) -> np.ndarray:
    """Return precisions pi of rows, (n,), rescaled from variances `variance`, (n,), to `other`, (n,), at the same pi V.

    Zero for a known predictor, which has no variance. `pairs` are the rows of groups of sites of two predictors.
    """
    # pi V is kept, and of two predictors Pi_ab (V_aa V_bb)^1/2.
    scale = np.sqrt(np.maximum(variance, 0.0)) * inverse_sd(other)
    out = precision * scale**2
    for rows in pairs:
        first, second, _ = scale[rows].reshape(ROWS, -1)
        p_1, p_2, both = precision_of(precision[rows])
        out[rows] = precision_rows(p_1 * first**2, p_2 * second**2, both * first * second)
    return out


def most_removed(share: np.ndarray) -> np.ndarray:
    """Return bounds of w, (n,), that keep the posterior proper: the sites' shares pi_j V_j, (n,), of its precision.

    All zero if any share is negative beyond rounding.
    """
    return np.maximum(share, 0.0) if share.min() > -_NOTHING else np.zeros_like(share)


def variance_ratio(error: np.ndarray) -> np.ndarray:
    """Return r(d), the ratio of exact to EP's posterior variance, from d, their relative difference to second order."""
    size = np.abs(error)
    ratio = (1.0 + 1.5 * size) / (1.0 + 0.5 * size)
    return np.where(error >= 0.0, ratio, 1.0 / ratio)


def _removed(skewness: np.ndarray, correlation: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return w, (m,), at most `bound`, from the skewness of sites, (m,); zero if the largest errors are negligible."""
    terms = pair_terms(skewness, correlation)
    sample = _with_most(_own_error(terms, correlation))
    if np.abs(error_of_pairs(terms, correlation[sample])).max() <= _LEAST_WIDENED:
        return np.zeros(len(skewness))
    return _weights(error_of_pairs(terms, correlation), correlation, bound)


def _weights(error: np.ndarray, correlation: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return w, (m,), at most `bound`, that corrects the relative errors d, (m,), of the variances of m predictors."""
    matrix = correlation * correlation
    matrix.flat[:: len(matrix) + 1] += _SMOOTH
    change = 1.0 - 1.0 / variance_ratio(error)
    # w minimises w' (rho * rho + a I) w / 2 - (1 - 1 / r)' w. Bounds that a solution breaks are active in the next.
    removed, free = bound, np.ones(len(bound), dtype=bool)
    for _ in range(_PASSES):
        # M_ff w_f = c_f - M_fb w_b for the free f and the bounded b, M = rho * rho + a I and c = 1 - 1 / r.
        rest = change[free] - matrix[np.ix_(free, ~free)] @ bound[~free]
        removed = bound.copy()
        removed[free] = cho_solve(cho_factor(matrix[np.ix_(free, free)], lower=True), rest)
        free &= removed < bound
        if free.all() or not free.any():
            break
    return np.minimum(removed, bound)


def _unbounded_weights(directions: Directions) -> np.ndarray:
    """Return w, (k,), that corrects the variances of directions: `_weights` without a bound, by the root F of rho."""
    root, error = directions.root, directions.variance_errors
    first, second = np.triu_indices(root.shape[1])
    if 2 * len(first) > len(error):
        return _weights(error, directions.correlation, np.full(len(error), np.inf))
    # rho * rho = G G^T for products G of two columns of F, and (G G^T + a I)^-1 = (I - G (G^T G + a I)^-1 G^T) / a.
    products = root[:, first] * root[:, second] * np.where(first == second, 1.0, np.sqrt(2.0))
    inner = products.T @ products
    inner.flat[:: len(inner) + 1] += _SMOOTH
    change = 1.0 - 1.0 / variance_ratio(error)
    return (change - products @ cho_solve(cho_factor(inner, lower=True), products.T @ change)) / _SMOOTH


def _of_coefficients(prior: GaussianPrior, posterior: GaussianPosterior, third: np.ndarray) -> float:
    """Return the largest posterior skewness of a coefficient; 0 for a prior without coefficients drawn directly.

    `third` is h_j3 / V_j^{3/2}, (n,), of the sites.
    """
    if not isinstance(prior, FactorPrior) or posterior.drawn_from_prior:
        return 0.0
    p = len(prior.precision)
    # Cov(v, eta) = B^-1 R = C, and sum_j rho_ij^3 h_j3 = sum_j (C_ij / sd_i)^3 h_j3 / V_j^3/2.
    covariance = posterior.solve(np.asarray(prior.rows))
    sd = np.sqrt(posterior.remaining_variance(np.eye(p), np.ones(p)))
    return float(np.abs(covariance**3 @ third / sd**3).max())


def pair_terms(cumulants: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Return h_j h_k rho_jk^2, (m, m), with a diagonal of zeros, for cumulants h, (m,), of one order."""
    terms = cumulants[:, None] * cumulants
    terms *= correlation
    terms *= correlation
    np.fill_diagonal(terms, 0.0)
    return terms


def _own_error(terms: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Return the size of each predictor's relative variance error from pairs that include its own site, (m,)."""
    # Pairs with j = i, where rho_ii = 1: sum_k terms_ik rho_ik.
    return np.abs(np.einsum("ij,ij->i", terms, correlation))


def _with_most(own_error: np.ndarray) -> np.ndarray:
    """Return the indices of the predictors with the largest `_own_error`, `_ROWS` at most."""
    return np.argsort(-own_error, kind="stable")[:_ROWS]


def error_of_pairs(terms: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return relative errors of k predictors' variances, (k,), from `pair_terms`, (m, m), and correlations, (k, m)."""
    # sum_{j < k} rho_ij rho_ik terms_jk, half of the sum over all j and k.
    return 0.5 * np.einsum("ij,ij->i", rows @ terms, rows)


def variance_error(skewness: np.ndarray, kurtosis: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Return the relative excess of exact posterior variances over EP's by third and by fourth cumulants, (2, n).

    To second order in the cumulants. NaN for all but the `_ROWS` predictors with the largest error from pairs that
    include their own site.

    Parameters
    ----------
    skewness, kurtosis : ndarray, (n,)
        Standardised tilted cumulants.
    correlation : ndarray, (n, n)
        Of the predictors, under EP's posterior.
    """
    # h_j3 h_k3 rho_jk^2 and h_j4 h_k4 rho_jk^3 / 3.
    both = pair_terms(skewness, correlation), pair_terms(kurtosis, correlation) * correlation / 3.0
    sample = _with_most(np.sum([_own_error(terms, correlation) for terms in both], axis=0))
    out = np.full((2, len(skewness)), np.nan)
    out[:, sample] = [error_of_pairs(terms, correlation[sample]) for terms in both]
    return out
