"""Skewness of draws and of affine variables: against quadrature, in all representations, and its exact density."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import poisson, skew

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.models.latent_gaussian.methods.solution import rebuild
from pymc_ep.models.latent_gaussian.skewed_draws import SkewedDraws
from pymc_ep.numerics.skewed_normal import skewed_moves
from pymc_ep.predict.rebuild import posterior_of
from pymc_ep.results import fit_state
from pymc_ep.sites.compiled import CompiledSite

COVARIANCE = np.array([[1.0, 0.8, 0.5], [0.8, 1.0, 0.7], [0.5, 0.7, 1.2]])
COUNTS = np.array([0, 3, 1])
BITS = np.array([1, 1, 0])
CONTRASTS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0], [1, 1, 1]])


def model_of(likelihood="counts", root=True):
    with pm.Model() as model:
        if root:
            f = pm.Deterministic("f", np.linalg.cholesky(COVARIANCE) @ pm.Normal("v", 0.0, 1.0, shape=3))
        else:
            f = pm.MvNormal("f", np.zeros(3), COVARIANCE)
        pm.Deterministic("contrast", f @ CONTRASTS.T)
        if likelihood == "counts":
            pm.Poisson("y", pm.math.exp(f), observed=COUNTS)
        elif likelihood == "rectified":
            pmep.RectifiedPoisson("y", f + 1.0, observed=COUNTS)
        else:
            pm.Bernoulli("y", logit_p=1.5 * f, observed=BITS)
    return model


def log_likelihood(likelihood, f):
    if likelihood == "counts":
        return f @ COUNTS - np.exp(f).sum(axis=1)
    if likelihood == "rectified":
        rate = np.maximum(f + 1.0, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(COUNTS > 0, COUNTS * np.log(rate), 0.0).sum(axis=1) - rate.sum(axis=1)
    return -np.logaddexp(0.0, np.where(BITS, -1.5, 1.5) * f).sum(axis=1)


def fitted(model, draws=100_000, **options):
    return pmep.fit(model=model, draws=draws, chains=1, random_seed=1, progressbar=False, **options)


def drawn(result, name):
    return group(result, "posterior")[name].to_numpy()[0]


def skewness_of(result, model, name):
    posterior = posterior_of(result, model, [name])
    (variable,) = (v for v in posterior.form.form.affine if v.name == name)
    sd = {name: posterior.moments([variable])[name].sd}
    return posterior.skewness([variable], sd)[name]


@pytest.mark.parametrize(("likelihood", "error"), [("counts", 0.01), ("bits", 0.01), ("rectified", 0.05)])
def test_against_quadrature(likelihood, error):
    """Draws have the skewness that is told, and this is that of the exact posterior but for terms of higher order."""
    model = model_of(likelihood)
    result = fitted(model)
    z = np.linspace(-6.0, 6.0, 121)
    grid = np.stack(np.meshgrid(z, z, z, indexing="ij"), axis=-1).reshape(-1, 3)
    f = grid @ np.linalg.cholesky(COVARIANCE).T
    mass = np.exp(log_likelihood(likelihood, f) - 0.5 * (grid**2).sum(axis=1))
    mass /= mass.sum()
    values = f @ CONTRASTS.T
    values -= mass @ values
    exact = mass @ values**3 / (mass @ values**2) ** 1.5
    told = skewness_of(result, model, "contrast")
    assert np.abs(exact).max() > 0.08
    np.testing.assert_allclose(told, exact, atol=error)
    draws = drawn(result, "contrast")
    np.testing.assert_allclose(skew(draws), told, atol=error + 0.02)
    np.testing.assert_allclose(draws.mean(axis=0), result["posterior_mean"]["contrast"], atol=0.01)
    np.testing.assert_allclose(draws.std(axis=0), result["posterior_sd"]["contrast"], rtol=0.01)


def test_the_density_is_that_of_the_draws():
    """Its weights integrate to the evidence that EP's cumulants correct, and are nearly equal."""
    model = model_of()
    result = fitted(model, 4000, log_likelihood=True)
    fit = group(result, "fit")
    weight = (fit["log_p"] - fit["log_q"]).to_numpy().ravel()
    correction = float(pmep.diagnose(result, model)["cumulant_correction"])
    np.testing.assert_allclose(np.log(np.exp(weight).mean()), float(fit["log_evidence"]) + correction, atol=1e-3)
    assert weight.std() < 0.05  # that of the Gaussian posterior is 0.25


