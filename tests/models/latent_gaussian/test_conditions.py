"""Parameters outside the range of their distribution, where the likelihood is integrated by quadrature."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group

Y = np.array([0.3, -0.2, 0.8, 0.1])
COUNTS = np.array([1, 0, 2, 1])
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0}
NORMAL = pm.Normal.dist


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda f: pm.ExGaussian("y", f, sigma=-1.0, nu=1.0, observed=Y), "at index 0.*sigma > 0 does not hold"),
        (lambda f: pm.VonMises("y", f, kappa=-2.0, observed=Y), "kappa > 0 does not hold"),
        (lambda f: pm.Rice("y", pm.math.exp(f), -1.0, observed=np.abs(Y)), "sigma >= 0"),
        (lambda f: pm.Gumbel("y", f, np.array([1.0, 1.0, -1.0, 1.0]), observed=Y), "at index 2.*beta > 0"),
        (
            lambda f: pm.Poisson("y", np.array([1.0, -0.1, 1.0, 1.0]) * pm.math.exp(f), observed=COUNTS),
            r"at index 1, where parameter_0 = -0\.1: mu >= 0",
        ),
        (lambda f: pm.Mixture("y", [0.7, 0.6], [NORMAL(f, 1), NORMAL(0, 3)], observed=Y), r"sum\(weights\) == 1"),
        (lambda f: pm.ZeroInflatedPoisson("y", 1.2, pm.math.exp(f), observed=COUNTS), "0 <= weights <= 1"),
        (
            lambda f: pm.Censored("y", NORMAL(f, 1), lower=1.0, upper=-1.0, observed=Y),
            "lower_bound <= upper_bound",
        ),
        (
            lambda f: pm.TruncatedNormal("y", f, 1.0, lower=1.0, upper=-1.0, observed=Y),
            "lower_bound <= upper_bound",
        ),
    ],
)
def test_constant_parameters_out_of_range(write, message):
    with pm.Model() as model:
        write(pm.Normal("f", 0.0, 1.0, shape=4))
    with pytest.raises(pmep.InvalidDataError, match=message):
        pmep.fit(model=model, **QUIET)


@pytest.mark.parametrize(
    "probability",
    [lambda f: 1.0 * f, lambda f: 1.5 / (1.0 + np.exp(-f))],
    ids=["linear", "above one"],
)
def test_probabilities_that_leave_their_range(probability):
    """The density is zero where p is beyond 0 or 1; one observation has its own moments, here by a grid."""
    with pm.Model():
        pm.Bernoulli("y", probability(pm.Normal("f", 0.0, 1.0)), observed=1)
        found = pmep.fit(**QUIET)
    grid = np.linspace(-6.0, 6.0, 200_001)
    p = probability(grid)
    weight = np.where((p >= 0) & (p <= 1), p, 0.0) * np.exp(-(grid**2) / 2)
    weight /= weight.sum()
    mean = weight @ grid
    np.testing.assert_allclose(group(found, "posterior_mean")["f"], mean, atol=1e-3)
    np.testing.assert_allclose(group(found, "posterior_sd")["f"], np.sqrt(weight @ (grid - mean) ** 2), rtol=2e-3)


def test_hyperparameters_beyond_the_range_have_no_density():
    """A concentration with a normal prior is one with that prior, cut off at zero."""
    found = []
    for prior in (pm.Normal.dist(2.0, 2.0), pm.TruncatedNormal.dist(2.0, 2.0, lower=0.0)):
        with pm.Model() as model:
            kappa = model.register_rv(prior, "kappa", initval=1.0)
            pm.VonMises("y", pm.Normal("f", 0.0, 1.0) * np.ones(4), kappa, observed=Y)
            found.append(group(pmep.fit(progressbar=False, random_seed=1), "posterior")["kappa"])
    assert abs(float(found[0].mean() - found[1].mean())) < 0.1 * float(found[1].std())
    assert float((found[0] < 0).mean()) < 0.01
