"""The Poisson distributions with a predictor against 50-digit arithmetic, SciPy and finite differences."""

import warnings

import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.moments import mean
from scipy import stats

from pymc_ep.compat import PYMC_6, c_mode, group
from pymc_ep.distributions import RectifiedPoisson, RectifiedPoissonRV, SoftplusPoisson, SoftplusPoissonRV
from pymc_ep.exceptions import InvalidDataError

BOTH = pytest.mark.parametrize("dist", [RectifiedPoisson, SoftplusPoisson])
COUNTS = [0, 1, 2, 15, 16, 40, 1000, 10**8]
PREDICTORS = [-800.0, -40.0, -37.0, -2.5, -1e-8, 0.0, 1e-9, 0.3, 7.0, 16.0, 39.0, 1100.0, 1e8, 1.0001e8]


def exact_rate(dist, eta):
    if dist is RectifiedPoisson:
        return mpmath.mpf(max(eta, 0.0))
    return mpmath.log1p(mpmath.exp(mpmath.mpf(eta)))


def exact_logp(dist, y, eta):
    rate = exact_rate(dist, eta)
    if rate == 0:
        return 0.0 if y == 0 else -np.inf
    return float(y * mpmath.log(rate) - rate - mpmath.loggamma(y + 1))


def rates(dist, eta):
    return np.array([float(exact_rate(dist, e)) for e in eta])


@pytest.fixture(scope="module")
def compiled():
    """Log density with its gradient in eta, and log distribution function, of vectors (y, eta)."""
    y, eta = pt.lvector("y"), pt.dvector("eta")

    def functions(dist, **options):
        rv = dist.dist(eta, **options)
        logp = pm.logp(rv, y)
        return (
            pytensor.function([y, eta], [logp, pytensor.grad(logp.sum(), eta)], mode=c_mode()),
            pytensor.function([y, eta], pm.logcdf(rv, y), mode=c_mode()),
        )

    return {
        RectifiedPoisson: functions(RectifiedPoisson),
        SoftplusPoisson: functions(SoftplusPoisson),
        "cut": functions(RectifiedPoisson, zero_mass=False),
    }


@BOTH
def test_logp_to_fifty_digits(dist, compiled):
    y, eta = (a.ravel() for a in np.meshgrid(COUNTS, PREDICTORS))
    with mpmath.workdps(50):
        expected = np.array([exact_logp(dist, int(k), float(e)) for k, e in zip(y, eta, strict=True)])
    values, _ = compiled[dist][0](y, eta)
    # Where y and the rate are both 1e8 and the density is near its maximum, this allows 1e-12 of a value near 10.
    np.testing.assert_allclose(values, expected, rtol=2e-13, atol=5e-14)


@BOTH
def test_gradient_against_central_differences(dist, compiled):
    y, eta = (a.ravel() for a in np.meshgrid([0, 1, 15, 16, 40, 1000], [-60.0, -36.5, -2.5, 0.3, 7.0, 30.0, 1100.0]))
    with mpmath.workdps(50):
        expected = [
            0.0
            if exact_rate(dist, e) == 0
            else float(mpmath.diff(lambda x, k=k: k * mpmath.log(exact(dist, x)) - exact(dist, x), mpmath.mpf(e)))
            for k, e in zip(y.tolist(), eta.tolist(), strict=True)
        ]
    _, gradient = compiled[dist][0](y, eta)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-14)


def exact(dist, x):
    """The rate as a smooth function of an mpmath number (positive predictors only, for the rectified link)."""
    return x if dist is RectifiedPoisson else mpmath.log1p(mpmath.exp(x))


def test_rectified_gradient_vanishes_where_there_is_no_rate(compiled):
    for variant in (RectifiedPoisson, "cut"):
        _, gradient = compiled[variant][0](np.array([0, 0, 3, 3]), np.array([-1.0, 0.0, -1.0, 0.0]))
        np.testing.assert_array_equal(gradient, 0.0)


def test_cut_variant_allows_no_count_at_a_negative_predictor(compiled):
    eta = np.array([-1e-300, -5.0, 0.0, 0.0, 2.0, 2.0])
    y = np.array([0, 0, 0, 1, 0, 3])
    expected = [-np.inf, -np.inf, 0.0, -np.inf, -2.0, stats.poisson.logpmf(3, 2.0)]
    np.testing.assert_allclose(compiled["cut"][0](y, eta)[0], expected, rtol=1e-14)
    np.testing.assert_allclose(compiled["cut"][1](y, eta)[[0, 2]], [-np.inf, 0.0])


@BOTH
def test_not_a_number_is_kept(dist, compiled):
    values, _ = compiled[dist][0](np.array([0, 3]), np.array([np.nan, np.nan]))
    assert np.isnan(values).all()


@BOTH
def test_impossible_counts(dist, compiled):
    values, _ = compiled[dist][0](np.array([-1, -20]), np.array([2.0, -2.0]))
    np.testing.assert_array_equal(values, -np.inf)


@BOTH
def test_logcdf(dist, compiled):
    y, eta = (a.ravel() for a in np.meshgrid([-1, 0, 3, 50], [-3.0, 0.0, 0.5, 8.0, 60.0]))
    with mpmath.workdps(50):
        expected = stats.poisson.logcdf(y, rates(dist, eta))
    np.testing.assert_allclose(compiled[dist][1](y, eta), expected, rtol=1e-10, atol=1e-14)


