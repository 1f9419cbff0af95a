"""Every spelling of a latent Gaussian model, against prior moments worked out by hand.

Each case is a function that writes a model and returns what `m0`, `K`, the sites, the latent variables and the
hyperparameters have to be.
"""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep
from pymc_ep.forms import compiled_form
from pymc_ep.modes import numpy_mode

N = 6
X = np.linspace(0.0, 2.0, N)[:, None]
COUNTS = np.array([0, 1, 3, 2, 0, 1])
REALS = np.array([0.2, -0.4, 1.0, 0.6, 2.0, -1.2])
SIGNS = np.array([0, 1, 1, 0, 1, 0])
SIZE = 5000
JITTER = 1e-6
"""What gp.Latent adds to the diagonal."""


def kernel(length, amplitude=1.0, x=X):
    return amplitude**2 * np.exp(-0.5 * (x - x.T) ** 2 / length**2)


K = kernel(0.8) + JITTER * np.eye(N)
ONES = np.ones((N, N))


def gp(name="f", length=0.8, level=0.0, **options):
    mean = pm.gp.mean.Constant(level)
    return pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.ExpQuad(1, length)).prior(name, X=X, **options)


# Links. All have the prior moments of the same GP.

LINKS = {
    "Poisson exp": (lambda f: pm.Poisson("y", pm.math.exp(f), observed=COUNTS), "poisson"),
    "Poisson exp of pytensor": (lambda f: pm.Poisson("y", mu=pt.exp(f), observed=COUNTS), "poisson"),
    "Poisson log1pexp": (lambda f: pm.Poisson("y", pm.math.log1pexp(f), observed=COUNTS), "softplus_poisson"),
    "Poisson softplus": (lambda f: pm.Poisson("y", pt.softplus(f), observed=COUNTS), "softplus_poisson"),
    "Poisson log(1 + exp)": (lambda f: pm.Poisson("y", pt.log(1 + pt.exp(f)), observed=COUNTS), "softplus_poisson"),
    "SoftplusPoisson": (lambda f: pmep.SoftplusPoisson("y", f, observed=COUNTS), "softplus_poisson"),
    "Poisson maximum": (lambda f: pm.Poisson("y", pt.maximum(f, 0), observed=COUNTS), "rectified_poisson"),
    "Poisson maximum, reversed": (lambda f: pm.Poisson("y", pt.maximum(0.0, f), observed=COUNTS), "rectified_poisson"),
    "Poisson switch": (lambda f: pm.Poisson("y", pm.math.switch(f > 0, f, 0), observed=COUNTS), "rectified_poisson"),
    "Poisson clip": (lambda f: pm.Poisson("y", pt.clip(f, 0, np.inf), observed=COUNTS), "rectified_poisson"),
    "RectifiedPoisson": (lambda f: pmep.RectifiedPoisson("y", f, observed=COUNTS), "rectified_poisson"),
    "Bernoulli logit_p": (lambda f: pm.Bernoulli("y", logit_p=f, observed=SIGNS), "logit"),
    "Bernoulli invlogit": (lambda f: pm.Bernoulli("y", p=pm.math.invlogit(f), observed=SIGNS), "logit"),
    "Bernoulli sigmoid": (lambda f: pm.Bernoulli("y", p=pm.math.sigmoid(f), observed=SIGNS), "logit"),
    "Bernoulli 1 / (1 + exp)": (lambda f: pm.Bernoulli("y", p=1 / (1 + pt.exp(-f)), observed=SIGNS), "logit"),
    "Bernoulli exp / (1 + exp)": (lambda f: pm.Bernoulli("y", p=pt.exp(f) / (1 + pt.exp(f)), observed=SIGNS), "logit"),
    "Bernoulli invprobit": (lambda f: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=SIGNS), "probit"),
    "Bernoulli erfc": (lambda f: pm.Bernoulli("y", p=0.5 * pt.erfc(-f / np.sqrt(2)), observed=SIGNS), "probit"),
    "Bernoulli of booleans": (lambda f: pm.Bernoulli("y", logit_p=f, observed=SIGNS == 1), "logit"),
    "Normal": (lambda f: pm.Normal("y", f, 0.5, observed=REALS), "normal"),
    "Normal with tau": (lambda f: pm.Normal("y", f, tau=4.0, observed=REALS), "normal"),
    "Normal with known variances": (lambda f: pm.Normal("y", f, np.arange(1.0, 7.0), observed=REALS), "normal"),
    "Laplace": (lambda f: pm.Laplace("y", f, 0.5, observed=REALS), "laplace"),
    "StudentT": (lambda f: pm.StudentT("y", nu=3, mu=f, sigma=0.5, observed=REALS), "student_t"),
    "StudentT with lam": (lambda f: pm.StudentT("y", nu=3, mu=f, lam=4.0, observed=REALS), "student_t"),
}


