"""`pm.Flat` coefficients: restricted likelihood in closed form, quadrature, the limit of wide priors, and refusals."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

import pymc_ep as pmep
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.forms import compiled_form
from pymc_ep.modes import numpy_mode
from pymc_ep.results import fit_group

N, GROUPS = 40, 5
RNG = np.random.default_rng(11)
SLOPE = RNG.normal(size=N)
DESIGN = np.column_stack([np.ones(N), SLOPE])
GROUP = np.arange(N) % GROUPS
EFFECT = np.eye(GROUPS)[GROUP]
REALS = 100.0 + 3.0 * SLOPE + EFFECT @ RNG.normal(0, 2.0, GROUPS) + RNG.normal(0, 1.5, N)
COUNTS = RNG.poisson(np.exp(0.5 + 0.6 * SLOPE + EFFECT @ RNG.normal(0, 0.7, GROUPS)))
BITS = (RNG.logistic(size=N) < 0.3 + 0.8 * SLOPE).astype(int)
QUIET = {"progressbar": False, "random_seed": 1}


def mixed_model():
    with pm.Model() as model:
        b = pm.Flat("b", shape=2)
        tau, sigma = pm.HalfFlat("tau"), pm.HalfFlat("sigma")
        u = pm.Normal("u", 0.0, tau, shape=GROUPS)
        pm.Normal("y", DESIGN @ b + u[GROUP], sigma, observed=REALS)
    return model


def restricted(tau, sigma):
    """Log restricted likelihood (Harville 1974), with density 1 for the coefficients, and these by least squares."""
    covariance = sigma**2 * np.eye(N) + tau**2 * EFFECT @ EFFECT.T
    inverse = np.linalg.inv(covariance)
    information = DESIGN.T @ inverse @ DESIGN
    b = np.linalg.solve(information, DESIGN.T @ inverse @ REALS)
    residual = REALS - DESIGN @ b
    log_z = -0.5 * residual @ inverse @ residual - 0.5 * (N - 2) * np.log(2 * np.pi)
    log_z -= 0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * np.linalg.slogdet(information)[1]
    return log_z, b, np.linalg.inv(information)


@pytest.mark.parametrize(("tau", "sigma"), [(2.0, 1.5), (0.3, 4.0)])
def test_gaussian_noise_gives_generalised_least_squares(tau, sigma):
    result = pmep.fit(model=mixed_model(), hyper="fixed", start={"tau": tau, "sigma": sigma}, draws=0, **QUIET)
    fit = fit_group(result)
    log_z, b, covariance = restricted(tau, sigma)
    np.testing.assert_allclose(float(fit["log_evidence"]), log_z, rtol=1e-11)
    np.testing.assert_allclose(result["posterior_mean"]["b"], b, rtol=1e-9)
    np.testing.assert_allclose(result["posterior_sd"]["b"], np.sqrt(np.diag(covariance)), rtol=1e-9)


def test_the_mode_of_the_scales_is_restricted_maximum_likelihood():
    fit = fit_group(pmep.fit(model=mixed_model(), hyper="optimize", draws=0, **QUIET))
    found = scipy.optimize.minimize(lambda t: -restricted(*np.exp(t))[0], np.log([1.0, 1.0]), options={"gtol": 1e-9})
    modes = [float(fit["hyper_mode_tau"]), float(fit["hyper_mode_sigma"])]
    np.testing.assert_allclose(modes, np.exp(found.x), rtol=1e-4)


def logistic(prior):
    with pm.Model() as model:
        b = prior("b")
        pm.Bernoulli("y", logit_p=DESIGN @ b, observed=BITS)
    return pmep.fit(model=model, draws=0, **QUIET)


def test_against_quadrature_over_the_coefficients():
    # So many that EP's own error, of order 1 / n, is within the tolerances: at 40 it is 0.017 in log Z, 4% in sds.
    n = 200
    rng = np.random.default_rng(5)
    design = np.column_stack([np.ones(n), rng.normal(size=n)])
    bits = (rng.logistic(size=n) < design @ [0.3, 0.8]).astype(int)
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=design @ pm.Flat("b", shape=2), observed=bits)
    idata = pmep.fit(model=model, draws=0, **QUIET)
    mean, sd = np.asarray(idata["posterior_mean"]["b"]), np.asarray(idata["posterior_sd"]["b"])
    nodes = [m + s * np.linspace(-9, 9, 301) for m, s in zip(mean, sd)]
    grid = np.stack(np.meshgrid(*nodes, indexing="ij"), axis=-1)
    log_density = -np.logaddexp(0.0, (1 - 2 * bits) * (grid @ design.T)).sum(axis=-1)
    cell = np.prod([x[1] - x[0] for x in nodes])
    assert log_density[0].max() < log_density.max() - 15  # the grid holds all of the mass
    weights = np.exp(log_density - scipy.special.logsumexp(log_density))
    exact = np.einsum("ij,ijk->k", weights, grid)
    exact_sd = np.sqrt(np.einsum("ij,ijk->k", weights, (grid - exact) ** 2))
    assert abs(float(idata["fit"]["log_evidence"]) - scipy.special.logsumexp(log_density) - np.log(cell)) < 0.01
    np.testing.assert_allclose(mean, exact, atol=0.05 * exact_sd.min())
    np.testing.assert_allclose(sd, exact_sd, rtol=0.02)


def test_it_is_the_limit_of_wide_priors():
    wide = 1e4
    flat = logistic(lambda name: pm.Flat(name, shape=2))
    proper = logistic(lambda name: pm.Normal(name, 0, wide, shape=2))
    normaliser = 2 * np.log(wide * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(
        float(flat["fit"]["log_evidence"]), float(proper["fit"]["log_evidence"]) + normaliser, atol=1e-6
    )
    np.testing.assert_allclose(flat["posterior_mean"]["b"], proper["posterior_mean"]["b"], atol=1e-6)
    np.testing.assert_allclose(flat["posterior_sd"]["b"], proper["posterior_sd"]["b"], rtol=1e-6)


def hierarchical_counts():
    """A flat mean of the effects, which the predictor holds through these alone."""
    with pm.Model() as model:
        mu = pm.Flat("mu")
        tau = pm.HalfNormal("tau", 1.0)
        u = pm.Normal("u", mu, tau, shape=GROUPS)
        b = pm.Flat("b")
        pm.Poisson("y", pt.exp(u[GROUP] + b * SLOPE), observed=COUNTS)
    return model


def test_gradient_against_finite_differences():
    form = compiled_form(hierarchical_counts())
    evidence = Evidence(form, EP(form.sites, tol=1e-12), max_iter=200)
    theta, h = np.log([0.4]), 1e-4
    numeric = (evidence.at(theta + h).value - evidence.at(theta - h).value) / (2 * h)
    np.testing.assert_allclose(evidence.gradient(evidence.at(theta)), numeric, rtol=1e-6)


def test_log_p_is_that_of_the_model():
    model = hierarchical_counts()
    result = pmep.fit(model=model, hyper="optimize", draws=5, chains=1, log_likelihood=True, **QUIET)
    draws = {name: np.asarray(result["posterior"][name])[0] for name in ("mu", "tau", "u", "b")}
    logp = model.compile_logp(mode=numpy_mode())
    for k, found in enumerate(np.asarray(fit_group(result)["log_p"])[0]):
        point = {"tau_log__": np.log(draws["tau"][k])} | {name: draws[name][k] for name in ("mu", "u", "b")}
        np.testing.assert_allclose(found, logp(point), rtol=1e-9)


def test_weights_average_to_the_evidence():
    """With Gaussian noise the approximation is exact, so that every weight p / q is the evidence."""
    result = pmep.fit(
        model=mixed_model(),
        hyper="fixed",
        start={"tau": 2.0, "sigma": 1.5},
        draws=20,
        chains=1,
        log_likelihood=True,
        **QUIET,
    )
    fit = fit_group(result)
    np.testing.assert_allclose(fit["log_p"] - fit["log_q"], restricted(2.0, 1.5)[0], rtol=1e-9)


def test_predictions():
    with pm.Model():
        x = pm.Data("x", SLOPE)
        b = pm.Flat("b", shape=2)
        pm.Deterministic("line", b[0] + b[1] * np.array([-1.0, 0.0, 2.0]))
        pm.Normal("y", b[0] + b[1] * x, 1.0, observed=REALS)
        result = pmep.fit(draws=0, **QUIET)
        found = pmep.predict(result, var_names=["line"])
        at = np.column_stack([np.ones(3), [-1.0, 0.0, 2.0]])
        covariance = np.linalg.inv(DESIGN.T @ DESIGN)
        np.testing.assert_allclose(found["line_mean"], at @ np.linalg.lstsq(DESIGN, REALS)[0])
        np.testing.assert_allclose(found["line_sd"], np.sqrt(np.diag(at @ covariance @ at.T)))
        pm.set_data({"x": 2 * SLOPE})
        np.testing.assert_allclose(pmep.predict(result, var_names=["line"])["line_mean"], found["line_mean"])


def test_design_that_is_not_of_full_rank():
    with pm.Model() as model:
        b = pm.Flat("b", shape=3)
        other = pm.Flat("other", shape=GROUPS + 1)  # the last group is empty
        design = np.column_stack([DESIGN, DESIGN @ [2.0, -1.0]])
        pm.Bernoulli("y", logit_p=design @ b + other[GROUP] * SLOPE**2, observed=BITS)
    with pytest.raises(pmep.InvalidDataError, match=rf"'b'\[[012]\], 'other'\[{GROUPS}\].*linear combination.*proper"):
        pmep.fit(model=model, **QUIET)


def test_redundant_coefficients_are_fine_where_some_are_proper():
    with pm.Model() as model:
        level, u = pm.Flat("level"), pm.Normal("u", 0.0, 1.0, shape=GROUPS)
        pm.Poisson("y", pt.exp(level + u[GROUP]), observed=COUNTS)
    assert bool(fit_group(pmep.fit(model=model, draws=0, **QUIET))["converged"])


def test_a_coefficient_of_one_observation():
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(pm.Flat("f", shape=N)), observed=COUNTS)
    with pytest.raises(pmep.NumericalError, match=r"flat prior.*not determined by the other observations.*pm\.Normal"):
        pmep.fit(model=model, **QUIET)


def test_separated_classes():
    with pm.Model() as model:
        b = pm.Flat("b", shape=2)
        pm.Bernoulli("y", logit_p=DESIGN @ b, observed=SLOPE > 0.1)
    with pytest.warns(pmep.ConvergenceWarning, match=r"flat prior of 'b'.*improper.*separates"):
        result = pmep.fit(model=model, draws=0, **QUIET)
    assert not bool(fit_group(result)["converged"])


def test_observation_space_has_no_flat_priors():
    with pytest.raises(ValueError, match=r"solver='observations' must be 'auto' or one of 'coefficients'.*'b'"):
        pmep.fit(model=mixed_model(), solver="observations", **QUIET)
