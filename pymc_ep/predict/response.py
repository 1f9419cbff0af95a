"""Observations on their own scale: moments and quantiles under a mixture of predictors, Gaussian or skewed.

Component k of the mixture has the weight w_k, and the predictor eta = m_k + s_k T_k(u) of a standard normal u, see
`pymc_ep.numerics.skewed_normal`. Given eta, an observation y has the mean mu(eta) and the variance s2(eta). Then

    E[y] = sum_k w_k E_k[mu],    Var[mu] = sum_k w_k (Var_k[mu] + (E_k[mu] - E[y])^2),    Var[y] = Var[mu] + E[s2].

Each one-dimensional integral is by the trapezoidal rule, which is exact to rounding for smooth functions and to 1e-4 of
a standard deviation where a link has a kink. As mu rises with eta, quantiles of mu are mu at quantiles of eta. For
quantiles of y, a mixture of Gaussians that is nearly the same replaces the predictor's density. Quantiles of counts are
read off cumulative sums of predictive probabilities, other ones off the integral of the predictive density.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.skewed_normal import skewed, unskewed
from pymc_ep.predict.log_predictive import AtPredictor
from pymc_ep.sites import check_finite

__all__ = ["LINES", "expected_response", "observation_quantiles", "predictor_quantiles"]

_NODES = 801
"""Number of nodes of the trapezoidal rule over 18 standard deviations of u. Where a link has a kink, the error is 1e-4
standard deviations."""
_REACH = 9.0
"""Reach of the rule to each side, in standard deviations of u: exp(-9^2 / 2) is 3e-18. Twice the standard deviation of
eta is added, as exp(eta)^2 shifts the mass of eta by twice its variance. With the skewness k of eta, the added reach is
multiplied by 1 + 2 |k|, the largest slope of a skewed tail."""
_HALVINGS = 60
"""Steps of bisection: more than the digits of a double."""
_MOST_COUNTS = 10**5
"""Largest count up to which probabilities are summed: a bound on the work of one quantile."""
_COUNTS = 64
"""Number of counts whose probabilities are evaluated at a time. Fewer would take more calls; more would be evaluated in
vain where the quantiles are small counts."""
_FAR = 40.0
"""Distance from the centre, in logarithms or logits, beyond which the density counts as zero: a factor of 2e17."""
_EDGES = np.linspace(-1.0, 1.0, 201)
"""Edges, in t, of the intervals over which a predictive density is integrated, by two nodes each. The observation,
mapped to the real line, is centre + scale t / (1 - t^2)."""

LINES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "real": (lambda y: y, lambda w: w, np.zeros_like),
    "positive": (np.log, np.exp, lambda w: w),
    "unit interval": (logit, expit, lambda w: -np.logaddexp(0.0, w) - np.logaddexp(0.0, -w)),
}
"""For each continuous domain: the map to the real line, its inverse, and the log slope of the inverse."""
LINES["non-negative"] = LINES["positive"]


def expected_response(
    weights: np.ndarray, predictors: Sequence[AtPredictor]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean, and the standard deviations of the expected and of a new observation, (*shape) each.

    Parameters
    ----------
    weights : ndarray, (k,)
        Weights of the components of a mixture.
    predictors : sequence of AtPredictor
        Predictors of each component.
    """
    moments = np.array([_moments(predictor) for predictor in predictors])
    means, within, noise = moments[:, 0], moments[:, 1], moments[:, 2]
    mean = np.tensordot(weights, means, axes=1)
    # A mean of infinity has an infinite variance already.
    between = np.subtract(means, mean, out=np.zeros_like(means), where=np.isfinite(means) & np.isfinite(mean))
    variance = np.tensordot(weights, within + between**2, axes=1)
    return mean, np.sqrt(variance), np.sqrt(variance + np.tensordot(weights, noise, axes=1))


