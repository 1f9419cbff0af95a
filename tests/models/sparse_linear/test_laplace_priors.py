"""Coefficients with Laplace priors: potentials on the values themselves, against quadrature and other spellings."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.forms.registry import recognise
from pymc_ep.models.sparse_linear.form import SparseLinear

RNG = np.random.default_rng(3)
X = RNG.standard_normal((12, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
Y = X @ [1.0, 0.0] + RNG.normal(0, 1.0, 12)
COUNTS = RNG.poisson(np.exp(0.5 * X[:, 0]))
GROUPS = np.repeat(np.arange(4), 3)
NEW = np.array([[1.0, -1.0], [0.0, 3.0], [0.0, 0.0]])
GRID = np.linspace(-4.0, 4.0, 401)


def fitted(model, **options):
    return pmep.fit(model=model, random_seed=1, progressbar=False, **({"draws": 0} | options))


def moments(log_density):
    """Return means, standard deviations and log integral of a density on the square of the grid."""
    weights = np.exp(log_density - log_density.max())
    total = weights.sum()
    marginals = np.array([weights.sum(axis=1), weights.sum(axis=0)]) / total
    means = marginals @ GRID
    log_integral = np.log(total * (GRID[1] - GRID[0]) ** 2) + log_density.max()
    return means, np.sqrt(marginals @ GRID**2 - means**2), log_integral


@pytest.mark.parametrize(("likelihood", "error"), [("normal", 2e-4), ("poisson", 5e-3)])
def test_two_coefficients_agree_with_quadrature(likelihood, error):
    """EP's own error of these posteriors is 5e-5 and 4e-3."""
    first, second = np.meshgrid(GRID, GRID, indexing="ij")
    eta = first[..., None] * X[:, 0] + second[..., None] * X[:, 1]
    with pm.Model() as model:
        predictor = pm.math.dot(X, pm.Laplace("beta", [0.0, 0.5], 0.4))
        if likelihood == "normal":
            pm.Normal("y", predictor, 1.0, observed=Y)
            terms = -0.5 * (Y - eta) ** 2 - 0.5 * np.log(2 * np.pi)
        else:
            pm.Poisson("y", pm.math.exp(predictor), observed=COUNTS)
            terms = COUNTS * eta - np.exp(eta) - np.array([np.log(np.arange(1, n + 1)).sum() for n in COUNTS])
    log_prior = -(np.abs(first) + np.abs(second - 0.5)) / 0.4 - 2 * np.log(0.8)
    means, deviations, log_evidence = moments(terms.sum(axis=-1) + log_prior)
    idata = fitted(model)
    np.testing.assert_allclose(idata["posterior_mean"]["beta"], means, atol=error)
    np.testing.assert_allclose(idata["posterior_sd"]["beta"], deviations, rtol=error)
    np.testing.assert_allclose(float(group(idata, "fit")["log_evidence"]), log_evidence, atol=error)


def shrunken(write):
    """A level, coefficients and their scale; `write` names, scale and number of values."""
    with pm.Model(coords={"column": ["u", "v"]}) as model:
        x = pm.Data("x", X)
        b = pm.HalfNormal("b", 1.0)
        level, beta = pm.Normal("level", 0.0, 2.0), write("beta", b)
        eta = pm.Deterministic("eta", level + pm.math.dot(x, beta))
        pm.Deterministic("eta_new", level + pm.math.dot(NEW, beta))
        pm.Normal("y", eta, 1.0, observed=Y)
    return model


def of_laplace(name, b):
    return pm.Laplace(name, 0, b, dims="column")


def of_field(name, b):
    return pmep.SparseField(name, operator=np.eye(2), potential=pm.Laplace.dist(0, b), dims="column")


@pytest.fixture(scope="module")
def laplace_model():
    return shrunken(of_laplace)


@pytest.fixture(scope="module")
def field_model():
    return shrunken(of_field)


