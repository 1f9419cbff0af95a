"""EP on wavelet trees: exact where all pixels have Gaussian noise, against enumeration and quadrature; other data."""

import itertools

import arviz as az
import numpy as np
import pymc as pm
import pytest
import scipy.special
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.diagnostics import loo_pit
from pymc_ep.operators import Wavelet2D

SIDE, NOISE, ROOT = 8, 0.5, 0.3
CHILD = np.array([[0.1, 0.8]])
LOW, HIGH = np.array([0.1, 0.3]), np.array([1.5, 3.0])
QUIET = {"progressbar": False, "random_seed": 1}
PAIRS = {
    "normal": ("Normal", "Normal"),
    "laplace": ("Laplace", "Laplace"),
    "normal and student": ("Normal", "StudentT"),
}
PRIORS = {
    "Normal": (lambda s: pm.Normal.dist(0, s), lambda s: scipy.stats.norm(scale=s)),
    "Laplace": (lambda s: pm.Laplace.dist(0, s), lambda s: scipy.stats.laplace(scale=s)),
    "StudentT": (lambda s: pm.StudentT.dist(nu=3.0, sigma=s), lambda s: scipy.stats.t(3.0, scale=s)),
}
LEVELS = np.repeat([0, 1], [48, 12])


def picture(side=SIDE):
    truth = np.zeros((side, side))
    truth[side // 4 : 3 * side // 4, 3 * side // 8 :] = 4.0
    return truth + NOISE * np.random.default_rng(3).normal(size=truth.shape)


def tree_model(pair, low=LOW, high=HIGH, transition=None, observe=None):
    """A tree of two levels on db2; by default all is given, and each pixel has noise."""
    with pm.Model() as model:
        given = {"root": ROOT, "child": CHILD} if transition is None else transition
        first, second = (PRIORS[name][0] for name in PAIRS[pair])
        if low is None:
            low, high = (pm.HalfNormal(name, 2.0, shape=2) for name in ("low", "high"))
        options = {"wavelet": "db2", "levels": 2, "transition": given or None}
        u = pmep.WaveletTree("u", shape=(SIDE, SIDE), low=first(low), high=second(high), **options)
        if observe is None:
            pm.Normal("y", u, NOISE, observed=picture())
        else:
            observe(u)
    return model


def log_of(states, emissions):
    """log of prior times emissions of all states of one tree: a root, node 0, and four children."""
    root = ROOT if states[0] else 1 - ROOT
    above = CHILD[0, states[0]]
    children = sum(np.log(above if s else 1 - above) for s in states[1:])
    return np.log(root) + children + sum(emissions[s, k] for k, s in enumerate(states))


def exact(pair):
    """Log evidence, moments of the coefficients and P(high), by quadrature and enumeration."""
    coefficients = Wavelet2D((SIDE, SIDE), "db2", 2).forward(picture())
    integrals = np.empty((3, 2, 60))
    nodes, weights = np.polynomial.legendre.leggauss(300)
    for j, c in enumerate(coefficients):
        # Panels break where densities have kinks.
        ends = np.sort([c - 10 * NOISE, c + 10 * NOISE, np.clip(0.0, c - 10 * NOISE, c + 10 * NOISE), c])
        half = np.diff(ends)[:, None] / 2
        s = ends[:-1, None] + half * (1 + nodes)
        for d in range(2):
            density = PRIORS[PAIRS[pair][d]][1]((LOW, HIGH)[d][LEVELS[j]])
            values = half * weights * scipy.stats.norm.pdf(s, c, NOISE) * density.pdf(s)
            integrals[:, d, j] = [(s**k * values).sum() for k in range(3)]
    log_evidence, high = 0.0, np.empty(60)
    for tree, row, column in itertools.product(range(3), range(2), range(2)):
        leaves = [16 * tree + 4 * (2 * row + r) + 2 * column + c for r in range(2) for c in range(2)]
        nodes = [48 + 4 * tree + 2 * row + column, *leaves]
        emissions = np.log(integrals[0][:, nodes])
        states = list(itertools.product([0, 1], repeat=5))
        logs = np.array([log_of(s, emissions) for s in states])
        total = scipy.special.logsumexp(logs)
        log_evidence += total
        high[nodes] = np.exp(logs - total) @ np.array(states)
    weights = np.array([1 - high, high])
    mean = (weights * integrals[1] / integrals[0]).sum(axis=0)
    second = (weights * integrals[2] / integrals[0]).sum(axis=0)
    return log_evidence, mean, np.sqrt(second - mean**2), high


@pytest.fixture(scope="module", params=PAIRS)
def fitted(request):
    idata = pmep.fit("ep", model=tree_model(request.param), draws=0, **QUIET)
    return request.param, idata, exact(request.param)


def test_ep_is_exact_where_all_pixels_have_noise(fitted):
    _, idata, (log_evidence, mean, sd, high) = fitted
    assert bool(idata["fit"]["converged"])
    np.testing.assert_allclose(float(idata["fit"]["log_evidence"]), log_evidence, atol=1e-6)
    np.testing.assert_allclose(idata["fit"]["u_indicator"], high, atol=1e-7)
    np.testing.assert_allclose(idata["fit"]["u_coefficient_mean"], mean, atol=1e-6)
    np.testing.assert_allclose(idata["fit"]["u_coefficient_sd"], sd, rtol=1e-6)
    wavelet = Wavelet2D((SIDE, SIDE), "db2", 2)
    image = picture() + wavelet.adjoint(mean - wavelet.forward(picture()))
    np.testing.assert_allclose(idata["posterior_mean"]["u"], image, atol=1e-6)
    # Some states are far from certain.
    assert np.mean((high > 0.1) & (high < 0.9)) > 0.1


def test_the_double_loop_lies_below(fitted):
    pair, _, (log_evidence, *_) = fitted
    bound = group(pmep.fit("dsb", model=tree_model(pair), draws=0, **QUIET), "fit")
    assert float(bound["log_evidence"]) < log_evidence
    assert float(bound["log_evidence"]) > log_evidence - 40


def test_pixels_less_certain_than_their_noise():
    """A coefficient of either state varies more than the noise of a pixel: a proper posterior with no proper cavity."""
    model = tree_model("normal", LOW / 10, 3 * HIGH)
    idata = pmep.fit("ep", model=model, draws=0, **QUIET)
    fit = group(idata, "fit")
    assert fit["u_coefficient_sd"].max() > 1.2 * NOISE
    assert bool(fit["converged"])
    lost = (idata["posterior_sd"]["u"] > NOISE).values
    assert lost.any()
    np.testing.assert_array_equal(np.isnan(fit["y_loo"].values), lost)
    np.testing.assert_array_equal(np.isnan(loo_pit(idata, model)["y_upper"].values), lost)


@pytest.mark.parametrize("pair", ["normal", "laplace"])
def test_gradient_of_the_evidence(pair):
    marginal = pmep.marginalize(tree_model(pair, None, None, transition={}), method="ep")
    point = marginal.initial_point()
    rng = np.random.default_rng(0)
    point = {name: np.asarray(value) + 0.3 * rng.normal(size=np.shape(value)) for name, value in point.items()}
    value, slope = marginal.compile_logp(), marginal.compile_dlogp()(point)
    numeric = []
    for name in (v.name for v in marginal.continuous_value_vars):
        for k in range(point[name].size):
            step = 1e-5 * (np.arange(point[name].size) == k).reshape(point[name].shape)
            numeric.append(
                (value(point | {name: point[name] + step}) - value(point | {name: point[name] - step})) / 2e-5
            )
    np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-5)


