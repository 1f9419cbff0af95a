"""Missing observations say nothing of the other variables: a fit is that of the others alone, and draws them."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep

pytestmark = pytest.mark.filterwarnings(
    "ignore:Data in y contains missing values", "ignore:invalid value encountered in cast"
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=10)
PRESENT = np.isin(np.arange(10), [2, 5], invert=True)
COUNTS = RNG.poisson(np.exp(0.3 + 0.5 * X)).astype(float)
REALS = 0.3 + 0.5 * X + RNG.normal(size=10)
E, S, Poisson = pt.exp, pt.sigmoid, pm.Poisson.dist

LIKELIHOODS = {
    "Poisson": (lambda f, y: pm.Poisson("y", E(f), observed=y), COUNTS),
    "RectifiedPoisson": (lambda f, y: pmep.RectifiedPoisson("y", f, observed=y), COUNTS),
    "SoftplusPoisson": (lambda f, y: pmep.SoftplusPoisson("y", f, observed=y), COUNTS),
    "DiscreteWeibull": (lambda f, y: pm.DiscreteWeibull("y", q=S(f), beta=1.3, observed=y), COUNTS),
    "zero-inflated": (lambda f, y: pm.ZeroInflatedPoisson("y", psi=0.7, mu=E(f), observed=y), COUNTS),
    "hurdle": (lambda f, y: pm.HurdlePoisson("y", psi=0.7, mu=E(f), observed=y), COUNTS),
    "mixture": (
        lambda f, y: pm.Mixture("y", w=[0.3, 0.7], comp_dists=[Poisson(E(f)), Poisson(2.0)], observed=y),
        COUNTS,
    ),
    "truncated": (
        lambda f, y: pm.Truncated("y", pm.Gamma.dist(2.0, 2.0 / E(f)), lower=0.1, observed=y),
        0.11 + np.abs(REALS),
    ),
    "censored": (
        lambda f, y: pm.Censored("y", pm.Normal.dist(f, 0.7), lower=-1, upper=2, observed=y),
        np.clip(REALS, -1, 2),
    ),
    "asymmetric": (lambda f, y: pm.AsymmetricLaplace("y", kappa=2.0, mu=f, b=1.0, observed=y), REALS),
    "OrderedLogistic": (
        lambda f, y: pm.OrderedLogistic("y", eta=f, cutpoints=[-1.0, 1.0], observed=y),
        np.clip(COUNTS, 0, 2),
    ),
    "OrderedProbit": (
        lambda f, y: pm.OrderedProbit("y", eta=f, cutpoints=[-1.0, 1.0], observed=y),
        np.clip(COUNTS, 0, 2),
    ),
}


def fitted(write, x, y):
    with pm.Model():
        b = pm.Normal("b", 0, 1, shape=2)
        write(b[0] + b[1] * x, y)
        return pmep.fit(draws=300, random_seed=1, progressbar=False)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_others_alone(name):
    write, y = LIKELIHOODS[name]
    found = fitted(write, X, np.where(PRESENT, y, np.nan))
    rest = y[PRESENT]
    whole = np.issubdtype(found["posterior"]["y_unobserved"].dtype, np.integer)
    alone = fitted(write, X[PRESENT], rest.astype(int) if whole else rest)
    np.testing.assert_allclose(found["posterior_mean"]["b"], alone["posterior_mean"]["b"], rtol=1e-9)
    np.testing.assert_allclose(found["posterior_sd"]["b"], alone["posterior_sd"]["b"], rtol=1e-9)
    np.testing.assert_allclose(found["fit"]["log_evidence"], alone["fit"]["log_evidence"], rtol=1e-9)
    joined = found["posterior"]["y"]
    np.testing.assert_array_equal(joined[0, 0, PRESENT], rest)
    np.testing.assert_array_equal(joined[..., ~PRESENT], found["posterior"]["y_unobserved"])


def test_missing_censored_values_are_drawn_about_their_predictors():
    write, y = LIKELIHOODS["censored"]
    found = fitted(write, X, np.where(PRESENT, y, np.nan))["posterior"]
    b, drawn = (np.asarray(found[name]).reshape(-1, 2) for name in ("b", "y_unobserved"))
    predictor = b[:, :1] + b[:, 1:] * X[~PRESENT]
    assert drawn.min() >= -1.0 and drawn.max() <= 2.0
    # Means of a normal that is cut off at both bounds, over the draws of its predictor.
    noise = np.random.default_rng(1).normal(size=(2000, 1, 2))
    expected = np.clip(predictor + 0.7 * noise, -1, 2)
    np.testing.assert_allclose(drawn.mean(axis=0), expected.mean(axis=(0, 1)), atol=4 * 0.9 / np.sqrt(len(drawn)))


def test_categories_in_a_table():
    """Missing cells of a table whose rows share their predictors."""
    y = np.random.default_rng(2).integers(0, 3, size=(4, 3)).astype(float)
    present = np.ones(y.shape, dtype=bool)
    present[[1, 3], [2, 0]] = False
    column = np.broadcast_to(np.arange(3), y.shape)[present]
    results = []
    for select, values in ((slice(None), np.where(present, y, np.nan)), (column, y[present].astype(int))):
        with pm.Model():
            b = pm.Normal("b", 0, 1, shape=3)
            cut = pm.Normal("cut", [-1, 1], 1, transform=pm.distributions.transforms.ordered, shape=2)
            pm.OrderedLogistic("y", eta=b[select], cutpoints=cut, observed=values)
            results.append(pmep.fit(draws=0, random_seed=1, progressbar=False))
    one, other = (float(result["fit"]["log_evidence"]) for result in results)
    assert abs(one - other) < 1e-8