@pytest.mark.parametrize("case", LINKS)
def test_links(case):
    likelihood, site = LINKS[case]
    with pm.Model() as model:
        likelihood(gp(reparameterize=False))
    form = compiled_form(model)
    assert [g.site.name for g in form.form.groups] == [site]
    assert form.form.latent_names == ("f",)
    assert form.form.hyper_names == ()
    eta = np.array([-1.3, -0.2, 0.1, 0.8, 1.7, 2.5])
    # The sites are the model's own log likelihood: PyMC's constants of the probit link are in single precision.
    y = model.rvs_to_values[model["y"]]
    logp = pm.logp(model["y"], y).sum()
    rate = model.replace_rvs_by_values([logp])[0].eval({model.rvs_to_values[model["f"]]: eta})
    parameters = form.prior(form.start).parameters[0]
    ours = form.sites[0].log_density(np.asarray(form.observed()[0], dtype=float), eta, *parameters).sum()
    np.testing.assert_allclose(ours, rate, rtol=1e-7)


def test_parameters_of_sites_follow_the_data():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0, shape=2)
        pm.StudentT("y", nu=3.0, mu=gp(), sigma=sigma[np.array([0, 0, 0, 1, 1, 1])], observed=REALS)
    form = compiled_form(model)
    nu, scale = form.prior(np.log([0.3, 2.0])).parameters[0]
    np.testing.assert_allclose(nu, 3.0)
    np.testing.assert_allclose(scale, [0.3, 0.3, 0.3, 2.0, 2.0, 2.0])


# Structures: each returns keyword arguments of compiled_form, and the moments.


def centred_gp():
    pm.Poisson("y", pt.exp(gp(reparameterize=False, level=0.3)), observed=COUNTS)
    return {}, np.full(N, 0.3), K, ("f",), ()


def non_centred_gp():
    pm.Poisson("y", pt.exp(gp(reparameterize=True, level=0.3)), observed=COUNTS)
    return {}, np.full(N, 0.3), K, ("f_rotated_",), ()


def level_is_integrated_out():
    level = pm.Normal("level", 2.0, 3.0)
    pm.Poisson("y", pt.exp(gp(level=level)), observed=COUNTS)
    return {}, np.full(N, 2.0), K + 9.0 * ONES, ("f_rotated_", "level"), ()


def level_stays_a_hyperparameter():
    level = pm.Normal("level", 2.0, 3.0)
    pm.Poisson("y", pt.exp(gp(level=level)), observed=COUNTS)
    return {"latent": ("f",)}, np.full(N, 2.0), K, ("f_rotated_",), ("level",)


def level_alone():
    level = pm.Normal("level", 2.0, 3.0)
    pm.Poisson("y", pt.exp(pt.zeros(N) + level), observed=COUNTS)
    return {}, np.full(N, 2.0), 9.0 * ONES, ("level",), ()


def scalar_predictor():
    level = pm.Normal("level", 2.0, 3.0)
    pm.Poisson("y", pt.exp(level), observed=COUNTS)
    return {}, np.full(N, 2.0), 9.0 * ONES, ("level",), ()


def mvnormal():
    mean = np.linspace(0.0, 1.0, N)
    f = pm.MvNormal("f", mean, kernel(0.5) + 0.1 * np.eye(N))
    pm.Bernoulli("y", logit_p=f, observed=SIGNS)
    return {}, mean, kernel(0.5) + 0.1 * np.eye(N), ("f",), ()


def mvnormal_by_cholesky():
    covariance = kernel(0.5) + 0.1 * np.eye(N)
    f = pm.MvNormal("f", np.zeros(N), chol=np.linalg.cholesky(covariance))
    pm.Bernoulli("y", logit_p=f, observed=SIGNS)
    return {}, np.zeros(N), covariance, ("f",), ()


def mvnormal_by_precision():
    covariance = kernel(0.5) + 0.1 * np.eye(N)
    f = pm.MvNormal("f", np.zeros(N), tau=np.linalg.inv(covariance))
    pm.Bernoulli("y", logit_p=f, observed=SIGNS)
    return {}, np.zeros(N), covariance, ("f",), ()


GROUP = np.array([0, 0, 1, 1, 2, 2])
SAME = (GROUP[:, None] == GROUP).astype(float)


