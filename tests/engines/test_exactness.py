"""EP where the answer is known: Gaussian noise, single sites, orthants; and against EP by the book."""

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats

from pymc_ep.engines.loop import run
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.sweep import Problem
from pymc_ep.numerics.backend import cholesky
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.sites import compile_site, sites
from tests.engines.conftest import LOG_T

N = 12


def data(name, seed=5):
    """Observations of every family, with an outlier for the robust one."""
    rng = np.random.default_rng(seed)
    kind = sites()[name].domain
    if kind == "count":
        y = rng.poisson(2.5, N).astype(float)
        y[3] = 0.0
        return y
    if kind == "binary":
        return rng.integers(0, 2, N).astype(float)
    if kind in ("positive", "non-negative"):
        return rng.gamma(2.0, 0.8, N)
    y = rng.normal(0.5, 1.0, N)
    y[N // 2] += 7.0
    return y


FAMILIES = sorted(LOG_T)


def level_of(name):
    """A prior mean at which a family's predictor usually lives."""
    return {"rectified_poisson": 2.0, "softplus_poisson": 1.5}.get(name, 0.3)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_gaussian_noise_is_exact_in_one_sweep(reference, gaussian_process, power):
    mean, covariance = gaussian_process(40, length=0.5, level=0.4)
    rng = np.random.default_rng(0)
    y, sigma = rng.normal(size=40), 0.6
    # From the prior one update of all sites; the second sweep finds nothing to change.
    run = reference.solve("normal", y, mean, covariance, (sigma,), power=power, max_iter=2)
    assert run.status.converged
    assert len(run.objective) == 1
    total = covariance + sigma**2 * np.eye(40)
    weights = np.linalg.solve(total, y - mean)
    found = run.state.sweep
    np.testing.assert_allclose(found.posterior.mean, mean + covariance @ weights, rtol=1e-8, atol=1e-8)
    expected = covariance - covariance @ np.linalg.solve(total, covariance)
    np.testing.assert_allclose(found.posterior.variance, expected.diagonal(), rtol=1e-8)
    np.testing.assert_allclose(found.log_z, scipy.stats.multivariate_normal.logpdf(y, mean, total), rtol=1e-8)
    np.testing.assert_allclose(found.posterior.weights, weights, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.posterior.precision_matrix(), np.linalg.inv(total), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_single_site_is_exact(reference, name):
    y, mean, variance = data(name)[N // 2], level_of(name), 1.7
    parameters = reference.PARAMETERS.get(name, ())
    run = reference.solve(name, [y], [mean], [[variance]], parameters)
    assert run.status.converged, run.status.sentence
    log_t = reference.LOG_T[name]

    def density(f, k=0):
        value = log_t(float(f), y, *parameters) + scipy.stats.norm.logpdf(float(f), mean, np.sqrt(variance))
        return mpmath.mpf(float(f)) ** k * mpmath.exp(value)

    # The ends of the panels: the prior's bulk, the kinks at 0 and at y, and the neighbourhood of an outlier.
    nodes = sorted({-40.0, *np.arange(-8.0, 14.0), 40.0, 0.0, float(y)})
    m0, m1, m2 = (mpmath.quad(lambda f, k=k: density(f, k), nodes, maxdegree=7) for k in range(3))
    found = run.state.sweep
    np.testing.assert_allclose(float(found.log_z), float(mpmath.log(m0)), rtol=1e-8)
    np.testing.assert_allclose(found.posterior.mean[0], float(m1 / m0), rtol=1e-8)
    sd = float(mpmath.sqrt(m2 / m0 - (m1 / m0) ** 2))
    np.testing.assert_allclose(np.sqrt(found.posterior.variance[0]), sd, rtol=1e-7)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("name", FAMILIES)
def test_agrees_with_the_textbook(reference, gaussian_process, name, power):
    mean, covariance = gaussian_process(N, level=level_of(name))
    y, parameters = data(name), reference.PARAMETERS.get(name, ())
    log_ts, kinks = reference.likelihoods(name, y, parameters)
    expected = reference.textbook_ep(log_ts, mean, covariance, power=power, kinks=kinks)
    for schedule in ("parallel", "sequential"):
        run = reference.solve(name, y, mean, covariance, parameters, power=power, schedule=schedule)
        assert run.status.converged, run.status.sentence
        found = run.state.sweep
        np.testing.assert_allclose(found.posterior.mean, expected.mean, atol=1e-7)
        np.testing.assert_allclose(found.posterior.variance, expected.covariance.diagonal(), rtol=1e-7)
        np.testing.assert_allclose(run.state.precision, expected.precision, atol=1e-7)
        np.testing.assert_allclose(run.state.shift, expected.shift, atol=1e-7)
        np.testing.assert_allclose(found.log_z, expected.log_z, rtol=1e-8)
        posterior = covariance - covariance @ found.posterior.precision_matrix() @ covariance
        np.testing.assert_allclose(posterior, expected.covariance, atol=1e-7)
    if name == "student_t":
        assert expected.precision.min() < -1e-3, "the outlier should have widened the posterior"


@pytest.mark.parametrize("name", ["probit", "student_t"])
def test_warm_start_reaches_the_same_fixed_point(reference, gaussian_process, name):
    mean, covariance = gaussian_process(N, level=level_of(name))
    y, parameters = data(name), reference.PARAMETERS.get(name, ())
    cold = reference.solve(name, y, mean, covariance, parameters)
    other = reference.solve(name, y, mean, 1.5 * covariance, parameters)
    warm = reference.solve(name, y, mean, covariance, parameters, start=(other.state.shift, other.state.precision))
    again = reference.solve(name, y, mean, covariance, parameters, start=(cold.state.shift, cold.state.precision))
    assert cold.status.converged
    assert warm.status.converged
    assert len(again.objective) == 1
    np.testing.assert_allclose(warm.state.sweep.posterior.mean, cold.state.sweep.posterior.mean, atol=1e-7)
    np.testing.assert_allclose(warm.state.precision, cold.state.precision, atol=1e-7)
    np.testing.assert_allclose(warm.state.sweep.log_z, cold.state.sweep.log_z, rtol=1e-9)


def test_a_bad_warm_start_does_no_harm(reference, gaussian_process):
    mean, covariance = gaussian_process(N)
    y = data("student_t")
    cold = reference.solve("student_t", y, mean, covariance, (2.5, 0.4))
    # Sites so negative that no posterior exists.
    run = reference.solve("student_t", y, mean, covariance, (2.5, 0.4), start=(np.zeros(N), np.full(N, -1e6)))
    assert run.status.converged
    np.testing.assert_allclose(run.state.sweep.posterior.mean, cold.state.sweep.posterior.mean, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_probit_against_the_orthant_probability(reference, n):
    """Phi(f_1) ... Phi(f_n) under N(m, K) is the probability that f + N(0, I) lies in the positive orthant."""
    rng = np.random.default_rng(n)
    mean = rng.normal(0.3, 0.5, n)
    root = rng.normal(size=(n, n))
    covariance = root @ root.T + 0.2 * np.eye(n)
    run = reference.solve("probit", np.ones(n), mean, covariance)
    total = covariance + np.eye(n)
    if n == 1:
        exact = scipy.stats.norm.logcdf(mean[0] / np.sqrt(total[0, 0]))
    else:
        quadrature = {"maxpts": 10**6 * n, "abseps": 1e-9, "releps": 1e-9}
        exact = np.log(scipy.stats.multivariate_normal.cdf(np.zeros(n), -mean, total, **quadrature))
    # EP is exact for one site and, for a handful of probit sites, correct to parts in a thousand.
    np.testing.assert_allclose(run.state.sweep.log_z, exact, **({"rtol": 1e-10} if n == 1 else {"atol": 5e-3}))


def chained_pairs():
    """Predictors f_i - f_{i+1} of a chain of comparisons, each made six times, under a wide prior."""
    items = 5
    pairs = [(i, i + 1) for i in range(items - 1)] * 6
    rows = np.zeros((len(pairs), items))
    for k, (i, j) in enumerate(pairs):
        rows[k, i], rows[k, j] = 1.0, -1.0
    return rows @ (100.0 * np.eye(items)) @ rows.T


def test_damping_ends_the_limit_cycle_of_chained_pairs(reference):
    """Undamped parallel EP runs in circles on chained comparisons with a large prior variance."""
    covariance = chained_pairs()
    n = len(covariance)
    y, zero = np.ones(n), np.zeros(n)
    undamped = reference.solve("probit", y, zero, covariance, damping=1.0, max_iter=100)
    assert not undamped.status.converged
    run = reference.solve("probit", y, zero, covariance, max_iter=200)
    assert run.status.converged, run.status.sentence
    slow = reference.solve("probit", y, zero, covariance, schedule="sequential", damping=0.5)
    assert slow.status.converged
    np.testing.assert_allclose(run.state.sweep.posterior.mean, slow.state.sweep.posterior.mean, atol=1e-6)
    np.testing.assert_allclose(run.state.sweep.log_z, slow.state.sweep.log_z, rtol=1e-8)


def test_a_singular_prior(reference):
    """Two data on one latent value are one datum with the product likelihood."""
    log_ts, _ = reference.likelihoods("probit", [1.0, 1.0])
    run = reference.solve("probit", [1.0, 1.0], [0.2, 0.2], [[1.5, 1.5], [1.5, 1.5]])
    assert run.status.converged
    mean, variance = run.state.sweep.posterior.mean, run.state.sweep.posterior.variance
    np.testing.assert_allclose(mean[0], mean[1], rtol=1e-9)
    _, exact_mean, exact_variance = reference.tilted(lambda f: 2 * log_ts[0](f), 0.2, 1.5, 1.0, None)
    # EP's own error; the exact value is what it approximates.
    np.testing.assert_allclose(mean[0], exact_mean, atol=0.02)
    np.testing.assert_allclose(variance[0], exact_variance, rtol=0.05)
    # The limit of nearly equal latent values, which the textbook can do.
    near = np.array([[1.5 + 1e-7, 1.5], [1.5, 1.5 + 1e-7]])
    expected = reference.textbook_ep(log_ts, np.full(2, 0.2), near, tol=1e-8)
    np.testing.assert_allclose(mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(run.state.sweep.log_z, expected.log_z, atol=1e-5)


def test_a_predictor_that_is_known(reference):
    """No prior variance: the datum contributes its log likelihood to the evidence and nothing else."""
    covariance = np.diag([1.3, 0.0])
    run = reference.solve("probit", [1.0, 1.0], [0.1, 0.4], covariance)
    assert run.status.converged, run.status.sentence
    exact = scipy.stats.norm.logcdf(0.1 / np.sqrt(2.3)) + scipy.stats.norm.logcdf(0.4)
    np.testing.assert_allclose(run.state.sweep.log_z, exact, rtol=1e-8)


def test_sites_without_precision(reference, gaussian_process):
    """Zero counts far above the kink are factors exp(-f): they shift the posterior and leave its covariance alone."""
    mean, covariance = gaussian_process(5, level=60.0)
    run = reference.solve("rectified_poisson", np.zeros(5), mean, covariance)
    assert run.status.converged
    found = run.state.sweep
    np.testing.assert_allclose(run.state.precision, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.posterior.mean, mean - covariance.sum(axis=1), rtol=1e-10)
    np.testing.assert_allclose(found.posterior.variance, covariance.diagonal(), rtol=1e-10)
    np.testing.assert_allclose(found.log_z, -mean.sum() + 0.5 * covariance.sum(), rtol=1e-10)


@pytest.mark.parametrize("name", ["poisson", "softplus_poisson", "rectified_poisson"])
@pytest.mark.parametrize("y", [0.0, 1e6])
def test_zero_and_huge_counts(reference, gaussian_process, name, y):
    centre = {"poisson": np.log(max(y, 0.5))}.get(name, max(y, 0.5))
    scale = 1.0 if name == "poisson" or y == 0 else 1e4
    mean, covariance = gaussian_process(6, amplitude=scale, level=centre, nugget=0.05 * scale**2)
    run = reference.solve(name, np.full(6, y), mean, covariance)
    assert run.status.converged, run.status.sentence
    found = run.state.sweep
    assert np.all(np.isfinite(found.posterior.mean))
    assert np.all(found.posterior.variance > 0)
    log_ts, kinks = reference.likelihoods(name, np.full(6, y))
    if y == 0:
        expected = reference.textbook_ep(log_ts, mean, covariance, kinks=kinks)
        np.testing.assert_allclose(found.posterior.mean, expected.mean, atol=1e-6)
        np.testing.assert_allclose(found.log_z, expected.log_z, atol=1e-8)
        return
    # Given a million events the likelihood is Gaussian to parts in a thousand: in the rate it has the variance y, in
    # the log rate 1 / y.
    noise = np.full(6, 1 / y if name == "poisson" else y)
    posterior = covariance - covariance @ np.linalg.solve(covariance + np.diag(noise), covariance)
    np.testing.assert_allclose(found.posterior.variance, posterior.diagonal(), rtol=5e-3)
    np.testing.assert_allclose(found.posterior.mean, centre, atol=3e-3 * np.sqrt(noise[0]))


CASES = [
    (name, amplitude, length, power)
    for name in FAMILIES
    for amplitude, length in ((0.5, 1.0), (2.0, 0.5), (1.0, 3.0))
    for power in (1.0, 0.5)
]


def test_cubic_operations(reference, gaussian_process):
    """One factorisation a sweep, two where some site precisions are negative; a dozen for a fit."""
    counts = []
    for name, amplitude, length, power in CASES:
        scale = amplitude * (2.0 if "poisson" in name and name != "poisson" else 1.0)
        mean, covariance = gaussian_process(N, amplitude=scale, length=length, level=level_of(name), nugget=1e-3)
        cholesky.counts["factorizations"] = 0
        run = reference.solve(name, data(name), mean, covariance, reference.PARAMETERS.get(name, ()), power=power)
        assert run.status.converged, (name, amplitude, length, power, run.status.sentence)
        if name == "student_t":
            continue
        counts.append(cholesky.counts["factorizations"])
    assert max(counts) <= 20
    assert np.median(counts) <= 12


def test_many_coefficients_under_a_wide_prior():
    """200 coefficients of 20,000 bits: parallel updates run away from here, and start anew at the mode."""
    n, p = 20_000, 200
    rng = np.random.default_rng([n, p])
    x = rng.normal(size=(n, p))
    y = (rng.random(n) < scipy.special.expit(x @ rng.normal(0, 0.3, p))).astype(float)
    problem = Problem(np.zeros(n), FactorPrior(2.5 * x.T, np.ones(x.shape[1])), (y,), ((),))
    found = run(EP([compile_site("logit")]), problem, max_iter=30)
    assert found.status.converged, found.status.sentence
    beta = np.zeros(p)
    for _ in range(15):
        rate = scipy.special.expit(x @ beta)
        hessian = (x.T * (rate * (1 - rate))) @ x + np.eye(p) / 2.5**2
        beta += np.linalg.solve(hessian, x.T @ (y - rate) - beta / 2.5**2)
    # Laplace's evidence; the posterior is nearly Gaussian, with 100 data for each coefficient.
    laplace = scipy.stats.bernoulli.logpmf(y, scipy.special.expit(x @ beta)).sum() - 0.5 * beta @ beta / 2.5**2
    laplace -= 0.5 * np.linalg.slogdet(hessian)[1] + p * np.log(2.5)
    np.testing.assert_allclose(found.objective[-1], laplace, atol=2.0)
    mean = 2.5 * np.asarray(found.state.sweep.posterior.coordinates)
    sd = np.sqrt(np.linalg.inv(hessian).diagonal())
    assert np.abs((mean - beta) / sd).max() < 1.0
