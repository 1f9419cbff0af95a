"""Tilted cumulants against quadrature, and the corrected evidence against quadrature over all latent values."""

import numpy as np
import pymc as pm
import pytest
from scipy import integrate, stats

import pymc_ep as pmep
from pymc_ep.evidence.ep.cumulants import SAMPLE, Correction, correction_at, non_gaussianity, sample_of
from pymc_ep.evidence.ep.evidence import Evidence, evidence_of
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS
from pymc_ep.numerics.gaussian.sparse_coefficient_space import SparseFactorPrior
from pymc_ep.sites import compile_site

SITES = {
    # site: observation, parameters, t
    "poisson": (4, (), lambda f: stats.poisson.pmf(4, np.exp(f))),
    "probit": (1, (), lambda f: stats.norm.cdf(f)),
    "logit": (0, (), lambda f: 1 / (1 + np.exp(f))),
    "rectified_poisson": (0, (), lambda f: np.exp(-np.maximum(f, 0))),
    "laplace": (0.4, (0.3,), lambda f: stats.laplace.pdf(0.4, f, 0.3)),
    "student_t": (2.0, (4.0, 0.5), lambda f: stats.t.pdf((2.0 - f) / 0.5, 4.0)),
    "normal": (0.7, (0.4,), lambda f: stats.norm.pdf(0.7, f, 0.4)),
}


def by_quadrature(t, mean, variance):
    sd = np.sqrt(variance)

    def moment(function):
        points = [mean - 3 * sd, mean - sd, 0.0, 0.4, mean, mean + sd, mean + 3 * sd]
        inside = [p for p in points if abs(p - mean) < 10 * sd]
        integrand = lambda f: function(f) * t(f) * stats.norm.pdf(f, mean, sd)  # noqa: E731
        return integrate.quad(integrand, mean - 10 * sd, mean + 10 * sd, points=inside, limit=400, epsabs=1e-14)[0]

    total = moment(np.ones_like)
    centre = moment(lambda f: f) / total
    second, third, fourth = (moment(lambda f, k=k: (f - centre) ** k) / total for k in (2, 3, 4))
    return third / second**1.5, fourth / second**2 - 3


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize(("mean", "variance"), [(0.3, 1.0), (-1.5, 4.0), (1.0, 0.05)])
def test_standardised_cumulants(name, mean, variance):
    y, parameters, t = SITES[name]
    arrays = [np.array([float(part)]) for part in (y, mean, variance)]
    skewness, kurtosis = compile_site(name).cumulants(*arrays, *(np.array([p]) for p in parameters))
    expected = by_quadrature(t, mean, variance)
    np.testing.assert_allclose([skewness[0], kurtosis[0]], expected, rtol=2e-4, atol=2e-5)


def test_non_gaussianity_is_the_divergence_of_nearly_gaussian_densities():
    """Of a gamma distribution with a large shape, whose cumulants are known, from its Gaussian."""
    shape = 400.0
    gamma = stats.gamma(shape)
    x = np.linspace(200, 650, 100_001)
    density = gamma.pdf(x)
    log_ratio = gamma.logpdf(x) - stats.norm.logpdf(x, shape, np.sqrt(shape))
    divergence = np.sum(density * log_ratio) * (x[1] - x[0])
    np.testing.assert_allclose(non_gaussianity(2 / np.sqrt(shape), 6 / shape), divergence, rtol=0.02)


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(100)
LIKELIHOODS = {
    "poisson": (
        lambda f, y: pm.Poisson("y", pm.math.exp(f), observed=y),
        np.array([0, 3, 1]),
        lambda f, y: stats.poisson.logpmf(y, np.exp(f)),
    ),
    "probit": (
        lambda f, y: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y),
        np.array([1, 0, 1]),
        lambda f, y: stats.norm.logcdf((2 * y - 1) * f),
    ),
    "logit": (
        lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y),
        np.array([1, 0, 1]),
        lambda f, y: -np.logaddexp(0, (1 - 2 * y) * f),
    ),
}


def exact_evidence(mean, covariance, log_t):
    n = len(mean)
    grid = np.stack(np.meshgrid(*[NODES] * n, indexing="ij"), -1).reshape(-1, n)
    weight = np.prod(np.stack(np.meshgrid(*[WEIGHTS / WEIGHTS.sum()] * n, indexing="ij"), -1).reshape(-1, n), axis=1)
    return np.log(weight @ np.exp(log_t(mean + grid @ np.linalg.cholesky(covariance).T).sum(axis=1)))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(("n", "rho"), [(2, 0.5), (2, 0.9), (3, 0.5), (3, 0.9), (3, -0.4)])
