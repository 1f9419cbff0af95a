"""Matern fields on a mesh: covariance, density and gradient, posterior against dense algebra, and what is refused."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import kv

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.exceptions import InvalidDataError

RNG = np.random.default_rng(0)
PLACES = RNG.uniform(0, 1, (400, 2))
RANGE, SIGMA = 0.3, 1.3


def matern(a, b, range_=RANGE, sigma=SIGMA):
    """Of smoothness 1."""
    scaled = np.sqrt(8.0) / range_ * np.linalg.norm(a[:, None] - b, axis=2)
    scaled = np.maximum(scaled, 1e-9)
    return sigma**2 * scaled * kv(1, scaled)


def dense_precision(mesh, range_=RANGE, sigma=SIGMA):
    kappa2 = 8.0 / range_**2
    c, g = np.diag(mesh.areas), mesh.stiffness.toarray()
    k = kappa2 * c + g
    return k @ np.linalg.solve(c, k) / (4 * np.pi * kappa2 * sigma**2)


def test_the_covariance_of_nodes_is_that_of_matern():
    """At a range of 18 edges: 2% of the variance, and 3% at the edge of the points' area."""
    mesh = pmep.meshes.around(PLACES, longest=0.5 / 18, rim=0.5)
    covariance = np.linalg.inv(dense_precision(mesh, 0.5))
    for margin, share in ((0.0, 0.03), (0.1, 0.02)):
        within = np.flatnonzero((np.abs(mesh.vertices - 0.5) < 0.5 - margin).all(axis=1))
        at = mesh.vertices[within]
        assert len(within) > 900
        assert np.abs(covariance[np.ix_(within, within)] - matern(at, at, 0.5)).max() < share * SIGMA**2


@pytest.mark.parametrize(("edges", "at_nodes", "at_centres"), [(4, 1.15, 0.88), (8, 1.06, 0.96), (12, 1.033, 0.982)])
def test_variances_by_edges_are_those_of_the_docstring(edges, at_nodes, at_centres):
    mesh = pmep.meshes.around(PLACES, longest=RANGE / edges, rim=0.3)
    covariance = np.linalg.inv(dense_precision(mesh)) / SIGMA**2
    centre = mesh.vertices[mesh.triangles].mean(axis=1)
    inner = mesh.triangles[(np.abs(centre - 0.5) < 0.2).all(axis=1)]
    np.testing.assert_allclose(np.median(np.diagonal(covariance)[inner]), at_nodes, atol=0.006)
    found = np.median(covariance[inner[:, :, None], inner[:, None]].mean(axis=(1, 2)))
    np.testing.assert_allclose(found, at_centres, atol=0.006)


def test_draws_have_the_variance_at_any_point():
    mesh = pmep.meshes.around(PLACES, longest=0.03, rim=0.4)
    with pm.Model():
        f = pmep.SPDE("f", mesh=mesh, range=RANGE, sigma=SIGMA)
        at = pm.Deterministic("at", f.at(PLACES))
    draws = pm.draw(at, draws=1_000, random_seed=1)
    np.testing.assert_allclose(draws.std(axis=0).mean() / SIGMA, 1.0, atol=0.03)
    np.testing.assert_allclose(draws.T @ draws / 1_000, matern(PLACES, PLACES), atol=0.35 * SIGMA**2)


COARSE = pmep.meshes.around(PLACES, longest=0.08, rim=0.3)


def coarse_model(order=None, hyper=False, observed=True):
    order = np.arange(len(PLACES)) if order is None else order
    y = np.random.default_rng(2).normal(np.sin(6 * PLACES[:, 0]), 0.5)
    with pm.Model() as model:
        range_ = pmep.priors.pc_range("range", r0=0.2, alpha=0.3) if hyper else RANGE
        sigma = pmep.priors.pc_sigma("sigma", u=2, alpha=0.1) if hyper else SIGMA
        f = pmep.SPDE("f", mesh=COARSE, range=range_, sigma=sigma)
        pm.Deterministic("at", f.at(PLACES[order]))
        if not observed:
            return model
        pm.Normal("y", f.at(PLACES[order]), 0.5, observed=y[order])
    return model


