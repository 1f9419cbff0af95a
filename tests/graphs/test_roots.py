"""Slopes of square roots at zero, and those of the prior of a Hilbert-space process at long lengthscales."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc_ep.evidence.ep.evidence import evidence_of
from pymc_ep.forms import compiled_form
from pymc_ep.graphs.roots import with_slopes_at_zero
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS


def test_values_are_kept_and_slopes_at_zero_are_zero():
    x = pt.dvector("x")
    graph = pt.sqrt(x) + pt.sqrt(2.0 * pt.sqrt(x) + pt.exp(-1e4 * x))
    (replaced,) = with_slopes_at_zero([graph])
    plain, slope = pytensor.function([x], [graph, pytensor.grad(graph.sum(), x)], mode="FAST_COMPILE")(
        point := np.array([0.5, 2.0])
    )
    function = pytensor.function([x], [replaced, pytensor.grad(replaced.sum(), x)], mode="FAST_COMPILE")
    np.testing.assert_allclose(function(point), [plain, slope], rtol=1e-14)
    value, slope = function(np.array([0.0, 0.0]))
    np.testing.assert_allclose(value, 1.0)
    assert np.all(np.isfinite(slope))
    assert np.isnan(function(np.array([-1.0, 0.0]))[0][0])


def test_a_spectral_density_that_underflows_has_a_slope():
    """Of a Hilbert-space process of 10 basis functions: at a lengthscale of 20 all of its amplitudes are zero."""
    with pm.Model() as model:
        scale, length = pm.Exponential("scale", 1.0), pm.InverseGamma("length", 3.0, 2.0)
        process = pm.gp.HSGP(m=[10], c=1.5, cov_func=scale**2 * pm.gp.cov.ExpQuad(1, length))
        f = process.prior("f", np.linspace(0.0, 1.0, 12)[:, None])
        pm.Normal("y", f, 1.0, observed=np.sin(np.arange(12.0)))
    evidence = evidence_of(compiled_form(model), OPTIONS, density="unconstrained")
    for theta in (np.array([0.3, -1.0]), np.array([0.3, 3.0])):
        gradient = evidence.gradient(evidence.at(theta))
        steps = 1e-5 * np.eye(2)
        found = [(evidence.at(theta + step).value - evidence.at(theta - step).value) / 2e-5 for step in steps]
        np.testing.assert_allclose(gradient, found, rtol=1e-5, atol=1e-6)
