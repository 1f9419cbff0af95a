"""Mixtures on forests: a Gaussian lower bound of them, against enumeration of all states, and their derivatives."""

import itertools

import cloudpickle
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from pymc_ep.numerics.factorisation.quad_forest import quad_forest
from pymc_ep.sites import compile_site, get_site
from pymc_ep.sites.tree_mixture import tree_mixture

FOREST = quad_forest(1, 2, 2, 2)
N = 5
STATES = np.array(list(itertools.product([0, 1], repeat=N)))
ROOT = N - 1

RNG = np.random.default_rng(0)
LOW, HIGH = RNG.uniform(0.3, 0.6, N), RNG.uniform(1.5, 4.0, N)
NU = RNG.uniform(2.1, 5.0, N)
PROBABILITIES = RNG.uniform(0.1, 0.4, N), RNG.uniform(0.5, 0.9, N)
MIXTURES = {
    "laplace": (
        ("laplace", (LOW,), scipy.stats.laplace(scale=LOW)),
        ("laplace", (HIGH,), scipy.stats.laplace(scale=HIGH)),
    ),
    "normal and student": (
        ("normal", (LOW,), scipy.stats.norm(scale=LOW)),
        ("student_t", (NU, HIGH), scipy.stats.t(NU, scale=HIGH)),
    ),
}
LOCATIONS = [RNG.normal(0, size, N) for size in (0.05, 1.0, 5.0)]
VARIANCES = RNG.uniform(0.02, 2.0, N)


@pytest.fixture(params=MIXTURES)
def mixture(request):
    """The compiled site, its parameters, and the log densities of either state."""
    (low, first, of_low), (high, second, of_high) = MIXTURES[request.param]
    site = tree_mixture(get_site(low), get_site(high), FOREST)
    return compile_site(site), (*first, *second, *PROBABILITIES), (of_low, of_high)


def log_mixture(emissions):
    """log of the sum over all states, by enumeration; emissions are (2, n)."""
    above = np.where(np.arange(N) == ROOT, 0, STATES[:, [ROOT]])
    high = np.where(above == 1, PROBABILITIES[1], PROBABILITIES[0])
    log_prior = np.where(STATES == 1, np.log(high), np.log1p(-high)).sum(axis=1)
    return scipy.special.logsumexp(log_prior + np.where(STATES == 1, emissions[1], emissions[0]).sum(axis=1))


def log_density(states, s):
    return log_mixture(np.array([state.logpdf(s) for state in states]))


def test_gaussians_lie_below_the_mixture_everywhere(mixture):
    """Their product at any s, of which `value` is the expected log under N(eta, z)."""
    site, parameters, states = mixture
    rng = np.random.default_rng(1)
    for eta in LOCATIONS:
        found = site.bounded(np.zeros(N), eta, VARIANCES, *parameters)
        assert np.all(found.precision > 0)
        for s in (np.zeros(N), eta, *(rng.normal(0, size, N) for size in np.geomspace(0.01, 100, 40))):
            below = found.value + found.gradient * (s - eta) - 0.5 * found.precision * ((s - eta) ** 2 - VARIANCES)
            assert below.sum() <= log_density(states, s) + 1e-9


def test_values_lie_below_the_log_of_the_expectation(mixture):
    site, parameters, states = mixture
    eta = LOCATIONS[1]
    expectations = np.empty((2, N))
    for d, j in itertools.product(range(2), range(N)):
        m, sd = eta[j], np.sqrt(VARIANCES[j])

        def integrand(s, d=d, j=j, m=m, sd=sd):
            return scipy.stats.norm.pdf(s, m, sd) * np.exp(states[d].logpdf(s)[j])

        ends = m - 12 * sd, m + 12 * sd
        expectations[d, j] = scipy.integrate.quad(integrand, *ends, points=(0.0,), limit=200)[0]
    exact = log_mixture(np.log(expectations))
    value = site.bounded(np.zeros(N), eta, VARIANCES, *parameters).value.sum()
    assert value < exact


def test_values_meet_the_density_without_variance(mixture):
    site, parameters, states = mixture
    for eta in LOCATIONS[1:]:
        value = site.bounded(np.zeros(N), eta, np.full(N, 1e-14), *parameters).value.sum()
        np.testing.assert_allclose(value, log_density(states, eta), rtol=1e-6)