@pytest.mark.parametrize("method", ["ep", "dsb"])
def test_the_same_as_a_sparse_field(laplace_model, field_model, method):
    one, other = (fitted(m, method=method, hyper="optimize") for m in (laplace_model, field_model))
    for name in ("level", "beta"):
        np.testing.assert_allclose(one["posterior_mean"][name], other["posterior_mean"][name], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(one["posterior_sd"][name], other["posterior_sd"][name], rtol=1e-8)
    for name in ("log_evidence", "hyper_mode_b"):
        np.testing.assert_allclose(group(one, "fit")[name], group(other, "fit")[name], rtol=1e-8)


def test_the_result_has_the_dims_and_draws_of_a_regression(laplace_model):
    idata = fitted(laplace_model, draws=None, hyper="fixed")
    beta = idata["posterior"]["beta"]
    assert beta.dims == ("chain", "draw", "column")
    assert beta.shape == (4, 1000, 2)
    np.testing.assert_allclose(beta.std(("chain", "draw")), idata["posterior_sd"]["beta"], rtol=0.1)
    assert_predicts(idata, laplace_model)


def assert_predicts(idata, model):
    """After pm.set_data the posterior stays that of the fitted data, and the predictor is that of the new ones."""
    with model:
        pm.set_data({"x": NEW})
        found = pmep.predict(idata, model, var_names=["beta", "eta"])
        pm.set_data({"x": X})
    for part in ("mean", "sd"):
        np.testing.assert_allclose(found[f"beta_{part}"], idata[f"posterior_{part}"]["beta"], rtol=1e-9)
        np.testing.assert_allclose(found[f"eta_{part}"], idata[f"posterior_{part}"]["eta_new"], rtol=1e-9)


@pytest.mark.parametrize(("method", "options"), [("ep", {}), ("dsb", {}), ("dsb", {"variance": "perturb-and-map"})])
def test_predictions_of_a_field_follow_new_data(field_model, method, options):
    assert_predicts(fitted(field_model, method=method, hyper="fixed", **options), field_model)


def test_a_location_may_be_latent():
    """Values about a level: the same as the level plus values about zero."""
    found = []
    for centred in (True, False):
        with pm.Model() as model:
            level = pm.Normal("level", 0.0, 2.0)
            if centred:
                value = pm.Laplace("value", level, 0.7, shape=4)
            else:
                value = pm.Deterministic("value", level + pm.Laplace("apart", 0.0, 0.7, shape=4))
            pm.Poisson("y", pm.math.exp(value[GROUPS]), observed=COUNTS)
        found.append(fitted(model))
    for part in ("posterior_mean", "posterior_sd"):
        for name in ("level", "value"):
            np.testing.assert_allclose(found[0][part][name], found[1][part][name], rtol=1e-8)


def test_a_scale_of_groups_may_stand_outside():
    found = []
    for outside in (True, False):
        with pm.Model() as model:
            tau = pm.HalfNormal("tau")
            if outside:
                u = pm.Deterministic("u", tau * pm.Normal("z", 0, 1, shape=4))
            else:
                u = pm.Normal("u", 0, tau, shape=4)
            pm.Normal("y", u[GROUPS] + pm.Laplace("b", 0, 1) * X[:, 0], 1, observed=Y)
        found.append(fitted(model))
    for part in ("posterior_mean", "posterior_sd"):
        for name in ("u", "b", "tau"):
            np.testing.assert_allclose(found[0][part][name], found[1][part][name], rtol=1e-6)


def scaled():
    b = pm.Laplace("b", 0, 1, shape=2)
    pm.Normal("y", pm.Normal("a") + pm.math.dot(X, b) * pm.HalfNormal("s"), 1, observed=Y)


def mixed_groups():
    z, c = pm.Normal("a", 0, 1, shape=4), pm.HalfNormal("c")
    pm.Normal("y", z[GROUPS] + c * z[::-1][GROUPS] + pm.Laplace("b", 0, 1) * X[:, 0], 1, observed=Y)


def beside_a_process():
    f = pm.MvNormal("a", np.zeros(12), np.eye(12) + 0.5)
    pm.Normal("y", f + pm.Laplace("b", 0, 1) * X[:, 0], 1, observed=Y)


def observed_vector():
    mu = pm.Normal("a") + pm.math.dot(X, pm.Laplace("b", 0, 1, shape=2))
    pm.MvNormal("y", mu, np.eye(12) + 0.5, observed=Y)


def in_a_scale():
    pm.Normal("y", pm.Normal("a"), pm.math.exp(pm.Laplace("b", 0, 1)), observed=Y)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (scaled, r"'b' has a sparse prior.*from 'b' to 'y'.*pm\.Laplace\('b', 0, b\)"),
        (mixed_groups, r"'b' has a sparse prior.*from 'a' to 'y'"),
        (beside_a_process, r"'a' has a Gaussian prior whose values depend on each other.*sparse prior"),
        (observed_vector, r"'y' is an observed vector.*Cholesky"),
        (in_a_scale, r"'b', which enters a scale"),
    ],
)
def test_where_it_does_not_fit_it_is_a_hyperparameter(write, message):
    with pm.Model() as model:
        write()
    form = recognise(model)
    assert not isinstance(form, SparseLinear)
    assert form.latent_names == ("a",)
    assert "b" in form.hyper_names
    assert recognise(model, latent=["a"]).hyper_names == form.hyper_names
    with pytest.raises(pmep.UnsupportedModelError, match=message):
        recognise(model, latent=["a", "b"])


def test_hyperparameters_may_be_terms_of_the_predictor():
    with pm.Model() as model:
        known = pm.math.dot(X, pm.HalfNormal("b", 1, shape=2))
        pm.Normal("y", known + pm.Normal("a") * X[:, 0] + X @ pm.Laplace("c", 0, 1, shape=2), 1, observed=Y)
    assert recognise(model).latent_names == ("a", "c")


def test_it_may_be_left_out_of_the_latent_variables(laplace_model):
    assert recognise(laplace_model).latent_names == ("level", "beta")
    assert recognise(laplace_model, latent=["level"]).hyper_names == ("b", "beta")


def test_a_field_beside_an_observed_vector_is_refused():
    with pm.Model() as model:
        mu = pm.math.dot(X, pmep.SparseField("b", operator=np.eye(2), potential=pm.Laplace.dist(0, 1.0)))
        pm.MvNormal("y", mu, np.eye(12) + 0.5, observed=Y)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'y' is an observed vector"):
        recognise(model)
