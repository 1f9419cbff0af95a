"""Latent variables of sparse precision: the answers of dense algebra, and sizes that this has no room for."""

from functools import cache

import numpy as np
import pymc as pm
import pytest
import scipy.sparse

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior
from pymc_ep.numerics.sparse.factor import Analysis

N, SIDE = 310, 18
QUIET = {"progressbar": False, "random_seed": 1, "draws": 200, "chains": 2}


def counts(n):
    return np.random.default_rng(0).poisson(np.exp(np.sin(np.arange(n) / 30)))


def lattice(side):
    line = scipy.sparse.diags_array([np.ones(side - 1)] * 2, offsets=[-1, 1])
    eye = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_matrix(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


def walk(n=N):
    """With a drift in its mean, and Deterministics of one, two and all of its values."""
    with pm.Model() as model:
        x = pm.GaussianRandomWalk("x", 0.01, pm.HalfNormal("s", 0.5), init_dist=pm.Normal.dist(0, 1), steps=n - 1)
        b = pm.Normal("b", 0, 1)
        pm.Deterministic("step", x[1:] - 0.5 * x[:-1])
        pm.Deterministic("mean", x.mean() + b)
        pm.Poisson("y", pm.math.exp(b + x), observed=counts(n))
    return model


def autoregression():
    with pm.Model() as model:
        rho = pm.math.stack([pm.Beta("r", 5, 2), 0.1])
        x = pm.AR("x", rho, sigma=pm.HalfNormal("s", 0.5), init_dist=pm.Normal.dist(0, 1), shape=N)
        pm.Bernoulli("y", logit_p=x, observed=counts(N) > 0)
    return model


def areas(prior):
    def write():
        w, n = lattice(SIDE), SIDE**2
        with pm.Model() as model:
            b = pm.Normal("b", 0, 2)
            if prior == "car":
                x = pm.CAR("x", np.zeros(n), w, alpha=pm.Beta("a", 5, 1), tau=pm.Gamma("t", 2, 1))
            else:
                x = pm.ICAR("x", W=w.toarray().astype(int), sigma=pm.HalfNormal("s", 0.5))
            pm.Poisson("y", pm.math.exp(b + x), observed=counts(n))
        return model

    return write


def markov():
    """With a precision of two terms."""
    w, n = lattice(SIDE), SIDE**2
    with pm.Model() as model:
        tau, a = pm.Gamma("t", 2, 1), pm.Beta("a", 5, 1)
        x = pmep.GaussianMarkov("x", precision=[(tau, scipy.sparse.diags_array(w @ np.ones(n))), (-tau * a, w)])
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0, 2) + x), observed=counts(n))
    return model


def intrinsic():
    """Of two groups of areas and a curve, with sums of zero; the second group has no observations."""
    w, n = scipy.sparse.block_diag([lattice(SIDE), lattice(3)]), SIDE**2 + 9
    group = (np.arange(n) < n - 9).astype(float)
    rough = scipy.sparse.csr_array(np.diff(np.eye(40), 2, axis=0))
    with pm.Model() as model:
        s, differences = pm.HalfNormal("s", 0.5), scipy.sparse.diags_array(w @ np.ones(n)) - w
        x = pmep.GaussianMarkov("x", precision=differences, null_space=np.stack([group, 1 - group], 1))
        z = pmep.GaussianMarkov("z", precision=[(4.0, rough.T @ rough)], null_space=np.vander(np.arange(40.0), 2))
        eta = pm.Normal("b", 0, 2) + s * x[: n - 9] + z[np.arange(n - 9) % 40]
        pm.Poisson("y", pm.math.exp(eta), observed=counts(n - 9))
    return model


def crossed():
    """Effects of users and of items, whose slopes are correlated, and three fixed ones."""
    rng, rows = np.random.default_rng(3), 700
    i, j, covariates = rng.integers(N, size=rows), rng.integers(20, size=rows), rng.normal(size=(rows, 3))
    with pm.Model() as model:
        u = pm.Normal("u", 0, pm.HalfNormal("su", 1), shape=N)
        v = pm.MvNormal("v", np.zeros(2), np.array([[0.5, 0.1], [0.1, 0.3]]), shape=(20, 2))
        beta = pm.Normal("beta", 0, 1, shape=3)
        eta = u[i] + v[j, 0] + v[j, 1] * covariates[:, 0] + covariates @ beta
        pm.Normal("y", eta, 0.7, observed=rng.normal(size=rows))
    return model


def compared():
    """Differences of the effects of two items, drawn at random."""
    rng, rows = np.random.default_rng(4), 800
    one, other = rng.integers(N, size=(2, rows))
    with pm.Model() as model:
        skill = pm.Normal("skill", 0, pm.HalfNormal("s", 1), shape=N)
        pm.Bernoulli("y", logit_p=skill[one] - skill[other], observed=rng.integers(0, 2, rows))
    return model