def test_log_densities_of_draws(mixture):
    """They add up over the nodes, a row a draw; parameters may differ from row to row."""
    site, parameters, states = mixture
    draws = np.stack(LOCATIONS)
    expected = [log_density(states, s) for s in draws]
    found = site.log_density(np.zeros(N), draws, *(np.tile(p, (3, 1)) for p in parameters))
    assert found.shape == (3, N)
    np.testing.assert_allclose(found.sum(axis=1), expected, rtol=1e-12)
    np.testing.assert_allclose(site.log_density(np.zeros(N), draws, *parameters).sum(axis=1), expected, rtol=1e-12)
    np.testing.assert_allclose(site.log_density(np.zeros(N), draws[1], *parameters).sum(), expected[1], rtol=1e-12)
    narrow = [np.stack([p, 0.5 * p, p]) for p in parameters]
    assert site.log_density(np.zeros(N), draws, *narrow).sum(axis=1)[1] != pytest.approx(expected[1])


def differences(function, x):
    """Central differences of a function of an array."""
    out = np.empty(x.shape)
    for k in range(x.size):
        step = 1e-6 * np.eye(x.size)[k] * max(1.0, abs(x[k]))
        out[k] = (function(x + step) - function(x - step)) / (2 * step[k])
    return out


def test_derivatives_of_the_sum_of_values(mixture):
    site, parameters, _ = mixture
    for eta in LOCATIONS:
        found = site.bounded(np.zeros(N), eta, VARIANCES, *parameters)
        numeric = differences(lambda e: site.bounded(np.zeros(N), e, VARIANCES, *parameters).value.sum(), eta)
        np.testing.assert_allclose(found.gradient, numeric, rtol=1e-5, atol=1e-7)
        # The value falls with z as the precision says.
        numeric = differences(lambda z, e=eta: site.bounded(np.zeros(N), e, z, *parameters).value.sum(), VARIANCES)
        np.testing.assert_allclose(-0.5 * found.precision, numeric, rtol=1e-5, atol=1e-7)
        gradients = site.bounded_parameter_gradient(np.zeros(N), eta, VARIANCES, *parameters)
        assert len(gradients) == len(parameters)
        for i, gradient in enumerate(gradients):

            def total(p, i=i, e=eta):
                own = (*parameters[:i], p, *parameters[i + 1 :])
                return site.bounded(np.zeros(N), e, VARIANCES, *own).value.sum()

            np.testing.assert_allclose(gradient, differences(total, parameters[i]), rtol=1e-5, atol=1e-7)


def test_extreme_predictors(mixture):
    """From far below every scale to far above: nothing overflows, warnings are errors."""
    site, parameters, _ = mixture
    for size, z in ((1e8, 1.0), (1e-8, 1e-16), (1.0, 1e10), (0.0, 1e-100)):
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            found = site.bounded(np.zeros(N), size * LOCATIONS[1], np.full(N, z), *parameters)
        assert all(np.isfinite(part).all() for part in found)


def test_indicators(mixture):
    """The probability of the high state, against enumeration of what the bounds of the states make of it."""
    site, parameters, states = mixture
    far = site.report(np.zeros(N), np.full(N, 60.0), np.full(N, 0.01), *parameters)["indicator"]
    near = site.report(np.zeros(N), np.full(N, 1e-3), np.full(N, 1e-6), *parameters)["indicator"]
    assert far.min() > 0.99
    assert near.max() < 0.4
    # Without variance the bounds are the densities, and so are the indicators those of the posterior of the states.
    eta = LOCATIONS[1]
    found = site.report(np.zeros(N), eta, np.full(N, 1e-14), *parameters)["indicator"]
    emissions = np.array([state.logpdf(eta) for state in states])
    numeric = [
        (log_mixture(emissions + h) - log_mixture(emissions - h)) / 2e-6
        for h in (1e-6 * np.array([np.zeros(N), row]) for row in np.eye(N))
    ]
    np.testing.assert_allclose(found, numeric, rtol=1e-6)


def test_wanted_of_parameters(mixture):
    site, parameters, _ = mixture
    site.site.validate_parameters(parameters, "u")
    assert site.site.has_bound
    assert site.site.coupled


CAVITIES = LOCATIONS[1], VARIANCES