def test_learned_hyperparameters_are_where_the_exact_evidence_is_largest():
    learned = group(pmep.fit("ep", model=tree_model("normal", None, None, transition={}), draws=0, **QUIET), "fit")
    assert np.all(learned["hyper_mode_low"].values < learned["hyper_mode_high"].values)
    marginal = pmep.marginalize(tree_model("normal", None, None, transition={}), method="ep")
    transformed = marginal.initial_point()
    names = {"low_log__": "low", "high_log__": "high"}
    for key in transformed:
        if key in names:
            transformed[key] = np.log(learned[f"hyper_mode_{names[key]}"].values)
        else:
            own = learned[f"hyper_mode_{key.removesuffix('_logodds__')}"].values
            transformed[key] = np.log(own) - np.log1p(-own)
    slope = marginal.compile_dlogp(jacobian=False)(transformed)
    assert np.abs(slope).max() < 1e-2


def test_averages_over_grids_are_those_of_single_grids():
    model = tree_model("laplace")
    averaged = pmep.fit("ep", model=model, translations=4, draws=300, **QUIET)
    fit = group(averaged, "fit")
    means, squares, logs = [], [], []
    for row, column in ((0, 0), (1, 1), (0, 1), (1, 0)):
        moved = np.roll(picture(), (-row, -column), axis=(0, 1))
        with tree_model("laplace", observe=lambda u, moved=moved: pm.Normal("y", u, NOISE, observed=moved)):
            one = pmep.fit("ep", draws=0, **QUIET)
        moments = (one[f"posterior_{what}"]["u"].values for what in ("mean", "sd"))
        mean, sd = (np.roll(moment, (row, column), axis=(0, 1)) for moment in moments)
        means.append(mean)
        squares.append(sd**2 + mean**2)
        logs.append(float(one["fit"]["log_evidence"]))
    mean = np.mean(means, axis=0)
    np.testing.assert_allclose(averaged["posterior_mean"]["u"], mean, atol=1e-6)
    np.testing.assert_allclose(averaged["posterior_sd"]["u"], np.sqrt(np.mean(squares, axis=0) - mean**2), rtol=1e-6)
    np.testing.assert_allclose(float(fit["log_evidence"]), scipy.special.logsumexp(logs) - np.log(4), atol=1e-6)
    assert "averaged over 4 translations" in fit.attrs["status"]
    drawn = group(averaged, "posterior")["u"].values.reshape(1200, SIDE, SIDE)
    assert np.abs((drawn.mean(axis=0) - mean) / (averaged["posterior_sd"]["u"].values / np.sqrt(1200))).max() < 4.5


