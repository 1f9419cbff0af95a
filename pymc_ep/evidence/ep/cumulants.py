"""Non-Gaussianity of tilted distributions, and the second-order correction of EP's evidence.

At a fixed point of EP the posterior q and each site's tilted distribution q_i share the mean and the variance of
eta_i, and the exact evidence is (Opper, Paquet and Winther 2013, section 3)

    Z = Z_EP E_q[prod_i q_i(eta_i) / q(eta_i)].

Let m_i and V_ii be the moments of eta_i under q, and rho_ij its correlations. With z_i = (eta_i - m_i) / V_ii^{1/2}
each ratio is a series in Hermite polynomials, 1 + sum_{l >= 3} h_il He_l(z_i) / l! with h_il = E_{q_i}[He_l(z_i)]. The
terms l = 1, 2 vanish since two moments match; h_i3 is the standardised third cumulant and h_i4 the fourth. Mehler's
formula E_q[He_l(z_i) He_k(z_j)] = delta_lk l! rho_ij^l then gives, for all pairs of sites,

    log Z - log Z_EP  ~  1/2 sum_{i != j} sum_{l >= 3} h_il h_jl rho_ij^l / l!

(the second order of Paquet, Winther and Opper 2009). Here l stops at 4. For independent predictors all terms are
zero, as EP's evidence is then exact. The effect of the same pairs on the posterior is in `pymc_ep.evidence.ep.shape`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.sweep import KNOWN, group_slices
from pymc_ep.numerics.gaussian.sparse_coefficient_space import SparseFactorPrior
from pymc_ep.sites import CompiledSite, check_finite

__all__ = [
    "SAMPLE",
    "SHIFTED",
    "Correction",
    "all_cumulants",
    "correction_at",
    "cumulants_at",
    "evidence_correction",
    "inverse_sd",
    "non_gaussianity",
    "sample_of",
    "why_no_correction",
]

_LARGEST = 50_000
"""Most predictors with a correction: to form the pairs of a sample with all others takes a second or two."""
_ALL, SAMPLE, _FEWEST = 2000, 1000, 100
"""Most predictors all pairs of which are formed. Of more predictors, a sample is paired with all others; the second and
third number are the largest and smallest size of the sample. For 4000 crossed counts and bits the standard error by a
sample of 500 was 4% of corrections of 0.06 to 0.4 nats."""
_STANDARD_ERROR = 0.01, 0.02
"""Standard error up to which a sampled correction is accurate enough: the larger of the first, in nats, and the second
times the correction. For 10^4 areas of a map or values of an autoregression, with corrections of 0.3 to 1.1 nats, a
sample of 100 to 200 predictors is enough."""
_MOST_OF_ONE_SITE = 1.0
"""Largest share of one site in a correction, in nats, beyond which the series in the cumulants counts as divergent: its
higher terms are larger still."""
_NEGLIGIBLE = 0.01
"""Upper bound of a correction, in nats, below which the correction counts as zero, and no pairs of sites are formed."""
SHIFTED = 0.7
"""Largest shift of a hyperparameter's mean by the correction, in standard deviations, without a warning. The correction
leaves about a sixth of EP's error: 0.16 of 1.04 was measured with seven binary observations for each of 294 patients,
whose effects have the scale 4, and 0.04 of 0.38 and 0.06 of 0.24 for other models. A sixth of the limit is a tenth of a
standard deviation."""
_BLOCK = 2**18
"""Most elements in a block of rows of the posterior covariance, 2 MB: larger blocks do not fit the cache, and
take half as long again."""


class Correction(NamedTuple):
    """Second-order correction of the log evidence, by pairs of sites.

    Attributes
    ----------
    shares : ndarray, (n,)
        Share of each site in the correction, half of its pair terms, in nats; NaN for sites outside of the sample.
    """

    shares: np.ndarray

    def of_sample(self, size: int) -> "Correction":
        """Return the correction by `size` predictors of this one's sample; itself where all shares are known."""
        if np.isfinite(self.shares).all():
            return self
        chosen = sample_of(len(self.shares), size)
        shares = np.full(len(self.shares), np.nan)
        shares[chosen] = self.shares[chosen]
        return Correction(shares)

    @property
    def sufficient(self) -> int:
        """Size of a sample, `_FEWEST` to `SAMPLE`, that meets `_STANDARD_ERROR`; `SAMPLE` where this is not sampled."""
        sampled = self.shares[np.isfinite(self.shares)]
        if sampled.size in (0, len(self.shares)):
            return SAMPLE
        absolute, relative = _STANDARD_ERROR
        # The total, n times the mean of k shares, has the standard error n sd / k^1/2.
        limit = max(absolute, relative * abs(self.total)) / len(self.shares)
        return int(np.clip(sampled.var() / limit**2, _FEWEST, SAMPLE))

    @property
    def total(self) -> float:
        """Correction of the log evidence in nats: the number of sites times the mean of the known shares."""
        is_sampled = np.isfinite(self.shares)
        return float(self.shares[is_sampled].mean() * len(is_sampled)) if is_sampled.any() else 0.0

    @property
    def diverges(self) -> str:
        """The reason why the series diverges; empty where it does not."""
        largest = float(np.abs(self.shares[np.isfinite(self.shares)]).max(initial=0.0))
        if largest <= _MOST_OF_ONE_SITE:
            return ""
        return f"one site alone would move the log evidence by {largest:.2g} nats, so that the series diverges"


