"""The search for the hyperparameters where it is hard: steep starts, optima at infinity, points without evidence."""

import re
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.optimize
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.evidence.ep.evidence import evidence_of
from pymc_ep.evidence.lbfgs_search import Objective, search
from pymc_ep.evidence.mode import maximise

SETTINGS = {"power": 1.0, "damping": "auto", "tol": 1e-8, "schedule": "parallel", "max_iter": 100}
N = 20
X = np.linspace(0.0, 3.0, N)[:, None]
SQUARES = (X - X.T) ** 2
CURVE = np.sin(X.ravel())


def smooth(nugget):
    """A curve without noise, a GP with a little of its own, and a noise scale to be learned."""
    with pm.Model() as model:
        amp = pm.HalfNormal("amp", 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        covariance = amp**2 * pt.as_tensor(np.exp(-0.5 * SQUARES)) + nugget * pt.eye(N)
        pm.Normal("y", pm.MvNormal("f", np.zeros(N), covariance), sigma, observed=CURVE)
    return model


def test_a_noise_scale_that_runs_to_zero_is_followed_and_named():
    """Nothing but the GP's own nugget is left, so that the evidence is flat in the end; its height by SciPy."""
    fit = group(pmep.fit(model=smooth(1e-5), hyper="optimize", draws=0), "fit")

    def value(theta):
        amp, sigma = np.exp(theta)
        covariance = amp**2 * np.exp(-0.5 * SQUARES) + (1e-5 + sigma**2) * np.eye(N)
        log_prior = scipy.stats.halfnorm.logpdf(amp) + scipy.stats.halfnorm.logpdf(sigma)
        return scipy.stats.multivariate_normal.logpdf(CURVE, np.zeros(N), covariance) + log_prior

    best = max(-scipy.optimize.minimize(lambda t: -value(t), [a, -9.0], method="Nelder-Mead").fun for a in (-1.0, 1.0))
    np.testing.assert_allclose(float(fit["hyper_objective"].max()), best, atol=1e-3)
    assert float(fit["hyper_mode_sigma"]) < 1e-3
    assert bool(fit["converged"])
    assert "the evidence hardly depends on sigma at the mode" in fit.attrs["status"]


def test_a_noise_scale_without_a_floor_is_no_convergence():
    """With a repeated, noiseless curve and no nugget the evidence rises until numbers fail."""
    with pytest.warns(pmep.ConvergenceWarning, match=r"still rises as sigma \(now .*e-.*\) runs to a boundary.*fix it"):
        result = pmep.fit(model=smooth(0.0), hyper="optimize", draws=0)
    fit = group(result, "fit")
    assert not bool(fit["converged"])
    # The search did not end, the last fit did: what comes first is not that something converged.
    assert re.match(r"hyperparameters not settled after \d+ evaluations: ", fit.attrs["status"])
    assert re.search(r"; at the values of the result EP itself converged( to rounding)?: ", fit.attrs["status"])


def test_an_infinite_density_is_not_called_improper():
    """Dirichlet(1/2) shares of two variances: their prior is proper, and infinite at its corners."""
    with pm.Model() as model:
        share = pm.Dirichlet("share", np.full(2, 0.5))
        pm.Normal("y", pm.Normal("f", 0, pt.sqrt(share), shape=2), 1.0, observed=np.array([3.0, 0.1]))
    with pytest.warns(pmep.ConvergenceWarning, match=r"rises as share .* boundary, .*hyper='integrate'") as caught:
        pmep.fit(model=model, hyper="optimize", draws=0, progressbar=False)
    assert "improper" not in str(caught[0].message)


def test_a_covariance_that_turns_indefinite_on_the_way():
    """Positive definite at the start, where off-diagonal elements are small, but not where the data want them."""
    pattern = np.ones((3, 3)) - np.eye(3)
    pattern[0, 1] = pattern[1, 0] = -1.0
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal(np.zeros(3), np.eye(3) + 0.499 * pattern, size=8)
    with pm.Model() as model:
        rho = pm.Normal("rho", 0.0, 5.0, initval=0.1)
        covariance = pt.as_tensor(np.kron(np.eye(8), np.eye(3))) + rho * pt.as_tensor(np.kron(np.eye(8), pattern))
        f = pm.MvNormal("f", np.zeros(24), covariance)
        pm.Normal("y", f, 1.0, observed=1.6 * draws.ravel())
    with pytest.raises(pmep.NumericalError, match=r"'?f'?.*not positive definite for rho = .*least eigenvalue is -"):
        pmep.fit(model=model, hyper="optimize", draws=0)


def test_the_first_step_is_short_and_no_point_is_evaluated_twice():
    """Under a steep slope, here of a paraboloid about (3, 3), L-BFGS would begin at the border of its box."""
    visited = []

    def at(theta, sites):
        visited.append(theta.copy())
        status = SimpleNamespace(converged=True)
        value = -50 * ((theta - 3) ** 2).sum()
        return SimpleNamespace(value=value, theta=theta.copy(), state=sites, status=status)

    form = SimpleNamespace(transformed=np.ones(2, dtype=bool))
    evidence = SimpleNamespace(form=form, at=at, gradient=lambda at: -100 * (at.theta - 3), density="natural")
    objective = Objective(evidence, None)
    search(objective, np.zeros(2))
    assert np.linalg.norm(visited[1]) < 1 + 1e-9
    assert len({tuple(theta) for theta in visited}) == len(visited)
    np.testing.assert_allclose(objective.best.theta, 3.0, atol=1e-6)


def test_coefficients_of_very_different_scales_are_found():
    """From a start that is 1e5 nats low: coefficients of a log noise scale, some with a thousand times the effect."""
    rng = np.random.default_rng(3)
    design = rng.normal(size=(60, 5)) * np.array([30.0, 30.0, 1.0, 0.1, 0.03])
    y = rng.normal(size=60) * np.exp(4.5 + design @ np.array([0.02, -0.03, 0.4, 1.0, -1.0]))

    with pm.Model() as model:
        level, w = pm.StudentT("level", nu=3, sigma=10), pm.Normal("w", 0, 1, shape=5, initval=np.zeros(5))
        f = pm.Normal("f", 0.0, 20.0, shape=12)
        pm.Normal("y", f[np.arange(60) // 5], pt.exp(level + pt.dot(design, w)), observed=y)
    fit = group(pmep.fit(model=model, hyper="optimize", latent=["f"], draws=0), "fit")

    together = 400.0 * np.equal.outer(np.arange(60) // 5, np.arange(60) // 5)

    def loss(scaled):
        log_sd = scaled[0] + design @ (scaled[1:] / [30.0, 30.0, 1.0, 1.0, 1.0])
        prior = scipy.stats.t.logpdf(scaled[0], 3, 0, 10)
        prior += scipy.stats.norm.logpdf(scaled[1:] / [30.0, 30.0, 1.0, 1.0, 1.0]).sum()
        covariance = together + np.diag(np.exp(2 * log_sd))
        log_density = -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + y @ np.linalg.solve(covariance, y))
        return -log_density - prior

    bounds = [(2, 7), *[(-3, 3)] * 5]
    best = scipy.optimize.minimize(loss, [4.0, 0, 0, 0, 0, 0], bounds=bounds, options={"ftol": 1e-14})
    np.testing.assert_allclose(float(fit["hyper_objective"].max()), -best.fun, atol=1e-4)
    assert bool(fit["converged"])


def test_a_scale_of_other_hyperparameters_is_left_quickly():
    """The density of three values about their centre has no bound as their scale falls, whatever the data say."""
    rng = np.random.default_rng(5)
    with pm.Model() as model:
        spread = pm.HalfCauchy("spread", 2.0)
        slopes = pm.LogNormal("slopes", 0.0, spread, shape=4)
        f = pm.Normal("f", 0.0, 1.0, shape=15)
        p = 1 / (1 + np.exp(-3 * rng.normal(size=15)))
        pm.Bernoulli("y", logit_p=slopes[:, None] * f, observed=rng.binomial(1, p, (4, 15)))
    with pytest.warns(pmep.ConvergenceWarning, match=r"still rises as.*spread \(now.*boundary.*hyper='sample'"):
        fit = group(pmep.fit(model=model, hyper="optimize", latent=["f"], draws=0), "fit")
    assert not bool(fit["converged"])
    assert fit["hyper_objective"].size < 120


@pytest.mark.parametrize("start", [1e-12, 1e9])
def test_a_start_near_a_boundary_is_no_boundary(start):
    """The way back is longer than that on which a scale that runs away is followed."""
    rng = np.random.default_rng(7)
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 5.0)
        f = pm.Normal("f", 0.0, tau, shape=20)
        pm.Normal("y", f, 1.0, observed=rng.normal(0.0, 3.0, 20))
    form = pmep.forms.compiled_form(model)
    evidence = evidence_of(form, {**SETTINGS, "solver": "auto"}, density="unconstrained")
    far, near = (maximise(evidence, np.log([value])) for value in (start, 3.0))
    assert far.converged, far.sentence
    np.testing.assert_allclose(far.at.theta, near.at.theta, atol=1e-3)


def test_sites_move_with_the_hyperparameters_as_fits_beside_the_mode_do():
    """Along each column of the factor L of their covariance, by central differences of fits; L is not symmetric."""
    rng = np.random.default_rng(1)
    row, col = np.divmod(np.arange(24), 4)
    with pm.Model() as model:
        scales = [pm.HalfNormal(name, 1.0) for name in ("s_row", "s_col")]
        a, b = (pm.Normal(name, 0.5, s, shape=k) for name, s, k in zip("ab", scales, (6, 4)))
        mean = np.exp(1.0 + rng.normal(0, 0.8, 6)[row] + rng.normal(0, 0.8, 4)[col])
        pm.Poisson("y", pm.math.exp(a[row] + b[col]), observed=rng.poisson(mean))
    evidence = evidence_of(pmep.forms.compiled_form(model), {**SETTINGS, "solver": "auto"}, density="unconstrained")
    found = maximise(evidence, np.zeros(2))
    assert abs(found.factor[1, 0]) > 0.01
    for column, d_shift, d_precision in zip(found.factor.T, *found.d_state):
        low, high = (evidence.at(found.at.theta + h * column).sites for h in (-1e-3, 1e-3))
        for moved, before, after in zip((d_shift, d_precision), low, high):
            np.testing.assert_allclose(moved, (after - before) / 2e-3, rtol=1e-3, atol=1e-5)
