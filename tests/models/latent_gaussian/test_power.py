"""EP where power 1 does not settle: zero-inflated counts in groups, against quadrature."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import norm, poisson

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.models.latent_gaussian.methods.ep import _by_power
from pymc_ep.results.reading import settings

# fmt: off
COUNTS = np.array([
    [4, 7, 0, 0, 5, 7, 2, 12], [1, 2, 1, 3, 0, 0, 0, 0], [0, 0, 8, 0, 1, 4, 0, 4], [5, 0, 0, 0, 0, 0, 0, 0],
    [8, 0, 0, 0, 2, 0, 1, 0], [0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 0, 2, 0, 0], [0, 0, 0, 0, 0, 0, 0, 2],
])
# fmt: on
PRESENT = expit(0.19 - 0.28 * np.linspace(-1, 1, 64))
SPREAD = 2.03
QUIET = {"progressbar": False, "draws": 0}


def inflated(tau=SPREAD):
    with pm.Model() as model:
        level = pm.Normal("level", 1, 1)
        a = pm.Normal("a", level, tau if tau else pm.HalfNormal("tau", 2), shape=8)
        rate = pm.math.exp(a[np.repeat(np.arange(8), 8)])
        pm.ZeroInflatedPoisson("y", PRESENT, rate, observed=COUNTS.ravel())
    return model


def robust():
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 3)
        pm.StudentT("y", 4, mean, sigma=pm.HalfNormal("sigma", 1), observed=[0.1, -0.4, 0.9, 1.3, -0.2, 0.5])
    return model


def exact():
    """Log evidence, and means and standard deviations of the groups, on grids of level and group."""
    level, a = np.linspace(-5, 7, 601), np.linspace(-14, 12, 5201)
    totals, first, second = [], [], []
    for present, counts in zip(PRESENT.reshape(8, 8), COUNTS):
        density = np.prod([(y == 0) * (1 - p) + p * poisson.pmf(y, np.exp(a)) for p, y in zip(present, counts)], axis=0)
        log_joint = norm.logpdf(a, level[:, None], SPREAD) + np.log(np.maximum(density, 1e-300))
        totals.append(logsumexp(log_joint, axis=1) + np.log(a[1] - a[0]))
        weight = np.exp(log_joint - logsumexp(log_joint, axis=1)[:, None])
        first.append(weight @ a)
        second.append(weight @ a**2)
    log_density = norm.logpdf(level, 1, 1) + np.sum(totals, axis=0)
    weight = np.exp(log_density - logsumexp(log_density))
    mean = np.array(first) @ weight
    return logsumexp(log_density) + np.log(level[1] - level[0]), mean, np.sqrt(np.array(second) @ weight - mean**2)


def test_a_power_below_one_settles_and_is_told():
    with pytest.warns(pmep.ConvergenceWarning, match=r"the result is that of power=0\.5, which does"):
        found = pmep.fit(model=inflated(), **QUIET)
    log_evidence, mean, sd = exact()
    assert not bool(group(found, "fit")["converged"]) and settings(found)["power"] == 0.5
    np.testing.assert_allclose(float(group(found, "fit")["log_evidence"]), log_evidence, atol=0.1)
    np.testing.assert_allclose(group(found, "posterior_mean")["a"], mean, atol=0.06 * sd.max())
    np.testing.assert_allclose(group(found, "posterior_sd")["a"] / sd, 1.0, atol=0.08)


def test_a_checkpoint_keeps_the_fits_of_either_power(tmp_path):
    with pytest.warns(pmep.ConvergenceWarning):
        plain, kept = (pmep.fit(model=inflated(), **(QUIET | {"checkpoint": at})) for at in (None, tmp_path / "fit"))
    assert settings(kept)["power"] == 0.5
    np.testing.assert_array_equal(group(kept, "posterior_mean")["a"], group(plain, "posterior_mean")["a"])


def test_a_power_that_is_asked_for_is_kept():
    with pytest.warns(pmep.ConvergenceWarning, match="stalled with a change"):
        found = pmep.fit(model=inflated(), power=1.0, **QUIET)
    assert settings(found)["power"] == 1.0
    found = pmep.fit(model=inflated(), power=0.5, **QUIET)
    assert bool(group(found, "fit")["converged"])


def test_fits_that_settle_have_power_one():
    found = pmep.fit(model=inflated(0.3), **QUIET)
    assert bool(group(found, "fit")["converged"]) and settings(found)["power"] == 1.0


def test_a_fit_that_tells_its_own_error_is_not_repeated(monkeypatch):
    """Of EP of power 1 that settles: half a power has no correction."""
    monkeypatch.setattr(Evidence, "correction_warning", lambda *_: "EP errs")
    with pytest.warns(pmep.ConvergenceWarning, match="off: EP errs; hyperparameters integrated over by"):
        found = pmep.fit(model=robust(), **QUIET)
    assert settings(found)["power"] == 1.0


def test_hyperparameters_are_integrated_over_with_one_power():
    with pytest.warns(pmep.ConvergenceWarning, match=r"power=0\.5, which does.*hyperparameters integrated over by"):
        found = pmep.fit(model=inflated(None), **QUIET)
    assert settings(found)["power"] == 0.5
    at_mean = float(group(found, "posterior_mean")["tau"])
    assert 0.7 < at_mean < 2.5


@pytest.mark.parametrize(
    ("whole", "half", "taken"), [(0.0, 0.0, 1.0), (0.1, 0.3, 1.0), (0.3, 0.1, 0.5), (1.0, 0.0, 0.5)]
)
def test_the_fit_that_leaves_less_in_doubt_is_taken(whole, half, taken):
    form = SimpleNamespace(sites=[SimpleNamespace(site=SimpleNamespace(log_concave=False))])
    doubt = {1.0: whole, 0.5: half}
    assert _by_power(form, {"power": "auto"}, lambda settings: settings["power"], doubt.get) == taken