def non_gaussianity(skewness: np.ndarray, kurtosis: np.ndarray) -> np.ndarray:
    """Return KL(q_i || q) of tilted from posterior marginals, (n,), in nats, to leading order: h_3^2 / 12 + h_4^2 / 48.

    A site with little information next to its cavity leaves the cavity nearly Gaussian, so that its divergence is
    small. The expansion is negentropy's (Jones and Sibson 1987, What is projection pursuit?).
    """
    return skewness**2 / 12.0 + kurtosis**2 / 48.0


def all_cumulants(
    sites: Sequence[CompiledSite],
    observed: Sequence[np.ndarray],
    parameters: Sequence[Sequence[np.ndarray]],
    cavity_mean: np.ndarray,
    cavity_variance: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the standardised third and fourth cumulants of all tilted distributions, (n,) each.

    Zero for Gaussian sites. NaN for sites of several predictors, and for a factor that couples all its predictors.
    """
    skewness, kurtosis = np.zeros((2, len(cavity_mean)))
    cavity_variance = np.where(cavity_variance > 0, cavity_variance, KNOWN)
    for site, y, values, rows in zip(sites, observed, parameters, group_slices(observed)):
        if site.site.coupled or site.site.predictors > 1:
            skewness[rows], kurtosis[rows] = np.nan, np.nan
        elif not site.site.gaussian:
            cumulants = site.cumulants(y, cavity_mean[rows], cavity_variance[rows], *values)
            check_finite(cumulants, y, cavity_mean[rows], cavity_variance[rows], site.site.name)
            skewness[rows], kurtosis[rows] = cumulants
    return skewness, kurtosis


def why_no_correction(form: CompiledSiteForm, power: float, predictors: int) -> str:
    """Return the reason why a form's evidence has no correction; empty where it has one."""
    if coupled := [factor.name for factor in form.form.factors if factor.site.coupled]:
        return f"the prior of {coupled[0]!r} is one factor of many predictors, whose cumulants are not known"
    if several := [factor.name for factor in form.form.factors if factor.site.predictors > 2]:
        return f"{several[0]!r} has more than two predictors an observation, whose cumulants are not known"
    if power != 1.0:
        return "the expansion is about EP with power 1, whose tilted moments match the posterior's"
    many = predictors > _LARGEST
    return f"over {_LARGEST} predictors, for all pairs of which there is no room" if many else ""


def sample_of(n: int, size: int) -> np.ndarray:
    """Return ascending indices of a sample of `size` of n predictors, or all n of up to 2000; samples are nested."""
    return np.sort(np.random.default_rng(0).permutation(n)[:size]) if n > _ALL else np.arange(n)


def cumulants_at(at: EvidenceAt) -> tuple[np.ndarray, np.ndarray]:
    """Return `all_cumulants` at a fit: skewness and kurtosis of the m distinct predictors' sites, (m,) each."""
    sweep = at.run.state.sweep
    mean, variance = np.asarray(sweep.cavity_mean), np.asarray(sweep.cavity_variance)
    return all_cumulants(at.repeats.sites, at.problem.observed, at.problem.parameters, mean, variance)


def correction_at(
    at: EvidenceAt, size: int = SAMPLE, cumulants: tuple[np.ndarray, np.ndarray] | None = None
) -> Correction:
    """Return the correction of the log evidence at a fit that converged.

    Of more than 2000 predictors, pairs are formed within parts that are nearly independent, or by a sample of `size`.
    `cumulants` is the result of `cumulants_at`, if it is known.
    """
    skewness, kurtosis = cumulants or cumulants_at(at)
    # A bound, with all correlations equal to one. Many observations of few coefficients need no pairs then.
    most = np.abs(skewness).sum() ** 2 / 12.0 + np.abs(kurtosis).sum() ** 2 / 48.0
    if most < _NEGLIGIBLE:
        return Correction(np.zeros(len(skewness)))
    prior, posterior = at.problem.prior, at.run.state.sweep.posterior
    variance = np.asarray(posterior.variance)
    blocks = None
    if isinstance(prior, SparseFactorPrior) and (apart := prior.apart(posterior)) is not None:
        # The same bound, of the pairs of two parts.
        # Between parts |rho_ij| <= q_i q_j, so that sum_ij |h_i h_j rho_ij^3| <= (sum_i |h_i| q_i^3)^2.
        most_of_site = np.minimum(np.sqrt(apart[1]) * inverse_sd(variance), 1.0)
        third, fourth = np.abs(skewness) @ most_of_site**3, np.abs(kurtosis) @ most_of_site**4
        blocks = apart[0] if third**2 / 12.0 + fourth**2 / 48.0 < _NEGLIGIBLE else None
    return evidence_correction(skewness, kurtosis, variance, prior.posterior_rows(posterior), blocks, size)


def evidence_correction(
    skewness: np.ndarray,
    kurtosis: np.ndarray,
    variance: np.ndarray,
    covariance_rows: Callable[..., np.ndarray],
    clusters: Sequence[np.ndarray] | None = None,
    size: int = SAMPLE,
) -> Correction:
    """Return the correction of the log evidence, to second order in third and fourth cumulants.

    Of more than 2000 predictors, the pairs of a sample with all others are formed.

    Parameters
    ----------
    skewness, kurtosis, variance : ndarray, (n,)
        Standardised tilted cumulants, and posterior variances of the predictors.
    covariance_rows : callable
        ``covariance_rows(rows, columns)`` returns these elements of the predictors' posterior covariance. Both are
        slices or indices; without `columns` it returns whole rows.
    clusters : sequence of ndarray of int, optional
        Indices of parts of the predictors, between which correlations are negligible.
    size : int
        Size of the sample.
    """
    n = len(skewness)
    scale = inverse_sd(variance)
    shares = np.full(n, np.nan)
    # Rows, columns, and the columns of the rows themselves.
    blocks: Iterable[tuple[np.ndarray, Any, np.ndarray]]
    if clusters is None:
        sample = sample_of(n, size)
        split = np.array_split(sample, -(-len(sample) // max(1, _BLOCK // n)))
        blocks = ((rows, slice(None), rows) for rows in split)
    else:
        blocks = ((block, block, np.arange(len(block))) for block in clusters)
    for rows, columns, diagonal in blocks:
        correlation = covariance_rows(rows, columns) * scale[rows, None] * scale[columns]
        correlation[np.arange(len(diagonal)), diagonal] = 0.0
        # Share of site i: sum_{j != i} (h_i3 h_j3 rho_ij^3 / 3! + h_i4 h_j4 rho_ij^4 / 4!) / 2.
        cubes = correlation * correlation * correlation
        third = skewness[rows] * (cubes @ skewness[columns]) / 6.0
        fourth = kurtosis[rows] * ((cubes * correlation) @ kurtosis[columns]) / 24.0
        shares[rows] = 0.5 * (third + fourth)
    return Correction(shares)


def inverse_sd(variance: np.ndarray) -> np.ndarray:
    """Return V^{-1/2} of variances V; 0 where V is zero or, by rounding, negative, so that correlations are zero."""
    return np.where(variance > 0, 1.0 / np.sqrt(np.where(variance > 0, variance, 1.0)), 0.0)
