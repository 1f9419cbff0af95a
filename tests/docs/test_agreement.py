"""References and verdicts of the agreement page."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import integrate

from docs.benchmarks.public.quadrature import quadrature_posterior
from docs.benchmarks.public.tails import TAIL_WRONG, tail_errors, tail_excess, tail_summaries


def test_quadrature_sees_a_tail_that_falls_like_a_power():
    """The scale of one observation under a HalfCauchy prior, whose density falls like its cube."""
    with pm.Model() as model:
        scale = pm.HalfCauchy("scale", 2.0)
        pm.Normal("y", 0.0, scale, observed=3.0)
    draws = quadrature_posterior(model)["scale"].values

    def density(tau):
        return np.exp(-4.5 / tau**2) / tau / (1 + tau**2 / 4)

    whole = integrate.quad(density, 0, np.inf)[0]
    for place, tolerance in ((3.0, 0.01), (20.0, 0.002), (60.0, 5e-4)):
        beyond = integrate.quad(density, place, np.inf)[0] / whole
        assert abs(np.mean(draws > place) - beyond) < tolerance


@pytest.fixture(scope="module")
def hyperparameters():
    """A model, and draws as a reference and a fit would have them."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        pm.HalfNormal("light", 1.0, shape=2)
        pm.HalfCauchy("heavy", 1.0)
    theirs, ours = (
        xr.Dataset(
            {
                "light": (("chain", "draw", "of"), np.exp(0.2 * rng.normal(size=(4, 2000, 2)))),
                "heavy": (("chain", "draw"), np.abs(rng.standard_cauchy(size=(4, 2000)))),
            }
        )
        for _ in range(2)
    )
    return model, tail_summaries(theirs, ["light", "heavy"]), ours


def excess(model, reference, ours):
    return tail_excess(tail_errors(model, ("light", "heavy"), ours, reference))


def test_quantiles_of_the_same_distribution_are_right(hyperparameters):
    model, reference, ours = hyperparameters
    errors = tail_errors(model, ("light", "heavy"), ours, reference)
    assert errors.keys() == {"95%", "99%", "beyond 95%", "beyond 99%"}
    assert excess(model, reference, ours) < 1


def test_wider_draws_are_found(hyperparameters):
    model, reference, ours = hyperparameters
    light = ours.copy()
    light["light"] = light["light"] * xr.DataArray([1.0, 1.3], dims="of")
    assert tail_errors(model, ("light",), light, reference)["95%"]["at"] == "light[1]"
    assert excess(model, reference, light) > TAIL_WRONG
    heavy = ours.copy()
    heavy["heavy"] = heavy["heavy"] * 1.5
    assert 1 < excess(model, reference, heavy) < TAIL_WRONG
