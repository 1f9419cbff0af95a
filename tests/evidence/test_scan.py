"""Change points, whose posteriors have two peaks, against quadrature over the place of the change."""

import warnings
from collections import Counter

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.evidence.integration import scan
from pymc_ep.exceptions import ConvergenceWarning
from pymc_ep.forms.cache import compiled_form

N, NOISE = 24, 0.8
TIME = np.arange(float(N))


def data(seed):
    """Two changes, of which the model has one."""
    level = np.where(TIME < 8, 0.0, np.where(TIME < 16, 1.0, 2.0))
    return level + NOISE * np.random.default_rng(seed).normal(size=N)


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        y, slope = pm.Data("observed", data(3)), pm.Data("slope", 10.0)
        place, level = pm.Uniform("place", 0, N - 1), pm.Normal("level", 0, 2, shape=2)
        mean = level[0] + level[1] * pm.math.sigmoid((TIME - place) * slope)
        pm.Normal("y", mean, NOISE, observed=y)
    return model


def quadrature(y, slope):
    """Mean and standard deviation of the place: the evidence at each is that of a linear model in closed form."""
    places = np.linspace(0.0, N - 1.0, 20_001)[1:-1]
    change = 1 / (1 + np.exp(np.clip(-(TIME - places[:, None]) * slope, -700, 700)))
    design = np.stack([np.ones_like(change), change], axis=-1)
    precision = np.swapaxes(design, 1, 2) @ design / NOISE**2 + np.eye(2) / 4
    shift = (design * y[:, None]).sum(axis=1) / NOISE**2
    means = np.linalg.solve(precision, shift[..., None])[..., 0]
    log_evidence = 0.5 * (shift * means).sum(axis=1) - 0.5 * np.linalg.slogdet(precision)[1]
    weight = np.exp(log_evidence - log_evidence.max())
    weight /= weight.sum()
    mean = weight @ places
    return mean, np.sqrt(weight @ (places - mean) ** 2)


@pytest.mark.parametrize(("seed", "slope"), [(3, 3.0), (3, 10.0), (7, 3.0)])
def test_both_peaks_count_or_the_user_is_told(model, seed, slope):
    with model, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        pm.set_data({"observed": data(seed), "slope": slope})
        result = pmep.fit(random_seed=1, progressbar=False)
    mean, sd = quadrature(data(seed), slope)
    if told:
        assert not bool(group(result, "fit")["converged"])
        assert "several peaks of the posterior" in str(told[0].message) and "in place" in str(told[0].message)
        return
    assert slope < 10
    assert abs(float(result["posterior_mean"]["place"]) - mean) < 0.05 * sd
    assert abs(float(result["posterior_sd"]["place"]) / sd - 1) < 0.05


def test_hyperparameters_that_are_scanned():
    """Those whose support has two ends: neither scales, nor rates, nor real ones."""
    with pm.Model() as model:
        weight, place = pm.Beta("weight", 2, 2), pm.Uniform("place", 0, 1)
        noise, bent = pm.HalfNormal("noise"), pm.TruncatedNormal("bent", 0, 1, lower=-1, upper=1)
        above, real = pm.TruncatedNormal("above", 0, 1, lower=0), pm.Cauchy("real", 0, 1)
        x = pm.Normal("x", 0, 1, shape=3)
        pm.Normal("y", x * weight * place * pm.math.exp(real * above) + bent, noise, observed=np.zeros(3))
    compiled = compiled_form(model)
    named = dict(zip(compiled.form.hyper_names, compiled.bounded))
    assert {name for name, bounded in named.items() if bounded} == {"weight", "place", "bent"}


def test_a_smooth_curve_takes_less_than_half_of_the_fits(monkeypatch):
    """And one with several peaks, that of a change point, takes all."""
    made = Counter()
    original = scan._scan_of

    def counted(explorer, theta, k, count):
        before = explorer.evaluations
        found = original(explorer, theta, k, count)
        made[len(found)] = explorer.evaluations - before
        return found

    monkeypatch.setattr(scan, "_scan_of", counted)
    rng = np.random.default_rng(1)
    level = np.zeros(400)
    for t in range(1, 400):
        level[t] = 0.6 * level[t - 1] + rng.normal()
    with pm.Model():
        walk = pm.AR("walk", pm.Uniform("rho", 0, 1), init_dist=pm.Normal.dist(0, 1), shape=400)
        pm.Normal("y", walk, 0.5, observed=level)
        pmep.fit(draws=0, progressbar=False)
    assert made == {10: 10}
    with pm.Model():
        place, size = pm.Uniform("place", 0, N - 1), pm.Normal("size", 0, 2, shape=2)
        pm.Normal("y", size[0] + size[1] * pm.math.sigmoid((TIME - place) * 3.0), NOISE, observed=data(3))
        pmep.fit(draws=0, progressbar=False)
    assert made == {10: 10, 24: 24}


def test_a_prior_narrower_than_the_grid_of_its_quantiles():
    with pm.Model():
        weight = pm.Beta("weight", 50_000, 50_000)
        level = pm.Normal("level", 0, 1)
        pm.Normal("y", weight * level, 1.0, observed=np.arange(5.0))
        fit = group(pmep.fit(draws=0, progressbar=False), "fit")
    assert bool(fit["converged"])
