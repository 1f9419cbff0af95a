"""Kernels of low rank against the same covariance as a matrix."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.exceptions import InvalidDataError

U, N = 8, 7
RNG = np.random.default_rng(4)
ROOT, FACTORS, MEAN = RNG.normal(size=(N, 3)), RNG.normal(size=(N, 2)), RNG.normal(size=N)
ROWS = {"users": np.repeat(np.arange(U), 5), "winners": RNG.integers(0, N, 5 * U)}
ROWS["losers"] = (ROWS["winners"] + RNG.integers(1, N, 5 * U)) % N
COORDS = {"user": range(U), "item": [f"i{k}" for k in range(N)], "factor": range(2)}
LOW_RANK, DENSE = {"kernel_factor": ROOT, "jitter": 0.3}, {"kernel": ROOT @ ROOT.T, "jitter": 0.3}
PRIORS = {
    "low rank": (LOW_RANK, DENSE),
    "no kernel": ({}, {"kernel": np.eye(N), "jitter": 0.0}),
}
EACH = pytest.mark.parametrize(("prior", "same"), PRIORS.values(), ids=PRIORS)


def written(prior, *, learned=False, rows=ROWS, coords=COORDS):
    with pm.Model(coords=coords) as model:
        known = {"V": FACTORS, "b": MEAN, "sigma": 0.7}
        if learned:
            V, b = pm.Flat("V", dims=("item", "factor")), pm.Flat("b", dims="item")
            known = {"V": V, "b": b, "sigma": pm.HalfFlat("sigma")}
        f = pmep.PreferenceUtility("f", **known, **prior, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, **rows)
    return model


def fitted(model, **options):
    return pmep.fit(model=model, **({"draws": 0, "progressbar": False, "random_seed": 1} | options))


@EACH
def test_fits_are_those_of_the_matrix(prior, same):
    model, other = written(prior), written(same)
    found, expected = fitted(model, draws=2000, chains=2), fitted(other)
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(found[what]["f"], expected[what]["f"], atol=1e-7)
    rows = [0, 3], [1, 2], [4, 0]
    log_p = [
        pmep.log_predictive(idata, m, {"prefers": rows})["prefers"] for idata, m in ((found, model), (expected, other))
    ]
    np.testing.assert_allclose(*log_p, atol=1e-8)
    pairs = [pmep.next_pairs(idata, m, user=2)["information"] for idata, m in ((found, model), (expected, other))]
    np.testing.assert_allclose(*pairs, atol=1e-8)
    draws = found["posterior"]["f"].values.reshape(-1, U, N)
    np.testing.assert_allclose(draws.mean(axis=0), expected["posterior_mean"]["f"], atol=0.15)
    np.testing.assert_allclose(draws.std(axis=0), expected["posterior_sd"]["f"], rtol=0.08)


@EACH
@pytest.mark.parametrize("learn", ["evidence", "em"])
def test_searches_are_those_of_the_matrix(prior, same, learn):
    options = {"learn": learn, "held_out": 0, "evidence_tol": 1e-3 if learn == "em" else 1e-6}
    found, expected = (fitted(written(one, learned=True), **options) for one in (prior, same))
    assert float(found["fit"]["log_evidence"]) == pytest.approx(float(expected["fit"]["log_evidence"]), abs=2e-3)


def test_hyperparameters_of_the_factor_are_learned_as_those_of_the_matrix():
    def model(low_rank):
        with pm.Model(coords=COORDS) as model:
            scales, jitter = pm.HalfNormal("scales", 1.0, shape=3), pm.HalfNormal("jitter", 1.0)
            prior = {"kernel_factor": ROOT * scales} if low_rank else {"kernel": (ROOT * scales) @ (ROOT * scales).T}
            f = pmep.PreferenceUtility("f", **prior, jitter=jitter, dims=("user", "item"))
            pmep.PairwiseProbit("prefers", f, **ROWS)
        return model

    found, expected = (fitted(model(low_rank), evidence_tol=1e-10) for low_rank in (True, False))
    for name in ("scales", "jitter"):
        np.testing.assert_allclose(
            found["posterior_mean"][name], expected["posterior_mean"][name], rtol=2e-3, atol=1e-4
        )


@EACH
def test_log_density_is_the_normal_one(prior, same):
    value = RNG.normal(size=(U, N))
    covariance = FACTORS @ FACTORS.T + 0.49 * (same["kernel"] + same["jitter"] * np.eye(N))
    f = pmep.PreferenceUtility.dist(V=FACTORS, b=MEAN, sigma=0.7, **prior, size=(U,))
    expected = scipy.stats.multivariate_normal(MEAN, covariance).logpdf(value)
    np.testing.assert_allclose(pm.logp(f, value).eval(), expected, rtol=1e-10)


@EACH
def test_draws_have_the_moments_of_the_prior(prior, same):
    covariance = FACTORS @ FACTORS.T + 0.49 * (same["kernel"] + same["jitter"] * np.eye(N))
    f = pmep.PreferenceUtility.dist(V=FACTORS, b=MEAN, sigma=0.7, **prior, size=(200_000,))
    draws = pm.draw(f, random_seed=1)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.1)
    np.testing.assert_allclose(draws.mean(axis=0), MEAN, atol=0.03)


def test_new_items_are_those_of_the_matrix():
    known = {"V": FACTORS, "b": MEAN, "sigma": 0.7}
    few = {**COORDS, "item": COORDS["item"][:5]}
    rows = {what: values[(ROWS["winners"] < 5) & (ROWS["losers"] < 5)] for what, values in ROWS.items()}
    found = []
    for prior, less in (
        (LOW_RANK, LOW_RANK | {"kernel_factor": ROOT[:5]}),
        (DENSE, DENSE | {"kernel": DENSE["kernel"][:5, :5]}),
    ):
        start = {name: value[:5] if np.ndim(value) else value for name, value in known.items()}
        first = fitted(written(less, learned=True, rows=rows, coords=few), hyper="fixed", start=start)
        found.append(fitted(written(prior, learned=True), hyper="fixed", start=first))
    for name in ("V", "b", "f"):
        np.testing.assert_allclose(found[0]["posterior_mean"][name], found[1]["posterior_mean"][name], atol=1e-7)
    assert np.abs(found[0]["posterior_mean"]["V"][5:]).max() > 0.01


BAD = [
    ({"kernel_factor": ROOT}, "jitter=None"),
    ({"kernel_factor": ROOT, "jitter": 0.0}, "jitter=0.0"),
    ({"kernel_factor": ROOT, "kernel": np.eye(N), "jitter": 0.1}, "one of them"),
    ({"kernel_factor": np.full((N, 2), np.nan), "jitter": 0.1}, r"nan at index \(0, 0\)"),
    ({"kernel_factor": ROOT[:3], "b": MEAN, "jitter": 0.1}, "kernel_factor= has 3 items"),
    ({"kernel_factor": MEAN, "jitter": 0.1}, "needs 2"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_factors_are_named(arguments, message):
    with pm.Model(), pytest.raises(InvalidDataError, match=message):
        pmep.PreferenceUtility("f", **arguments)


def test_moments_of_too_many_utilities_are_left_out(monkeypatch):
    expected = fitted(written(LOW_RANK))
    monkeypatch.setattr("pymc_ep.models.preferences.methods.solution.STORED_NUMBERS", 2 * U * N - 1)
    model = written(LOW_RANK)
    found = fitted(model)
    assert "moments of 'f' are left out" in found["fit"].attrs["status"]
    assert "f" not in pmep.results.posterior_moments(found, "mean")
    rows = [0, 3], [1, 2], [4, 0]
    log_p = [pmep.log_predictive(idata, model, {"prefers": rows})["prefers"] for idata in (found, expected)]
    np.testing.assert_array_equal(*log_p)
    assert pmep.rank_items(found, model, user=2)["mean_rank"].shape == (1, N)
