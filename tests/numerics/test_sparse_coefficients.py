"""The sparse posterior in coefficient space against Bayes' rule with dense matrices."""

import numpy as np
import pytest
import scipy.sparse

from pymc_ep.numerics import memory
from pymc_ep.numerics.gaussian import sparse_coefficient_space as sparse_coefficients
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.sparse_coefficient_space import EntryPattern, SparseFactorPrior

N, P = 60, 9
PRECISION = np.ones(P)
PRECISION[[2, 5]] = 0.0  # flat


@pytest.fixture(params=[(2**20, 2**20), (5 * P, 0)], ids=["at once", "in parts"])
def prior(request, monkeypatch):
    monkeypatch.setattr(memory, "CHUNK", request.param[0])
    monkeypatch.setattr(sparse_coefficients, "_PAIRS", request.param[1])
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(N, P)) * (rng.random((N, P)) < 0.2)
    rows[7] = 0.0
    design = scipy.sparse.csr_array(rows)
    return SparseFactorPrior(design.data, EntryPattern(design), PRECISION), rows


@pytest.fixture
def sites():
    rng = np.random.default_rng(4)
    return rng.normal(size=N), rng.normal(size=N), rng.uniform(-0.02, 2.0, size=N)


def test_posterior_is_bayes_rule(prior, sites):
    prior, rows = prior
    mean, shift, precision = sites
    found = prior.posterior(mean, shift, precision)
    covariance = np.linalg.inv(np.diag(PRECISION) + rows.T @ (precision[:, None] * rows))
    fitted = mean + rows @ covariance @ rows.T @ (shift - precision * mean)
    np.testing.assert_allclose(found.mean, fitted, atol=1e-12)
    np.testing.assert_allclose(found.variance, np.diagonal(rows @ covariance @ rows.T), atol=1e-13)
    np.testing.assert_allclose(found.log_det, -np.linalg.slogdet(covariance)[1], atol=1e-12)
    np.testing.assert_allclose(prior.posterior_rows(found)(slice(3, 6)), (rows @ covariance @ rows.T)[3:6], atol=1e-13)
    np.testing.assert_allclose(prior.variances(), (rows**2).sum(axis=1), atol=1e-14)
    np.testing.assert_allclose(prior.covariance_matrix(), rows @ rows.T, atol=1e-14)
    assert prior.is_positive_semidefinite()


def test_cotangent_is_the_derivative_of_the_evidence(prior, sites):
    """Differences of the density of Gaussian pseudo-data, which is log Z up to a constant."""
    prior = prior[0]._replace(precision=np.ones(P))
    mean, shift, precision = sites[0], sites[1], np.abs(sites[2]) + 0.1
    target = shift / precision

    def log_z(values):
        rows = prior._replace(values=values).design.toarray()
        total = rows @ rows.T + np.diag(1.0 / precision)
        residual = target - mean
        return -0.5 * residual @ np.linalg.solve(total, residual) - 0.5 * np.linalg.slogdet(total)[1]

    found = prior.cotangent(prior.posterior(mean, shift, precision), precision)
    for k in (0, 5, len(prior.values) - 1):
        step = np.zeros_like(prior.values)
        step[k] = 1e-5
        difference = (log_z(prior.values + step) - log_z(prior.values - step)) / 2e-5
        np.testing.assert_allclose(found[k], difference, rtol=1e-6, atol=1e-8)


def test_improper_sites_are_said_to_be_so(prior):
    prior, rows = prior
    found = prior.posterior(np.zeros(N), np.zeros(N), np.full(N, -1.0))
    assert np.linalg.eigvalsh(np.diag(PRECISION) - rows.T @ rows)[0] < 0
    assert not found.proper


def test_the_dense_prior_says_the_same_of_flat_coefficients(prior):
    prior, rows = prior
    dense = FactorPrior(rows.T, PRECISION)
    np.testing.assert_allclose(prior.regular().variances(), dense.regular().variances(), rtol=1e-12)
    assert not prior.undetermined().size
    assert not dense.undetermined().size
    repeated = np.where(np.arange(P) == 5, -2.0 * rows[:, [2]], rows)
    design = scipy.sparse.csr_array(repeated)
    again = SparseFactorPrior(design.data, EntryPattern(design), PRECISION)
    for either in (again, FactorPrior(repeated.T, PRECISION)):
        assert either.undetermined().tolist() in ([2], [5])


def test_what_is_not_finite_is_found(prior):
    prior, rows = prior
    values = prior.values.copy()
    values[17] = np.inf
    found, coefficient, predictor = prior._replace(values=values).not_finite()
    assert (found, rows[predictor, coefficient]) == (np.inf, prior.values[17])
    assert prior.not_finite() is None