@pytest.mark.parametrize("hyper", [False, True])
def test_the_log_density_and_its_gradient(hyper):
    model, step = coarse_model(hyper=hyper, observed=False), 1e-5
    value, gradient = model.compile_logp(), model.compile_dlogp()
    rng = np.random.default_rng(3)
    point = {name: 0.3 * rng.standard_normal(start.shape) for name, start in model.initial_point().items()}
    found, q = gradient(point), dense_precision(COARSE)
    if not hyper:
        x = point["f"]
        expected = 0.5 * (np.linalg.slogdet(q / (2 * np.pi))[1] - x @ q @ x)
        np.testing.assert_allclose(value(point), expected, rtol=1e-8)
        np.testing.assert_allclose(found, -q @ x, rtol=1e-8, atol=1e-8)
        return
    for k, name in enumerate(("range_log__", "sigma_log__")):
        ends = [value(point | {name: point[name] + sign * step}) for sign in (1, -1)]
        np.testing.assert_allclose(found[k], (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("solver", ["precision", "coefficients"])
@pytest.mark.parametrize("order", ["as given", "permuted"])
def test_posteriors_are_those_of_dense_algebra(solver, order):
    places = np.arange(len(PLACES)) if order == "as given" else np.random.default_rng(4).permutation(len(PLACES))
    model = coarse_model(places)
    found = pmep.fit(model=model, solver=solver, progressbar=False, draws=0)
    y = model.rvs_to_values[model["y"]].data
    nodes, weights = COARSE.locate(PLACES[places])
    design = np.zeros((len(PLACES), len(COARSE)))
    np.put_along_axis(design, nodes, weights, axis=1)
    prior = np.linalg.inv(dense_precision(COARSE))
    of_y = design @ prior @ design.T + 0.25 * np.eye(len(y))
    gain = prior @ design.T @ np.linalg.inv(of_y)
    covariance = prior - gain @ design @ prior
    for name, a in (("f", np.eye(len(COARSE))), ("at", design)):
        mean, sd = (group(found, f"posterior_{what}")[name].to_numpy() for what in ("mean", "sd"))
        np.testing.assert_allclose(mean, a @ gain @ y, atol=1e-8)
        np.testing.assert_allclose(sd, np.sqrt(np.einsum("ij,jk,ik->i", a, covariance, a)), rtol=1e-8)
    log_evidence = -0.5 * (np.linalg.slogdet(2 * np.pi * of_y)[1] + y @ np.linalg.solve(of_y, y))
    np.testing.assert_allclose(float(group(found, "fit")["log_evidence"]), log_evidence, rtol=1e-10)


@pytest.mark.parametrize("solver", ["precision", "coefficients"])
def test_learned_range_and_scale_are_those_of_dense_algebra(solver):
    fits = [
        pmep.fit(model=coarse_model(hyper=True), solver=solver, hyper="optimize", progressbar=False, draws=0)
        for solver in (solver, "observations")
    ]
    for name in ("hyper_mode_range", "hyper_mode_sigma", "log_evidence"):
        one, other = (float(group(found, "fit")[name]) for found in fits)
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_predictions_at_new_places():
    model = coarse_model()
    found = pmep.fit(model=model, progressbar=False, random_seed=1)
    new = RNG.uniform(0.1, 0.9, (7, 2))
    with model:
        pm.Deterministic("new", model["f"].at(new))
    predicted = pmep.predict(found, model, var_names=["new"])
    nodes, weights = COARSE.locate(new)
    at_nodes = group(found, "posterior_mean")["f"].to_numpy()
    np.testing.assert_allclose(
        np.asarray(predicted["new_mean"] if "new_mean" in predicted else predicted["posterior_mean"]["new"]),
        (weights * at_nodes[nodes]).sum(axis=1),
        rtol=1e-6,
    )


WRONG_UNITS = (
    (0.05, r"starts at 0\.05, which is below the edges of its mesh, 0\.08\. Make the mesh finer"),
    (5e3, "which is over 10 times the extent of its mesh, .*: project degrees first"),
)


def test_units_that_do_not_fit_are_told_at_the_fit():
    for range_, message in WRONG_UNITS:
        with pm.Model() as model:
            f = pmep.SPDE("f", mesh=COARSE, range=range_, sigma=1.0)
            pm.Normal("y", f.at(PLACES), 0.5, observed=np.zeros(len(PLACES)))
        with pytest.warns(UserWarning, match=message):
            pmep.fit(model=model, progressbar=False, draws=0)


def test_bad_input_is_named():
    with pm.Model(coords={"node": range(5)}):
        with pytest.raises(InvalidDataError, match=r"mesh= of 'f' is ndarray; give pymc_ep.meshes.around"):
            pmep.SPDE("f", mesh=PLACES, range=1.0, sigma=1.0)
        with pytest.raises(InvalidDataError, match="'f' has range = -1, which must be above 0"):
            pmep.SPDE("f", mesh=COARSE, range=-1.0, sigma=1.0)
        with pytest.raises(InvalidDataError, match="values, but the dim 'node' has the length 5"):
            pmep.SPDE("f", mesh=COARSE, range=1.0, sigma=1.0, dims="node")
        f = pmep.SPDE("f", mesh=COARSE, range=1.0, sigma=1.0)
        with pytest.raises(InvalidDataError, match=r"'f': Point 1, \(9, 9\), is outside of the mesh"):
            f.at([[0.5, 0.5], [9.0, 9.0]])
