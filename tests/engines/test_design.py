"""The composite design against the moments that it is made to integrate."""

import numpy as np
import pytest
from pymc_ep.engines.design import composite_design, composite_weights

SIZES = {3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 8: 64, 9: 128}
"""Runs of the smallest two-level factorials of resolution V (Box, Hunter and Hunter 2005, table 6.22)."""


@pytest.mark.parametrize("p", SIZES)
def test_moments_of_a_standard_normal(p):
    """1, z_i, z_i z_j and z_i z_j z_k have the expectations 1, 0, identity and 0."""
    points = composite_design(p)
    assert len(points) == SIZES[p] + 2 * p
    centre, weights = composite_weights(points)
    mass = weights * np.exp(-0.5 * (points**2).sum(axis=1))
    np.testing.assert_allclose(centre + mass.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(mass @ points, 0.0, atol=1e-12)
    np.testing.assert_allclose(np.einsum("k,ki,kj", mass, points, points), np.eye(p), atol=1e-12)
    np.testing.assert_allclose(np.einsum("k,ki,kj,kl", mass, points, points, points), 0.0, atol=1e-12)


@pytest.mark.parametrize("p", SIZES)
def test_interactions_are_apart(p):
    """Resolution V: products of two factors are orthogonal to each other and to the factors."""
    rows = np.sign(composite_design(p)[: SIZES[p]])
    i, j = np.triu_indices(p, 1)
    columns = np.column_stack([np.ones(len(rows)), rows, rows[:, i] * rows[:, j]])
    gram = columns.T @ columns / len(rows)
    # Half fractions of resolution V are saturated at best, full rank in any case.
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)