def test_sites_of_averages_are_not_looked_at():
    model = tree_model("normal")
    idata = pmep.fit("ep", model=model, translations=4, draws=0, **QUIET)
    for look in (pmep.diagnose, loo_pit):
        with pytest.raises(pmep.UnsupportedModelError, match=r"4 translated grids.*translations=1"):
            look(idata, model)


def test_averages_survive_a_file(tmp_path):
    model = tree_model("normal")
    with model:
        pm.Deterministic("total", model["u"].sum(axis=1))
    idata = pmep.fit("ep", model=model, translations=4, draws=50, **QUIET)
    idata.to_netcdf(tmp_path / "fit.nc")
    read = az.from_netcdf(tmp_path / "fit.nc")
    here, there = (pmep.predict(one, model, var_names=["total"]) for one in (idata, read))
    np.testing.assert_allclose(there["total_mean"], here["total_mean"])
    np.testing.assert_allclose(here["total_mean"], idata["posterior_mean"]["u"].sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("likelihood", [pmep.RectifiedPoisson, pmep.SoftplusPoisson])
def test_counts(likelihood):
    """Both links are the intensity itself, and the noise nearly Gaussian, where intensities are far above one."""
    intensity = 100.0 + 20.0 * picture()
    counts = np.random.default_rng(0).poisson(intensity)

    def gaussian(u):
        pm.Normal("y", u, np.sqrt(intensity), observed=counts)

    fits = []
    for observe in (lambda u: likelihood("y", u, observed=counts), gaussian):
        model = tree_model("normal", np.array([4.0, 8.0]), np.array([12.0, 24.0]), observe=observe)
        fits.append(pmep.fit("ep", model=model, draws=0, **QUIET))
    assert all(bool(idata["fit"]["converged"]) for idata in fits)
    of_counts, of_gaussian = fits
    apart = (
        np.abs(of_counts["posterior_mean"]["u"] - of_gaussian["posterior_mean"]["u"]) / of_gaussian["posterior_sd"]["u"]
    )
    assert apart.max() < 0.6
    np.testing.assert_allclose(of_counts["posterior_sd"]["u"], of_gaussian["posterior_sd"]["u"], rtol=0.15)
    np.testing.assert_allclose(of_counts["fit"]["u_indicator"], of_gaussian["fit"]["u_indicator"], atol=0.15)


def test_pixels_less_certain_than_their_counts():
    """Unlike a Gaussian, a count needs a proper cavity: EP says that it stalls."""
    counts = np.random.default_rng(0).poisson(100.0 + 20.0 * picture())

    def observe(u):
        pmep.RectifiedPoisson("y", u, observed=counts)

    model = tree_model("normal", np.array([1.0, 1.0]), np.array([60.0, 60.0]), observe=observe)
    with pytest.warns(pmep.ConvergenceWarning, match="stalled"):
        fit = group(pmep.fit("ep", model=model, draws=0, **QUIET), "fit")
    assert not bool(fit["converged"])
