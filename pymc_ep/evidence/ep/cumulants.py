"""Non-Gaussianity of tilted distributions, and the second-order correction of EP's evidence.

At a fixed point of EP the posterior q and each site's tilted distribution q_i share the mean and the variance of
eta_i, and the exact evidence is (Opper, Paquet and Winther 2013, section 3)

    Z = Z_EP E_q[prod_i q_i(eta_i) / q(eta_i)].

With z_i = (eta_i - m_i) / V_ii^{1/2} each ratio is a series in Hermite polynomials,
1 + sum_{l >= 3} h_il He_l(z_i) / l! with h_il = E_{q_i}[He_l(z_i)]: the terms l = 1, 2 vanish since two moments match,
h_i3 is the standardised third cumulant and h_i4 the fourth. Mehler's formula
E_q[He_l(z_i) He_k(z_j)] = delta_lk l! rho_ij^l then gives, for all pairs of sites,

    log Z - log Z_EP  ~  1/2 sum_{i != j} sum_{l >= 3} h_il h_jl rho_ij^l / l!

(the second order of Paquet, Winther and Opper 2009). Here l stops at 4. For independent predictors all terms are
zero, as EP's evidence is then exact. The same pairs move the posterior variance of predictor i, to second order, by

    dV_i / V_i  ~  sum_{j < k} rho_ij rho_ik (h_j3 h_k3 rho_jk^2 + h_j4 h_k4 rho_jk^3 / 3).

Observations that contradict each other skew their tilted distributions towards each other: the terms in h_3 are then
negative, and EP's posterior is too wide. To first order the pairs skew the marginal posterior of predictor i, with the
site of i itself among them, by

    k_i  ~  sum_j rho_ij^3 h_j3.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.sweep import KNOWN, group_slices
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior, GaussianPrior
from pymc_ep.numerics.gaussian.sparse_coefficient_space import SparseFactorPrior
from pymc_ep.sites import CompiledSite, check_finite

if TYPE_CHECKING:
    from pymc_ep.evidence.ep.evidence import Evidence

__all__ = [
    "SAMPLE",
    "SHIFTED",
    "Correction",
    "Skewness",
    "all_cumulants",
    "correction_at",
    "cumulants_at",
    "error_warning",
    "evidence_correction",
    "non_gaussianity",
    "sample_of",
    "skewness_at",
    "variance_error",
    "why_no_correction",
]

_LARGEST = 50_000
"""Most predictors with a correction: the pairs of a sample with all others are formed in a second or two."""
_ALL, SAMPLE, _FEWEST = 2000, 1000, 100
"""Most predictors whose pairs are all formed, and the most and fewest of those whose pairs stand for all others beyond.
For 4000 crossed counts and bits the standard error of 500 was 4% of corrections of 0.06 to 0.4 nats."""
_STANDARD_ERROR = 0.01, 0.02
"""Standard error of a sampled correction, in nats and relative to it, at which more pairs are not worth their time. For
10^4 areas of a map or values of an autoregression, with corrections of 0.3 to 1.1 nats, 100 to 200 predictors do."""
_MOST_OF_ONE_SITE = 1.0
"""Largest share of one site, in nats: the shares are a series in the cumulants, whose higher terms then are larger."""
_NEGLIGIBLE = 0.01
"""Bound on a correction, in nats, below which it counts as zero: the pairs of sites need not be formed."""
_FULL, _ROWS = 2000, 20
"""Most predictors whose correlations are held in full, 32 MB, for errors of variances; and how many predictors are then
looked at, those with most of the error in their own pairs."""
_WRONG = 0.56
"""Error of a posterior variance, relative to EP's, that is announced: a standard deviation too small by about a fifth.

Measured on 14 likelihoods, for 1 to 57 copies of an observation of one predictor of prior standard deviation 0.5 to 10:
where EP's standard deviation is 0.9 of the exact one, the error tells 0.89 to 0.93; where it is 0.65, about 0.5. At the
limit it is 0.82 to 0.85 of the exact one under a logit, a log and a probit, and 0.8 at errors of 0.7 to 0.85."""
_CONTRADICTED = -0.85
"""Part of that error from the third cumulants that is announced: a standard deviation too large by about a quarter.

