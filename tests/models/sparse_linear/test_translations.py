"""Posteriors averaged over translations of the wavelets' grid, against dense algebra on every grid."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.operators import Gradient2D, Mask, Wavelet2D

SHAPE, LEVELS, NOISE = (8, 16), 2, 0.5
SCALES = np.array([0.3, 1.1])
IMAGE = np.random.default_rng(0).normal(size=SHAPE).cumsum(axis=0).cumsum(axis=1) / 4


def gaussian_field():
    """A model whose posterior is Gaussian on each grid."""
    with pm.Model() as model:
        wavelets = Wavelet2D(SHAPE, "db2", LEVELS)
        u = pmep.SparseField("u", operator=wavelets, potential=pm.Normal.dist(0, SCALES), shape=SHAPE)
        pm.Normal("y", u, NOISE, observed=IMAGE)
    return model


def on_grid(shift):
    """Mean and covariance on a grid, by the coefficients of each shifted unit image."""
    columns = []
    for unit in np.eye(IMAGE.size):
        moved = np.roll(unit.reshape(SHAPE), [-by for by in shift], axis=(0, 1))
        columns.append(Wavelet2D(SHAPE, "db2", LEVELS).forward(moved))
    w = np.array(columns).T
    precision = np.eye(IMAGE.size) / NOISE**2 + w.T @ (w / SCALES[Wavelet2D(SHAPE, "db2", LEVELS).groups, None] ** 2)
    covariance = np.linalg.inv(precision)
    return covariance @ IMAGE.ravel() / NOISE**2, covariance


def mixture(shifts):
    means, covariances = zip(*map(on_grid, shifts))
    mean = np.mean(means, axis=0)
    spread = np.mean([c + np.outer(m - mean, m - mean) for m, c in zip(means, covariances)], axis=0)
    return mean.reshape(SHAPE), spread


FOUR = [(0, 0), (1, 1), (0, 1), (1, 0)]
"""All that differ for the finest level."""


@pytest.fixture(scope="module")
def four():
    return pmep.fit("dsb", model=gaussian_field(), translations=4, draws=500, random_seed=0, progressbar=False)


def test_moments_are_those_of_the_mixture(four):
    fit = group(four, "fit")
    mean, spread = mixture(FOUR)
    np.testing.assert_allclose(four["posterior_mean"]["u"], mean, atol=1e-9)
    np.testing.assert_allclose(four["posterior_sd"]["u"].values.ravel() ** 2, np.diag(spread), rtol=1e-9)
    assert "averaged over 4 translations" in fit.attrs["status"] and bool(fit["converged"])


def test_draws_are_of_the_mixture(four):
    drawn = group(four, "posterior")["u"].values.reshape(2000, -1)
    mean, spread = mixture(FOUR)
    scatter = np.sqrt(np.diag(spread) / 2000)
    assert np.abs((drawn.mean(axis=0) - mean.ravel()) / scatter).max() < 4.5
    along = np.linalg.eigh(spread)[1].T
    found, expected = np.var(drawn @ along.T, axis=0), np.einsum("ij,jk,ik->i", along, spread, along)
    assert np.abs(found / expected - 1).max() < 4.5 * np.sqrt(2 / 2000)


def test_evidence_is_that_of_the_mixture(four):
    # Flat directions count (2 pi)^(-1/2) each in the constants of all grids alike; they drop out of differences.
    alone = group(pmep.fit("dsb", model=gaussian_field(), draws=0, progressbar=False), "fit")
    y, logs = IMAGE.ravel(), []
    for shift in FOUR:
        mean, covariance = on_grid(shift)
        logs.append(0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * mean @ y / NOISE**2)
    expected = np.log(np.mean(np.exp(np.array(logs) - logs[0])))
    found = float(group(four, "fit")["log_evidence"]) - float(alone["log_evidence"])
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_a_fit_read_back_predicts_the_same(four, tmp_path):
    four.to_netcdf(tmp_path / "fit.nc")
    model = gaussian_field()
    with model:
        pm.Deterministic("sums", model["u"].sum(axis=1))
    found = pmep.predict(az.from_netcdf(tmp_path / "fit.nc"), model, var_names=["sums"])
    rows = np.kron(np.eye(SHAPE[0]), np.ones(SHAPE[1]))
    mean, spread = mixture(FOUR)
    np.testing.assert_allclose(found["sums_mean"], mean.sum(axis=1), atol=1e-8)
    np.testing.assert_allclose(found["sums_sd"] ** 2, np.diag(rows @ spread @ rows.T), rtol=1e-8)


def test_trees_and_their_scaling_coefficients_move_together():
    with pm.Model() as model:
        u = pmep.WaveletTree(
            "u",
            shape=SHAPE,
            levels=LEVELS,
            low=pm.Normal.dist(0, SCALES),
            high=pm.Normal.dist(0, SCALES * (1 + 1e-9)),
            scaling=pm.Normal.dist(0, 2.0),
            transition={"root": 0.3, "child": [[0.2, 0.7]]},
        )
        pm.Normal("y", u, NOISE, observed=IMAGE)
    idata = pmep.fit("dsb", model=model, translations=16, draws=0, progressbar=False)
    scales = np.append(SCALES, 2.0)
    means = []
    for shift in np.ndindex(4, 4):
        whole = Wavelet2D(SHAPE, "db2", LEVELS, scaling=True)
        s = whole.forward(np.roll(IMAGE, [-by for by in shift], axis=(0, 1)))
        shrunk = s / (1 + NOISE**2 / scales[whole.groups] ** 2)
        means.append(np.roll(whole.adjoint(shrunk), shift, axis=(0, 1)))
    np.testing.assert_allclose(idata["posterior_mean"]["u"], np.mean(means, axis=0), atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "translations", "message"),
    [
        (Gradient2D(SHAPE), 2, "translations=2, but the model has no potential on wavelets"),
        (Wavelet2D(SHAPE, "haar", 1), 5, r"wavelets that repeat after 2 pixels; there are 4 different translations"),
        (Wavelet2D(SHAPE, "haar", 1), 0, "translations=0 must be a whole number of at least 1"),
    ],
)
def test_translations_that_there_are_not(operator, translations, message):
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=operator, potential=pm.Laplace.dist(0, 1.0), shape=SHAPE)
        pm.Normal("y", u, NOISE, observed=IMAGE)
    with pytest.raises(ValueError, match=message):
        pmep.fit("dsb", model=model, translations=translations, draws=0, progressbar=False)


def test_shifted_wavelets_are_those_of_the_shifted_image():
    shifted, plain = (Wavelet2D(SHAPE, "db2", LEVELS, scaling=True, shift=shift) for shift in ((3, -1), (0, 0)))
    np.testing.assert_allclose(shifted.forward(IMAGE), plain.forward(np.roll(IMAGE, (-3, 1), axis=(0, 1))), atol=1e-14)
    matrix = shifted.matrix().toarray()
    np.testing.assert_allclose(matrix @ IMAGE.ravel(), shifted.forward(IMAGE), atol=1e-13)
    weights = np.random.default_rng(1).random(shifted.output_shape)
    np.testing.assert_allclose(shifted.adjoint(weights).ravel(), matrix.T @ weights, atol=1e-13)
    np.testing.assert_allclose(shifted.squared_adjoint(weights).ravel(), (matrix**2).T @ weights, atol=1e-13)
    part = Mask(shifted.output_shape, shifted.groups == LEVELS) @ plain
    moved = part.translated((3, -1))
    np.testing.assert_allclose(moved.forward(IMAGE), shifted.forward(IMAGE)[shifted.groups == LEVELS])
