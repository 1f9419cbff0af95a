"""Hyperparameters whose priors have tails that are powers: quantiles far out, against quadrature."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats
from scipy.special import log_expit

import pymc_ep as pmep
from pymc_ep.evidence.ep.interpolated_sites import InterpolatedSites
from pymc_ep.evidence.integration import integrate
from pymc_ep.evidence.integration.explore import Explorer
from pymc_ep.graphs.hyperparameters import coordinates_of
from pymc_ep.numerics.interpolation.heavy_tails import HeavyTails

X = np.array([-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0])
Y = (X > 0).astype(int)
QUIET = {"progressbar": False, "random_seed": 1, "chains": 4, "draws": 1000}


def separated(prior):
    """Quantiles at 0.5, 0.95 and 0.99 of a slope under a prior, whose classes are separated, and the log evidence.

    Log odds are a + b x with a standard normal intercept.
    """
    u, (nodes, weights) = np.linspace(-25.0, 25.0, 20_001), np.polynomial.hermite_e.hermegauss(60)
    b = np.sinh(u)
    likelihood = sum(
        w * np.exp(log_expit(np.where(Y, 1, -1) * (a + np.outer(b, X))).sum(axis=1)) for a, w in zip(nodes, weights)
    )
    density = prior.pdf(b) * np.cosh(u) * likelihood / weights.sum()
    below = np.cumsum(density) * (u[1] - u[0])
    return [b[np.searchsorted(below, q * below[-1])] for q in (0.5, 0.95, 0.99)], np.log(below[-1])


PRIORS = {
    "cauchy": (lambda: pm.Cauchy("b", 0, 2.5), scipy.stats.cauchy(0, 2.5)),
    "narrow": (lambda: pm.Cauchy("b", 0, 0.01), scipy.stats.cauchy(0, 0.01)),
    "t off zero": (lambda: pm.StudentT("b", nu=1.5, mu=-1, sigma=0.5), scipy.stats.t(1.5, -1, 0.5)),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_a_slope_of_separated_classes(prior):
    """The share of draws beyond the exact quantiles is within 0.01 and 0.005, and two standard errors of 4000 draws."""
    make, exact = PRIORS[prior]
    with pm.Model() as model:
        slope = make()
        pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1) + slope * X, observed=Y)
    found = pmep.fit(model=model, **QUIET)
    (median, *far), log_evidence = separated(exact)
    draws = found["posterior"]["b"].values.ravel()
    assert np.mean(draws > median) == pytest.approx(0.5, abs=0.02)
    for quantile, share, error in zip(far, (0.05, 0.01), (0.01, 0.005)):
        assert np.mean(draws > quantile) == pytest.approx(share, abs=error + 2 * np.sqrt(share / len(draws)))
    assert float(found["fit"]["log_evidence"]) == pytest.approx(log_evidence, abs=0.01)


def scaled():
    """A location whose scale is unknown; the evidence of y falls as that of a normal density of variance 200."""
    with pm.Model() as model:
        mu = pm.Cauchy("mu", 0, pm.HalfNormal("scale", 1))
        pm.Normal("y", pm.Normal("g", mu, 10), 10, observed=3.0)
    return model


def test_fits_reach_as_far_as_draws():
    """The emulator is taught near zero, where the evidence is flat, and would take it to be flat far out as well."""
    middles = (np.arange(2000) + 0.5) / 2000
    scale, unit = scipy.stats.halfnorm.ppf(middles)[:, None], scipy.stats.cauchy.ppf(middles)
    mu = (scale * unit).ravel()
    density = scipy.stats.norm.pdf(3.0, mu, np.sqrt(200.0))
    order = np.argsort(mu)
    below = np.cumsum(density[order]) / density.sum()
    found = pmep.fit(model=scaled(), **QUIET)
    draws = found["posterior"]["mu"].values.ravel()
    for share, error in ((0.01, 0.005), (0.05, 0.01), (0.95, 0.01), (0.99, 0.005)):
        assert np.mean(draws < mu[order][np.searchsorted(below, share)]) == pytest.approx(share, abs=error)
    assert float(found["fit"]["log_evidence"]) == pytest.approx(np.log(density.mean()), abs=0.01)
    # Zero is near the mode, where a change of sign changes the evidence by less than EP's tolerance.
    assert "mirror" not in found["fit"].attrs["status"]


def test_draws_beyond_all_fits_are_announced(monkeypatch):
    monkeypatch.setattr(integrate, "_GUESSES", 0)
    with pytest.warns(pmep.ConvergenceWarning, match=r"[\d.]+% of the posterior is beyond all .* lighter tails"):
        found = pmep.fit(model=scaled(), **QUIET)
    assert not found["fit"]["converged"]


def test_mass_where_fits_fail_is_announced(monkeypatch):
    fit_at = Explorer.__call__

    def failing(self, theta):
        if theta[0] < np.log(6.0):
            return fit_at(self, theta)
        self.failed.append(theta)
        return None

    monkeypatch.setattr(Explorer, "__call__", failing)
    with pm.Model() as model:
        f = pm.Normal("f", 0, pm.HalfCauchy("tau", 1), shape=3)
        pm.Normal("y", f, 1, observed=[-2.0, 0.5, 3.0])
    with pytest.warns(pmep.ConvergenceWarning, match=r"[\d.]+% of the posterior is beyond all of these, in tau"):
        pmep.fit(model=model, **QUIET)


def test_location_and_scale_may_be_vectors_and_depend_on_variables():
    """Any fixed ones serve: those that depend on a variable are taken at its initial value."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1, initval=0.5)
        where = pm.StudentT("where", nu=4, mu=[0.0, 1.0], sigma=scale, shape=2)
        light, bounded = pm.Normal("light", 0, 1), pm.HalfCauchy("bounded", 1)
    found, *others = coordinates_of(model, [where, light, bounded])
    np.testing.assert_allclose(found.to_values(np.array([[0.0, np.arcsinh(2.0)]])), [[0.0, 2.0]])
    assert others == [None, None]