def test_corrected_evidence_against_quadrature(likelihood, n, rho):
    observe, y, log_t = LIKELIHOODS[likelihood]
    mean, covariance = np.full(n, 0.3), (1 - rho) * np.eye(n) + rho * np.ones((n, n))
    with pm.Model() as model:
        observe(pm.MvNormal("f", mean, covariance), y[:n])
    found = pmep.diagnose(pmep.fit(model=model, draws=0, progressbar=False), model)
    exact = exact_evidence(mean, covariance, lambda f: log_t(f, y[:n]))
    before = abs(float(found["log_evidence"]) - exact)
    assert before > 1e-6
    assert abs(float(found["log_evidence_cumulant"]) - exact) < before / 15
    np.testing.assert_allclose(found["y_evidence_share"].sum(), found["cumulant_correction"], rtol=1e-12)


def test_independent_predictors_need_no_correction():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("f", 0.0, 2.0, shape=4)), observed=[0, 5, 1, 30])
    found = pmep.diagnose(pmep.fit(model=model, draws=0, progressbar=False), model)
    assert abs(float(found["cumulant_correction"])) < 1e-14
    assert np.abs(found["y_skewness"]).min() > 0.05


def test_a_pair_of_correlation_one_counts_in_full():
    """Two observations of one number, apart by so little that their predictors are two."""
    with pm.Model() as model:
        f = pm.Normal("f", 0.3, 1.0)
        pm.Poisson("y", pm.math.exp(f + apart(2)), observed=[0, 3])
    found = pmep.diagnose(pmep.fit(model=model, draws=0, progressbar=False), model)
    third, fourth = (np.prod(found[f"y_{name}"]) for name in ("skewness", "kurtosis"))
    np.testing.assert_allclose(found["cumulant_correction"], third / 6 + fourth / 24, rtol=1e-6)


def test_a_known_predictor_has_no_part():
    """One observation of the offset alone."""
    y = np.array([2, 0, 4])
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(2), np.array([[1.0, 0.6], [0.6, 1.0]]))
        pm.Poisson("y", pm.math.exp(0.2 + pm.math.concatenate([f, np.zeros(1)])), observed=y)
    with pm.Model() as smaller:
        f = pm.MvNormal("f", np.zeros(2), np.array([[1.0, 0.6], [0.6, 1.0]]))
        pm.Poisson("y", pm.math.exp(0.2 + f), observed=y[:2])
    found, alone = (pmep.diagnose(pmep.fit(model=m, draws=0, progressbar=False), m) for m in (model, smaller))
    np.testing.assert_allclose(found["cumulant_correction"], alone["cumulant_correction"], rtol=1e-5)
    assert abs(float(found["y_evidence_share"][2])) < 1e-12


def apart(n):
    """Offsets that tell predictors apart, and change no figure: equal ones would share a site, which is exact."""
    return 1e-9 * np.arange(n)


