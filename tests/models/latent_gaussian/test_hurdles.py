"""Hurdle counts, whose zeros come from a process of their own: fits with no options, against quadrature.

The likelihood is a product of a factor of psi and one of the coefficients, whose posterior is summed over a grid here.
"""

import numpy as np
import pymc as pm
import pytest
import scipy.stats
from scipy.special import gammaln

import pymc_ep

N = 80
X = np.random.default_rng(5).standard_normal(N)
SD = 2.5


def counts(rate, rng):
    """Counts of 30 per cent zeros, and of zero-truncated Poissons by inversion."""
    zero = np.exp(-rate)
    positive = scipy.stats.poisson.ppf(zero - rng.random(rate.size) * np.expm1(-rate), rate).astype(int)
    return np.where(rng.random(rate.size) < 0.7, positive, 0)


def poisson(y, eta):
    rate = np.exp(eta)
    return y * eta - rate - gammaln(y + 1) - np.log(-np.expm1(-rate))


def negative_binomial(y, eta, alpha=1.5):
    log_zero = -alpha * np.log1p(np.exp(eta) / alpha)
    rising = gammaln(y + alpha) - gammaln(alpha) - gammaln(y + 1)
    return rising + y * (eta - np.log(alpha + np.exp(eta))) + log_zero - np.log(-np.expm1(log_zero))


def by_grid(log_t, y, slope):
    """Posterior means and standard deviations of intercept and slope, or of the intercept alone."""
    axes = [np.linspace(-9.0, 4.0, 401), np.linspace(-4.0, 4.0, 321) if slope else np.zeros(1)]
    b0, b1 = np.meshgrid(*axes, indexing="ij")
    log_p = -(b0**2 + b1**2) / (2 * SD**2)
    for value, x in zip(y[y > 0], X[y > 0]):
        log_p = log_p + log_t(value, b0 + b1 * x)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    means = np.array([(p * b).sum() for b in (b0, b1)])
    return means, np.sqrt([(p * (b - mean) ** 2).sum() for b, mean in zip((b0, b1), means)])


@pytest.mark.parametrize("slope", [False, True])
@pytest.mark.parametrize("intercept", [0.4, -1.0])
@pytest.mark.parametrize("log_t", [poisson, negative_binomial])
def test_coefficients(log_t, intercept, slope):
    y = counts(np.exp(intercept + 0.5 * X), np.random.default_rng(7))
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, SD, shape=1 + slope)
        psi, rate = pm.Beta("psi", 2.0, 2.0), pm.math.exp(b[0] + (b[1] * X if slope else np.zeros(N)))
        if log_t is poisson:
            pm.HurdlePoisson("y", psi=psi, mu=rate, observed=y)
        else:
            pm.HurdleNegativeBinomial("y", psi=psi, mu=rate, alpha=1.5, observed=y)
    found = pymc_ep.fit(model=model, progressbar=False, random_seed=1).posterior
    mean, sd = by_grid(log_t, y, slope)
    where = slice(None) if slope else slice(1)
    draws = found["b"].to_numpy().reshape(-1, 1 + slope)
    # EP's own error: a twentieth of a standard deviation in means, a tenth in standard deviations.
    np.testing.assert_allclose((draws.mean(axis=0) - mean[where]) / sd[where], 0.0, atol=0.05)
    np.testing.assert_allclose(draws.std(axis=0) / sd[where], 1.0, atol=0.1)
    # Beta(2 + positive counts, 2 + zeros).
    exact = scipy.stats.beta(2 + (y > 0).sum(), 2 + (y == 0).sum())
    assert abs(float(found["psi"].mean()) - exact.mean()) < 0.05 * exact.std()


@pytest.mark.timeout(60)
def test_group_effect():
    """With effects of groups a fit takes seconds; their standard deviation by a grid over it and the effects."""
    groups = np.repeat(np.arange(6), 15)
    rng = np.random.default_rng(3)
    y = counts(np.exp(0.8 + 0.6 * rng.standard_normal(6)[groups]), rng)
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        u = pm.Normal("u", 0.5, s, shape=6)
        pm.HurdlePoisson("y", psi=pm.Beta("psi", 2.0, 2.0), mu=pm.math.exp(u[groups]), observed=y)
    found = pymc_ep.fit(model=model, progressbar=False, random_seed=1).posterior
    scale, eta = np.linspace(0.005, 5.0, 1000), np.linspace(-9.0, 6.0, 3001)
    log_p = scipy.stats.halfnorm.logpdf(scale)
    prior = scipy.stats.norm.pdf(eta, 0.5, scale[:, None])
    for k in range(6):
        own = y[(groups == k) & (y > 0)]
        log_p += np.log(prior @ np.exp(poisson(own[:, None], eta).sum(axis=0)))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    mean = p @ scale
    sd = np.sqrt(p @ (scale - mean) ** 2)
    assert abs(float(found["s"].mean()) - mean) < 0.05 * sd
    assert abs(float(found["s"].std()) / sd - 1.0) < 0.1
