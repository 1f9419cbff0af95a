"""Bounds as evidence: what is refused, mixtures of fits at draws, and NUTS against quadrature and the full model."""

import warnings
from functools import cache

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group, make_container, to_dataset
from pymc_ep.evidence.fit_mixture import stacked, unstacked
from pymc_ep.exceptions import UnsupportedModelError

rng = np.random.default_rng(0)
ROWS, COLS = np.nonzero(rng.random((10, 8)) < 0.9)
Y = (rng.normal(size=10)[ROWS] * rng.normal(size=8)[COLS]) + 0.5 * rng.normal(size=len(ROWS))
IMAGE = np.repeat([0.0, 2.0, 1.0], 4) + 0.3 * rng.normal(size=12)
VIEWS = rng.integers(0, 2, (6, 5)) + np.eye(6, 5, dtype=int)


@cache
def cells(*, flat=False, learned=True):
    with pm.Model(coords={"row": range(10), "col": range(8), "factor": range(1)}) as model:
        scale = pm.HalfNormal("s", 1.0) if learned else 1.0
        V = pm.Flat("V", dims=("row", "factor")) if flat else pm.Normal("V", 0, scale, dims=("row", "factor"))
        U = pm.Normal("U", 0, scale if flat else 1.0, dims=("col", "factor"))
        pm.Normal("y", (V[ROWS] * U[COLS]).sum(-1), 0.5, observed=Y)
    return model


@cache
def field():
    with pm.Model() as model:
        potential = pm.Laplace.dist(0, pm.HalfNormal("b", 1))
        u = pmep.SparseField("u", operator=np.diff(np.eye(12), axis=0), potential=potential)
        pm.Normal("y", u, 0.3, observed=IMAGE)
    return model


@cache
def pairs():
    with pm.Model() as model:
        U, V = pm.Normal("U", 0, pm.HalfNormal("s", 1.0), shape=(6, 1)), pm.Normal("V", 0, 1, shape=(5, 1))
        pmep.PairedSymbols("views", U, V, 0, 0, observed=np.argwhere(VIEWS))
    return model


@cache
def comparisons():
    """Three people with tastes of their own."""
    own = np.random.default_rng(3)
    who, one = np.repeat(np.arange(3), 20), own.integers(0, 4, 60)
    other, utilities = (one + own.integers(1, 4, 60)) % 4, 1.5 * own.normal(size=(3, 4))
    wins = own.random(60) < 1 / (1 + np.exp(utilities[who, other] - utilities[who, one]))
    with pm.Model() as model:
        f = pmep.PreferenceUtility(
            "f", b=np.zeros(4), kernel=np.eye(4), sigma=pm.HalfNormal("sigma", 2.0), shape=(3, 4)
        )
        winners, losers = np.where(wins, one, other), np.where(wins, other, one)
        pmep.PairwiseLogit("prefers", f, users=who, winners=winners, losers=losers)
    return model


REFUSED = [
    (cells, "vg", {"estimate": "U"}, "points of.*'U'|Of 'U' the bound has points.*leave estimate= out"),
    (lambda: cells(flat=True), "vg", {}, "Of 'V' the bound has points.*give 'V' a proper prior"),
    (lambda: cells(learned=False), "vg", {}, "no hyperparameters"),
    (cells, "vbmf", {"shrinkage": "map"}, "makes points of the matrices"),
    (cells, "vbmf", {"ard": True}, "ard=True learns prior variances of columns in place of those that 's' decides"),
    (cells, "ep", {}, "method='ep' does not exist for this model"),
    (cells, "vg", {"rank": 2}, "rank"),
    (field, "dsb", {"variance": "perturb-and-map"}, "estimates variances here.*give variance='exact'"),
    (field, "dsb", {"variance": "lanczos"}, "estimates variances here.*give variance='exact'"),
    (field, "dsb", {"translations": 2}, "translations=2 needs hyperparameters at one value"),
    (field, "map", {}, "method='map' has no log evidence.*Use method='ep' or 'dsb'"),
    (pairs, "paired_vb", {"estimate": "V"}, "makes points of 'V'.*leave estimate= out"),
    (pairs, "paired_vb", {"constant_messages": True}, "not at its maximum"),
    (pairs, "paired_vb", {"partitions": "pairs/*.parquet"}, "has all pairs in this process"),
    (comparisons, "ep", {"learn": "em"}, "needs learn='evidence'"),
]


