"""Posterior of preferences against NUTS on the same model."""

import numpy as np
import pymc as pm
from scipy.special import ndtr

import pymc_ep as pmep
from pymc_ep.compat import group
from tests.reference.stored import nuts

U, N, P = 5, 4, 8
FIRST, SECOND = np.triu_indices(N, 1)


def coins():
    """Answers are coins: people contradict themselves, where EP is at its worst."""
    rng = np.random.default_rng(3)
    factors, mean = rng.normal(size=(N, 1)), rng.normal(size=N)
    users, one = np.repeat(np.arange(U), P), rng.integers(0, N, U * P)
    two = (one + rng.integers(1, N, len(one))) % N
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", V=factors, b=mean, n_users=U)
        pmep.PairwiseProbit("prefers", f, users=users, winners=one, losers=two)
    return model


def chances_of(utilities):
    """Probabilities, (s, U * pairs), that a user prefers the first of two items, for all, at draws (s, U, N)."""
    return ndtr(utilities[:, :, FIRST] - utilities[:, :, SECOND]).reshape(len(utilities), -1)


def test_utilities_and_probabilities_agree_with_nuts():
    model, long = coins(), nuts("coins")
    idata = pmep.fit(model=model, draws=0, progressbar=False)
    found, sd = (group(idata, f"posterior_{what}")["f"].to_numpy() for what in ("mean", "sd"))
    # EP's own error is 0.03 sd of means, 3% of sds and 0.015 of probabilities; that of 16,000 draws 0.02, 2% and 0.005.
    np.testing.assert_array_less(np.abs(found - long["f"]) / sd, 0.05)
    np.testing.assert_allclose(sd / long["f_sd"], 1.0, atol=0.05)
    rows = np.repeat(np.arange(U), len(FIRST)), np.tile(FIRST, U), np.tile(SECOND, U)
    said = np.exp(pmep.log_predictive(idata, model, {"prefers": rows})["prefers"].to_numpy())
    np.testing.assert_array_less(np.abs(said - long["chances"]), 0.02)
