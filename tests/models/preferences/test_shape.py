"""Width and skewness of utilities, against quadrature of the one difference that was compared."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_ep as pmep

SIGMA, TIMES = 3.0, 3
ANSWERS = {"winners": [0] * TIMES, "losers": [1] * TIMES}
GRID = np.linspace(-15.0, 35.0, 50_001)
MASS = norm.pdf(GRID, scale=SIGMA * np.sqrt(2.0)) * norm.cdf(GRID) ** TIMES
MASS /= MASS.sum()
MEAN = MASS @ GRID
SD = np.sqrt(MASS @ (GRID - MEAN) ** 2)
LEVELS = np.array([0.05, 0.5, 0.95])


def likes():
    """One person of three items who likes the first better than the second, three times over."""
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", kernel=np.eye(3), sigma=SIGMA)
        pmep.PairwiseProbit("prefers", f, **ANSWERS)
    return model


@pytest.fixture(scope="module")
def fitted():
    model = likes()
    return model, pmep.fit(model=model, draws=10_000, chains=4, random_seed=1, progressbar=False)


def test_draws_have_the_quantiles_of_the_posterior(fitted):
    f = fitted[1]["posterior"]["f"].values.reshape(-1, 3)
    difference = f[:, 0] - f[:, 1]
    exact = np.interp(LEVELS, np.cumsum(MASS), GRID)
    gaussian = np.abs(MEAN + SD * norm.ppf(LEVELS) - exact) / SD
    errors = np.abs(np.quantile(difference, LEVELS) - exact) / SD
    assert errors.max() < min(0.08, gaussian.max() / 3)
    assert difference.std() == pytest.approx(SD, rel=0.02)
    # Of an item that is compared with none the posterior is the prior.
    assert np.abs(np.quantile(f[:, 2], LEVELS) - SIGMA * norm.ppf(LEVELS)).max() < 0.03 * SIGMA


def test_moments_are_those_of_draws(fitted):
    f = fitted[1]["posterior"]["f"].values.reshape(-1, 3)
    np.testing.assert_allclose(f.mean(axis=0), fitted[1]["posterior_mean"]["f"], atol=0.03 * SIGMA)
    np.testing.assert_allclose(f.std(axis=0), fitted[1]["posterior_sd"]["f"], rtol=0.02)


def test_probabilities_are_skewed(fitted):
    model, idata = fitted
    found = np.exp(pmep.log_predictive(idata, model, {"prefers": ([0], [1])})["prefers"].values)
    assert found == pytest.approx(MASS @ norm.cdf(GRID), abs=0.005)


def test_laplace_stays_a_gaussian():
    draws = pmep.fit(model=likes(), method="laplace", draws=10_000, chains=1, random_seed=1, progressbar=False)
    difference = draws["posterior"]["f"].values[0] @ [1.0, -1.0, 0.0]
    assert abs(((difference - difference.mean()) ** 3).mean()) < 0.1 * difference.std() ** 3