@pytest.mark.parametrize(("write", "method", "options", "message"), REFUSED)
def test_what_has_no_evidence_is_named_with_a_cure(write, method, options, message):
    with pytest.raises((ValueError, UnsupportedModelError), match=message):
        pmep.marginalize(write(), method=method, **options)


def test_states_are_stacked_and_back():
    states = [{"a": np.array([k, 1.0]), "theta": np.array([2.0 * k])} for k in range(3)]
    found = unstacked(stacked(states) | {"theta": np.zeros(1)})
    for one, other in zip(states, found, strict=True):
        assert set(one) == set(other)
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value)
    assert unstacked(states[0]) == []


@pytest.fixture(scope="module")
def recovered():
    scales = np.array([[0.5, 0.8, 1.2]])
    draws = to_dataset({"s": scales}, coords={}, dims={}, sample_dims=("chain", "draw"))
    given = make_container({"posterior": draws})
    return pmep.recover(given, cells(), method="vg", random_seed=1, progressbar=False), scales[0]


def test_predictions_average_over_the_draws(recovered):
    idata, scales = recovered
    new = {"y": {"rows": ROWS[:4], "cols": COLS[:4], "observed": Y[:4]}}
    found = pmep.log_predictive(idata, cells(), new)["y"].to_numpy()
    alone = []
    for scale in scales:
        fixed = pmep.fit("vg", model=cells(), hyper="fixed", start={"s": scale}, draws=0, progressbar=False)
        alone.append(pmep.log_predictive(fixed, cells(), new)["y"].to_numpy())
    np.testing.assert_allclose(found, np.log(np.mean(np.exp(alone), axis=0)), atol=0.01)


def test_rows_are_not_ranked_over_draws(recovered):
    with pytest.raises(UnsupportedModelError, match=r"draws of s; fit with hyper='fixed' and start="):
        pmep.similar(recovered[0], cells(), row=[0])


def test_nuts_agrees_with_quadrature():
    """Over one hyperparameter, by the same bound."""
    marginal = pmep.marginalize(field(), method="dsb")
    (value,) = marginal.value_vars
    density, grid = marginal.compile_logp(), np.linspace(-5.0, 3.0, 161)
    log_p = np.array([density({value.name: np.array(x)}) for x in grid])
    mass = np.cumsum(np.exp(log_p - log_p.max()))
    wanted = np.exp(np.interp([0.1, 0.5, 0.9], mass / mass[-1], grid))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampled = pm.sample(
            400, tune=200, chains=2, cores=1, model=marginal, nuts_sampler="pymc", random_seed=1, progressbar=False
        )
    draws = np.ravel(group(sampled, "posterior")["b"])
    np.testing.assert_allclose(np.quantile(draws, [0.1, 0.5, 0.9]), wanted, rtol=0.12)


def test_a_sampled_preference_model_agrees_with_nuts_on_all_of_it():
    model = comparisons()
    found = pmep.fit(
        "ep",
        model=model,
        hyper="sample",
        draws=250,
        chains=2,
        sample_kwargs={"cores": 1, "tune": 200},
        random_seed=1,
        progressbar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = pm.sample(
            2000, tune=1000, chains=2, cores=1, model=model, nuts_sampler="pymc", random_seed=1, progressbar=False
        )
    for name in ("sigma", "f"):
        one, other = (group(idata, "posterior")[name].to_numpy() for idata in (found, full))
        one, other = one.reshape(500, -1), other.reshape(4000, -1)
        off = np.abs(np.quantile(one, [0.1, 0.5, 0.9], axis=0) - np.quantile(other, [0.1, 0.5, 0.9], axis=0))
        assert np.all(off < 0.25 * other.std(axis=0))
