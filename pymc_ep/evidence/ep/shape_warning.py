"""Warnings where EP's error in the width of a posterior is so large that its correction errs, or is not made."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pymc_ep.evidence.ep.cumulants import inverse_sd
from pymc_ep.evidence.ep.directions import MOST_ROWS, directions_at
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.lines import widest_line
from pymc_ep.evidence.ep.peaks import CURE
from pymc_ep.evidence.ep.shape import (
    MOST_PAIRED,
    correlations,
    error_of_pairs,
    most_removed,
    pair_terms,
    used_skewness,
    variance_error,
    variance_ratio,
)
from pymc_ep.evidence.ep.sweep import Kinds, group_slices
from pymc_ep.exceptions import NumericalError
from pymc_ep.sites.rows_of_two import ROWS
from pymc_ep.sites.two_predictors import CompiledJointSite

if TYPE_CHECKING:
    from pymc_ep.evidence.ep.evidence import Evidence

__all__ = ["error_warning", "sampled_errors"]

_NARROW, _NARROW_AT_KINKS = 1.0, 0.56
"""Relative errors d of a posterior variance, by third and fourth cumulants, from which there is a warning: for analytic
sites, and for others.

Measured on 12 likelihoods, for 2 to 57 copies of an observation of one predictor of prior standard deviation 0.5 to 10.
Up to d = 0.56 corrected standard deviations are 0.97 to 1.01 of the exact ones, EP's are 0.82 to 0.95 of them, and
means err by at most 0.08 standard deviations. At d = 0.56 to 0.8 these three are 0.95 to 0.98, 0.76 to 0.82 and 0.11,
and at d = 2 to 3 they are 0.81 to 0.87, 0.55 to 0.62 and 0.2. With copies of an observation at the kink of an
asymmetric Laplace density, the first two are 0.75 and 0.63 at d = 0.56."""
_NARROW_BY_A_TENTH = 0.27
"""Relative error d of a variance, by third cumulants, from which there is a warning: for sites of two predictors, and
where predictors are too many for a correction.

Measured for a location and the logarithm of a scale with 2 to 20 observations, of prior standard deviations 1 to 5 and
0.5 to 2. Up to d = 0.27 corrected standard deviations are 0.91 to 1.04 of the exact ones, and EP's are 0.82 to 1.12 of
them; at d = 0.27 to 0.5 these two are 0.76 to 0.98 and 0.65 to 0.89."""
_SAMPLED, _SAMPLED_OF, _NEAR = (2, 10), 10**5, 40
"""Sample of the predictors, where they are too many for a correction, whose variance errors are computed. Its size is
10^5 over the number of predictors, but at least 2 and at most 10. The error of each is from the 40 sites most
correlated with it: a solution of 40 right-hand sides, some seconds in all."""
_CAUSE = "observations whose predictors hardly differ under a wide prior"
_CURE = (
    "round covariates so that counts and bits have one predictor, which is exact, give the latent variables narrower "
    "priors"
)
_CAUSE_OF_TWO = "few observations of a group with effects in both predictors"
_CURE_OF_TWO = "give these effects narrower priors, name those of one predictor alone in latent=[...]"
_ROUGH = 0.08
"""Difference of two quadrature rules, in standard deviations of the cavity, above which there is a warning.

Measured for eight choices among 4 to 15 categories, each of its own log-odds with prior standard deviations of 3 to 10.
Up to a difference of 0.06 the evidence errs by 0.03 nats at most. From 0.08 on it errs by 0.05 to 0.7 nats, and means
by up to 0.3 standard deviations."""
_ROUNDING = 1e-9
"""Relative difference of errors that counts as rounding: observations of one predictor have the same error."""
_WIDER = 1.1
"""Ratio of the exact standard deviation along a line to EP's from which there is a warning: the size of error from
which there are other warnings. Of 45 locations with two contradicting groups of 1 to 30 observations and Student-t
densities of known scale, EP's standard deviations were 0.10 to 0.91 of the exact ones in the eleven with more, and 0.91
to 1.01 in the others, but for one at which EP of power 1 does not settle."""
_CONTRADICTED = -0.85
"""Relative error d of a variance, by third cumulants, below which there is a warning: the posterior may have several
peaks.