MODELS = {
    "walk": walk,
    "autoregression": autoregression,
    "car": areas("car"),
    "icar": areas("icar"),
    "markov": markov,
    "intrinsic": intrinsic,
    "crossed": crossed,
    "compared": compared,
}


@cache
def model_of(name):
    return MODELS[name]()


@cache
def fitted(name, solver, hyper):
    return pmep.fit(model=model_of(name), solver=solver, hyper=hyper, **QUIET)


def moments(idata):
    out = {}
    for kind in ("posterior_mean", "posterior_sd"):
        found = group(idata, kind)
        out |= {(kind, name): found[name].to_numpy() for name in found.data_vars}
    return out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hyper", ["fixed", "optimize", "integrate"])
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_dense_algebra(name, hyper):
    sparse, dense = fitted(name, "precision", hyper), fitted(name, "coefficients", hyper)
    # Searches and emulators end by tolerances, which rounding moves.
    tol = 1e-6 if hyper == "fixed" else 2e-3
    for key in ("log_evidence", "y_loo"):
        if key in group(dense, "fit"):
            one, other = (group(found, "fit")[key].to_numpy() for found in (sparse, dense))
            np.testing.assert_allclose(one, other, rtol=tol, atol=tol)
    one, other = moments(sparse), moments(dense)
    assert set(one) == set(other)
    for (kind, variable), value in other.items():
        sd = np.maximum(other["posterior_sd", variable], 1e-9)
        off = np.max(np.abs(one[kind, variable] - value) / sd)
        assert off < 10 * tol, f"{kind} of {variable}: {off:.1e}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["walk", "icar"])
def test_draws_have_the_moments(name):
    idata = pmep.fit(model=model_of(name), solver="precision", hyper="fixed", **(QUIET | {"draws": 4000}))
    drawn = group(idata, "posterior")["x"]
    mean, sd = (group(idata, kind)["x"].to_numpy() for kind in ("posterior_mean", "posterior_sd"))
    off = (drawn.mean(("chain", "draw")).to_numpy() - mean) / sd
    assert np.abs(off).max() < 5.0 / np.sqrt(8000)
    np.testing.assert_allclose(drawn.std(("chain", "draw")).to_numpy() / sd, 1.0, atol=0.05)


def test_what_takes_few_operations_is_chosen():
    form = compiled_form(walk(1200))
    assert form.solver.name == "precision"
    assert "sparse precision of 1201 unknowns" in pmep.explain(walk(1200))
    assert compiled_form(walk(60)).solver.name != "precision"
    with pm.Model() as model:
        x = pm.MvNormal("x", np.zeros(700), np.eye(700) + 0.5)
        pm.Poisson("y", pm.math.exp(x), observed=np.ones(700, dtype=int))
    assert compiled_form(model).solver.name == "observations"
    with pytest.raises(ValueError, match=r"solver='precision' needs latent variables of sparse precision"):
        pmep.fit(model=model, solver="precision")


