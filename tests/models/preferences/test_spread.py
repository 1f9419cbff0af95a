"""The spread of a scale, which a fit at its mode neglects and announces."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import halfnorm, norm

import pymc_ep as pmep
from pymc_ep.models.preferences.methods import ep

from .simulated import answers

KERNEL = np.array([[1.0, 0.3, 0.0], [0.3, 1.0, 0.5], [0.0, 0.5, 1.0]])
QUIET = {"draws": 0, "progressbar": False}


def model_of(n_users, n_pairs, seed=3):
    """Answers of people with a scale of one."""
    users, winners, losers = answers(KERNEL, n_users, n_pairs, seed)
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", kernel=KERNEL, sigma=pm.HalfNormal("sigma", 1.0), n_users=n_users, jitter=0.0)
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    return model, users, winners, losers


def test_what_is_neglected_is_that_of_importance_sampling(monkeypatch):
    """One person: utilities from the prior, weighted by their likelihood, with sigma drawn too and at its mode."""
    model, _, winners, losers = model_of(1, 8)
    found = []
    own = ep.neglected
    monkeypatch.setattr(ep, "neglected", lambda *a: found.append(own(*a)) or found[-1])
    with pytest.warns(UserWarning, match="the spread of sigma would widen .* by .* sd: integrate over it by hyper="):
        idata = pmep.fit(model=model, hyper="optimize", **QUIET)
    assert "the spread of sigma" in idata["fit"].attrs["status"]
    rng, n = np.random.default_rng(0), 400_000
    unit = rng.normal(size=(n, 3)) @ np.linalg.cholesky(KERNEL).T

    def differences(sigma):
        f = sigma[:, None] * unit
        d = f[:, winners] - f[:, losers]
        weights = np.exp(norm.logcdf(d).sum(axis=1))
        mean = weights @ d / weights.sum()
        return mean, np.sqrt(weights @ (d - mean) ** 2 / weights.sum())

    mode = float(idata["posterior_mean"]["sigma"])
    at_mode, integrated = differences(np.full(n, mode)), differences(halfnorm.rvs(size=n, random_state=rng))
    assert found[0]["sigma"].widened == pytest.approx(np.quantile(integrated[1] / at_mode[1], 0.9), rel=0.05)
    moved = np.quantile(np.abs(integrated[0] - at_mode[0]) / at_mode[1], 0.9)
    assert found[0]["sigma"].moved == pytest.approx(moved, abs=0.05)


def test_nothing_is_said_where_comparisons_are_many_or_sigma_is_held():
    many, *_ = model_of(200, 8)
    found = pmep.fit(model=many, hyper="optimize", **QUIET)
    assert "the spread of" not in found["fit"].attrs["status"]
    few, *_ = model_of(1, 8)
    held = pmep.fit(model=few, hyper="fixed", start={"sigma": 1.0}, **QUIET)
    assert "the spread of" not in held["fit"].attrs["status"]


def test_a_scale_beside_learned_means_is_announced():
    """Of one comparison sigma is at its mode, near zero, where the two utilities would be known exactly."""
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 2, shape=3), pm.HalfNormal("sigma", 2)
        f = pmep.PreferenceUtility("f", b=b, kernel=KERNEL, sigma=sigma, n_users=1, jitter=0.0)
        pmep.PairwiseProbit("prefers", f, users=[0], winners=[0], losers=[1])
    with pytest.warns(UserWarning, match="the spread of sigma would widen .*: draw from the posterior by pymc.sample"):
        found = pmep.fit(model=model, **QUIET)
    assert "the spread of sigma" in found["fit"].attrs["status"]
