"""Vague priors cost digits in the space of the observations, and the fit says so instead of going on for ever."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

RNG = np.random.default_rng(0)
X = RNG.normal(size=40)
COUNTS = RNG.poisson(np.exp(1.0 + 0.5 * X))


def fit(sd, solver):
    with pm.Model():
        b, u = pm.Normal("b", 0.0, sd, shape=2), pm.Normal("u", 0.0, 0.5, shape=40)
        pm.Poisson("y", pm.math.exp(b[0] + b[1] * X + u), observed=COUNTS)
        return pmep.fit(draws=0, progressbar=False, solver=solver)


@pytest.mark.parametrize(("sd", "tolerance"), [(1e4, 1e-5), (1e5, 1e-3)])
def test_a_fit_that_rounding_stops_has_converged(sd, tolerance):
    rounded, exact = fit(sd, "observations"), fit(sd, "coefficients")
    assert "converged to rounding" in rounded["fit"].attrs["status"]
    assert "solver='coefficients'" in rounded["fit"].attrs["status"]
    assert rounded["fit"].sizes["iteration"] < 60
    assert "rounding" not in exact["fit"].attrs["status"]
    assert exact["fit"].sizes["iteration"] < 10
    np.testing.assert_allclose(rounded["posterior_mean"]["b"], exact["posterior_mean"]["b"], rtol=tolerance)
    np.testing.assert_allclose(rounded["fit"]["log_evidence"], exact["fit"]["log_evidence"], atol=tolerance)


def test_ordinary_priors_reach_the_tolerance():
    for solver in ("observations", "coefficients"):
        found = fit(10.0, solver)
        assert "rounding" not in found["fit"].attrs["status"]
        assert float(found["fit"]["max_change"][-1]) <= 1e-8
