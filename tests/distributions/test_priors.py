"""Penalised complexity priors: their probability statements, and densities by their formulas."""

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import quad

import pymc_ep as pmep
from pymc_ep.exceptions import InvalidDataError


@pytest.mark.parametrize(("u", "alpha"), [(1.0, 0.01), (0.2, 0.5)])
def test_scales_are_larger_with_the_probability(u, alpha):
    rv, rate = pmep.priors.pc_sigma.dist(u=u, alpha=alpha), -np.log(alpha) / u
    at = np.array([0.01, 0.3, 2.0])
    np.testing.assert_allclose(pm.logp(rv, at).eval(), np.log(rate) - rate * at, rtol=1e-12)
    np.testing.assert_allclose(pm.logcdf(rv, u).eval(), np.log1p(-alpha), rtol=1e-12)
    np.testing.assert_allclose((pm.draw(rv, 20_000, random_seed=1) > u).mean(), alpha, atol=0.01)


@pytest.mark.parametrize(("r0", "alpha"), [(10.0, 0.05), (0.1, 0.5)])
def test_ranges_are_shorter_with_the_probability(r0, alpha):
    rv, rate = pmep.priors.pc_range.dist(r0=r0, alpha=alpha), -np.log(alpha) * r0
    at = np.array([0.5, 1.0, 30.0])
    np.testing.assert_allclose(pm.logp(rv, at).eval(), np.log(rate) - 2 * np.log(at) - rate / at, rtol=1e-12)
    np.testing.assert_allclose(quad(lambda r: np.exp(np.log(rate / r**2) - rate / r), 0, r0)[0], alpha, rtol=1e-6)
    np.testing.assert_allclose((pm.draw(rv, 20_000, random_seed=1) < r0).mean(), alpha, atol=0.01)


def test_they_are_variables_of_a_model():
    with pm.Model() as model:
        sigma = pmep.priors.pc_sigma("sigma", u=1, alpha=0.01)
        range_ = pmep.priors.pc_range("range", r0=1, alpha=0.01)
    assert model.free_RVs == [sigma, range_]
    assert set(model.initial_point()) == {"sigma_log__", "range_log__"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pmep.priors.pc_sigma.dist(u=-1, alpha=0.1), "has u = -1; u is positive and finite"),
        (lambda: pmep.priors.pc_sigma.dist(u=1, alpha=5), "has alpha = 5; u is positive .* alpha a probability"),
        (lambda: pmep.priors.pc_range.dist(r0=0, alpha=0.1), "has r0 = 0; r0 is positive"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidDataError, match=message):
        call()