def integrals(states, power):
    """Zeroth to second moment of N(s; m, v) t_d(s)^power for each state and node, by adaptive quadrature."""
    out = np.empty((3, 2, N))
    for d, j, k in itertools.product(range(2), range(N), range(3)):
        m, sd = CAVITIES[0][j], np.sqrt(CAVITIES[1][j])

        def integrand(s, d=d, j=j, k=k, m=m, sd=sd):
            return s**k * scipy.stats.norm.pdf(s, m, sd) * np.exp(power * states[d].logpdf(s)[j])

        ends = m - 12 * sd, m + 12 * sd
        out[k, d, j] = scipy.integrate.quad(integrand, *ends, points=(0.0,), limit=400, epsabs=1e-13)[0]
    return out


@pytest.mark.parametrize("power", [1.0, 0.7])
def test_moments_against_enumeration(mixture, power):
    """With powers, messages to the states are to the inverse of the power what the integrals are."""
    site, parameters, states = mixture
    z, first, second = integrals(states, power)
    messages = np.log(z) / power
    found = site.moments(np.zeros(N), *CAVITIES, power, *parameters)
    total = log_mixture(messages)
    for j in range(N):
        # Of all that the states may be, those with node j high.
        cut = messages.copy()
        cut[0, j] = -np.inf
        high = np.exp(log_mixture(cut) - total)
        odds = np.array([1.0 - high, high])
        mean = odds @ (first[:, j] / z[:, j])
        variance = odds @ (second[:, j] / z[:, j]) - mean**2
        np.testing.assert_allclose(found.mean[j], mean, rtol=1e-7)
        np.testing.assert_allclose(found.variance[j], variance, rtol=1e-6)
        np.testing.assert_allclose(found.gradient[j], (mean - CAVITIES[0][j]) / CAVITIES[1][j], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found.precision[j], 1 / variance - 1 / CAVITIES[1][j], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.log_z.sum(), power * total, rtol=1e-9)


@pytest.mark.parametrize("power", [1.0, 0.7])
def test_derivatives_of_log_z(mixture, power):
    site, parameters, _ = mixture

    def total(mean, *own):
        return site.moments(np.zeros(N), mean, VARIANCES, power, *own).log_z.sum()

    found, nearby = site.moments_and_nearby(np.zeros(N), *CAVITIES, power, *parameters)
    numeric = differences(lambda mean: total(mean, *parameters), CAVITIES[0])
    np.testing.assert_allclose(found.gradient, numeric, rtol=1e-5, atol=1e-7)
    gradients = site.parameter_gradient(np.zeros(N), *CAVITIES, power, *parameters)
    assert len(gradients) == len(parameters)
    for i, gradient in enumerate(gradients):

        def of_one(p, i=i):
            return total(CAVITIES[0], *parameters[:i], p, *parameters[i + 1 :])

        np.testing.assert_allclose(gradient, differences(of_one, parameters[i]), rtol=1e-4, atol=1e-7)
    moved = CAVITIES[0] + 0.1
    there = site.moments(np.zeros(N), moved, VARIANCES, power, *parameters)
    for field, expected in zip(nearby(moved), there, strict=True):
        np.testing.assert_allclose(field, expected, rtol=1e-6)


def test_reports_of_moments(mixture):
    site, parameters, _ = mixture
    found = site.tilted_report(np.zeros(N), *CAVITIES, 1.0, *parameters)
    tilted = site.moments(np.zeros(N), *CAVITIES, 1.0, *parameters)
    np.testing.assert_allclose(found["log_normaliser"], tilted.log_z.sum(), rtol=1e-12)
    far = site.tilted_report(np.zeros(N), np.full(N, 60.0), np.full(N, 0.01), 1.0, *parameters)["indicator"]
    assert far.min() > 0.99
    assert np.all((found["indicator"] > 0) & (found["indicator"] < 1))


def test_pickles(mixture):
    site, parameters, _ = mixture
    copy = compile_site(cloudpickle.loads(cloudpickle.dumps(site.site)))
    arguments = np.zeros(N), LOCATIONS[1], VARIANCES, *parameters
    np.testing.assert_allclose(copy.bounded(*arguments).value, site.bounded(*arguments).value, rtol=1e-13)


def test_a_mixture_without_bound():
    site = tree_mixture(get_site("laplace"), get_site("rectified_poisson"), FOREST)
    assert not site.has_bound