Measured for two contradicting observations of a predictor with a Student-t density, of prior standard deviation 4 times
the density's scale. EP's standard deviation over the exact one is 1.22 to 1.27 at d = -0.85 and 1.48 at d = -1.9, and
the corrected one over the exact one is 0.93 to 1.06 down to d = -2. The error by fourth cumulants is of no use here: it
grows up to three times as large, and has the other sign."""


def error_warning(evidence: "Evidence", at: EvidenceAt) -> str:
    """Return a warning where EP's error is so large that its correction errs; empty where it is small or unknown."""
    if not at.run.status.converged:
        return ""
    if warning := evidence.peaks(at).warning or _warning_of_line(evidence, at):
        return warning
    if evidence.joint and (warning := _warning_of_rules(evidence, at)):
        return warning
    if evidence.why_no_correction(0):
        return ""
    try:
        if len(at.problem.mean) > (MOST_ROWS if evidence.joint else MOST_PAIRED):
            return _warning_of_sample(evidence, at)
        return _warning_of_two(evidence, at) if evidence.joint else _warning_of_one(evidence, at)
    except NumericalError:  # of cumulants that are not finite
        return ""


def _warning_of_line(evidence: "Evidence", at: EvidenceAt) -> str:
    """Return a warning where the posterior along a line is wider than EP's by more than `_WIDER`; else empty."""
    few = len(at.problem.mean) <= MOST_PAIRED
    if evidence.joint or evidence.engine.one_fixed_point or not few or (line := widest_line(at)) is None:
        return ""
    if line.wider < _WIDER:
        return ""
    return (
        f"EP's own error is large: the posterior standard deviation of the predictor of "
        f"{evidence.observation(int(at.repeats.first[line.row]))} is some {1.0 - 1.0 / line.wider:.0%} too small, as "
        f"observations that contradict each other make it: {CURE}"
    )


def _warning_of_rules(evidence: "Evidence", at: EvidenceAt) -> str:
    """Return a warning where the quadrature of a site of several predictors errs by more than `_ROUGH`; else empty."""
    sweep, observed = at.run.state.sweep, at.problem.observed
    groups = zip(at.repeats.sites, observed, at.problem.parameters, group_slices(observed))
    for site, y, values, rows in groups:
        if not isinstance(site, CompiledJointSite):
            continue
        errors = site.rule_errors(y, sweep.cavity_mean[rows], sweep.cavity_variance[rows], *values)
        worst = _first_of_largest(errors)
        if errors[worst] > _ROUGH:
            return (
                f"the predictors of {evidence.observation(rows.start + worst)} are known so little that the rules of "
                f"their quadrature differ by {errors[worst]:.1g} standard deviations: give the latent variables "
                f"narrower priors, merge categories, or compare with pm.sample, started by pmep.start_point(idata)"
            )
    return ""


def _warning_of_one(evidence: "Evidence", at: EvidenceAt) -> str:
    """Return a warning, for sites of one predictor, where a variance's error is too large to correct; else empty."""
    sweep, predictors = at.run.state.sweep, len(at.problem.mean)
    skewness, kurtosis = evidence.cumulants(at)
    # A bound, with all correlations equal to one: ordinary data of many predictors end here.
    if 0.5 * (np.abs(skewness).sum() ** 2 + np.abs(kurtosis).sum() ** 2 / 3.0) < _NARROW_AT_KINKS:
        return ""
    every = np.arange(predictors)
    error = variance_error(skewness, kurtosis, correlations(at, every, every))
    limit = [_NARROW if site.site.analytic else _NARROW_AT_KINKS for site in at.repeats.sites]
    excess = error.sum(axis=0) / np.repeat(limit, [len(y) for y in at.problem.observed])
    contradicted, narrow = _first_of_largest(-error[0]), _first_of_largest(excess)
    wide = error[0, contradicted] < _CONTRADICTED
    if not wide and excess[narrow] < 1.0:
        return ""
    worst = contradicted if wide else narrow
    name = evidence.observation(int(at.repeats.first[worst]))
    sd = float(np.sqrt(variance_ratio(error[0, worst])))
    off = f"EP's own error is large: the posterior standard deviation of the predictor of {name}"
    if wide:
        return (
            f"{off} was {1.0 / sd - 1.0:.0%} too large, as observations that contradict each other make it; that is "
            f"corrected, but the posterior may have several peaks: {CURE}"
        )
    left = "corrected, but it may still be a tenth too small, and the mean off by as much"
    if not most_removed(np.asarray(at.run.state.precision) * np.asarray(sweep.posterior.variance)).any():
        left = "not corrected, as observations that contradict each other leave no room"
    return (
        f"{off} was {1.0 - 1.0 / sd:.0%} too small, as {_CAUSE} make it; that is {left}: {_CURE}, or compare with "
        f"pm.sample, started by pmep.start_point(idata)"
    )


