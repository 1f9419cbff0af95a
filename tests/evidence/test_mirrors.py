"""Posteriors that are the same under other signs of hyperparameters: all images, against quadrature over them."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

X = np.linspace(0.0, 5.0, 10)[:, None]
INPUTS = np.vstack([np.hstack([X, np.full_like(X, k)]) for k in (0.0, 1.0)])
KAPPA, NOISE = 0.01, 0.3
Y = np.concatenate([2.0 * np.sin(X[:, 0]), 1.5 * np.sin(X[:, 0])])
Y = Y + NOISE * np.random.default_rng(0).normal(size=len(Y))
QUIET = {"progressbar": False, "random_seed": 1, "chains": 2, "draws": 500}


def coregionalisation(mean):
    with pm.Model() as model:
        W = pm.Normal("W", mean, 1, shape=(2, 1))
        outputs = pm.gp.cov.Coregion(2, W=W, kappa=np.full(2, KAPPA), active_dims=[1])
        kernel = pm.gp.cov.ExpQuad(2, ls=1.0, active_dims=[0]) * outputs
        f = pm.gp.Latent(cov_func=kernel).prior("f", X=INPUTS)
        pm.Normal("y", f, NOISE, observed=Y)
    return model


def exact(mean):
    """Log evidence and moments of W by the trapezoidal rule; kernels have the eigenvectors of the inputs' kernel."""
    values, vectors = np.linalg.eigh(np.exp(-0.5 * (X - X.T) ** 2))
    y = Y.reshape(2, -1) @ vectors
    grid = np.linspace(-6.0, 6.0, 241)
    w = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)[..., None, :]
    covariance = values[:, None, None] * (w[..., None] * w[..., None, :] + KAPPA * np.eye(2)) + NOISE**2 * np.eye(2)
    quadratic = np.einsum("ik,abkij,jk->ab", y, np.linalg.inv(covariance), y)
    log_p = -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1].sum(axis=-1))
    log_p += -0.5 * ((w[:, :, 0] - mean) ** 2).sum(axis=-1) - np.log(2 * np.pi)
    density = np.exp(log_p - log_p.max())
    first = density.sum(axis=1) / density.sum()
    centre = first @ grid
    area = (grid[1] - grid[0]) ** 2
    return log_p.max() + np.log(density.sum() * area), centre, np.sqrt(first @ (grid - centre) ** 2)


@pytest.mark.parametrize("mean", [0.0, 0.3], ids=["equal images", "a prior off zero"])
def test_a_coregionalisation(mean):
    found = pmep.fit(model=coregionalisation(mean), **QUIET)
    log_evidence, centre, sd = exact(mean)
    assert float(found["fit"]["log_evidence"]) == pytest.approx(log_evidence, abs=0.02)
    assert found["posterior_mean"]["W"].values[0, 0] == pytest.approx(centre, abs=0.05 * sd)
    assert found["posterior_sd"]["W"].values[0, 0] == pytest.approx(sd, rel=0.05)
    assert "2 mirror images" in found["fit"].attrs["status"]
    draws = found["posterior"]["W"].values[..., 0].reshape(-1, 2)
    assert draws[:, 0].mean() == pytest.approx(centre, abs=0.05 * sd)
    assert (draws.prod(axis=1) > 0).all()  # Both signs at once.
    # The function itself has no image: draws of it are those of one mode.
    f = found["posterior"]["f"].values.reshape(-1, len(Y))
    np.testing.assert_allclose(f.mean(axis=0), found["posterior_mean"]["f"], atol=0.06)


def test_a_mode_starts_off_a_point_of_symmetry():
    """At W = 0, where it starts, the gradient in W is zero."""
    found = pmep.fit(model=coregionalisation(0.0), hyper="optimize", **QUIET | {"draws": 0})
    assert np.abs(found["posterior_mean"]["W"].values).min() > 0.5
