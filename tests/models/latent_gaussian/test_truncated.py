"""Truncated observations whose scale is learned, against quadrature over the level and the scale."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_ep as pmep

RNG = np.random.default_rng(0)
X = RNG.normal(0.5, 1.0, size=200)
ABOVE, WITHIN = X[X > 0.0][:20], X[(X > -1.0) & (X < 1.5)][:20]
UPPER = np.where(np.arange(20) % 2, np.inf, 1.5)
CASES = {
    "above a bound": (
        lambda a, s: pm.Truncated.dist(pm.Normal.dist(a, s), lower=0.0, upper=None, shape=20),
        ABOVE,
        0.0,
        np.inf,
    ),
    "below a bound": (lambda a, s: pm.TruncatedNormal.dist(a, s, upper=0.0, shape=20), -ABOVE, -np.inf, 0.0),
    "within, some without an upper bound": (
        lambda a, s: pm.TruncatedNormal.dist(a, s, lower=-1.0, upper=UPPER),
        WITHIN,
        -1.0,
        UPPER,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_truncated_normal_with_a_learned_scale(name):
    make, y, lower, upper = CASES[name]
    with pm.Model() as model:
        a, s = pm.Normal("a", 0.0, 1.0), pm.HalfNormal("s", 1.0)
        model.register_rv(make(a, s), "y", observed=y)
        found = pmep.fit(draws=4000, random_seed=1, progressbar=False)
    assert found["fit"]["converged"]
    level, scale = np.linspace(-5.0, 5.0, 401)[:, None], np.linspace(0.05, 5.0, 400)
    log_p = stats.norm.logpdf(level) + stats.halfnorm.logpdf(scale)
    for value, high in zip(y, np.broadcast_to(upper, len(y))):
        log_p = log_p + stats.truncnorm.logpdf(value, (lower - level) / scale, (high - level) / scale, level, scale)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    for variable, values in (("a", level), ("s", scale)):
        mean = (weight * values).sum()
        sd = np.sqrt((weight * (values - mean) ** 2).sum())
        draws = np.asarray(found["posterior"][variable])
        # The error of draws, and a twentieth of EP's own.
        assert abs(draws.mean() - mean) < 0.1 * sd
        np.testing.assert_allclose(draws.std(), sd, rtol=0.1)


def test_one_level_of_a_truncated_distribution():
    """The predictor has one value for all observations, and no axis."""
    y = np.array([0.1, 0.4, 1.3, 2.0])
    with pm.Model():
        pm.Truncated("y", pm.StudentT.dist(nu=4, mu=pm.Normal("a", 0.0, 1.0), sigma=0.7), lower=0.0, observed=y)
        found = pmep.fit(draws=0, progressbar=False)
    level = np.linspace(-6.0, 6.0, 4001)
    log_p = stats.norm.logpdf(level) - len(y) * stats.t.logsf(-level / 0.7, 4)
    log_p += stats.t.logpdf((y[:, None] - level) / 0.7, 4).sum(axis=0)
    weight = np.exp(log_p - log_p.max())
    mean = weight @ level / weight.sum()
    sd = np.sqrt(weight @ (level - mean) ** 2 / weight.sum())
    assert abs(float(found["posterior_mean"]["a"]) - mean) < 0.1 * sd
    np.testing.assert_allclose(float(found["posterior_sd"]["a"]), sd, rtol=0.1)
