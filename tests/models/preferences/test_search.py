"""Search for the hyperparameters of preferences: the same in any order, and at a maximum that is measured."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.models.preferences.engine import evidence_search as search

U, N, D = 20, 6, 2
RNG = np.random.default_rng(3)
FEATURES = RNG.normal(size=(N, 2))
USERS = np.repeat(np.arange(U), 8)
UTILITIES = 1.5 * RNG.normal(size=(U, D)) @ RNG.normal(size=(D, N))
ONE = RNG.integers(0, N, len(USERS))
TWO = (ONE + RNG.integers(1, N, len(USERS))) % N
WON = UTILITIES[USERS, ONE] - UTILITIES[USERS, TWO] + RNG.normal(size=len(USERS)) > 0
ROWS = {"users": USERS, "first": ONE, "second": TWO, "won": WON.astype(int)}
PRIORS = {"b": (pm.Normal, 0, 2), "V": (pm.Normal, 0, 0.5), "sigma": (pm.HalfNormal, 2)}
QUIET = {"progressbar": False, "draws": 0}
# So few comparisons leave sigma open, which is told.
pytestmark = pytest.mark.filterwarnings("ignore:'f' is less certain")


def model_of(factors=None, **priors):
    """The model of the documentation, whose features and comparisons can be set."""
    (b, *of_b), (v, *of_v), (sigma, *of_sigma) = (PRIORS | priors).values()
    with pm.Model(coords={"user": range(U), "item": range(N), "factor": range(D)}) as model:
        terms = {"b": b("b", *of_b, dims="item"), "sigma": sigma("sigma", *of_sigma)}
        terms["V"] = v("V", *of_v, dims=("item", "factor")) if factors is None else factors()
        kernel, x = pm.gp.cov.ExpQuad(2, ls=2.0), pm.Data("x", FEATURES)
        f = pmep.PreferenceUtility("f", kernel=kernel, X=x, jitter=0.1, dims=("user", "item"), **terms)
        users, first, second, won = (pm.Data(name, values) for name, values in ROWS.items())
        pm.Bernoulli("prefers", pm.math.invprobit(f[users, first] - f[users, second]), observed=won)
    return model


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.mark.parametrize("n", [4, 20])
def test_any_order_and_any_names_give_the_same_fit(model, n):
    """Rows in n orders, half of them told the other way round; users and items in other places."""
    found = []
    for seed in range(n):
        rng = np.random.default_rng(seed)
        rows, users, items = map(rng.permutation, (len(USERS), U, N))
        at_user, at_item, swapped = np.argsort(users), np.argsort(items), rng.random(len(USERS)) < 0.5
        one, two = at_item[ONE[rows]], at_item[TWO[rows]]
        told = {"first": np.where(swapped, two, one), "second": np.where(swapped, one, two)}
        with model:
            pm.set_data({"x": FEATURES[items], "users": at_user[USERS[rows]], "won": (WON[rows] ^ swapped) + 0} | told)
        idata = pmep.fit(model=model, **QUIET)
        parts = [idata[group]["f"].values[at_user][:, at_item] for group in ("posterior_mean", "posterior_sd")]
        V = idata["posterior_mean"]["V"].values[at_item]
        found.append([float(idata["fit"]["log_evidence"]), *parts, V @ V.T])
    for parts in found[1:]:
        for one, other in zip(parts, found[0]):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


def log_posterior(model, values):
    """Log evidence with the hyperparameters held at values, and their log prior."""
    found = pmep.fit(model=model, hyper="fixed", start=values, **QUIET)
    log_prior = sum(
        pm.logp(kind.dist(*parameters), values[name]).eval().sum() for name, (kind, *parameters) in PRIORS.items()
    )
    return float(found["fit"]["log_evidence"]) + log_prior


def test_a_search_ends_at_a_maximum(model, monkeypatch):
    """Rounds of L-BFGS end here before they are at a maximum, as they do where an iteration gains little."""
    with model:
        pm.set_data(ROWS | {"x": FEATURES})
    lbfgs = search.lbfgs
    monkeypatch.setattr(search, "lbfgs", lambda *given, **options: lbfgs(*given, **(options | {"maxiter": 4})))
    found = pmep.fit(model=model, evidence_tol=1e-6, **QUIET)
    assert "converged" in found["fit"].attrs["status"]
    best = {name: found["posterior_mean"][name].values for name in PRIORS}
    at_best, rng = log_posterior(model, best), np.random.default_rng(0)
    for _ in range(3):
        ways = {name: rng.normal(size=value.shape) for name, value in best.items()}
        along = [log_posterior(model, {name: best[name] + h * ways[name] for name in best}) for h in (-1e-3, 1e-3)]
        slope, curvature = (along[1] - along[0]) / 2e-3, (along[1] - 2 * at_best + along[0]) / 1e-6
        assert curvature < 0
        assert -(slope**2) / curvature / 2 < 2e-6 * len(USERS)


def test_a_search_that_finds_no_higher_point_says_so(model, monkeypatch):
    at, calls = search.ComparisonEvidence.at, []

    def at_two_points(self, problem, theta, users):
        calls.append(theta.copy())
        # The first is that of V = 0.
        if not any(np.array_equal(theta, known) for known in calls[:2]):
            raise pmep.NumericalError("No evidence here.")
        return at(self, problem, theta, users)

    monkeypatch.setattr(search.ComparisonEvidence, "at", at_two_points)
    with pytest.warns(pmep.ConvergenceWarning, match=r"at a gradient of .*start elsewhere"):
        pmep.fit(model=model, **QUIET)


def test_factors_may_be_a_function_of_hyperparameters(model):
    """V = Z / 2 with standard normal Z, which starts at zero too, where the gradient in Z is zero."""
    other = model_of(lambda: 0.5 * pm.Normal("Z", 0, 1, dims=("item", "factor")))
    one, two = (pmep.fit(model=which, evidence_tol=1e-10, **QUIET) for which in (model, other))
    assert np.abs(two["posterior_mean"]["Z"].values).max() > 0.1
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(two[what]["f"], one[what]["f"], atol=1e-3)