def _moments(at: AtPredictor) -> np.ndarray:
    """Return mean and variance of mu(eta), and the mean of s2(eta), (3, *shape), of one component."""
    response = at.site.site.response
    assert response is not None, "the caller has looked"
    shape, n = at.mean.shape, at.mean.size
    out = np.empty((3, n))
    for places in chunks(n, _NODES):
        chunk = at.rows(places)
        # E over a standard normal: even nodes z, with weights in proportion to exp(-z^2 / 2).
        z = np.linspace(-1.0, 1.0, _NODES)[:, None] * (
            _REACH + 2.0 * np.sqrt(chunk.variance) * (1.0 + 2.0 * np.abs(chunk.skewness))
        )
        mass = np.exp(-0.5 * z**2)
        mass /= mass.sum(axis=0)
        eta, values = chunk.at_normal(z), chunk.parameters
        # Where the mass has underflowed, an exponential link may have overflowed.
        seen = mass > 0
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            mu, spread = response.mean(eta, *values), response.variance(eta, *values)
            first = np.where(seen, mass * mu, 0.0).sum(axis=0)
            # The square of mu alone would overflow where its share does not; infinity less infinity is infinite here.
            squared = np.where(np.isinf(mu), np.inf, (np.sqrt(mass) * (mu - first)) ** 2)
            out[0, places], out[1, places] = first, np.where(seen, squared, 0.0).sum(axis=0)
            out[2, places] = np.where(seen, mass * spread, 0.0).sum(axis=0)
    return out.reshape(3, *shape)


def predictor_quantiles(weights: np.ndarray, predictors: Sequence[AtPredictor], levels: np.ndarray) -> np.ndarray:
    """Return quantiles of the expected observation, (levels, *shape): quantiles of eta, through the increasing link."""
    response = predictors[0].site.site.response
    assert response is not None, "the caller has looked"
    return np.array(
        [response.mean(eta, *predictors[0].parameters) for eta in _mixture_quantiles(weights, predictors, levels)]
    )


def _mixture_quantiles(weights: np.ndarray, predictors: Sequence[AtPredictor], levels: np.ndarray) -> np.ndarray:
    """Return quantiles of a mixture of predictors, (levels, *shape), by bisection between its components' quantiles."""
    mean, sd = (
        np.array([predictor.mean for predictor in predictors]),
        np.sqrt([predictor.variance for predictor in predictors]),
    )
    skewness = np.array([predictor.skewness for predictor in predictors])
    out = []
    for level in levels:
        # The mixture's quantile is between the least and the largest of the components' m_k + s_k T_k(Phi^-1(level)).
        each = mean + sd * skewed(ndtri(level), skewness)
        low, high = each.min(axis=0), each.max(axis=0)
        for _ in range(_HALVINGS if len(predictors) > 1 else 0):
            middle = 0.5 * (low + high)
            # sum_k w_k Phi(T_k^-1((x - m_k) / s_k)) < level.
            below = np.tensordot(weights, ndtr(unskewed((middle - mean) / sd, skewness)), axes=1) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        out.append(0.5 * (low + high))
    return np.array(out)


def observation_quantiles(
    name: str, weights: np.ndarray, predictors: Sequence[AtPredictor], levels: np.ndarray
) -> np.ndarray:
    """Return quantiles of new observations, (levels, *shape); for counts, the least one whose CDF reaches the level."""
    shape, domain = predictors[0].mean.shape, predictors[0].site.site.domain
    gaussians = [
        (weight * share, gaussian)
        for weight, predictor in zip(weights, predictors)
        for share, gaussian in predictor.rows(slice(None)).gaussians()
    ]
    shares, flat = zip(*gaussians)
    find = _continuous_quantiles if domain in LINES else _count_quantiles
    return find(name, np.array(shares), flat, levels).reshape(len(levels), *shape)


def _log_predictive(
    name: str, weights: np.ndarray, predictors: Sequence[AtPredictor], y: np.ndarray, row: np.ndarray
) -> np.ndarray:
    """Return log predictive densities of observations y, (m,), each under the predictor `row`, (m,)."""
    total = np.full(len(y), -np.inf)
    for weight, predictor in zip(weights, predictors):
        mean, variance = predictor.mean[row], predictor.variance[row]
        tilted = predictor.site.moments(y, mean, variance, 1.0, *(p[row] for p in predictor.parameters))
        check_finite(tilted, y, mean, variance, name)
        total = np.logaddexp(total, np.log(weight) + np.asarray(tilted.log_z))
    return total


