"""What follows from constants alone is evaluated once, where it is large, and means the same."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

import pymc_ep as pmep
from pymc_ep.graphs.queries import evaluate_constants
from pymc_ep.modes import numpy_mode

TIME = np.linspace(0.0, 1.0, 60)[:, None]
COUNTS = np.random.default_rng(1).poisson(2.0, 60)


def large_constants(graph):
    return [v for v in ancestors([graph]) if isinstance(v, Constant) and np.size(v.data) >= 1000]


def test_large_arrays_are_evaluated_and_small_ones_stay():
    x = pt.vector("x", shape=(40,))
    basis = pt.sin(pt.constant(np.ones((40, 1))) * pt.arange(1, 41) * 0.1)
    small = pt.exp(pt.constant(np.arange(3.0)))
    graphs = [basis @ x, (basis**2).sum(axis=0) + x, small * x[:3]]
    found = evaluate_constants(graphs)
    assert len({v for g in found for v in large_constants(g)}) == 1
    assert found[2] is graphs[2]
    at = np.linspace(-1.0, 1.0, 40)
    for new, old in zip(found, graphs):
        np.testing.assert_allclose(*(pytensor.function([x], g, mode=numpy_mode())(at) for g in (new, old)), rtol=1e-12)


def test_data_that_may_change_are_left_alone():
    data = pytensor.shared(np.ones((50, 50)))
    graph = pt.exp(data) @ pt.vector("x")
    assert evaluate_constants([graph])[0] is graph


def hilbert_space(inputs):
    with pm.Model() as model:
        gp = pm.gp.HSGP(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ell", -1, 1)), m=[40], c=4.0)
        pm.Poisson("y", pm.math.exp(gp.prior("f", X=inputs(TIME))), observed=COUNTS)
    return model


def test_a_basis_of_constant_inputs_is_that_of_inputs_that_may_change():
    models = hilbert_space(lambda x: x), hilbert_space(lambda x: pm.Data("inputs", x))
    # Fixed, as an integration takes other fits where one of them differs in its last digit.
    fits = [pmep.fit(model=model, hyper="fixed", draws=0, progressbar=False) for model in models]
    np.testing.assert_allclose(fits[0]["fit"]["log_evidence"], fits[1]["fit"]["log_evidence"], rtol=1e-9)
    np.testing.assert_allclose(fits[0]["posterior_mean"]["f"], fits[1]["posterior_mean"]["f"], atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, -2.0])
def test_a_design_behind_an_offset(scale):
    """A whole term of the predictor may be constant: it is an offset."""
    offset = scale * pt.log1p(pt.constant(np.linspace(0.0, 3.0, 1200)))
    y = np.arange(1200) % 3
    with pm.Model() as model:
        pm.Poisson("y", pt.exp(pm.Normal("b", 0.0, 1.0) + offset), observed=y)
    idata = pmep.fit(model=model, draws=0, progressbar=False)
    exposure = np.exp(scale * np.log1p(np.linspace(0.0, 3.0, 1200))).sum()
    # So many counts that the posterior is Gaussian about log(total / exposure), but for the prior.
    assert abs(float(idata["posterior_mean"]["b"]) - np.log(y.sum() / exposure)) < 0.01
