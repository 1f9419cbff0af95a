"""Observed variables that no latent variable is behind, and free variables that no observation depends on."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.forms import compiled_form

RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 2))
Y = X @ np.array([1.0, -0.5]) + 0.4 * RNG.normal(size=12)
PILOT = 0.4 * RNG.normal(size=7)
QUIET = {"progressbar": False, "random_seed": 1}


def with_pilot(sd=None):
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0) if sd is None else sd
        pm.Normal("pilot", 0.0, sd, observed=PILOT)
        pm.Normal("y", X @ pm.Normal("b", 0, 2, shape=2), sd, observed=Y)
    return model


def log_evidence(sd):
    of_y = scipy.stats.multivariate_normal(np.zeros(12), 4 * X @ X.T + sd**2 * np.eye(12)).logpdf(Y)
    return of_y + scipy.stats.norm(0, sd).logpdf(PILOT).sum()


def test_a_pilot_sample_informs_a_scale():
    model = with_pilot()
    fit = pmep.fit(model=model, hyper="fixed", start={"sd": np.array(0.7)}, draws=0, progressbar=False)["fit"]
    np.testing.assert_allclose(fit["log_evidence"], log_evidence(0.7), rtol=1e-9)
    lines = pmep.explain(model).splitlines()
    assert any("pilot" in line and "no latent" in line for line in lines)
    form = compiled_form(model)
    theta = np.log([[0.3], [0.7]])
    np.testing.assert_allclose(form.rows.log_excess(theta)[1], scipy.stats.norm(0, 0.7).logpdf(PILOT).sum())


def test_its_mode_is_that_of_the_whole_density():
    found = group(pmep.fit(model=with_pilot(), hyper="optimize", draws=0, progressbar=False), "fit")
    grid = np.linspace(0.2, 1.0, 20_001)
    rough = grid[::400]
    objective = [log_evidence(sd) + scipy.stats.halfnorm(0, 1).logpdf(sd) for sd in rough]
    best = rough[np.argmax(objective)]
    fine = np.linspace(best - 0.02, best + 0.02, 401)
    objective = [log_evidence(sd) + scipy.stats.halfnorm(0, 1).logpdf(sd) for sd in fine]
    np.testing.assert_allclose(found["hyper_mode_sd"], fine[np.argmax(objective)], atol=2e-4)


@pytest.mark.parametrize("sd", [None, np.array(0.5)], ids=["a hyperparameter", "nothing"])
def test_its_log_likelihood_is_that_of_the_draws(sd):
    idata = pmep.fit(model=with_pilot(sd), draws=5, log_likelihood=True, **QUIET)
    draws = group(idata, "posterior")
    scale = draws["sd"].to_numpy()[..., None] if sd is None else np.full((4, 5, 1), sd)
    expected = scipy.stats.norm(0, scale).logpdf(PILOT)
    np.testing.assert_allclose(group(idata, "log_likelihood")["pilot"], expected, rtol=1e-9)
    assert group(idata, "log_likelihood")["y"].shape == (4, 5, 12)
    fit = group(idata, "fit")
    if sd is not None:
        np.testing.assert_allclose(fit["log_evidence"], log_evidence(0.5), rtol=1e-9)
        # Exact: the two densities differ by the evidence, whatever the draw.
        np.testing.assert_allclose(fit["log_p"] - fit["log_q"], log_evidence(0.5), rtol=1e-8)


def test_values_that_depend_on_each_other_may_stand_aside():
    covariance = np.array([[1.0, 0.5], [0.5, 2.0]])
    with pm.Model() as model:
        pm.MvNormal("aside", np.zeros(2), covariance, observed=[0.3, -0.2])
        pm.Poisson("y", pt.exp(pm.Normal("f", 0, 1, shape=3)), observed=[1, 0, 2])
    with pm.Model() as alone:
        pm.Poisson("y", pt.exp(pm.Normal("f", 0, 1, shape=3)), observed=[1, 0, 2])
    both, one = (pmep.fit(model=m, draws=0, progressbar=False)["fit"]["log_evidence"] for m in (model, alone))
    aside = scipy.stats.multivariate_normal(np.zeros(2), covariance).logpdf([0.3, -0.2])
    np.testing.assert_allclose(both - one, aside, rtol=1e-8)


def test_observations_without_density_are_named():
    with pm.Model() as model:
        pm.Exponential("aside", 1.0, observed=[0.3, -0.2])
        pm.Poisson("y", pt.exp(pm.Normal("f", 0, 1, shape=3)), observed=[1, 0, 2])
    with pytest.raises(pmep.InvalidDataError, match=r"'aside' has the log density -inf at index 1"):
        pmep.fit(model=model, progressbar=False)


@pytest.mark.filterwarnings("ignore:Data in y contains missing values")
def test_imputed_values_are_drawn_about_their_predictors():
    y = Y.copy()
    y[[2, 5]] = np.nan
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Normal("y", X @ b, 0.4, observed=y)
        pm.Poisson("alone", 3.0)
        pm.Deterministic("doubled", 2 * model["alone"])
    draws = group(pmep.fit(model=model, draws=2000, **QUIET), "posterior")
    assert {"b", "y_unobserved", "y", "alone", "doubled"} == set(draws.data_vars)
    seen = np.delete(np.arange(12), [2, 5])
    precision = X[seen].T @ X[seen] / 0.4**2 + np.eye(2) / 4
    mean = X[[2, 5]] @ np.linalg.solve(precision, X[seen].T @ Y[seen] / 0.4**2)
    sd = np.sqrt(np.diag(X[[2, 5]] @ np.linalg.solve(precision, X[[2, 5]].T)) + 0.4**2)
    found = draws["y_unobserved"].to_numpy().reshape(-1, 2)
    np.testing.assert_allclose((found.mean(axis=0) - mean) / sd, 0, atol=0.05)
    np.testing.assert_allclose(found.std(axis=0), sd, rtol=0.05)
    np.testing.assert_array_equal(draws["y"][..., [2, 5]].to_numpy().reshape(-1, 2), found)
    np.testing.assert_array_equal(draws["y"][..., seen][0, 0], Y[seen])
    np.testing.assert_array_equal(draws["doubled"], 2 * draws["alone"])


def test_new_values_of_a_process_are_left_to_predict():
    with pm.Model() as model:
        process = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 0.8))
        f = process.prior("f", X=np.linspace(0, 1, 3)[:, None])
        pm.Poisson("y", pt.exp(f), observed=[1, 0, 2])
        pm.Normal("noisy", process.conditional("f_new", Xnew=np.array([[3.0]])), 1.0, shape=1)
    draws = group(pmep.fit(model=model, draws=2, **QUIET), "posterior")
    assert {"f_rotated_", "f"} == set(draws.data_vars)


def test_gaussians_that_are_hyperparameters_are_named():
    with pm.Model() as model:
        log_sd = pm.Normal("log_sd", -1, 0.5)
        factor = pm.Normal("factor", 1, 0.2)
        pm.Normal("y", factor * (X @ pm.Normal("b", 0, 2, shape=2)), pt.exp(log_sd), observed=Y)
    lines = dict(line.split(maxsplit=1) for line in pmep.explain(model, latent=["b"]).splitlines())
    assert lines["hyperparameters"].startswith("log_sd, factor;")
    assert lines["hyperparameters"].endswith("not linear in them, or latent= leaves them out): log_sd, factor")
    status = group(pmep.fit(model=model, latent=["b"], draws=0, progressbar=False), "fit").attrs["status"]
    assert "leaves them out): log_sd, factor" in status


def test_explain_takes_latent():
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=12), pm.Normal("b", shape=12)
        pm.Normal("y", a * b, 1.0, observed=Y)
    for name, other in ("ab", "ba"):
        lines = dict(line.split(maxsplit=1) for line in pmep.explain(model, latent=name).splitlines())
        assert lines["latent"].startswith(f"{name}: 12 values")
        assert lines["hyperparameters"].startswith(f"{other} (12)")
