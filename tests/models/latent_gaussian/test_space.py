"""Both solvers give the same fit, wherever both apply."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.models.latent_gaussian.space import choose_solver

RNG = np.random.default_rng(3)
N = 60
X = RNG.normal(size=(N, 3))
GROUP = np.arange(N) % 5
COUNTS = RNG.poisson(np.exp(0.4 + 0.5 * X[:, 0]))
BITS = (RNG.normal(size=N) < X[:, 1]).astype(int)
REALS = X[:, 0] - 0.5 * X[:, 2] + 0.3 * RNG.standard_t(4, size=N)


def regression():
    scale = pm.HalfNormal("scale", 2)
    beta = pm.Normal("beta", [0.0, 0.5, 0.0], scale, shape=3)
    level = pm.Normal("level", 1, 2)
    eta = pm.Deterministic("eta", level + X @ beta)
    pm.Poisson("y", pt.exp(eta), observed=COUNTS)


def hierarchy():
    mu = pm.Normal("mu", 0, 1)
    tau = pm.HalfNormal("tau", 1)
    effect = pm.Normal("effect", mu, tau, shape=5)
    z = pm.Normal("z", 0, 1, shape=3)
    pm.Bernoulli("y", logit_p=effect[GROUP] + X @ (tau * z), observed=BITS)


def correlated():
    scale = pm.HalfNormal("scale", 2)
    factor = np.array([[1.0, 0, 0], [0.5, 1, 0], [-0.3, 0.2, 1]])
    beta = pm.MvNormal("beta", np.zeros(3), scale**2 * factor @ factor.T)
    sigma = pm.HalfNormal("sigma", 1)
    pm.StudentT("y", nu=4, mu=X @ beta, sigma=sigma, observed=REALS)


def process_at_few_points():
    ell = pm.InverseGamma("ell", 3, 3)
    gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ell))
    f = gp.prior("f", X=np.linspace(0, 4, 5)[:, None])
    pm.Poisson("y", pt.exp(f[GROUP] + 0.2), observed=COUNTS)


def walk_and_areas():
    sigma = pm.HalfNormal("sigma", 1)
    walk = pm.GaussianRandomWalk("walk", sigma=sigma, init_dist=pm.Normal.dist(0, 1), steps=4)
    ring = np.roll(np.eye(5), 1, 0) + np.roll(np.eye(5), -1, 0)
    area = pm.ICAR("area", W=ring, sigma=0.5, zero_sum_stdev=0.1)
    other = pm.ZeroSumNormal("other", sigma=sigma, shape=3)
    pm.Poisson("y", pt.exp(walk[GROUP] + area[GROUP] + X @ other), observed=COUNTS)


def same_results(first, second, tol, endings):
    """Compare moments, and what in the group ``fit`` has a name with one of these endings."""
    for part in ("posterior_mean", "posterior_sd", "fit"):
        for name, values in group(first, part).data_vars.items():
            if part != "fit" or name.endswith(endings):
                np.testing.assert_allclose(values, second[part][name], rtol=tol, atol=tol, err_msg=f"{part} {name}")


@pytest.mark.parametrize("build", [regression, hierarchy, correlated, process_at_few_points, walk_and_areas])
def test_solvers_agree(build):
    with pm.Model() as model:
        build()
    found = {
        name: pmep.fit(
            model=model,
            solver=name,
            hyper="optimize",
            progressbar=False,
            draws=4000,
            chains=1,
            random_seed=1,
            tol=1e-10,
        )
        for name in ("observations", "coefficients")
    }
    # The hyperparameters are found to 1e-5 of their gradient, the rest of a given one to rounding.
    same_results(*found.values(), 2e-6, ("log_evidence", "_loo", "_site_precision", "_site_shift"))
    for name in ("observations", "coefficients"):
        posterior = found[name]["posterior"]
        for variable in posterior.data_vars:
            draws = np.asarray(posterior[variable])[0]
            mean, sd = (np.asarray(found[name][f"posterior_{what}"][variable]) for what in ("mean", "sd"))
            assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * sd / np.sqrt(4000) + 1e-12), (name, variable)
            np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.08, err_msg=f"{name} {variable}")


@pytest.mark.parametrize("build", [regression, correlated, walk_and_areas])
def test_solvers_agree_at_fixed_hyperparameters(build):
    with pm.Model() as model:
        build()
    first, second = (
        pmep.fit(model=model, solver=name, hyper="fixed", progressbar=False, draws=0, tol=1e-12)
        for name in ("observations", "coefficients")
    )
    same_results(first, second, 1e-8, ("log_evidence", "_loo"))


def test_the_cheaper_solver_is_chosen_and_said():
    assert choose_solver("auto", 100, 20).name == "coefficients"
    assert choose_solver("auto", 100, 80).name == "observations"
    assert choose_solver("auto", 100, 60, independent=True).name == "coefficients"
    assert choose_solver("auto", 100, 80, independent=True).name == "observations"
    assert choose_solver("auto", 10, 30, independent=True).name == "observations"
    with pytest.raises(ValueError, match="solver='sparse' must be 'auto' or one of 'observations', 'coefficients'"):
        choose_solver("sparse", 1, 1)
    with pm.Model() as model:
        regression()
    assert "in the space of the coefficients" in str(pmep.explain(model))