@pytest.mark.parametrize("solver", ["observations", "coefficients"])
def test_the_jacobian_against_differences(solver):
    model = model_of("bits")
    result = fitted(model, 0, solver=solver)
    posterior = posterior_of(result, model, ["f"])
    _, prior, gaussian = posterior.mode
    moves = SkewedDraws(posterior.shape, prior.gaussian, gaussian)
    rng = np.random.default_rng(2)
    if gaussian.drawn_from_prior:
        # Coordinates are weights here: the predictors themselves are moved by K times theirs.
        points = rng.standard_normal((4, 3))
        covariance = np.asarray(prior.gaussian.covariance_matrix())

        def moved(x):
            shift, slopes = moves.moves(np.zeros_like(x), lambda here: x[here], slopes=True)
            return x + shift @ covariance, slopes
    else:
        points = gaussian.draw_coordinates(4, rng)

        def moved(x):
            shift, slopes = moves.moves(x, None, slopes=True)
            return x + shift, slopes

    _, slopes = moved(points)
    step = 1e-5
    for point, found in zip(points, moves.log_jacobian(slopes)):
        ends = [moved(point + sign * step * np.eye(3))[0] for sign in (-1, 1)]
        jacobian = (ends[1] - ends[0]) / (2 * step)
        np.testing.assert_allclose(found, np.linalg.slogdet(jacobian)[1], atol=1e-7)
        assert abs(found) > 1e-3


def walk(solver, order):
    """A random walk, observed twice at some of its values, in any order of rows."""
    rng = np.random.default_rng(3)
    at = np.concatenate([np.arange(310), np.arange(0, 310, 4)])
    x = 0.1 * rng.standard_normal(len(at))
    y = rng.poisson(np.exp(np.sin(at / 30) - 0.5 + x))
    with pm.Model() as model:
        f = pm.GaussianRandomWalk("f", mu=0.0, sigma=0.3, init_dist=pm.Normal.dist(0.0, 1.0), steps=309)
        pm.Poisson("y", pm.math.exp(f[at[order]] + x[order]), observed=y[order])
    return fitted(model, 0, solver=solver), model


@pytest.mark.parametrize("solver", ["observations", "coefficients", "precision"])
def test_all_representations_and_orders_of_rows(solver):
    """They tell one skewness, and move predictors by Cov(eta, eta) times the same."""
    order = np.random.default_rng(0).permutation(388)
    told = skewness_of(*walk("observations", np.arange(388)), "f")
    assert np.abs(told).max() > 0.2
    result, model = walk(solver, order)
    np.testing.assert_allclose(skewness_of(result, model, "f"), told, atol=1e-6)
    posterior = posterior_of(result, model, ["f"])
    _, prior, gaussian = posterior.mode
    moves = SkewedDraws(posterior.shape, prior.gaussian, gaussian)
    sd = np.sqrt(gaussian.variance)
    if gaussian.drawn_from_prior:
        effect = sd * np.random.default_rng(1).standard_normal((3, 388))
        found, _ = moves.moves(np.zeros((3, 388)), lambda here: gaussian.mean + effect[here], slopes=False)
        found = found @ np.asarray(prior.gaussian.covariance_matrix())
    else:
        draws = gaussian.draw_coordinates(3, np.random.default_rng(1))
        design = prior.gaussian.design
        effect = (design @ (draws - gaussian.coordinates).T).T
        found = (design @ moves.moves(draws, None, slopes=False)[0].T).T
    u = effect / sd
    own = np.polynomial.polynomial.polyval(u, skewed_moves(*posterior.shape[:2]), tensor=False)
    covariance = prior.gaussian.posterior_rows(gaussian)(np.arange(388))
    np.testing.assert_allclose(found, own / sd @ covariance, atol=1e-6)


def test_blocks_of_many_groups():
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(140), 2)
    x, y = rng.standard_normal(280), rng.poisson(1.0, size=280)

    def fit(solver):
        with pm.Model() as model:
            own, slope = pm.Normal("own", 0.0, 1.0, shape=140), pm.Normal("slope", 0.0, 1.0)
            pm.Poisson("y", pm.math.exp(own[owner] + slope * x), observed=y)
        return skewness_of(fitted(model, 2, solver=solver), model, "own")

    np.testing.assert_allclose(fit("coefficients"), fit("observations"), atol=1e-8)