Measured for two and three contradicting observations of a predictor with a Student-t, Cauchy, Laplace or logistic
density, of prior standard deviation 20 to 60 times the density's scale and less: EP's standard deviation over the exact
one is 1.13 where this part is -0.42, 1.24 at -0.85, 1.47 at -1.7 and 2.3 at -4.3, within 0.1. The part from the fourth
cumulants then says nothing: it grows up to three times as large, and has the other sign."""
SHIFTED = 0.7
"""Largest shift of a hyperparameter by the correction, in standard deviations, without a warning. About a sixth of the
error remains after it: 0.16 of 1.04 was measured with seven binary observations for each of 294 patients, whose scale
is 4, and 0.04 of 0.38 and 0.06 of 0.24 for others. At the limit that is a tenth of a standard deviation."""
_LEAST_SKEWED = 0.01
"""Sum of the absolute skewness of sites up to which posteriors count as Gaussian: no quantile then moves by more
than 0.3 per cent of a standard deviation."""
_LEAST_MARGINAL = 0.02
"""Largest skewness up to which a posterior given many observations counts as Gaussian: quantiles move by 0.6 per cent
of a standard deviation, and those of 4000 draws err by 2."""
_MOST_OF_ONE = 3.0
"""Largest skewness of one site that is used: half as much again as that of an exponential distribution. A tilted
density with more has a far peak, of which the third cumulant tells little."""
_BLOCK = 2**18
"""Most numbers in a block of rows of the posterior covariance, 2 MB: larger ones do not fit the cache, and
take half as long again."""


class Correction(NamedTuple):
    """Second-order correction of the log evidence, by pairs of sites.

    Attributes
    ----------
    shares : ndarray, (n,)
        Half of the pair terms of each site, in nats; NaN for those outside of a sample.
    """

    shares: np.ndarray

    def of_sample(self, size: int) -> "Correction":
        """Return the correction by a smaller sample; this one where it is that of all predictors."""
        if np.isfinite(self.shares).all():
            return self
        chosen = sample_of(len(self.shares), size)
        shares = np.full(len(self.shares), np.nan)
        shares[chosen] = self.shares[chosen]
        return Correction(shares)

    @property
    def sufficient(self) -> int:
        """Size of a sample that tells the correction well enough; `SAMPLE` where this one is not that of a sample."""
        known = self.shares[np.isfinite(self.shares)]
        if known.size in (0, len(self.shares)):
            return SAMPLE
        absolute, relative = _STANDARD_ERROR
        limit = max(absolute, relative * abs(self.total)) / len(self.shares)
        return int(np.clip(known.var() / limit**2, _FEWEST, SAMPLE))

    @property
    def total(self) -> float:
        """Correction in nats."""
        known = np.isfinite(self.shares)
        return float(self.shares[known].mean() * len(known)) if known.any() else 0.0

    @property
    def diverges(self) -> str:
        """The reason why the series diverges; empty where it does not."""
        largest = float(np.abs(self.shares[np.isfinite(self.shares)]).max(initial=0.0))
        if largest <= _MOST_OF_ONE_SITE:
            return ""
        return f"one site alone would move the log evidence by {largest:.2g} nats, so that the series diverges"


class Skewness(NamedTuple):
    """Skewness of tilted distributions and of marginal posteriors, zero where there is none that is used.

    Attributes
    ----------
    sites : ndarray, (n,)
        h_j3; where observations share a predictor, the first one has that of their site.
    marginals : ndarray, (n,)
        k_j.
    """

    sites: np.ndarray
    marginals: np.ndarray


def non_gaussianity(skewness: np.ndarray, kurtosis: np.ndarray) -> np.ndarray:
    """Return the divergence KL(q_i | q), in nats, to leading order in the cumulants: h_3^2 / 12 + h_4^2 / 48.

    A site with little information next to its cavity leaves it Gaussian, so that its divergence is small. The expansion
    is that of negentropy (Jones and Sibson 1987, What is projection pursuit?).
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

    Zero for Gaussian sites, NaN for a site that couples predictors.
    """
    skewness, kurtosis = np.zeros((2, len(cavity_mean)))
    cavity_variance = np.where(cavity_variance > 0, cavity_variance, KNOWN)
    for site, y, values, here in zip(sites, observed, parameters, group_slices(observed)):
        if site.site.coupled:
            skewness[here], kurtosis[here] = np.nan, np.nan
        elif not site.site.gaussian:
            found = site.cumulants(y, cavity_mean[here], cavity_variance[here], *values)
            check_finite(found, y, cavity_mean[here], cavity_variance[here], site.site.name)
            skewness[here], kurtosis[here] = found
    return skewness, kurtosis


def why_no_correction(form: CompiledSiteForm, power: float, predictors: int) -> str:
    """Return the reason why a form's evidence has no correction; empty where it has one."""
    if power != 1.0:
        return "the expansion is about EP with power 1, whose tilted moments match the posterior's"
    if coupled := [factor.name for factor in form.form.factors if factor.site.coupled]:
        return f"the prior of {coupled[0]!r} is one factor of many predictors, whose cumulants are not known"
    many = predictors > _LARGEST
    return f"over {_LARGEST} predictors, for all pairs of which there is no room" if many else ""


