"""Tilted moments of sites of two predictors against sums over a fine grid, and the bodies against each other."""

import cloudpickle
import numpy as np
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import expit, logsumexp

from pymc_ep.sites.base import Site, get_site
from pymc_ep.sites.compiled import compile_site
from pymc_ep.sites.generated.kernel import GeneratedMoments
from pymc_ep.sites.generated.op import FIELDS_OF_TWO
from pymc_ep.sites.nested_moments import Cavity, NestedMoments
from pymc_ep.sites.rows_of_two import covariance_rows, sum_rows
from pymc_ep.sites.two_predictors import two_predictor_site


def _zero_inflated(y, eta, logit):
    log_poisson = y * eta - pt.exp(eta) - pt.gammaln(y + 1.0)
    present = -pt.softplus(-logit)
    return pt.switch(pt.eq(y, 0), pt.logaddexp(-pt.softplus(logit), present + log_poisson), present + log_poisson)


def _negative_binomial(y, eta, alpha):
    total = pt.gammaln(y + alpha) - pt.gammaln(alpha) - pt.gammaln(y + 1.0)
    return total + alpha * pt.log(alpha) + y * eta - (y + alpha) * pt.log(alpha + pt.exp(eta))


def _site(name, logp, domain):
    return Site(name=name, parameters=("second",), domain=domain, log_concave=False, logp=logp, interpreted=True)


SITES = {
    "normal": (two_predictor_site(get_site("normal"), lambda e, c: [c * pt.exp(e)], ("c",)), (1.3,)),
    "zero-inflated": (two_predictor_site(_site("zip", _zero_inflated, "count"), lambda e: [e], ()), ()),
    "negative binomial": (
        two_predictor_site(_site("nb", _negative_binomial, "count"), lambda e: [pt.exp(e)], ()),
        (),
    ),
}
DENSITIES = {
    "zero-inflated": lambda y, a, b: np.where(
        y == 0,
        np.log(1.0 - expit(b) + expit(b) * np.exp(-np.exp(a))),
        np.log(expit(b)) + stats.poisson.logpmf(y, np.exp(a)),
    ),
    "negative binomial": lambda y, a, b: stats.nbinom.logpmf(y, np.exp(b), 1.0 / (1.0 + np.exp(a - b))),
}
NAMES = tuple(SITES)


def cavities(n, seed=0, size=0.5):
    """Means, (2, n), variances, (2, n), and covariances, (n,), strongly correlated ones among them."""
    rng = np.random.default_rng(seed)
    root = size * rng.standard_normal((n, 2, 2)) * np.exp(0.5 * rng.standard_normal((n, 1, 1)))
    covariance = root @ root.transpose(0, 2, 1) + 1e-3 * np.eye(2)
    return rng.normal([[0.8], [0.2]], 0.5, (2, n)), covariance


def observed(n, seed=1):
    return np.random.default_rng(seed).poisson(2.0, n).astype(float)


def by_grid(name, y, mean, covariance, power=1.0):
    """log Z, mean and covariance of one tilted density, by a grid over 18 standard deviations of the cavity."""
    line = np.linspace(-9.0, 9.0, 501)
    z = np.array(np.meshgrid(line, line, indexing="ij")).reshape(2, -1)
    eta = mean[:, None] + np.linalg.cholesky(covariance) @ z
    with np.errstate(all="ignore"):
        log_p = power * DENSITIES[name](y, *eta) + stats.norm.logpdf(z).sum(axis=0)
    log_p = np.where(np.isnan(log_p), -np.inf, log_p)
    log_z = logsumexp(log_p)
    mass = np.exp(log_p - log_z)
    centre = eta @ mass
    return log_z + 2.0 * np.log(line[1] - line[0]), centre, (eta - centre[:, None]) * mass @ (eta - centre[:, None]).T


def by_location(y, mean, covariance, power=1.0):
    """The same of a location and the logarithm of a scale: given the latter all is Gaussian."""
    z = np.linspace(-12.0, 12.0, 100_001)
    slope = covariance[0, 1] / covariance[1, 1]
    given = covariance[0, 0] - slope * covariance[0, 1]
    second = mean[1] + np.sqrt(covariance[1, 1]) * z
    location, noise = mean[0] + slope * (second - mean[1]), (1.3 * np.exp(second)) ** 2
    # N(y; eta, s^2)^p = N(y; eta, s^2 / p) (2 pi s^2)^((1 - p) / 2) / p^(1 / 2).
    total = given + noise / power
    log_p = stats.norm.logpdf(z) + stats.norm.logpdf(y, location, np.sqrt(total))
    log_p += 0.5 * (1.0 - power) * np.log(2.0 * np.pi * noise) - 0.5 * np.log(power)
    log_z = logsumexp(log_p)
    mass = np.exp(log_p - log_z)
    eta = np.array([location + given / total * (y - location), second])
    centre = eta @ mass
    spread = (eta - centre[:, None]) * mass @ (eta - centre[:, None]).T
    spread[0, 0] += mass @ (given * noise / power / total)
    return log_z + np.log(z[1] - z[0]), centre, spread


def rows(y, mean, covariance, parameters=()):
    variance = covariance_rows(covariance[:, 0, 0], covariance[:, 1, 1], covariance[:, 0, 1])
    return np.tile(y, 3), sum_rows(*mean), variance, *(np.full(3 * len(y), value) for value in parameters)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("name", NAMES)
