"""The same fit under JAX: one text of mathematics, two backends."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.forms import compiled_form

pytest.importorskip("jax")


@pytest.mark.parametrize("likelihood", ["rectified", "student_t"])
def test_a_fit_under_jax_is_the_fit(likelihood):
    """Evidence, hyperparameters and moments; the Student-t sites of the outliers have negative precisions."""
    rng = np.random.default_rng(3)
    x = np.linspace(0.0, 10.0, 12)
    truth = 3 + 2 * np.sin(x)
    with pm.Model(coords={"place": np.arange(12)}) as model:
        ell = pm.InverseGamma("ell", mu=3, sigma=1)
        f = pm.gp.Latent(mean_func=pm.gp.mean.Constant(3.0), cov_func=4 * pm.gp.cov.Matern52(1, ell)).prior(
            "f", X=x[:, None], dims="place"
        )
        if likelihood == "rectified":
            pmep.RectifiedPoisson("y", f, observed=rng.poisson(truth), dims="place")
        else:
            observed = truth + 0.1 * rng.normal(size=12)
            observed[4] += 12.0
            pm.StudentT("y", nu=3, mu=f, sigma=0.3, observed=observed, dims="place")
    here = pmep.fit(model=model, draws=0)
    there = pmep.fit(model=model, draws=0, compile_kwargs={"mode": "JAX"})
    if likelihood == "student_t":
        assert here["fit"]["y_site_precision"].min() < 0
    np.testing.assert_allclose(there["fit"]["log_evidence"], here["fit"]["log_evidence"], rtol=1e-6)
    np.testing.assert_allclose(there["fit"]["hyper_mode_ell"], here["fit"]["hyper_mode_ell"], rtol=1e-4)
    np.testing.assert_allclose(there["posterior_mean"]["f"], here["posterior_mean"]["f"], atol=1e-4)
    np.testing.assert_allclose(there["posterior_sd"]["f"], here["posterior_sd"]["f"], rtol=1e-3)


@pytest.mark.parametrize("learn", [False, True])
def test_a_wavelet_tree_under_jax_is_the_same(learn):
    """The states' sum-product runs in JAX as well."""
    rng = np.random.default_rng(4)
    picture = np.kron([[0.0, 0.0], [0.0, 3.0]], np.ones((4, 4))) + 0.5 * rng.normal(size=(8, 8))
    with pm.Model() as model:
        low = pm.HalfNormal("low", 1.0) if learn else 0.2
        tree = pmep.WaveletTree("u", shape=(8, 8), levels=2, low=pm.Normal.dist(0, low), high=pm.Laplace.dist(0, 2.0))
        pm.Normal("y", tree, 0.5, observed=picture)
    options = {"model": model, "method": "ep", "draws": 0, "hyper": "optimize" if learn else "fixed"}
    here = pmep.fit(**options, progressbar=False)
    there = pmep.fit(**options, progressbar=False, compile_kwargs={"mode": "JAX"})
    assert bool(here["fit"]["converged"]) and bool(there["fit"]["converged"])
    np.testing.assert_allclose(there["fit"]["log_evidence"], here["fit"]["log_evidence"], rtol=1e-6)
    np.testing.assert_allclose(there["posterior_mean"]["u"], here["posterior_mean"]["u"], atol=1e-4)
    np.testing.assert_allclose(there["posterior_sd"]["u"], here["posterior_sd"]["u"], rtol=1e-3)
    np.testing.assert_allclose(there["fit"]["u_indicator"], here["fit"]["u_indicator"], atol=1e-4)


@pytest.mark.parametrize("outside", [False, True], ids=["scale of a prior", "scale of the effects"])
def test_groups_under_jax_are_blocks(outside):
    """Blocks of coefficients are not dense there, whether hyperparameters are in the map or in the prior."""
    rng = np.random.default_rng(5)
    group, x = np.arange(600) % 150, rng.normal(size=600)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        effect = pm.Normal("effect", 0.0, 1.0 if outside else scale, shape=150)
        level = pm.Normal("level", 0.0, 2.0) + pm.Normal("slope", 0.0, 2.0) * x
        eta = level + (scale * effect if outside else effect)[group]
        pm.Poisson("y", pm.math.exp(eta), observed=rng.poisson(np.exp(0.3 * x + 0.5 * rng.normal(size=150)[group])))
    assert compiled_form(model, None, {"mode": "JAX"}).prior(np.zeros(1)).gaussian.pattern.blocks is not None
    here, there = (pmep.fit(model=model, hyper="optimize", random_seed=1, **how) for how in ({}, {"device": "cpu"}))
    for name in ("log_evidence", "hyper_mode_scale"):
        np.testing.assert_allclose(there["fit"][name], here["fit"][name], rtol=1e-6)
    for name in ("effect", "slope"):
        np.testing.assert_allclose(there["posterior_mean"][name], here["posterior_mean"][name], atol=1e-6)
        np.testing.assert_allclose(there["posterior_sd"][name], here["posterior_sd"][name], rtol=1e-6)
