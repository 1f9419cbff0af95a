"""Fits of preferences: arrays of any kind, parameters that are no numbers, and comparisons that agree too well."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError

U, N, D = 6, 5, 2
RNG = np.random.default_rng(0)
POINTS, FACTORS, MEAN = RNG.normal(size=(N, 2)), RNG.normal(size=(N, D)), RNG.normal(size=N)
KERNEL = np.exp(-((POINTS[:, None] - POINTS) ** 2).sum(-1)) + 0.1 * np.eye(N)
USERS = np.repeat(np.arange(U), 5)
WINNERS = RNG.integers(0, N, len(USERS))
LOSERS = (WINNERS + RNG.integers(1, N, len(USERS))) % N
ROWS = {"users": USERS, "winners": WINNERS, "losers": LOSERS}


def compared(rows=ROWS, **arguments):
    """A model of the comparisons, whose prior has these arguments."""
    with pm.Model(coords={"user": range(U), "item": list("abcde")}) as model:
        f = pmep.PreferenceUtility("f", **arguments, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, **rows)
    return model


def fitted(model, **options):
    return pmep.fit(model=model, draws=0, progressbar=False, **options)


def as_strided(values):
    return np.repeat(values, 2, axis=0)[::2]


def as_read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


def as_pandas(values):
    return pd.DataFrame(values) if values.ndim > 1 else pd.Series(values, index=np.arange(len(values))[::-1])


@pytest.fixture(scope="module")
def expected():
    return fitted(compared(V=FACTORS, b=MEAN, kernel=KERNEL, sigma=0.7))["posterior_mean"]["f"]


@pytest.mark.parametrize("kind", [np.asfortranarray, np.ndarray.tolist, as_pandas, as_strided, as_read_only])
def test_any_kind_of_arrays_is_taken(expected, kind):
    own = {name: kind(values) for name, values in (("V", FACTORS), ("b", MEAN), ("kernel", KERNEL))}
    found = fitted(compared({name: kind(values) for name, values in ROWS.items()}, **own, sigma=0.7))
    np.testing.assert_allclose(found["posterior_mean"]["f"], expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, int])
def test_parameters_of_any_type_are_taken(dtype):
    own = {"V": (4.0 * FACTORS).astype(dtype), "b": (4.0 * MEAN).astype(dtype), "kernel": np.eye(N, dtype=dtype)}
    doubles = {name: values.astype(float) for name, values in own.items()}
    found, exact = (fitted(compared(**one))["posterior_mean"]["f"] for one in (own, doubles))
    np.testing.assert_allclose(found, exact, atol=1e-12)


NO_NUMBERS = [
    ({"V": np.where(np.arange(N * D).reshape(N, D) == 3, np.nan, FACTORS)}, r"V=nan at index \(1, 1\)"),
    ({"b": np.where(np.arange(N) == 2, np.inf, MEAN)}, "b=inf at index 2"),
    ({"jitter": np.nan}, "kernel=nan.*jitter="),
    ({"sigma": -1.0}, "sigma=-1.0, which must be positive"),
]


@pytest.mark.parametrize(("arguments", "message"), NO_NUMBERS, ids=["V", "b", "jitter", "sigma"])
def test_parameters_that_are_no_numbers_are_named(arguments, message):
    model = compared(**({"V": FACTORS, "kernel": KERNEL} | arguments))
    with pytest.raises(InvalidDataError, match=message):
        fitted(model)


SHAPES = [
    ({"kernel": pm.gp.cov.ExpQuad(1, 1.0), "X": np.zeros(5)}, r"X= has the shape \(5,\)"),
    ({"V": FACTORS, "sigma": np.ones(5)}, "sigma= has 1 dimensions"),
]


@pytest.mark.parametrize(("arguments", "message"), SHAPES, ids=["X", "sigma"])
def test_parameters_of_other_shapes_are_named(arguments, message):
    with pytest.raises(InvalidDataError, match=message):
        compared(**arguments)


def test_missing_outcomes_are_refused():
    outcomes = np.ma.masked_array(np.ones(len(USERS), dtype=int), mask=np.arange(len(USERS)) == 2)
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", V=FACTORS, n_users=U)
        with pytest.warns(UserWarning, match="automatically imputed"):
            pm.Bernoulli("y", pm.math.invprobit(f[USERS, WINNERS] - f[USERS, LOSERS]), observed=outcomes)
    with pytest.raises(UnsupportedModelError, match=r"'y' has missing outcomes.*leave these comparisons out"):
        fitted(model)


def test_em_needs_fewer_factors_than_items():
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", V=pm.Flat("V", shape=(N, N)), sigma=pm.HalfFlat("sigma"), n_users=U)
        pmep.PairwiseProbit("prefers", f, **ROWS)
    with pytest.raises(UnsupportedModelError, match="fewer columns than items"):
        fitted(model, learn="em")


FLAT = {"V": pm.Flat, "b": pm.Flat, "sigma": pm.HalfFlat}
PROPER = {
    "V": lambda name, **dims: pm.Normal(name, 0, 2, **dims),
    "b": lambda name, **dims: pm.Normal(name, 0, 2, **dims),
    "sigma": lambda name, **dims: pm.HalfNormal(name, 2, **dims),
}


def agreeing_model(learned, priors, *, n_users=4, n_items=5):
    """A model of users who all prefer items in the order of their numbers; of one user without an axis of users."""
    first, second = np.triu_indices(n_items, 1)
    shapes = {"V": (n_items, 1), "b": n_items, "sigma": ()}
    with pm.Model() as model:
        own = {name: priors[name](name, shape=shapes[name]) for name in learned}
        f = pmep.PreferenceUtility("f", kernel=np.eye(n_items), **own, n_users=None if n_users == 1 else n_users)
        users = None if n_users == 1 else np.repeat(np.arange(n_users), len(first))
        winners, losers = np.tile(first, n_users), np.tile(second, n_users)
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    return model


@pytest.mark.parametrize(
    ("learned", "sizes"),
    [(("V", "b", "sigma"), {}), (("b", "sigma"), {"n_items": 2}), (("sigma",), {}), (("b",), {"n_users": 1})],
    ids=["all", "two items", "sigma", "one user"],
)
def test_evidence_without_a_maximum_is_told(learned, sizes):
    with pytest.warns(pmep.ConvergenceWarning, match=f"no maximum: it is as high at 10 times .*{learned[-1]}"):
        idata = fitted(agreeing_model(learned, FLAT, **sizes))
    assert not bool(idata["fit"]["converged"])
    assert all(np.isfinite(idata[group]["f"]).all() for group in ("posterior_mean", "posterior_sd"))
    proper = agreeing_model(learned, PROPER, **sizes)
    if len(learned) == 1:
        idata = fitted(proper)
    else:
        with pytest.warns(UserWarning, match="the spread of sigma would widen"):
            idata = fitted(proper)
    assert bool(idata["fit"]["converged"])


@pytest.mark.parametrize("agree", [True, False])
def test_a_search_that_ends_early_is_told_from_evidence_without_a_maximum(agree):
    """By EM at its limit: where users contradict each other, more iterations are the cure."""
    model = agreeing_model(("b", "sigma"), FLAT)
    if not agree:
        rng = np.random.default_rng(0)
        users, first = np.repeat(np.arange(30), 5), rng.integers(6, size=150)
        with pm.Model() as model:
            own = {"b": pm.Flat("b", shape=6), "sigma": pm.HalfFlat("sigma")}
            f = pmep.PreferenceUtility("f", kernel=np.eye(6), **own, n_users=30)
            losers = (first + rng.integers(1, 6, size=150)) % 6
            pmep.PairwiseProbit("prefers", f, users=users, winners=first, losers=losers)
    with pytest.warns(pmep.ConvergenceWarning, match="no maximum.* 1000 times" if agree else "raise max_iter"):
        fitted(model, learn="em", max_iter=10, held_out=0)