def test_moments_are_those_of_a_grid(name, power):
    site, parameters = SITES[name]
    n = 12
    y, (mean, covariance) = observed(n), cavities(n)
    first, centre, variance, *values = rows(y, mean, covariance, parameters)
    found = compile_site(site).moments(first, centre, variance, power, *values)
    for i in range(n):
        known = (y[i], mean[:, i], covariance[i], power)
        log_z, exact, spread = by_location(*known) if name == "normal" else by_grid(name, *known)
        sd = np.sqrt(spread.diagonal())
        assert found.log_z[i] == pytest.approx(log_z, abs=1e-7)
        np.testing.assert_allclose(found.mean[[i, n + i]], exact, atol=1e-6 * sd.min())
        np.testing.assert_allclose(found.variance[[i, n + i]], spread.diagonal(), rtol=1e-6)
        # Of the sum, from which the covariance follows.
        assert found.variance[2 * n + i] == pytest.approx(spread.sum(), rel=1e-6)
        precision = np.linalg.inv(spread) - np.linalg.inv(covariance[i])
        cross = found.precision[2 * n + i]
        own = found.precision[[i, n + i]] + cross
        np.testing.assert_allclose(own * sd**2, precision.diagonal() * sd**2, atol=2e-5)
        assert cross * sd.prod() == pytest.approx(precision[0, 1] * sd.prod(), abs=2e-5)
        pull = np.linalg.solve(covariance[i], exact - mean[:, i])
        np.testing.assert_allclose(found.gradient[[i, n + i]] * sd, pull * sd, atol=1e-5)


@pytest.mark.parametrize("mode", [None, "NUMBA"])
@pytest.mark.parametrize("name", NAMES)
def test_lattice_agrees_with_nested_quadrature(name, mode, monkeypatch):
    site, parameters = SITES[name]
    n = 300
    y, (mean, covariance) = observed(n), cavities(n, size=0.3)
    arguments = rows(y, mean, covariance, parameters)
    first, centre, variance, *values = arguments
    lattice = compile_site(site, mode)
    with monkeypatch.context() as patch:
        patch.setattr(GeneratedMoments, "__call__", lambda self, arrays: None)
        nested = compile_site(site, mode).moments(first, centre, variance, 1.0, *values)
    found = lattice.moments(first, centre, variance, 1.0, *values)
    accepted = lattice._lattice(
        [y, *mean, *covariance[:, [0, 1, 0], [0, 1, 1]].T, np.ones(n), *(v[:n] for v in values)]
    )
    assert accepted[-1].mean() > 0.7 and len(accepted) == len(FIELDS_OF_TWO) + len(parameters) + 1
    sd = np.sqrt(nested.variance)
    np.testing.assert_allclose(found.log_z, nested.log_z, atol=1e-6)
    np.testing.assert_allclose((found.mean - nested.mean) / sd, 0.0, atol=3e-6)
    np.testing.assert_allclose(found.variance, nested.variance, rtol=1e-5)


def test_derivative_in_a_parameter_against_differences():
    site, _ = SITES["normal"]
    n, step = 8, 1e-5
    y, (mean, covariance) = observed(n), cavities(n)
    first, centre, variance, values = rows(y, mean, covariance, (1.3,))
    compiled = compile_site(site)
    (found,) = compiled.parameter_gradient(first, centre, variance, 1.0, values)
    ends = [compiled.moments(first, centre, variance, 1.0, values + s).log_z[:n] for s in (-step, step)]
    np.testing.assert_allclose(found, (ends[1] - ends[0]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_narrow_ridges_are_seen():
    # A scale that is far smaller than the location's standard deviation makes a ridge that no coarse grid meets.
    site, parameters = SITES["normal"]
    mean, covariance = np.array([[0.07], [-0.98]]), np.diag([1.5, 15.5])[None]
    first, centre, variance, *values = rows(np.array([2.47]), mean, covariance, parameters)
    found = compile_site(site).moments(first, centre, variance, 1.0, *values)
    log_z, exact, spread = by_location(2.47, mean[:, 0], covariance[0])
    assert found.log_z[0] == pytest.approx(log_z, abs=1e-7)
    np.testing.assert_allclose(found.mean[:2], exact, rtol=1e-5)
    np.testing.assert_allclose(found.variance[:2], spread.diagonal(), rtol=1e-5)


def test_the_maximum_of_a_parabola_is_exact():
    """Of any place and width, where the first rule of nodes has to look for it."""
    place, width = np.array([0.4, 0.4, 0.43, -2.1, 25.0]), np.array([2.0, 0.3, 0.05, 1.2, 0.8])
    nested = object.__new__(NestedMoments)
    nested._log_integrand = lambda y, cavity, z, power, values: -0.5 * ((z - y) / values[0]) ** 2
    cavity = Cavity.of_rows(np.zeros(15), covariance_rows(np.ones(5), np.ones(5), np.zeros(5)))
    found = nested._wide_maximum(place, cavity, 1.0, [width])
    np.testing.assert_allclose(found, [place, np.minimum(width, 1.5)], rtol=1e-9)


def test_one_predictor_that_is_known():
    # A predictor of variance zero is a constant: what is left is a site of the other.
    site, parameters = SITES["normal"]
    mean, covariance = np.array([[0.3], [0.4]]), np.array([[[0.5, 0.0], [0.0, 1e-12]]])
    first, centre, variance, *values = rows(np.array([1.7]), mean, covariance, parameters)
    found = compile_site(site).moments(first, centre, variance, 1.0, *values)
    noise = (1.3 * np.exp(0.4)) ** 2
    assert found.log_z[0] == pytest.approx(stats.norm.logpdf(1.7, 0.3, np.sqrt(0.5 + noise)), abs=1e-8)
    assert found.variance[0] == pytest.approx(0.5 * noise / (0.5 + noise), rel=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_sites_are_pickled(name):
    """As for the processes of a sampler; functions of a model's own densities are pickled by value."""
    site, _ = SITES[name]
    assert cloudpickle.loads(cloudpickle.dumps(site)).predictors == 2
