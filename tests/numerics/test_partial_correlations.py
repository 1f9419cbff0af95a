"""Coordinates of Cholesky factors against differences, and PyMC's prior in them against its closed form."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import log_expit

from pymc_ep.forms import compiled_form
from pymc_ep.numerics.interpolation.partial_correlations import PartialCorrelations

SIZES = {1: 1, 2: 3, 3: 6, 4: 10}


def some(n, rows=3):
    return 0.7 * np.random.default_rng(n).normal(size=(rows, SIZES[n]))


def jacobian(own, row, step=1e-6):
    steps = step * np.eye(row.size)
    return (own.to_values(row + steps) - own.to_values(row - steps)).T / (2 * step)


@pytest.mark.parametrize("n", SIZES)
def test_scales_and_correlations_are_those_of_the_factor(n):
    own, rows = PartialCorrelations(SIZES[n]), some(n)
    for row, values in zip(rows, own.to_values(rows)):
        factor = np.zeros((n, n))
        factor[np.tril_indices(n)] = values
        factor[np.diag_indices(n)] = np.exp(factor.diagonal())
        covariance = factor @ factor.T
        ends = np.cumsum(np.arange(1, n + 1)) - 1
        np.testing.assert_allclose(np.sqrt(covariance.diagonal()), np.exp(row[ends]), rtol=1e-12)
        if n > 1:
            correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
            np.testing.assert_allclose(correlation, np.tanh(row[1]), rtol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_there_and_back(n):
    own, rows = PartialCorrelations(SIZES[n]), some(n)
    np.testing.assert_allclose(own.from_values(own.to_values(rows)), rows, atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_derivatives_against_differences(n):
    own, rows = PartialCorrelations(SIZES[n]), some(n)
    gradient = np.random.default_rng(1).normal(size=rows.shape)
    pulled, (log_det, slopes) = own.pull(rows, gradient), own.log_det(rows)
    for k, row in enumerate(rows):
        there = jacobian(own, row)
        np.testing.assert_allclose(pulled[k], there.T @ gradient[k], rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(log_det[k], np.linalg.slogdet(there)[1], atol=1e-7)
        steps = 1e-6 * np.eye(row.size)
        differences = (own.log_det(row + steps)[0] - own.log_det(row - steps)[0]) / 2e-6
        np.testing.assert_allclose(slopes[k], differences, atol=1e-8)


def test_the_prior_of_a_covariance_has_its_closed_form():
    """Exponential scales, and partial correlations with symmetric beta densities (Lewandowski et al. 2009)."""
    n, eta = 4, 2.0
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=n, eta=eta, sd_dist=pm.Exponential.dist(1.0))
        pm.Normal("y", (chol @ pm.Normal("u", 0.0, 1.0, shape=(n, 2))).T, 1.0, observed=np.zeros((2, n)))
    form = compiled_form(model, None)
    rows = some(n)
    found, gradients = form.rows.log_prior_gradients(rows)
    expected = np.zeros(len(rows))
    for i, end in enumerate(np.cumsum(np.arange(1, n + 1))):
        y, log_scale = rows[:, end - i - 1 : end - 1], rows[:, end - 1]
        concentration = eta + (n - 2 - np.arange(i)) / 2
        expected += log_scale - np.exp(log_scale)
        # log(1 - tanh(y)^2), once for the density and once for d tanh(y) / dy.
        expected += (concentration * (np.log(4.0) + log_expit(2 * y) + log_expit(-2 * y))).sum(axis=1)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-9)
    np.testing.assert_allclose(form.rows.log_prior(rows), found, rtol=1e-12)
    steps = 1e-6 * np.eye(rows.shape[1])
    differences = (form.rows.log_prior(rows[0] + steps) - form.rows.log_prior(rows[0] - steps)) / 2e-6
    np.testing.assert_allclose(gradients[0], differences, atol=1e-7)