def _warning_of_sample(evidence: "Evidence", at: EvidenceAt) -> str:
    """Return a warning where a standard deviation in a sample of many predictors is far too small; else empty."""
    errors = dict(sampled_errors(evidence, at))
    row = max(errors, key=errors.__getitem__)
    if errors[row] < _NARROW_BY_A_TENTH:
        return ""
    limit, cause, cure = MOST_PAIRED, _CAUSE, _CURE
    if evidence.joint:
        limit, cause, cure = MOST_ROWS // ROWS, _CAUSE_OF_TWO, _CURE_OF_TWO
    return (
        f"EP's own error is large: of {len(errors)} predictors that were looked at, that of "
        f"{evidence.observation(int(at.repeats.first[row]))} has a posterior standard deviation some "
        f"{_shortfall(errors[row]):.0%} too small, as {cause} make it; beyond {limit} observations that is not "
        f"corrected: {cure}, or compare with pm.sample, started by pmep.start_point(idata)"
    )


def sampled_errors(evidence: "Evidence", at: EvidenceAt) -> Iterator[tuple[int, float]]:
    """Yield the index of each predictor of a sample, and the relative excess of its exact variance over EP's.

    The excess is from third cumulants of the `_NEAR` sites with the largest correlation with the predictor or, for
    sites of one predictor, squared correlation times skewness.
    """
    posterior, rng = at.run.state.sweep.posterior, np.random.default_rng(0)
    variance, pairs = np.asarray(posterior.variance), Kinds.of(at.repeats.sites).pairs(at.problem.observed)
    scale, covariance = inverse_sd(variance), at.problem.prior.posterior_rows(posterior)
    skewness = None if evidence.joint else used_skewness(evidence.cumulants(at)[0], variance)
    size = min(max(_SAMPLED_OF // len(variance), _SAMPLED[0]), _SAMPLED[1], len(variance))
    for row in rng.choice(len(variance), size, replace=False):
        correlation = np.asarray(covariance(np.array([row])))[0] * scale[row] * scale
        if skewness is None:
            near = _whole_sites(np.argsort(-np.abs(correlation), kind="stable")[:_NEAR], pairs)
            error = directions_at(at, near).variance_errors[np.searchsorted(near, row)]
        else:
            near = np.argsort(-np.abs(correlation**2 * skewness), kind="stable")[:_NEAR]
            terms = pair_terms(skewness[near], correlations(at, near, near))
            error = error_of_pairs(terms, correlation[near][None])[0]
        yield int(row), float(error)


def _whole_sites(rows: np.ndarray, pairs: Sequence[slice]) -> np.ndarray:
    """Return `rows`, indices, together with all further rows of the same sites, ascending.

    `pairs` are the rows of the groups of sites of two predictors.
    """
    out = [rows]
    for group_rows in pairs:
        count = (group_rows.stop - group_rows.start) // ROWS
        site = (rows[(rows >= group_rows.start) & (rows < group_rows.stop)] - group_rows.start) % count
        out += [group_rows.start + site + k * count for k in range(ROWS)]
    return np.unique(np.concatenate(out))


def _first_of_largest(values: np.ndarray) -> int:
    """Return the first index of the largest value, NaN left out; values that differ by rounding count as equal."""
    largest = np.nanmax(values)
    rounding = _ROUNDING * abs(largest) if np.isfinite(largest) else 0.0
    return int(np.argmax(values >= largest - rounding))


def _shortfall(error: float) -> float:
    """Return the fraction by which EP's standard deviation is below the exact one, from the relative error d of V."""
    # EP's over the exact standard deviation is r(d)^-1/2.
    return 1.0 - 1.0 / float(np.sqrt(variance_ratio(np.asarray(error))))


def _warning_of_two(evidence: "Evidence", at: EvidenceAt) -> str:
    """Return a warning, for sites of two predictors, where a standard deviation is far too small; else empty."""
    error = evidence.directions(at).variance_errors
    worst = _first_of_largest(error)
    if error[worst] < _NARROW_BY_A_TENTH:
        return ""
    row = int(evidence.directions(at).site[worst])
    return (
        f"EP's own error is large: the posterior standard deviation of a predictor of "
        f"{evidence.observation(int(at.repeats.first[row]))} was some {_shortfall(error[worst]):.0%} too small, as "
        f"{_CAUSE_OF_TWO} make it; that is corrected, but it may still be a tenth too small: {_CURE_OF_TWO}, or "
        f"compare with pm.sample, started by pmep.start_point(idata)"
    )