def test_coordinates_are_a_bijection_with_its_derivatives():
    coordinates = HeavyTails(np.array([1.0, -2.0]), np.array([0.5, 3.0]))
    y, h = np.array([[0.3, -4.0], [30.0, 0.0]]), 1e-6
    x = coordinates.to_values(y)
    np.testing.assert_allclose(coordinates.from_values(x), y, rtol=1e-12)
    slope = (coordinates.to_values(y + h) - coordinates.to_values(y - h)) / (2 * h)
    log_det, gradient = coordinates.log_det(y)
    np.testing.assert_allclose(log_det, np.log(slope).sum(axis=1), rtol=1e-8)
    np.testing.assert_allclose(coordinates.pull(y, np.ones_like(y)), slope, rtol=1e-8)
    for i, step in enumerate(h * np.eye(2)):
        ends = [coordinates.log_det(y + way * step)[0] for way in (-1, 1)]
        np.testing.assert_allclose(gradient[:, i], (ends[1] - ends[0]) / (2 * h), atol=1e-7)


def test_a_site_beyond_all_fits_is_that_of_the_nearest_place():
    """Its precision cannot go on falling, to less than zero; then its mean, shift over precision, must not either."""
    theta = np.linspace(0.0, 1.0, 6)
    precision, mean = 10 + 5 * theta, 3 + 0.1 * theta
    sites = InterpolatedSites(theta[:, None], (mean * precision)[:, None], precision[:, None])
    for place, nearest in ((-3.0, 0.0), (5.0, 1.0), (0.5, 0.5)):
        shift, found = sites(np.array([place]))
        np.testing.assert_allclose(found, 10 + 5 * nearest, rtol=1e-6)
        np.testing.assert_allclose(shift / found, 3 + 0.1 * nearest, rtol=1e-3)


def test_group_means_where_the_overdispersion_goes_beyond_all_fits():
    """Counts of two groups by quadrature over the logarithm of alpha and the log means.

    A twentieth of the mass lies below the alphas that the fits have: their sites must not be half extrapolated.
    """
    many, few = [11, 9, 15, 22, 15, 16, 13, 10, 26, 26, 24, 13], [10, 7, 20, 14, 14, 12, 10, 23, 17, 20, 14, 13]
    counts = np.array([many, few])
    with pm.Model() as model:
        alpha, level = pm.HalfCauchy("alpha", 10), pm.Normal("level", 2, 1, shape=2)
        pm.NegativeBinomial("y", mu=pm.math.exp(level)[:, None] * np.ones(12), alpha=alpha, observed=counts)
    found = pmep.fit(model=model, **QUIET)
    levels, log_alpha = np.linspace(1.0, 4.5, 701), np.linspace(-2.0, 16.0, 361)
    shape = np.exp(log_alpha)[:, None, None]
    logps = [
        (
            scipy.stats.nbinom.logpmf(y, shape, shape / (shape + np.exp(levels)[:, None])).sum(axis=-1)
            + scipy.stats.norm.logpdf(levels, 2, 1)
        )
        for y in counts
    ]
    parts = [np.exp(logp - logp.max()) for logp in logps]
    prior = scipy.stats.halfcauchy.pdf(shape[:, 0, 0], scale=10) * shape[:, 0, 0]
    weight = prior * np.prod([part.sum(axis=1) for part in parts], axis=0)
    weight /= weight.sum()
    for k, part in enumerate(parts):
        share = weight @ (part / part.sum(axis=1, keepdims=True))
        mean = share @ levels
        sd = np.sqrt(share @ (levels - mean) ** 2)
        assert float(found["posterior_mean"]["level"][k]) == pytest.approx(mean, abs=0.03 * sd)
        assert float(found["posterior_sd"]["level"][k]) == pytest.approx(sd, rel=0.03)