def hierarchy_centred():
    mu = pm.Normal("mu", 1.0, 2.0)
    a = pm.Normal("a", mu, 0.5, shape=3)
    pm.Poisson("y", pt.exp(a[GROUP]), observed=COUNTS)
    return {}, np.ones(N), 4.0 * ONES + 0.25 * SAME, ("mu", "a"), ()


def hierarchy_not_centred():
    mu = pm.Normal("mu", 1.0, 2.0)
    z = pm.Normal("z", 0.0, 1.0, shape=3)
    pm.Poisson("y", pt.exp((mu + 0.5 * z)[GROUP]), observed=COUNTS)
    return {}, np.ones(N), 4.0 * ONES + 0.25 * SAME, ("mu", "z"), ()


def hierarchy_with_a_scale():
    tau = pm.HalfNormal("tau", 1.0)
    mu = pm.Normal("mu", 1.0, 2.0)
    z = pm.Normal("z", 0.0, 1.0, shape=3)
    a = pm.Deterministic("a", mu + tau * z)
    pm.Poisson("y", pt.exp(a[GROUP]), observed=COUNTS)
    return {}, np.ones(N), 4.0 * ONES + SAME, ("mu", "z"), ("tau",)


def mean_of_a_scale_is_no_latent():
    m = pm.Normal("m", 0.0, 1.0)
    f = pm.Normal("f", 0.0, pt.exp(m), shape=N)
    pm.Poisson("y", pt.exp(f), observed=COUNTS)
    return {}, np.zeros(N), np.eye(N), ("f",), ("m",)


def chain_of_four():
    a = pm.Normal("a", 1.0, 1.0)
    b = pm.Normal("b", a, 2.0)
    c = pm.Normal("c", 2 * b - a, 0.5, shape=N)
    pm.Normal("y", c, 1.0, observed=REALS)
    # c = 2 (a + 2 e) - a + noise = a + 4 e + noise
    return {}, np.ones(N), 17.0 * ONES + 0.25 * np.eye(N), ("a", "b", "c"), ()


def offset():
    exposure = np.linspace(1.0, 3.0, N)
    pm.Poisson("y", exposure * pt.exp(gp()), observed=COUNTS)
    return {}, np.log(exposure), K, ("f_rotated_",), ()


def exposure_to_be_learned():
    rate = pm.Gamma("rate", 2.0, 1.0)
    pm.Poisson("y", rate * pt.exp(gp()), observed=COUNTS)
    # Its initial value is the mean of the prior.
    return {}, np.full(N, np.log(2.0)), K, ("f_rotated_",), ("rate",)


def offset_inside():
    offset = np.log(np.linspace(1.0, 3.0, N))
    pm.Poisson("y", pt.exp(offset + 2 * gp()), observed=COUNTS)
    return {}, offset, 4 * K, ("f_rotated_",), ()


def indexed():
    index = np.array([5, 1, 1, 0, 3, 5])
    pm.Poisson("y", pt.exp(gp()[index]), observed=COUNTS)
    return {}, np.zeros(N), K[np.ix_(index, index)], ("f_rotated_",), ()


def sum_of_two():
    total = gp("f") + gp("g", length=0.2)
    pm.Poisson("y", pt.exp(total), observed=COUNTS)
    return {}, np.zeros(N), K + kernel(0.2) + JITTER * np.eye(N), ("f_rotated_", "g_rotated_"), ()


def sum_of_gps_by_pymc():
    first = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.8))
    second = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.2))
    f = (first + second).prior("f", X=X)
    pm.Poisson("y", pt.exp(f), observed=COUNTS)
    return {}, np.zeros(N), K + kernel(0.2), ("f_rotated_",), ()


def regression():
    design = np.column_stack([np.ones(N), X.ravel(), X.ravel() ** 2])
    beta = pm.Normal("beta", [0.0, 1.0, -1.0], [1.0, 2.0, 3.0], shape=3)
    pm.Poisson("y", pt.exp(design @ beta), observed=COUNTS)
    return {}, design @ [0.0, 1.0, -1.0], design @ np.diag([1.0, 4.0, 9.0]) @ design.T, ("beta",), ()


def regression_by_einsum():
    x = np.column_stack([np.ones(N), X[:, 0]])
    b = pm.Normal("b", 0.5, 2.0, shape=2)
    pm.Poisson("y", pt.exp(pt.einsum("ij,j->i", x, b)), observed=COUNTS)
    return {}, x @ np.full(2, 0.5), 4.0 * x @ x.T, ("b",), ()


