"""The evidence as an Op: its derivative, its failures, what it remembers, and where it runs."""

import logging
import pickle

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats

from pymc_ep.evidence.ep.op import EPEvidenceOp as EvidenceOp
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.methods.ep import OPTIONS

N = 8
X = np.linspace(0.0, 3.0, N)
COUNTS = np.array([2, 3, 1, 4, 6, 5, 3, 2])
REALS = np.sin(2 * X)
THETA = np.array([0.3, -0.4])
POINTS = np.random.default_rng(2).normal(0.0, 0.5, size=(4, 2))


def covariance(amp, ell):
    return amp**2 * pt.exp(-0.5 * (X[:, None] - X) ** 2 / ell**2) + 1e-6 * pt.eye(N)


def counts_form():
    with pm.Model() as model:
        amp, ell = pm.HalfNormal("amp", 1.0), pm.InverseGamma("ell", 4.0, 3.0)
        f = pm.MvNormal("f", np.zeros(N), covariance(amp, ell))
        pm.Poisson("y", pt.exp(f), observed=COUNTS)
    return compiled_form(model)


def student_form():
    with pm.Model() as model:
        amp, sigma = pm.HalfNormal("amp", 1.0), pm.HalfNormal("sigma", 1.0)
        f = pm.MvNormal("f", np.zeros(N), covariance(amp, 0.7))
        pm.StudentT("y", 4.0, f, sigma=sigma, observed=REALS + 2.0 * (np.arange(N) == 3))
    return compiled_form(model)


@pytest.fixture(scope="module")
def counts_op():
    return EvidenceOp(counts_form(), dict(OPTIONS))


@pytest.mark.parametrize("form", [counts_form, student_form])
@pytest.mark.parametrize("solver", ["observations", "coefficients"])
def test_gradient_against_differences(form, solver):
    op = EvidenceOp(form(), OPTIONS | {"solver": solver})
    step = 1e-4
    for theta in POINTS:
        gradient = op.evaluate(theta)[1]
        differences = [
            (op.evaluate(theta + step * e)[0] - op.evaluate(theta - step * e)[0]) / (2 * step) for e in np.eye(2)
        ]
        np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-6)
    assert op.counts == (len(POINTS) * 5, 0)


def test_value_has_no_prior_of_the_hyperparameters():
    """With a Gaussian likelihood it is the log density of the data given the hyperparameters."""
    with pm.Model() as model:
        amp, sigma = pm.HalfNormal("amp", 1.0), pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", pm.MvNormal("f", np.zeros(N), covariance(amp, 0.7)), sigma, observed=REALS)
    log_z, _ = EvidenceOp(compiled_form(model), dict(OPTIONS)).evaluate(THETA)
    amp, sigma = np.exp(THETA)
    total = covariance(amp, 0.7).eval() + sigma**2 * np.eye(N)
    np.testing.assert_allclose(log_z, scipy.stats.multivariate_normal.logpdf(REALS, np.zeros(N), total), rtol=1e-9)


@pytest.mark.parametrize("form", [counts_form, student_form])
def test_no_dependence_on_what_came_before(form):
    """The same value after other points as in an Op that has seen none."""
    used = EvidenceOp(form(), dict(OPTIONS))
    for theta in POINTS:
        used.evaluate(theta)
    fresh = EvidenceOp(form(), dict(OPTIONS))
    value, gradient = used.evaluate(THETA)
    expected, expected_gradient = fresh.evaluate(THETA)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-7)


def test_one_fixed_point_for_value_and_gradient(counts_op):
    theta = pt.dvector("theta")
    log_z = counts_op(theta)[0]
    function = pytensor.function([theta], [2 * log_z, pytensor.grad(2 * log_z, theta)])
    before = counts_op.counts.evaluations
    value, gradient = function(THETA)
    assert counts_op.counts.evaluations == before + 1
    expected = counts_op.evaluate(THETA)
    np.testing.assert_allclose(value, 2 * expected[0], rtol=1e-10)
    np.testing.assert_allclose(gradient, 2 * expected[1], rtol=1e-6)