def _count_quantiles(
    name: str, weights: np.ndarray, predictors: Sequence[AtPredictor], levels: np.ndarray
) -> np.ndarray:
    """Return quantiles of counts, (levels, n): sum predictive probabilities from zero until all levels are reached."""
    n, site = len(predictors[0].mean), predictors[0].site.site
    most = np.full(n, 1.0 if site.domain == "binary" else np.inf)
    if "n" in site.parameters:
        most = predictors[0].parameters[site.parameters.index("n")]
    out, reached, first, active = np.full((len(levels), n), np.nan), np.zeros(n), 0, np.arange(n)
    while active.size:
        if first > _MOST_COUNTS:
            raise UnsupportedModelError(
                f"Quantiles of {name!r} lie above {_MOST_COUNTS} counts, too many to add up; use "
                f"pm.sample_posterior_predictive(idata, var_names=[{name!r}]), or kind='expectation'."
            )
        counts = first + np.arange(_COUNTS)
        y, row = (array.ravel() for array in np.broadcast_arrays(counts, active[:, None]))
        possible = y <= most[row]
        mass = np.zeros(len(y))
        log_mass = _log_predictive(name, weights, predictors, y[possible].astype(float), row[possible])
        mass[possible] = np.exp(log_mass)
        # P(Y <= y), summed on from the block of counts before.
        below = reached[active, None] + np.cumsum(mass.reshape(len(active), -1), axis=1)
        # The CDF is one at the largest possible count.
        below = np.where(counts >= most[active, None], 1.0, below)
        for level, values in zip(levels, out):
            hit = (below >= level).any(axis=1) & np.isnan(values[active])
            values[active[hit]] = counts[np.argmax(below[hit] >= level, axis=1)]
        reached[active] = below[:, -1]
        active, first = active[np.isnan(out[:, active]).any(axis=0)], first + _COUNTS
    return out


def _continuous_quantiles(
    name: str, weights: np.ndarray, predictors: Sequence[AtPredictor], levels: np.ndarray
) -> np.ndarray:
    """Return quantiles on the real line, (levels, n): interpolate the integral of the predictive density."""
    _, from_line, log_slope = LINES[predictors[0].site.site.domain]
    n, out = len(predictors[0].mean), []
    centre = np.tensordot(weights, [predictor.mean for predictor in predictors], axes=1)
    rows = np.arange(n)
    # Density of w, y = y(w), at its centre: p(y) dy / dw = 1 / (scale sqrt(2 pi)), as a Gaussian's.
    log_peak = _log_predictive(name, weights, predictors, from_line(centre), rows) + log_slope(centre)
    scale = np.exp(-log_peak) / np.sqrt(2 * np.pi)
    # Gauss-Legendre nodes, 1 / sqrt(3) of half a width from the middle of each interval.
    nodes = 0.5 * (_EDGES[:-1] + _EDGES[1:]) + 0.5 * np.diff(_EDGES) * np.array([[-1.0], [1.0]]) / np.sqrt(3.0)
    t = np.sort(nodes.ravel())
    for chunk in chunks(n, len(t)):
        row = np.repeat(rows[chunk], len(t))
        w = centre[row] + scale[row] * np.tile(t / (1 - t**2), len(row) // len(t))
        # Farther out the inverse of a logarithm or logit overflows.
        used = np.abs(w - centre[row]) < _FAR if predictors[0].site.site.domain != "real" else np.full(len(w), True)
        density = np.zeros(len(w))
        log_density = _log_predictive(name, weights, predictors, from_line(w[used]), row[used]) + log_slope(w[used])
        density[used] = np.exp(log_density)
        # dw = scale (1 + t^2) / (1 - t^2)^2 dt for w = centre + scale t / (1 - t^2).
        mass = density.reshape(-1, len(t)) * (1 + t**2) / (1 - t**2) ** 2
        below = np.cumsum(mass.reshape(len(mass), -1, 2).sum(axis=2), axis=1)
        below = np.concatenate([np.zeros((len(mass), 1)), below], axis=1) / below[:, -1:]
        at = np.array([np.interp(levels, cdf, _EDGES) for cdf in below])
        out.append(centre[chunk, None] + scale[chunk, None] * at / (1 - at**2))
    return from_line(np.concatenate(out).T)