def few_counts_of_many_areas(side, *, learned):
    w = lattice(side)
    degrees = scipy.sparse.diags_array(np.asarray(w.sum(axis=0)).ravel() + 0.5)
    with pm.Model() as model:
        scale = pm.Gamma("scale", 2, 1) if learned else 1.0
        x = pmep.GaussianMarkov("x", [(scale, degrees - w)])
        pm.Normal("y", x[::7], 1.0, observed=np.zeros(side**2 // 7 + 1))
    return model


def test_the_inverse_of_a_dense_precision_counts():
    """Of a field that few observations see, whose covariance is an inverse at each value of the hyperparameters."""
    few = compiled_form(few_counts_of_many_areas(30, learned=True))
    assert few.sizes == (129, 900) and few.solver.name == "precision"
    assert compiled_form(few_counts_of_many_areas(30, learned=False)).solver.name == "observations"
    few.solve_in("observations")
    assert few.work == 129**3 + 3 * 900**3


def test_the_inverse_is_computed_once_for_all_variables(monkeypatch):
    """Once a posterior: not for each of the walk, the Deterministics and the level."""
    form = compiled_form(walk(400))
    theta, calls, inverse = form.start, [], Analysis._inverse
    form.solve_in("precision")
    posterior = LatentPosterior.at_sites(form, theta, np.zeros(400), np.ones(400))
    monkeypatch.setattr(Analysis, "_inverse", lambda self, factor: calls.append(1) or inverse(self, factor))
    assert len(posterior.moments()) == 4 and len(calls) == 1


def test_jax_has_dense_matrices():
    pytest.importorskip("jax")
    with pytest.raises(ValueError, match="runs on the host, as sparse factors have no body of JAX; leave out device="):
        pmep.fit(model=walk(400), solver="precision", device="cpu")
    assert compiled_form(walk(400), compile_kwargs={"mode": "JAX"}).solver.name != "precision"


@pytest.mark.filterwarnings("ignore")
def test_predictions_and_densities():
    n = 1200
    with pm.Model() as model:
        at = pm.Data("at", np.arange(n))
        x = pm.GaussianRandomWalk("x", sigma=0.2, init_dist=pm.Normal.dist(0, 1), steps=n - 1)
        pm.Poisson("y", pm.math.exp(x[at]), observed=counts(n), shape=at.shape)
    found = pmep.fit(model=model, log_likelihood=True, **QUIET)
    dense = pmep.fit(model=model, solver="coefficients", **QUIET)
    one, other = (pmep.log_predictive(idata, model, {"y": counts(n) + 1})["y"] for idata in (found, dense))
    np.testing.assert_allclose(one, other, rtol=1e-6)
    with model:
        pm.set_data({"at": np.array([3, 700, 1199])})
    one, other = (pmep.log_predictive(idata, model, {"y": np.array([1, 0, 2])})["y"] for idata in (found, dense))
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_hundred_thousand_values():
    """Moments, and a few draws, of what dense algebra has no room for."""
    model = walk(100_000)
    found = pmep.fit(model=model, hyper="fixed", **(QUIET | {"draws": 5}))
    assert bool(group(found, "fit")["converged"])
    mean, drawn = group(found, "posterior_mean")["x"].to_numpy(), group(found, "posterior")["x"].to_numpy()
    assert mean.shape == (100_000,) and np.isfinite(mean).all() and drawn.shape == (2, 5, 100_000)


# What changes, and what is wrong


def effects(n, values):
    """One effect an observation: the map of a block to itself has no trace of its length."""
    with pm.Model(coords={"obs": range(n)}) as model:
        y = pm.Data("y_data", counts(n), dims="obs")
        x = pm.Normal("x", 0, pm.HalfNormal("s", 1), shape=y.shape) if values == "normal" else None
        x = pm.GaussianRandomWalk("x", sigma=0.3, init_dist=pm.Normal.dist(0, 1), dims="obs") if x is None else x
        pm.Poisson("y", pm.math.exp(x), observed=y)
    return model


@pytest.mark.parametrize("values", ["normal", "walk"])
def test_maps_and_precisions_follow_the_length_of_data(values):
    model, (first, second) = effects(N, values), (N, N + 7)
    for solver in ("precision", "coefficients"):
        for n in (first, second):
            with model:
                pm.set_data({"y_data": counts(n)}, coords={"obs": range(n)})
            form = compiled_form(model)
            form.solve_in(solver)
            assert form.prior(form.start).gaussian.variances().shape == (n,)
        assert form.sizes == (second, second)


def test_a_model_that_outgrows_dense_algebra_gets_its_precisions():
    model = effects(20, "walk")
    form = compiled_form(model)
    with pytest.raises(ValueError, match="300 latent values or more, and the model has 20"):
        form.solve_in("precision")
    with model:
        pm.set_data({"y_data": counts(N)}, coords={"obs": range(N)})
    compiled_form(model).solve_in("precision")


def nested(style):
    """Effects of schools in districts, of which each answer has one."""
    rng, rows = np.random.default_rng(5), 900
    district, school = rng.integers(12, size=N), rng.integers(N, size=rows)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1, shape=2)
        level, slope = pm.Normal("level", 0, 1), pm.Normal("slope", 0, 1, shape=12)
        if style == "centred":
            of_district = pm.Normal("of_district", level, sd[0], shape=12)
            eta = pm.Normal("of_school", of_district[district], sd[1], shape=N)[school]
        else:
            own = pm.Normal("of_school", 0, sd[1], shape=N)
            eta = level + pm.Normal("of_district", 0, sd[0], shape=12)[district[school]] + own[school]
        eta = eta + slope[district[school]] * rng.normal(size=rows)
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, rows))
    return model


@pytest.mark.filterwarnings("ignore")
def test_nested_effects_are_those_of_dense_algebra_in_both_spellings():
    """At a site tolerance of 1e-8, which is that of the default."""
    fits = [
        moments(pmep.fit(model=nested(style), hyper="fixed", solver=solver, draws=0, progressbar=False))
        for style, solver in (("centred", "precision"), ("centred", "coefficients"), ("added", "precision"))
    ]
    for key, value in fits[0].items():
        np.testing.assert_allclose(fits[1][key], value, atol=1e-8)
        if key[1] in ("level", "slope"):
            np.testing.assert_allclose(fits[2][key], value, atol=1e-8)


def test_factors_of_standard_effects_are_named_with_their_cure():
    with pm.Model() as model:
        s, x = pm.HalfNormal("s", 1, shape=2), pm.Normal("x", 0, 1, shape=(N, 2))
        pm.Poisson("y", pm.math.exp(s[0] * x[:, 0] + s[1] * x[:, 1]), observed=counts(N))
    with pytest.raises(ValueError, match=r"on latent variables by constants. Give learned scales and covariances"):
        compiled_form(model).solve_in("precision")