def groups_of_bits(groups, each, scale, seed, offset=apart):
    """Bits of groups with a random level each, and the exact posterior of the scale by quadrature."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), each)
    y = (rng.normal(0, scale, groups)[group] + rng.logistic(size=groups * each) > 0).astype(int)
    with pm.Model() as model:
        s = pm.HalfCauchy("s", 2.5)
        u = pm.Normal("u", 0, 1, shape=groups)
        pm.Bernoulli("y", logit_p=s * u[group] + offset(len(y)), observed=y)
    ones = np.bincount(group, weights=y, minlength=groups)[:, None]
    log_s = np.linspace(-3.0, 4.0, 1401)
    evidence = np.empty_like(log_s)
    levels = np.linspace(-8.0, 8.0, 4001)
    prior = stats.norm.pdf(levels) * (levels[1] - levels[0])
    for k, value in enumerate(np.exp(log_s)):
        log_t = ones * value * levels - each * np.logaddexp(0, value * levels)
        evidence[k] = np.log(np.exp(log_t) @ prior).sum()
    log_density = evidence + stats.halfcauchy.logpdf(np.exp(log_s), scale=2.5) + log_s
    weight = np.exp(log_density - log_density.max())
    step = log_s[1] - log_s[0]
    log_evidence = np.log(weight.sum() * step) + log_density.max()
    weight /= weight.sum()
    mean = weight @ np.exp(log_s)
    return model, float(mean), float(np.sqrt(weight @ (np.exp(log_s) - mean) ** 2)), float(log_evidence)


def test_the_scale_of_groups_of_bits_is_corrected(monkeypatch):
    model, mean, sd, log_evidence = groups_of_bits(30, 3, 3.0, seed=3)

    def errors():
        fit = pmep.fit(model=model, draws=0, progressbar=False)
        found = float(fit["posterior_mean"]["s"]), float(fit["posterior_sd"]["s"]), float(fit["fit"]["log_evidence"])
        return fit, [(found[0] - mean) / sd, found[1] / sd - 1, found[2] - log_evidence]

    fit, corrected = errors()
    assert np.abs(corrected).max() < 0.05
    assert 0.05 < float(fit["fit"]["cumulant_shift"]) < 0.7 and bool(fit["fit"]["converged"])
    found = pmep.diagnose(fit, model)
    assert float(found["log_evidence_cumulant"]) == float(fit["fit"]["log_evidence"])
    assert "EP's own error is seen, and corrected" in found.attrs["verdict"]
    monkeypatch.setattr(Evidence, "corrected_fits", lambda *_: "none")
    fit, plain = errors()
    assert abs(plain[0]) > 3 * abs(corrected[0]) and abs(plain[2]) > 0.1
    assert "cumulant_shift" not in fit["fit"]


def test_groups_that_share_their_predictor_need_no_correction():
    model, mean, sd, log_evidence = groups_of_bits(30, 3, 3.0, seed=3, offset=np.zeros)
    fit = pmep.fit(model=model, draws=0, progressbar=False)
    assert abs(float(fit["fit"]["log_evidence"]) - log_evidence) < 2e-3
    assert abs(float(fit["posterior_mean"]["s"]) - mean) < 0.02 * sd
    assert abs(float(fit["posterior_sd"]["s"]) / sd - 1) < 0.02
    assert abs(float(fit["fit"]["cumulant_correction"])) < 1e-9


def test_a_large_correction_is_announced():
    model, mean, sd, _ = groups_of_bits(150, 5, 5.0, seed=1)
    with pytest.warns(pmep.ConvergenceWarning, match="move the mean of s by .* standard deviations"):
        fit = pmep.fit(model=model, draws=0, progressbar=False)
    shift = float(fit["fit"]["cumulant_shift"])
    assert shift > 0.7
    assert abs(float(fit["posterior_mean"]["s"]) - mean) / sd < shift / 3
    assert pmep.diagnose(fit, model).attrs["verdict"].startswith("Not to be trusted")


def test_a_series_that_diverges_is_announced(monkeypatch):
    model, *_ = groups_of_bits(10, 3, 1.0, seed=2)
    monkeypatch.setattr("pymc_ep.evidence.ep.cumulants._MOST_OF_ONE_SITE", 0.0)
    with pytest.warns(pmep.ConvergenceWarning, match="the series that tells it diverges at .* of the fits"):
        fit = pmep.fit(model=model, draws=0, progressbar=False)
    assert "cumulant_correction" not in fit["fit"] and not bool(fit["fit"]["converged"])


def test_parts_of_groups_give_the_correction_of_all_pairs(monkeypatch):
    rng = np.random.default_rng(3)
    n, groups = 1200, 300
    group = rng.permutation(np.arange(n) % groups)
    with pm.Model() as model:
        level, effect = pm.Normal("level", 0.0, 1.0), pm.Normal("effect", 0.0, 1.5, shape=groups)
        pm.Bernoulli("y", logit_p=level + effect[group] + apart(n), observed=rng.integers(2, size=n))
    evidence = evidence_of(compiled_form(model), OPTIONS)
    at = evidence.at(evidence.form.start)
    by_parts = correction_at(at)
    assert abs(by_parts.total) > 0.05
    monkeypatch.setattr(SparseFactorPrior, "apart", lambda prior, posterior: None)
    np.testing.assert_allclose(by_parts.total, correction_at(at).total, atol=0.01)


def test_a_sample_of_many_predictors_stands_for_all(monkeypatch):
    rng = np.random.default_rng(4)
    n = 2400
    first, second = rng.integers(40, size=n), rng.integers(40, size=n)
    with pm.Model() as model:
        level = pm.Normal("first", 0.0, 1.0, shape=40)[first] + pm.Normal("second", 0.0, 1.0, shape=40)[second]
        pm.Poisson("y", pm.math.exp(level - 1.0 + apart(n)), observed=rng.poisson(0.5, size=n))
    evidence = evidence_of(compiled_form(model), OPTIONS)
    at = evidence.at(evidence.form.start)
    sampled = correction_at(at)
    assert np.isfinite(sampled.shares).sum() == 1000
    monkeypatch.setattr("pymc_ep.evidence.ep.cumulants._ALL", n)
    whole = correction_at(at)
    assert np.isfinite(whole.shares).all() and whole.total > 0.1
    np.testing.assert_allclose(sampled.total, whole.total, rtol=0.15)


def test_a_sample_is_no_larger_than_its_error_asks():
    rng = np.random.default_rng(5)
    n = 5000
    shares = np.full(n, np.nan)
    looked = sample_of(n, SAMPLE)
    shares[looked] = 1e-4 * (1.0 + 0.5 * rng.standard_normal(len(looked)))
    whole = Correction(shares)
    # The relative error of one share is 0.5, and 0.02 is asked for: by the law of large numbers 625.
    assert abs(whole.sufficient - 625) < 60
    part = whole.of_sample(whole.sufficient)
    assert np.isfinite(part.shares).sum() == whole.sufficient
    np.testing.assert_array_equal(part.shares[np.isfinite(part.shares)], shares[np.isfinite(part.shares)])
    np.testing.assert_allclose(part.total, whole.total, rtol=0.04)
    known = Correction(np.full(n, 1e-4))
    assert known.sufficient == SAMPLE and known.of_sample(10) is known
