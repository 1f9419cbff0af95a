"""Singular values of a sparse matrix plus one of low rank, against dense ones."""

import numpy as np
import pytest
import scipy.sparse

from pymc_ep.numerics.factorisation.sparse_plus_low_rank import SparsePlusLowRank


def made(shape, seed=0):
    rng = np.random.default_rng(seed)
    sparse = scipy.sparse.random_array(shape, density=0.2, rng=rng, format="csr")
    left, right = (3 * rng.normal(size=(size, 2)) for size in shape)
    matrix = SparsePlusLowRank(sparse, sparse.T.tocsr(), left, right)
    return matrix, sparse.toarray() + left @ right.T, rng


@pytest.mark.parametrize("shape", [(30, 12), (12, 30), (20, 20)])
def test_leading_pairs_are_those_of_the_dense_matrix(shape):
    matrix, dense, rng = made(shape)
    found = matrix.leading(rng.normal(size=(shape[1], 9)), 4, tol=1e-13, max_iter=500)
    values = np.linalg.svd(dense)[1]
    np.testing.assert_allclose(found.values[:4], values[:4], rtol=1e-8)
    for side in (found.left, found.right):
        np.testing.assert_allclose(side.T @ side, np.eye(9), atol=1e-12)
    np.testing.assert_allclose(dense @ found.right[:, :4], found.left[:, :4] * found.values[:4], atol=1e-4)


@pytest.mark.parametrize("shape", [(30, 12), (12, 30)])
def test_a_step_gives_pairs_none_of_which_exceeds_the_exact_one(shape):
    matrix, dense, rng = made(shape)
    found = matrix.improved(rng.normal(size=(shape[1], 5)))
    np.testing.assert_allclose(found.left.T @ dense @ found.right, np.diag(found.values), atol=1e-10)
    assert np.all(found.values <= np.linalg.svd(dense)[1][:5] + 1e-10)
    assert np.all(matrix.improved(found.right).values >= found.values - 1e-10)


def test_a_basis_of_all_columns_is_exact_at_once():
    matrix, dense, _ = made((15, 6))
    found = matrix.improved(np.eye(6))
    np.testing.assert_allclose((found.left * found.values) @ found.right.T, dense, atol=1e-10)


def test_columns_without_an_image_do_no_harm():
    matrix, dense, _ = made((15, 6))
    found = matrix.leading(np.zeros((6, 6)), 3)
    np.testing.assert_allclose(found.values, np.linalg.svd(dense)[1], rtol=1e-6)