def test_second_derivatives_are_refused(counts_op):
    theta = pt.dvector("theta")
    gradient = pytensor.grad(counts_op(theta)[0], theta)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        pytensor.grad(gradient.sum(), theta)


def test_shapes_are_inferred(counts_op):
    theta = pt.dvector("theta")
    log_z, gradient = counts_op(theta)
    shape = pytensor.function([theta], gradient.shape)
    before = counts_op.counts
    np.testing.assert_array_equal(shape(THETA), [2])
    assert counts_op.counts == before
    assert log_z.ndim == 0


def test_failures_are_minus_infinity_counted_and_logged_once(caplog):
    op = EvidenceOp(counts_form(), dict(OPTIONS))
    with caplog.at_level(logging.WARNING, logger="pymc_ep"):
        for _ in range(2):
            value, gradient = op.evaluate([400.0, 0.0])
            assert value == -np.inf
            np.testing.assert_array_equal(gradient, 0.0)
    assert op.counts == (2, 2)
    assert len(caplog.records) == 1
    assert "No log evidence" in caplog.text
    assert np.isfinite(op.evaluate(THETA)[0])


def test_a_fit_that_stops_early_is_a_failure():
    op = EvidenceOp(counts_form(), OPTIONS | {"max_iter": 1})
    assert op.evaluate(THETA)[0] == -np.inf
    assert op.counts.failed == 1


def test_new_data_are_seen():
    with pm.Model() as model:
        y = pm.Data("y_data", COUNTS)
        amp = pm.HalfNormal("amp", 1.0)
        pm.Poisson("y", pt.exp(pm.MvNormal("f", np.zeros(N), covariance(amp, 0.7))), observed=y)
    op = EvidenceOp(compiled_form(model), dict(OPTIONS))
    first = op.evaluate([0.0])[0]
    model.set_data("y_data", COUNTS + 3)
    second = op.evaluate([0.0])[0]
    assert second < first - 1.0
    model.set_data("y_data", COUNTS)
    np.testing.assert_allclose(op.evaluate([0.0])[0], first, rtol=1e-10)


def test_pickled(counts_op):
    """As for a sampler's process that is spawned rather than forked."""
    other = pickle.loads(pickle.dumps(counts_op))
    assert other.counts == (0, 0)
    np.testing.assert_allclose(other.evaluate(THETA)[0], counts_op.evaluate(THETA)[0], rtol=1e-10)


def test_another_solver_elsewhere_changes_nothing():
    """The compiled form is shared with fits of the same model, which may choose another solver."""
    form = counts_form()
    op = EvidenceOp(form, dict(OPTIONS))
    expected = op.evaluate(THETA)[0]
    form.solve_in("coefficients")
    np.testing.assert_allclose(op.evaluate(THETA)[0], expected, rtol=1e-10)
    assert op.form.solver.name == "observations"


@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
def test_backends(counts_op, mode):
    """In object mode under Numba, by a call back under JAX, without a warning from either."""
    if mode == "JAX":
        pytest.importorskip("jax")
    theta = pt.dvector("theta")
    log_z = counts_op(theta)[0]
    function = pytensor.function([theta], [log_z, pytensor.grad(log_z, theta)], mode=mode)
    value, gradient = function(THETA)
    expected = counts_op.evaluate(THETA)
    np.testing.assert_allclose(value, expected[0], rtol=1e-9)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-6)


def test_jax_differentiates_and_maps_it(counts_op):
    """What JAX's own samplers do: its derivative, for several chains at once."""
    jax = pytest.importorskip("jax")
    from pytensor.graph.fg import FunctionGraph
    from pytensor.link.jax.dispatch import jax_funcify

    from pymc_ep.kernels import load_backend

    load_backend("jax")
    theta = pt.dvector("theta")
    function = jax_funcify(FunctionGraph([theta], [counts_op(theta)[0]], clone=True))
    values, gradients = jax.vmap(jax.value_and_grad(lambda t: function(t)[0]))(POINTS)
    for point, value, gradient in zip(POINTS, values, gradients):
        expected = counts_op.evaluate(point)
        np.testing.assert_allclose(value, expected[0], rtol=1e-9)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-6)