def varying_slopes_by_einsum():
    x, groups = np.column_stack([np.ones(N), X[:, 0]]), np.array([0, 1, 0, 1, 1, 0])
    b = pm.Normal("b", 0.5, 2.0, shape=(2, 2))
    pm.Poisson("y", pt.exp(pt.einsum("ij,ij->i", x, b[groups])), observed=COUNTS)
    same = np.equal.outer(groups, groups)
    return {}, x @ np.full(2, 0.5), 4.0 * same * (x @ x.T), ("b",), ()


def regression_term_by_term():
    x = X.ravel()
    a = pm.Normal("a", 1.0, 2.0)
    b = pm.Normal("b", 0.0, 3.0)
    pm.Bernoulli("y", logit_p=a + b * x, observed=SIGNS)
    return {}, np.ones(N), 4.0 * ONES + 9.0 * np.outer(x, x), ("a", "b"), ()


def matrix_of_latents():
    f = pm.Normal("f", 0.0, 2.0, shape=(2, 3))
    pm.Poisson("y", pt.exp(f.T), observed=COUNTS.reshape(3, 2))
    return {}, np.zeros(N), 4.0 * np.eye(N), ("f",), ()


def row_and_column_effects():
    row = pm.Normal("row", 0.0, 2.0, shape=2)
    column = pm.Normal("column", 0.0, 1.0, shape=3)
    pm.Poisson("y", pt.exp(row[:, None] + column), observed=COUNTS.reshape(2, 3))
    i, j = np.repeat([0, 1], 3), np.tile([0, 1, 2], 2)
    return {}, np.zeros(N), 4.0 * (i[:, None] == i) + 1.0 * (j[:, None] == j), ("row", "column"), ()


def random_walk():
    steps = pm.Normal("steps", 0.0, 0.3, shape=N)
    pm.Poisson("y", pt.exp(pt.cumsum(steps)), observed=COUNTS)
    k = np.arange(1, N + 1)
    return {}, np.zeros(N), 0.09 * np.minimum(k[:, None], k), ("steps",), ()


def two_observed_variables():
    f = gp()
    pm.Normal("z", f[:2], 0.5, observed=[0.1, 0.2])
    pm.Poisson("y", pt.exp(f + 1), observed=COUNTS)
    index = np.array([0, 1, *range(N)])
    mean = np.array([0.0, 0.0, *np.ones(N)])
    return {}, mean, K[np.ix_(index, index)], ("f_rotated_",), ()


def one_element_of_an_affine_family():
    slope, level = pm.Normal("slope", 0.0, 1.0), pm.Normal("level", 0.0, 2.0)
    pm.Normal("y", (level - slope) / 2, 1.0, observed=0.3)
    return {}, np.zeros(1), np.array([[1.25]]), ("slope", "level"), ()


def product_with_a_named_latent():
    a, b = pm.Normal("a", 2.0, 3.0), pm.Normal("b", 1.0, 1.0)
    pm.Poisson("y", pt.exp(a * b * np.arange(1.0, N + 1)), observed=COUNTS)
    # b stays at its initial value, 1.
    k = np.arange(1.0, N + 1)
    return {"latent": ("a",)}, 2.0 * k, 9.0 * np.outer(k, k), ("a",), ("b",)


def square_leaves_the_others():
    f = pm.Normal("f", 0.0, 1.0, shape=N)
    c = pm.Normal("c", 1.0, 1.0)
    pm.Poisson("y", pt.exp(f + c**2), observed=COUNTS)
    return {}, np.ones(N), np.eye(N), ("f",), ("c",)


STRUCTURES = [
    centred_gp,
    non_centred_gp,
    level_is_integrated_out,
    level_stays_a_hyperparameter,
    level_alone,
    scalar_predictor,
    mvnormal,
    mvnormal_by_cholesky,
    mvnormal_by_precision,
    hierarchy_centred,
    hierarchy_not_centred,
    hierarchy_with_a_scale,
    mean_of_a_scale_is_no_latent,
    chain_of_four,
    offset,
    exposure_to_be_learned,
    offset_inside,
    indexed,
    sum_of_two,
    sum_of_gps_by_pymc,
    regression,
    regression_term_by_term,
    matrix_of_latents,
    row_and_column_effects,
    random_walk,
    two_observed_variables,
    one_element_of_an_affine_family,
    regression_by_einsum,
    varying_slopes_by_einsum,
    product_with_a_named_latent,
    square_leaves_the_others,
]


@pytest.mark.parametrize("write", STRUCTURES, ids=lambda write: write.__name__)
def test_structures(write):
    with pm.Model() as model:
        options, mean, covariance, latent, hyper = write()
    form = compiled_form(model, **options)
    assert set(form.form.latent_names) == set(latent)
    assert form.form.hyper_names == hyper
    prior = form.prior(form.start)
    np.testing.assert_allclose(prior.mean + np.concatenate(form.origins()), mean, atol=1e-12)
    np.testing.assert_allclose(prior.gaussian.covariance_matrix(), covariance, atol=1e-12)