def sample_of(n: int, size: int) -> np.ndarray:
    """Return the predictors of a sample, ascending: a smaller one is part of a larger."""
    return np.sort(np.random.default_rng(0).permutation(n)[:size]) if n > _ALL else np.arange(n)


def cumulants_at(at: EvidenceAt) -> tuple[np.ndarray, np.ndarray]:
    """Return `all_cumulants` at a fit."""
    found = at.run.state.sweep
    mean, variance = np.asarray(found.cavity_mean), np.asarray(found.cavity_variance)
    return all_cumulants(at.repeats.sites, at.problem.observed, at.problem.parameters, mean, variance)


def skewness_at(at: EvidenceAt, skewness: np.ndarray, *, marginals: bool = True) -> Skewness:
    """Return the skewness of sites and marginals at a fit that converged.

    Marginals have that of their own site where they are not wanted, or too many to hold all of their correlations: then
    those of a sample only tell whether all are negligible, which counts as none.

    Parameters
    ----------
    at : EvidenceAt
    skewness : ndarray, (m,)
        Of the tilted distributions of the distinct predictors.
    marginals : bool
    """
    posterior, prior = at.run.state.sweep.posterior, at.problem.prior
    variance, out = np.asarray(posterior.variance), np.zeros((2, len(at.repeats.owner)))
    own = np.where((np.abs(skewness) <= _MOST_OF_ONE) & (variance > 0.0), skewness, 0.0)
    if np.abs(own).sum() <= _LEAST_SKEWED:
        return Skewness(*out)
    out[:, at.repeats.first] = own
    if not marginals:
        return Skewness(*out)
    skew = np.flatnonzero(own)
    looked = skew if len(skew) <= _FULL else skew[:: len(skew) // _ROWS]
    inverse_sd = _inverse_sd(variance)
    rows = np.asarray(prior.posterior_rows(posterior)(looked, skew))
    found = (rows * inverse_sd[looked, None] * inverse_sd[skew]) ** 3 @ own[skew]
    if len(looked) == len(skew):
        out[1, at.repeats.first[skew]] = found
    elif max(np.abs(found).max(), _of_coefficients(prior, posterior, own * inverse_sd**3)) <= _LEAST_MARGINAL:
        out[:] = 0.0
    return Skewness(*out)


def _of_coefficients(prior: GaussianPrior, posterior: GaussianPosterior, third: np.ndarray) -> float:
    """Return the largest skewness of a coefficient, from the third cumulants of sites, (n,), over those of the sd."""
    if not isinstance(prior, FactorPrior) or posterior.drawn_from_prior:
        return 0.0
    p = len(prior.precision)
    covariance = posterior.solve(np.asarray(prior.rows))
    sd = np.sqrt(posterior.remaining_variance(np.eye(p), np.ones(p)))
    return float(np.abs(covariance**3 @ third / sd**3).max())


def correction_at(
    at: EvidenceAt, size: int = SAMPLE, cumulants: tuple[np.ndarray, np.ndarray] | None = None
) -> Correction:
    """Return the correction of the log evidence at a fit that converged; of many predictors, by a sample of `size`.

    `cumulants` are those of `cumulants_at`, if they are known.
    """
    skewness, kurtosis = cumulants or cumulants_at(at)
    # A bound, with all correlations equal to one. Many observations of few coefficients need no pairs then.
    most = np.abs(skewness).sum() ** 2 / 12.0 + np.abs(kurtosis).sum() ** 2 / 48.0
    if most < _NEGLIGIBLE:
        return Correction(np.zeros(len(skewness)))
    prior, posterior = at.problem.prior, at.run.state.sweep.posterior
    variance = np.asarray(posterior.variance)
    parts = None
    if isinstance(prior, SparseFactorPrior) and (apart := prior.apart(posterior)) is not None:
        # The same bound, of the pairs of two parts.
        most_of_site = np.minimum(np.sqrt(apart[1]) * _inverse_sd(variance), 1.0)
        third, fourth = np.abs(skewness) @ most_of_site**3, np.abs(kurtosis) @ most_of_site**4
        parts = apart[0] if third**2 / 12.0 + fourth**2 / 48.0 < _NEGLIGIBLE else None
    return evidence_correction(skewness, kurtosis, variance, prior.posterior_rows(posterior), parts, size)


def evidence_correction(
    skewness: np.ndarray,
    kurtosis: np.ndarray,
    variance: np.ndarray,
    covariance_rows: Callable[..., np.ndarray],
    parts: Sequence[np.ndarray] | None = None,
    size: int = SAMPLE,
) -> Correction:
    """Return the correction of the log evidence, to second order in third and fourth cumulants.

    Of many predictors, a sample has its pairs with all others.

    Parameters
    ----------
    skewness, kurtosis, variance : ndarray, (n,)
        Standardised tilted cumulants, and posterior variances of the predictors.
    covariance_rows : callable
        Returns the predictors' posterior covariance, of rows and columns, slices or indices; by default all columns.
    parts : sequence of ndarray of int, optional
        Parts of the predictors, of which no two are correlated to speak of.
    size : int
        Of the sample.
    """
    n = len(skewness)
    inverse_sd = _inverse_sd(variance)
    shares = np.full(n, np.nan)
    # Rows, columns, and the columns of the rows themselves.
    blocks: Iterable[tuple[np.ndarray, Any, np.ndarray]]
    if parts is None:
        looked = sample_of(n, size)
        split = np.array_split(looked, -(-len(looked) // max(1, _BLOCK // n)))
        blocks = ((rows, slice(None), rows) for rows in split)
    else:
        blocks = ((part, part, np.arange(len(part))) for part in parts)
    for rows, columns, own in blocks:
        correlation = covariance_rows(rows, columns) * inverse_sd[rows, None] * inverse_sd[columns]
        correlation[np.arange(len(own)), own] = 0.0
        cubes = correlation * correlation * correlation
        third = skewness[rows] * (cubes @ skewness[columns]) / 6.0
        fourth = kurtosis[rows] * ((cubes * correlation) @ kurtosis[columns]) / 24.0
        shares[rows] = 0.5 * (third + fourth)
    return Correction(shares)


def _inverse_sd(variance: np.ndarray) -> np.ndarray:
    """Return one over the standard deviations, and 0 for a variance of zero, up to rounding: it adds no correlation."""
    return np.where(variance > 0, 1.0 / np.sqrt(np.where(variance > 0, variance, 1.0)), 0.0)


def variance_error(
    skewness: np.ndarray, kurtosis: np.ndarray, variance: np.ndarray, covariance_rows: Callable[[slice], np.ndarray]
) -> np.ndarray:
    """Return the share by which exact posterior variances exceed EP's, (2, n), from third and from fourth cumulants.

    To second order in the cumulants; NaN for all but the predictors with most of the error in their own pairs.
    Arguments are those of `evidence_correction`.
    """
    n = len(variance)
    inverse_sd = _inverse_sd(variance)
    correlation = covariance_rows(slice(0, n)) * inverse_sd[:, None] * inverse_sd
    square = correlation**2
    np.fill_diagonal(square, 0.0)
    pairs = (square * np.outer(skewness, skewness), square * correlation * np.outer(kurtosis, kurtosis) / 3.0)
    own = np.abs([(part * correlation).sum(axis=1) for part in pairs]).sum(axis=0)
    looked = np.argsort(-own, kind="stable")[:_ROWS]
    rows = correlation[looked]
    out = np.full((2, n), np.nan)
    out[:, looked] = [0.5 * np.einsum("ij,ij->i", rows @ part, rows) for part in pairs]
    return out


def error_warning(evidence: "Evidence", at: EvidenceAt) -> str:
    """Return a warning where EP's posterior is much too wide or narrow; empty where it is not, or that is not known."""
    found, predictors = at.run.state.sweep, len(at.problem.mean)
    unknown = predictors > _FULL or why_no_correction(evidence.form, evidence.engine.power, predictors)
    if unknown or not at.run.status.converged:
        return ""
    skewness, kurtosis = cumulants_at(at)
    # A bound, with all correlations equal to one: ordinary data of many predictors end here.
    if 0.5 * (np.abs(skewness).sum() ** 2 + np.abs(kurtosis).sum() ** 2 / 3.0) < _WRONG:
        return ""
    rows = at.problem.prior.posterior_rows(found.posterior)
    error = variance_error(skewness, kurtosis, np.asarray(found.posterior.variance), rows)
    contradicted, narrow = int(np.nanargmin(error[0])), int(np.nanargmax(error.sum(axis=0)))
    wide = error[0, contradicted] < _CONTRADICTED
    if not wide and error[:, narrow].sum() < _WRONG:
        return ""
    name = evidence.observation(int(at.repeats.first[contradicted if wide else narrow]))
    off = f"EP's own error: the posterior standard deviation of the predictor of {name} is too"
    if wide:
        return (
            f"{off} large by about a quarter or more, as observations that contradict each other make it, and its "
            f"posterior may have several peaks; learn the scale of the observations or let it be larger, or compare "
            f"with pm.sample, started by pmep.start_point(idata)"
        )
    return (
        f"{off} small by about a fifth or more, as observations whose predictors hardly differ under a wide prior make "
        f"it; round covariates so that counts and bits have one predictor, which is exact, give the latent variables "
        f"narrower priors, or compare with pm.sample, started by pmep.start_point(idata)"
    )
