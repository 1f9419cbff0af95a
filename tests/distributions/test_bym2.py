"""Scaled effects of areas: against the dense pseudo-inverse, with groups and islands, and against quadrature."""

import itertools

import numpy as np
import pymc as pm
import pytest
import scipy.linalg
import scipy.sparse
from scipy.stats import multivariate_normal

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.distributions.bym2 import scaled_intrinsic
from pymc_ep.exceptions import InvalidDataError

RNG = np.random.default_rng(0)


def map_of(sizes, rng):
    """Weights of random connected groups, labels permuted."""
    blocks = []
    for n in sizes:
        w = np.zeros((n, n))
        for i in range(1, n):
            w[i, rng.integers(i)] = 1.0
        w[rng.integers(n, size=n), rng.integers(n, size=n)] = 1.0
        w = np.maximum(w, w.T)
        np.fill_diagonal(w, 0.0)
        blocks.append(w)
    order = rng.permutation(sum(sizes))
    whole = scipy.linalg.block_diag(*blocks)[np.ix_(order, order)]
    return scipy.sparse.csr_array(whole), np.repeat(np.arange(len(sizes)), sizes)[order]


@pytest.mark.parametrize("sizes", [(500,), (80, 2, 1, 7, 1), (1, 1)])
def test_each_group_has_a_generalised_variance_of_one(sizes):
    weights, member = map_of(sizes, RNG)
    precision, null_space = scaled_intrinsic(weights)
    dense = np.linalg.pinv((np.diag(weights.sum(axis=1)) - weights.toarray()), hermitian=True)
    for k, size in enumerate(sizes):
        here = np.flatnonzero(member == k)
        own = precision.toarray()[np.ix_(here, here)]
        if size == 1:
            assert own == 1.0
            continue
        scale = np.exp(np.log(np.diagonal(dense)[here]).mean())
        np.testing.assert_allclose(np.linalg.pinv(own, hermitian=True), dense[np.ix_(here, here)] / scale, atol=1e-8)
    found = 0 if null_space is None else null_space.shape[1]
    assert found == sum(size > 1 for size in sizes)
    assert null_space is None or not (precision @ null_space).any() or np.abs(precision @ null_space).max() < 1e-12


def test_draws_have_the_covariance_of_the_definition():
    weights, _ = map_of((6, 1), np.random.default_rng(1))
    precision, _ = scaled_intrinsic(weights)
    with pm.Model():
        x = pmep.BYM2("x", W=weights, sigma=1.5, rho=0.3)
    draws = pm.draw(x, draws=40_000, random_seed=2)
    expected = 1.5**2 * (0.3 * np.linalg.pinv(precision.toarray()) + 0.7 * np.eye(7))
    np.testing.assert_allclose(np.cov(draws.T), expected, atol=0.08)


def test_a_small_map_is_that_of_quadrature():
    """Counts are normal, so that all given the two hyperparameters is known; these are summed over on a fine grid."""
    weights, _ = map_of((9, 1), np.random.default_rng(3))
    y = np.random.default_rng(4).normal(0, 1, 10)
    with pm.Model() as model:
        sigma, rho = pm.HalfNormal("sigma", 1), pm.Beta("rho", 2, 2)
        pm.Normal("y", pmep.BYM2("x", W=weights, sigma=sigma, rho=rho), 0.5, observed=y)
    found = pmep.fit(model=model, progressbar=False, random_seed=1, draws=4000)
    structured = np.linalg.pinv(scaled_intrinsic(weights)[0].toarray())
    sigmas, rhos = np.linspace(0.01, 5, 150), np.linspace(0.005, 0.995, 100)
    log_joint, means, squares = [], [], []
    for s, r in itertools.product(sigmas, rhos):
        prior = s**2 * (r * structured + (1 - r) * np.eye(10))
        of_y = prior + 0.25 * np.eye(10)
        log_joint.append(multivariate_normal.logpdf(y, np.zeros(10), of_y) - s**2 / 2 + np.log(r * (1 - r)))
        gain = np.linalg.solve(of_y, prior).T
        means.append(gain @ y)
        squares.append(np.diagonal(prior - gain @ prior) + means[-1] ** 2)
    weight = np.exp(np.array(log_joint) - max(log_joint))
    weight /= weight.sum()
    mean = weight @ np.array(means)
    sd = np.sqrt(weight @ np.array(squares) - mean**2)
    own_mean, own_sd = (group(found, f"posterior_{what}")["x"].to_numpy() for what in ("mean", "sd"))
    assert np.abs((own_mean - mean) / sd).max() < 0.02
    np.testing.assert_allclose(own_sd, sd, rtol=0.02)
    expected = weight @ np.array(list(itertools.product(sigmas, rhos)))
    for name, value in zip(("sigma", "rho"), expected):
        np.testing.assert_allclose(float(group(found, "posterior_mean")[name]), value, rtol=0.03)


LINE = np.diag(np.ones(3), 1) + np.diag(np.ones(3), -1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {(0, 1): 2.0},
            r"'x' needs a symmetric W, but W is 2 at index \(0, 1\) and 1 at \(1, 0\), areas 'a' \(index 0\)",
        ),
        ({(1, 2): -1.0, (2, 1): -1.0}, r"has the weight -1 in W between areas 'b' \(index 1\) and 'c' \(index 2\)"),
        ({(2, 2): 1.0}, r"has area 'c' \(index 2\) as its own neighbour in W; set the diagonal to zero"),
        ({(0, 1): np.nan, (1, 0): np.nan}, "has the weight nan in W between areas 'a'"),
    ],
)
def test_weights_that_are_wrong_are_named(change, message):
    w = LINE.copy()
    for place, value in change.items():
        w[place] = value
    with pm.Model(coords={"area": list("abcd")}), pytest.raises(InvalidDataError, match=message):
        pmep.BYM2("x", W=w, sigma=1.0, rho=0.5, dims="area")


def test_constants_out_of_range_are_named():
    with pm.Model(coords={"area": list("abc")}):
        for rho in (0.0, 1.0, 2.0):
            with pytest.raises(
                InvalidDataError, match=rf"'x' has rho = {rho:g}, which must be above 0 and below 1. Give"
            ):
                pmep.BYM2("x", W=LINE, sigma=1.0, rho=rho)
        with pytest.raises(InvalidDataError, match=r"'x' has sigma = -1, which must be above 0. Give it a prior"):
            pmep.BYM2("x", W=LINE, sigma=-1.0, rho=0.5)
        with pytest.raises(InvalidDataError, match=r"W of shape \(3, 4\); give a row and a column of each area"):
            pmep.BYM2("x", W=LINE[:3], sigma=1.0, rho=0.5)
        with pytest.raises(InvalidDataError, match="has 4 values, but the dim 'area' has the length 3"):
            pmep.BYM2("x", W=LINE, sigma=1.0, rho=0.5, dims="area")
