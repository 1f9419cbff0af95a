"""`compare_to_mcmc` on draws whose distributions are known."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_ep as pmep
from pymc_ep.compat import group, make_container, to_dataset

COLUMNS = [
    *["mean", "mean_mcmc", "sd", "sd_mcmc", "mean_difference", "mean_mcse", "sd_ratio", "sd_mcse", "wasserstein"],
    *["r_hat", "ess_bulk", "ess_tail", "mcmc_converged"],
]


def chains_of(**draws):
    """A container with a posterior of arrays (chain, draw, *shape)."""
    return make_container({"posterior": to_dataset(draws, coords={}, dims={}, sample_dims=("chain", "draw"))})


def independent(shape=(9,), *, chains=4, draws=1000, seed=0):
    return np.random.default_rng(seed).normal(size=(chains, draws, *shape))


@pytest.fixture(scope="module")
def exact(gaussian):
    """Independent draws from the exact posterior of the Gaussian model, as if by MCMC, and its moments."""
    _, result = gaussian
    x = np.linspace(0.0, 3.0, 9)
    prior = np.exp(-0.5 * np.subtract.outer(x, x) ** 2) + 1e-6 * np.eye(9)
    gain = np.linalg.solve(prior + 0.25 * np.eye(9), prior).T
    mean = 0.3 + gain @ (group(result, "observed_data")["y"].to_numpy() - 0.3)
    covariance = prior - gain @ prior
    return mean, np.sqrt(covariance.diagonal()), mean + independent() @ np.linalg.cholesky(covariance).T


def test_a_fit_agrees_with_exact_draws(gaussian, exact):
    mean, sd, draws = exact
    table = pmep.compare_to_mcmc(gaussian[1], chains_of(f=draws))
    assert list(table.columns) == COLUMNS
    assert list(table.index) == [f"f[{k}]" for k in range(9)]
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-8)
    np.testing.assert_allclose(table["sd"], sd, rtol=1e-8)
    flat = draws.reshape(-1, 9)
    np.testing.assert_allclose(table["mean_mcmc"], flat.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(table["sd_mcmc"], flat.std(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(table["mean_mcse"], 1 / np.sqrt(4000), rtol=0.15)
    np.testing.assert_allclose(table["sd_mcse"], 1 / np.sqrt(8000), rtol=0.15)
    assert (table["mean_difference"].abs() < 4 * table["mean_mcse"]).all()
    assert ((table["sd_ratio"] - 1).abs() < 4 * table["sd_mcse"]).all()
    assert (table["wasserstein"] < 0.1).all()
    assert table["mcmc_converged"].all()


def test_differences_are_in_posterior_deviations(gaussian, exact):
    """Chains that are half a standard deviation off and twice as wide."""
    mean, sd, draws = exact
    table = pmep.compare_to_mcmc(gaussian[1], chains_of(f=mean + 2 * (draws - mean) + sd))
    np.testing.assert_allclose(table["mean_difference"], -0.5, atol=0.06)
    np.testing.assert_allclose(table["sd_ratio"], 0.5, rtol=0.06)
    # Normals whose quantiles differ by (1 + z) / 2: E |1 + z| / 2.
    expected = stats.foldnorm(1.0).mean() / 2
    np.testing.assert_allclose(table["wasserstein"], expected, atol=0.08)


def test_correlated_chains_have_larger_errors(gaussian):
    """First-order autoregression with coefficient r multiplies the error of the mean by sqrt((1 + r) / (1 - r))."""
    r, noise = 0.6, independent((9,), draws=4000, seed=3)
    draws = noise.copy()
    for t in range(1, draws.shape[1]):
        draws[:, t] = r * draws[:, t - 1] + np.sqrt(1 - r**2) * noise[:, t]
    table = pmep.compare_to_mcmc(gaussian[1], chains_of(f=draws))
    np.testing.assert_allclose(table["mean_mcse"], np.sqrt((1 + r) / (1 - r) / 16_000), rtol=0.15)
    # Squares are correlated with r^2.
    np.testing.assert_allclose(table["sd_mcse"], np.sqrt((1 + r**2) / (1 - r**2) / 32_000), rtol=0.2)


def test_rows_of_chains_that_have_not_converged_are_flagged(gaussian, exact):
    draws = exact[2].copy()
    draws[0, :, 4] += 1.5
    converged = pmep.compare_to_mcmc(gaussian[1], chains_of(f=draws))["mcmc_converged"]
    assert not converged["f[4]"] and converged.drop("f[4]").all()
    assert not pmep.compare_to_mcmc(gaussian[1], chains_of(f=exact[2][:, :50]))["mcmc_converged"].any()
    assert not pmep.compare_to_mcmc(gaussian[1], chains_of(f=exact[2][:1]))["mcmc_converged"].any()


def test_without_draws_there_is_no_distance(gaussian, exact):
    model, result = gaussian
    moments = pmep.fit(model=model, draws=0, progressbar=False)
    table = pmep.compare_to_mcmc(moments, chains_of(f=exact[2]))
    assert list(table.columns) == [c for c in COLUMNS if c != "wasserstein"]
    np.testing.assert_allclose(table["mean"], pmep.compare_to_mcmc(result, chains_of(f=exact[2]))["mean"])


@pytest.fixture(scope="module")
def rich():
    """A fit with a hyperparameter, a matrix with coordinates and a Deterministic that is not Gaussian."""
    with pm.Model(coords={"row": ["u", "v"], "column": [10, 20, 30]}):
        scale = pm.HalfNormal("scale", 1.0)
        b = pm.Normal("b", 0.0, scale, dims=("row", "column"))
        pm.Deterministic("rate", pm.math.exp(b), dims=("row", "column"))
        pm.Poisson("y", pm.math.exp(b[:, :, None] + np.zeros(5)), observed=np.arange(30).reshape(2, 3, 5))
        return pmep.fit(draws=200, random_seed=8, progressbar=False)


def test_labels_and_variables(rich):
    posterior = group(rich, "posterior")
    table = pmep.compare_to_mcmc(rich, rich)
    assert list(table.index[:2]) == ["scale", "b[u, 10]"] and table.index[-1] == "rate[v, 30]"
    np.testing.assert_allclose(table["wasserstein"], 0.0, atol=1e-12)
    # The Deterministic has no moments of its own: they are those of its draws.
    rate = table.loc[[name.startswith("rate") for name in table.index]]
    np.testing.assert_allclose(rate["mean"], posterior["rate"].mean(("chain", "draw")).to_numpy().ravel(), rtol=1e-12)
    only = pmep.compare_to_mcmc(rich, rich, var_names="rate")
    assert list(only.index) == list(rate.index)


def test_wrong_variables_are_named(gaussian, exact):
    result, chains = gaussian[1], chains_of(f=exact[2], other=exact[2])
    with pytest.raises(ValueError, match="The fit has no variable 'other'; both have f"):
        pmep.compare_to_mcmc(result, chains, var_names=["other"])
    with pytest.raises(ValueError, match="The chains have no variable 'g'"):
        pmep.compare_to_mcmc(result, chains, var_names=["g"])
    with pytest.raises(ValueError, match=r"'f' has the shape \(9,\) in the fit but \(5,\)"):
        pmep.compare_to_mcmc(result, chains_of(f=exact[2][:, :, :5]))
    with pytest.raises(ValueError, match="no variable in common"):
        pmep.compare_to_mcmc(result, chains_of(h=exact[2]))
    with pytest.raises(ValueError, match="idata_nuts= has no group 'posterior'"):
        pmep.compare_to_mcmc(result, make_container({}))
