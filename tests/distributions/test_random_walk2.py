"""Random walks of second order: their formulas against dense algebra, and against the exact posterior."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.distributions.random_walk2 import _cycle, _line
from pymc_ep.exceptions import InvalidDataError


@pytest.mark.parametrize("n", [3, 4, 5, 40])
@pytest.mark.parametrize("kind", [_line, _cycle])
def test_formulas_are_those_of_dense_algebra(kind, n):
    matrix, null_space, log_det, variances = kind(n)
    dense, nulls = matrix.toarray(), null_space.shape[1]
    np.testing.assert_allclose(dense @ null_space, 0.0, atol=1e-12)
    np.testing.assert_allclose(log_det, np.log(np.linalg.eigvalsh(dense)[nulls:]).sum(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(variances, np.diagonal(np.linalg.pinv(dense, hermitian=True)), rtol=1e-8)


def test_a_long_walk_has_the_scale_of_a_short_one():
    """The variances grow by the third power of the length; a factor has no digits of them at so many times."""
    scales = [np.exp(np.log(_line(n)[3]).mean()) / n**3 for n in (2_000, 100_000)]
    np.testing.assert_allclose(scales[0], scales[1], rtol=1e-4)


def walk(y, **kwargs):
    with pm.Model(coords={"time": range(len(y))}) as model:
        x = pmep.RandomWalk2("x", **kwargs)
        n = kwargs.get("period", len(y))
        pm.Normal("y", pm.Normal("level", 0, 3) + x[np.arange(len(y)) % n], 0.3, observed=y)
    return model


@pytest.mark.parametrize("solver", ["precision", "coefficients"])
@pytest.mark.parametrize("period", [None, 310])
def test_posteriors_are_those_of_dense_algebra(solver, period):
    n, sigma = 400, 0.5
    y = np.sin(np.arange(n) / 40) + np.random.default_rng(0).normal(0, 0.3, n)
    own = {"dims": "time", "slope": pm.Normal.dist(0, 3)} if period is None else {"period": period}
    found = pmep.fit(model=walk(y, sigma=sigma, **own), solver=solver, progressbar=False, draws=0)
    matrix, _, _, variances = (_line if period is None else _cycle)(period or n)
    scale = np.exp(np.log(variances).mean())
    prior = sigma**2 / scale * np.linalg.pinv(matrix.toarray(), rcond=1e-14, hermitian=True)
    design = np.eye(period or n)[np.arange(n) % (period or n)]
    line = np.linspace(-1, 1, n)
    prior = prior + 9 * np.outer(line, line) if period is None else prior
    of_y = design @ prior @ design.T + 9 + 0.09 * np.eye(n)
    gain = prior @ design.T @ np.linalg.inv(of_y)
    mean, sd = (group(found, f"posterior_{what}")["x"].to_numpy() for what in ("mean", "sd"))
    np.testing.assert_allclose(mean, gain @ y, atol=1e-6)
    np.testing.assert_allclose(sd, np.sqrt(np.diagonal(prior - gain @ design @ prior)), rtol=1e-5)
    log_evidence = -0.5 * (np.linalg.slogdet(2 * np.pi * of_y)[1] + y @ np.linalg.solve(of_y, y))
    np.testing.assert_allclose(float(group(found, "fit")["log_evidence"]), log_evidence, rtol=1e-7)


def test_a_hundred_thousand_times():
    n = 100_000
    truth = np.sin(np.arange(n) / 5_000)
    y = np.random.default_rng(1).poisson(np.exp(1 + truth))
    with pm.Model(coords={"time": range(n)}) as model:
        x = pmep.RandomWalk2("x", sigma=1.0, slope=pm.Normal.dist(0, 2), dims="time")
        pm.Poisson("y", pm.math.exp(pm.Normal("level", 0, 2) + x), observed=y)
    found = pmep.fit(model=model, progressbar=False, draws=0)
    mean, sd = (group(found, f"posterior_{what}")["x"].to_numpy() for what in ("mean", "sd"))
    error = (mean - (truth - truth.mean())) / sd
    assert bool(group(found, "fit")["converged"]) and 0.2 < error.std() < 3.0


def test_draws_are_orthogonal_to_lines():
    with pm.Model():
        x, cycle = pmep.RandomWalk2("x", sigma=2.0, slope=0, shape=30), pmep.RandomWalk2("c", sigma=2.0, period=12)
    draws, circles = pm.draw([x, cycle], draws=2_000, random_seed=2)
    lines = np.vander(np.arange(30.0), 2)
    np.testing.assert_allclose(draws @ lines, 0.0, atol=1e-8)
    np.testing.assert_allclose(np.exp(np.log(draws.std(axis=0)).mean()), 2.0, rtol=0.05)
    np.testing.assert_allclose(circles.sum(axis=1), 0.0, atol=1e-10)
    np.testing.assert_allclose(circles.std(), 2.0, rtol=0.1)


@pytest.mark.parametrize(
    ("times", "step"),
    [([2000, 2001, 2002, 2004, 2005], "2002 to 2004, at index 2, is 2"), (None, "at index 3, is 1.97")],
)
def test_times_left_out_are_named(times, step):
    months = pd.date_range("2020-01-01", periods=7, freq="MS")
    times = months.delete(4) if times is None else times
    with pm.Model(coords={"time": times}), pytest.warns(UserWarning, match=rf"The times of 'x' are not evenly.*{step}"):
        pmep.RandomWalk2("x", sigma=1.0, slope=0, dims="time")


def test_even_times_and_labels_are_no_gaps():
    for times in (pd.date_range("2020-01-01", periods=30, freq="MS"), list("abc"), np.linspace(0, 1, 9)):
        with pm.Model(coords={"time": times}):
            pmep.RandomWalk2("x", sigma=1.0, slope=0, dims="time")


def test_bad_input_is_named():
    with pm.Model(coords={"time": range(9)}):
        with pytest.raises(InvalidDataError, match="'x' has 2 values, and a curve at least three"):
            pmep.RandomWalk2("x", sigma=1.0, shape=2)
        with pytest.raises(InvalidDataError, match="'x' has 0 values"):
            pmep.RandomWalk2("x", sigma=1.0)
        with pytest.raises(InvalidDataError, match=r"'x' has slope=None, and .*, such as pm.Normal.dist"):
            pmep.RandomWalk2("x", sigma=1.0, dims="time")
        with pytest.raises(InvalidDataError, match="'x' is a cyclic curve, which has no slope"):
            pmep.RandomWalk2("x", sigma=1.0, slope=pm.Normal.dist(0, 1), period=12)
        with pytest.raises(InvalidDataError, match=r"'x' has sigma = 0, which must be above 0\. Give it a prior"):
            pmep.RandomWalk2("x", sigma=0.0, period=12)
        with pytest.raises(InvalidDataError, match="'x' has 12 values, but the dim 'time' has the length 9"):
            pmep.RandomWalk2("x", sigma=1.0, dims="time", period=12)
