"""Posterior of preferences against NUTS on the same model."""

import numpy as np
import pymc as pm
from scipy.special import ndtr

import pymc_ep as pmep
from pymc_ep.compat import group

U, N, P = 5, 4, 8
CHAINS, DRAWS = 2, 1000


def test_utilities_and_probabilities_agree_with_nuts():
    rng = np.random.default_rng(3)
    factors, mean = rng.normal(size=(N, 1)), rng.normal(size=N)
    users, one = np.repeat(np.arange(U), P), rng.integers(0, N, U * P)
    # Answers are coins: people contradict themselves, where EP is at its worst.
    two = (one + rng.integers(1, N, len(one))) % N
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", V=factors, b=mean, n_users=U)
        pmep.PairwiseProbit("prefers", f, users=users, winners=one, losers=two)
        chains = pm.sample(DRAWS, tune=500, chains=CHAINS, cores=1, random_seed=1, progressbar=False)
        idata = pmep.fit(draws=0, progressbar=False)
    drawn = group(chains, "posterior")["f"].to_numpy().reshape(-1, U, N)
    found, sd = (group(idata, f"posterior_{what}")["f"].to_numpy() for what in ("mean", "sd"))
    # EP's own error in longer chains is 0.03 sd of means, 3% of sds and 0.015 of probabilities. Draws of NUTS are at
    # least half as good as independent ones here, so that 20 utilities are within four standard errors.
    error = 4.0 / np.sqrt(0.5 * len(drawn))
    np.testing.assert_array_less(np.abs(found - drawn.mean(axis=0)) / sd, 0.03 + error)
    np.testing.assert_allclose(sd / drawn.std(axis=0), 1.0, atol=0.03 + error / np.sqrt(2.0))
    first, second = np.triu_indices(N, 1)
    rows = np.repeat(np.arange(U), len(first)), np.tile(first, U), np.tile(second, U)
    said = np.exp(pmep.log_predictive(idata, model, {"prefers": rows})["prefers"].to_numpy())
    chances = ndtr(drawn[:, rows[0], rows[1]] - drawn[:, rows[0], rows[2]])
    np.testing.assert_array_less(np.abs(said - chances.mean(axis=0)), 0.015 + error * chances.std(axis=0))