def test_no_skewness_no_move():
    """Gaussian sites, another power, and cumulants that are infinite, NaN or wildly large."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("f", 0.0, 1.0, shape=3), 0.5, observed=[0.1, 0.2, 0.9])
    assert not fit_state(fitted(model, 2))["skewness"].any()
    assert not fit_state(fitted(model_of(), 2, power=0.5))["skewness"].any()


@pytest.mark.parametrize("wrong", [np.inf, np.nan, -1e9])
def test_wild_cumulants_are_refused(wrong, monkeypatch):
    model = model_of()
    found = fitted(model, 20_000)
    first = CompiledSite.cumulants

    def cumulants(self, *arguments):
        skewness, kurtosis = first(self, *arguments)
        return np.where(np.arange(3) == 1, wrong, skewness), kurtosis

    monkeypatch.setattr("pymc_ep.models.latent_gaussian.methods.ep.error_warning", lambda *arguments: "")
    monkeypatch.setattr(CompiledSite, "cumulants", cumulants)
    result = fitted(model, 20_000)
    # What is not finite leaves no site its skewness, as NumericalError does.
    kept = fit_state(found)["skewness"] if np.isfinite(wrong) else np.zeros(3)
    np.testing.assert_array_equal(fit_state(result)["skewness"], np.where(np.arange(3) == 1, 0.0, kept))
    assert np.isfinite(drawn(result, "f")).all()
    assert np.abs(skew(drawn(result, "f"))[1]) < np.abs(skew(drawn(found, "f"))[1])


def test_one_observation_is_exact():
    """Its site alone has the skewness of the posterior."""
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 2.0)
        pm.Poisson("y", pm.math.exp(f), observed=0)
    result = fitted(model)
    grid = np.linspace(-12.0, 4.0, 40_001)
    mass = np.exp(-np.exp(grid) - grid**2 / 8.0)
    mass /= mass.sum()
    centred = grid - mass @ grid
    exact = mass @ centred**3 / (mass @ centred**2) ** 1.5
    np.testing.assert_allclose(fit_state(result)["skewness"], exact, atol=1e-4)
    draws = drawn(result, "f")
    np.testing.assert_allclose(skew(draws), exact, atol=0.03)
    levels = [0.05, 0.5, 0.95]
    np.testing.assert_allclose(
        np.quantile(draws, levels), np.interp(levels, np.cumsum(mass), grid), atol=0.03 * draws.std()
    )


def test_a_result_without_skewness_is_gaussian():
    """As those of earlier versions are."""
    model = model_of()
    result = fitted(model, 0)
    posterior = posterior_of(result, model, ["f"])
    state = {name: value for name, value in fit_state(result).items() if "skewness" not in name}
    old = rebuild(posterior.form, state)
    (variable,) = (v for v in posterior.form.form.affine if v.name == "f")
    assert not old.skewness([variable], {"f": np.ones(3)})["f"].any()
    f = old.draws(50_000, np.random.default_rng(0)).values["f"]
    assert np.abs(skew(f)).max() < 0.05


def test_densities_and_quantiles_of_new_observations():
    """The next count after a zero, by quadrature: a Gaussian is off by 0.08 nats, and the mean rate by a fifth."""
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 2.0)
        pm.Poisson("y", pm.math.exp(f), observed=0)
        result = pmep.fit(draws=0, progressbar=False)
        pm.Poisson("new", pm.math.exp(f) * np.ones(4))
    grid = np.linspace(-14.0, 6.0, 40_001)
    mass = np.exp(-np.exp(grid) - grid**2 / 8.0)
    mass /= mass.sum()
    counts = np.arange(4)
    exact = np.log(poisson.pmf(counts[:, None], np.exp(grid)) @ mass)
    found = pmep.log_predictive(result, model, {"new": counts})["new"]
    np.testing.assert_allclose(found, exact, atol=0.02)
    responses = pmep.predict(result, model, var_names="new", response=True, quantiles=(0.05, 0.5, 0.95))
    levels = np.interp([0.05, 0.5, 0.95], np.cumsum(mass), grid)
    np.testing.assert_allclose(np.log(responses["new_quantile"])[:, 0], levels, atol=0.06)
    np.testing.assert_allclose(responses["new_mean"], mass @ np.exp(grid), rtol=0.02)