def test_default_latents_of_a_product_with_an_array():
    """Where two Gaussian sets tie, the user has to choose; where one variable spoils a predictor, it is left out."""
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=N), pm.Normal("b", shape=N)
        pm.Poisson("y", pt.exp(a * b), observed=COUNTS)
    with pytest.raises(pmep.UnsupportedModelError, match=r"'a', 'b'.*latent="):
        compiled_form(model)


def test_moments_against_draws_from_the_model():
    """An independent witness for a model with all at once: PyMC's own prior draws."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        mu = pm.Normal("mu", 1.0, 0.5)
        a = pm.Normal("a", mu, tau, shape=3)
        eta = pm.Deterministic("eta", 0.5 * gp("f")[::-1] + a[GROUP] * np.linspace(1.0, 2.0, N) - mu)
        pm.Poisson("y", pt.exp(eta), observed=COUNTS)
    form = compiled_form(model)
    assert form.form.hyper_names == ("tau",)
    prior = form.prior(np.log([0.7]))
    draws = pm.draw(pm.do(model, {"tau": 0.7})["eta"], SIZE, random_seed=3, mode=numpy_mode())
    sd = np.sqrt(prior.gaussian.covariance_matrix().diagonal())
    np.testing.assert_allclose(draws.mean(axis=0), prior.mean, atol=5 * sd.max() / np.sqrt(SIZE))
    correlation = prior.gaussian.covariance_matrix() / np.outer(sd, sd)
    np.testing.assert_allclose(np.cov(draws.T) / np.outer(sd, sd), correlation, atol=5 / np.sqrt(SIZE) * 1.5)


def test_new_data_of_another_length_need_no_new_form():
    with pm.Model(coords={"site": range(N)}) as model:
        x = pm.Data("x", X.ravel(), dims="site")
        counts = pm.Data("counts", COUNTS, dims="site")
        a, b = pm.Normal("a", 0.0, 2.0), pm.Normal("b", 0.0, 3.0)
        pm.Poisson("y", pt.exp(a + b * x), observed=counts, dims="site")
    form = compiled_form(model)
    assert form.prior(form.start).gaussian.covariance_matrix().shape == (N, N)
    fresh = np.array([0.5, 3.0])
    with model:
        pm.set_data({"x": fresh, "counts": [4, 2]}, coords={"site": range(2)})
    assert compiled_form(model) is form
    np.testing.assert_allclose(form.prior(form.start).gaussian.covariance_matrix(), 4.0 + 9.0 * np.outer(fresh, fresh))
    np.testing.assert_array_equal(form.observed()[0], [4, 2])


def test_variables_behind_no_observation_are_ignored():
    with pm.Model() as model:
        process = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.8))
        f = process.prior("f", X=X)
        pm.Poisson("y", pt.exp(f), observed=COUNTS)
        before = compiled_form(model)
        process.conditional("f_new", Xnew=np.array([[3.0]]))
        pm.Gamma("alone", 1.0, 1.0)
    form = compiled_form(model)
    assert form is not before
    assert set(form.form.ignored) == {"f_new", "alone"}
    assert form.form.latent_names == ("f_rotated_",)
    text = pmep.explain(model)
    assert "f_new" in text.splitlines()[-4]
    np.testing.assert_allclose(form.prior(form.start).gaussian.covariance_matrix(), K, atol=1e-12)


def test_zero_mass_is_read_off_the_distribution():
    with pm.Model() as model:
        f = pm.Normal("f", 1.0, 1.0, shape=N)
        pmep.RectifiedPoisson("y", f, zero_mass=False, observed=COUNTS)
    assert compiled_form(model).form.groups[0].options == {"zero_mass": False}
    assert "zero_mass=False" in pmep.explain(model)


def test_explain_names_every_part():
    with pm.Model() as model:
        ell = pm.HalfNormal("ell")
        f = gp(length=ell)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=SIGNS)
    lines = dict(line.split(maxsplit=1) for line in pmep.explain(model).splitlines())
    assert lines["latent"].startswith("f_rotated_")
    assert "probit" in lines["observed"]
    assert lines["hyperparameters"] == "ell"
    assert lines["ignored"] == "none"
    assert lines["methods"] == "ep, laplace, vg"


def test_unseen_warnings_do_not_escape():
    """Recognition itself is silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pm.Model() as model:
            pm.Poisson("y", pt.exp(gp()), observed=COUNTS)
        compiled_form(model)