@BOTH
@pytest.mark.parametrize("eta", [-1.0, 0.7, 12.0])
def test_draws_follow_the_poisson_law(dist, eta):
    draws = pm.draw(dist.dist(eta), 4000, random_seed=11)
    rate = rates(dist, [eta])[0]
    if rate == 0:
        assert np.all(draws == 0)
        return
    edges = np.unique(stats.poisson.ppf(np.linspace(0.05, 0.95, 8), rate))
    probability = np.diff(stats.poisson.cdf(edges, rate), prepend=0.0, append=1.0)
    observed = np.bincount(np.searchsorted(edges, draws), minlength=edges.size + 1)
    assert stats.chisquare(observed, probability * draws.size).pvalue > 1e-3


@BOTH
@pytest.mark.filterwarnings("ignore:The RandomType SharedVariables:UserWarning")
def test_draws_under_jax(dist):
    pytest.importorskip("jax")
    draws = pm.draw(dist.dist(np.full(2000, 3.0)), random_seed=2, mode="JAX")
    rate = rates(dist, [3.0])[0]
    assert abs(draws.mean() - rate) < 5 * np.sqrt(rate / draws.size)


@BOTH
def test_shape_mean_and_support_point(dist):
    eta = np.array([-900.0, -1.0, 0.0, 2.6])
    for rv in (dist.dist(eta), dist.dist(eta, shape=(3, 4))):
        assert tuple(rv.shape.eval()) == pm.draw(rv, random_seed=0).shape
        expected = np.broadcast_to(rates(dist, eta), rv.shape.eval())
        np.testing.assert_allclose(mean(rv).eval(), expected, rtol=1e-14)
        point = pm.distributions.distribution.support_point(rv).eval()
        np.testing.assert_array_equal(point, np.floor(expected))
        assert np.isfinite(pm.logp(rv, point).eval()).all()


def test_types_tell_families_apart():
    rectified, cut = RectifiedPoisson.dist(1.0), RectifiedPoisson.dist(1.0, zero_mass=False, shape=3)
    assert isinstance(rectified.owner.op, RectifiedPoissonRV) and rectified.owner.op.zero_mass
    assert isinstance(cut.owner.op, RectifiedPoissonRV) and not cut.owner.op.zero_mass
    assert isinstance(SoftplusPoisson.dist(1.0).owner.op, SoftplusPoissonRV)
    assert rectified.owner.op.ndim_supp == 0
    # A change of size rebuilds the Op and must keep the variant.
    assert not pm.distributions.shape_utils.change_dist_size(cut, (2, 3)).owner.op.zero_mass


@BOTH
def test_fractional_observations_are_refused(dist):
    with pm.Model(), pytest.raises(InvalidDataError, match=r"'y' has the observation 1.5 at index 1,"):
        dist("y", 1.0, observed=[0.0, 1.5, 2.0])


def make_model(dist, **options):
    counts = np.array([1, 4, 2, 3, 6])
    with pm.Model(coords={"bin": np.arange(5) + 0.5}) as model:
        f = pm.Normal("f", 3.0, 1.0, dims="bin")
        dist("y", f, observed=counts, dims="bin", **options)
    return model


@pytest.mark.parametrize(
    ("dist", "options"), [(RectifiedPoisson, {}), (RectifiedPoisson, {"zero_mass": False}), (SoftplusPoisson, {})]
)
def test_model_block(dist, options):
    """Initial point, prior predictive and MAP in one model, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "`find_MAP` will", FutureWarning)
        with make_model(dist, **options) as model:
            point = model.initial_point()
            assert np.isfinite(model.compile_logp()(point))
            prior = pm.sample_prior_predictive(20, random_seed=1)
            best = pm.find_MAP(progressbar=False)
    predictive = group(prior, "prior_predictive")["y"]
    assert predictive.dims == ("chain", "draw", "bin") and np.issubdtype(predictive.dtype, np.integer)
    np.testing.assert_array_equal(predictive["bin"], np.arange(5) + 0.5)
    # The gradient of the log posterior is zero at the MAP: y t'/t - t' = f - 3 with rate t.
    f, y = best["f"], np.array([1, 4, 2, 3, 6])
    rate, slope = (f, 1.0) if dist is RectifiedPoisson else (np.logaddexp(0, f), 1 / (1 + np.exp(-f)))
    np.testing.assert_allclose((y / rate - 1) * slope, f - 3.0, atol=2e-3)


@BOTH
def test_nuts_and_predictions(dist):
    sampler = {"nuts_sampler": "pymc"} if PYMC_6 else {}
    with make_model(dist):
        idata = pm.sample(
            tune=100,
            draws=100,
            chains=1,
            cores=1,
            progressbar=False,
            random_seed=4,
            compute_convergence_checks=False,
            **sampler,
        )
        pm.compute_log_likelihood(idata, progressbar=False)
        pm.sample_posterior_predictive(idata, extend_inferencedata=True, progressbar=False, random_seed=5)
    f = group(idata, "posterior")["f"].values
    rate = np.maximum(f, 0) if dist is RectifiedPoisson else np.logaddexp(0, f)
    expected = stats.poisson.logpmf(np.array([1, 4, 2, 3, 6]), rate)
    log_likelihood = group(idata, "log_likelihood")["y"]
    assert log_likelihood.dims == ("chain", "draw", "bin")
    np.testing.assert_allclose(log_likelihood, expected, rtol=1e-12, atol=1e-13)
    predictive = group(idata, "posterior_predictive")["y"].values
    assert abs(predictive.mean() - rate.mean()) < 5 * np.sqrt(rate.mean() / predictive.size)
