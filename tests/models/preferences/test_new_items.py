"""New items and new users: b and V of an earlier fit against the joint Gaussian of all items."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

RNG = np.random.default_rng(3)
OLD, NEW = list("abcdef"), list("xyz")
FEATURES = dict(zip(OLD + NEW, RNG.normal(size=(9, 2))))
FEATURES |= {name: np.array([50.0 * k, -50.0]) for k, name in enumerate("pqr")}
FEATURES |= {f"at {d}": FEATURES["a"] + [d, 0.0] for d in (0.0, 0.5, 1.0, 6.0)}
PEOPLE = [f"u{k}" for k in range(10)]
USERS = np.repeat(PEOPLE, 7)
ONE = RNG.integers(0, 6, len(USERS))
TWO = (ONE + RNG.integers(1, 6, len(USERS))) % 6
TASTES = RNG.normal(0, 1.5, size=(len(PEOPLE), len(OLD))).repeat(7, axis=0)
FIRST_WINS = TASTES[np.arange(len(USERS)), ONE] - TASTES[np.arange(len(USERS)), TWO] + RNG.normal(size=len(USERS)) > 0
WINNERS = np.array(OLD)[np.where(FIRST_WINS, ONE, TWO)]
LOSERS = np.array(OLD)[np.where(FIRST_WINS, TWO, ONE)]


def kernel_of(items):
    X = np.array([FEATURES[item] for item in items])
    return np.exp(-((X[:, None] - X) ** 2).sum(-1) / 2.0) + 0.1 * np.eye(len(items))


def written(items, people=PEOPLE, rows=(USERS, WINNERS, LOSERS), *, features=True, X=None, labels=True):
    """The model of the documentation with these items and people."""
    axes = {"person": people, "dish": items} if labels else {}
    with pm.Model(coords=axes | {"factor": range(2), "feature": range(2)}) as model:
        shapes = [{"dims": d} for d in (("dish", "factor"), "dish", ("person", "dish"))]
        if not labels:
            shapes = [{"shape": s} for s in ((len(items), 2), len(items), (len(people), len(items)))]
        V, b, sigma = pm.Flat("V", **shapes[0]), pm.Flat("b", **shapes[1]), pm.HalfFlat("sigma")
        prior = {}
        if features:
            X = np.array([FEATURES[item] for item in items]) if X is None else pm.Data("X", X, dims=("dish", "feature"))
            prior = {"kernel": pm.gp.cov.ExpQuad(2, ls=1.0), "X": X, "jitter": 0.1}
        f = pmep.PreferenceUtility("f", V=V, b=b, sigma=sigma, **prior, **shapes[2])
        users, winners, losers = rows
        if not labels:
            users, winners, losers = (
                np.array([axis.index(one) for one in part])
                for axis, part in zip((people, items, items), (users, winners, losers))
            )
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    return model


def fitted(model, **options):
    return pmep.fit(model=model, **({"draws": 0, "progressbar": False, "random_seed": 1} | options))


@pytest.fixture(scope="module")
def old():
    model = written(OLD)
    return model, fitted(model, held_out=0, max_iter=40, evidence_tol=1e-4)


def conditional(items, known, values):
    """Mean of N(0, K) at all items given values at the known ones, by the precision of the joint density."""
    here = np.array([item in known for item in items])
    precision = np.linalg.inv(kernel_of(items))
    out = np.empty((len(items), *values.shape[1:]))
    out[here] = values
    out[~here] = -np.linalg.solve(precision[np.ix_(~here, ~here)], precision[np.ix_(~here, here)] @ values)
    return out


@pytest.mark.parametrize("items", [OLD + NEW, NEW[:2] + OLD[::-1], OLD[2:] + NEW, OLD[::-1]], ids=str)
def test_b_and_V_are_conditional_means_of_the_joint_density(old, items):
    _, idata = old
    known = [item for item in items if item in OLD]
    rows = np.isin(WINNERS, known) & np.isin(LOSERS, known)
    found = fitted(written(items, rows=(USERS[rows], WINNERS[rows], LOSERS[rows])), hyper="fixed", start=idata)
    for name in ("V", "b"):
        values = idata["posterior_mean"][name].sel(dish=known).values
        np.testing.assert_allclose(found["posterior_mean"][name], conditional(items, known, values), atol=1e-10)
    assert float(found["posterior_mean"]["sigma"]) == pytest.approx(float(idata["posterior_mean"]["sigma"]), rel=1e-12)


@pytest.mark.parametrize("items", [OLD + NEW, NEW[:1] + OLD[::-1] + NEW[1:]], ids=["after", "between"])
def test_old_items_keep_their_posterior(old, items):
    model, idata = old
    more = written(items)
    found = fitted(more, hyper="fixed", start=idata)
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(found[what]["f"].sel(dish=OLD), idata[what]["f"], atol=1e-6)
    rows = ["u0", "u3"], ["a", "f"], ["b", "c"]
    before = pmep.log_predictive(idata, model, {"prefers": rows})["prefers"]
    after = pmep.log_predictive(found, more, {"prefers": rows})["prefers"]
    np.testing.assert_allclose(after, before, atol=1e-7)
    assert float(found["fit"]["log_evidence"]) == pytest.approx(float(idata["fit"]["log_evidence"]), abs=1e-6)


def test_new_items_are_less_certain_the_further_away():
    alone, away = ["a", "p", "q", "r"], [name for name in FEATURES if name.startswith("at")]
    rows = ["u0"] * 60, (["a"] * 30 + ["p", "q", "r"] * 10), (["p", "q", "r"] * 10 + ["a"] * 30)
    start = {"V": np.zeros((4, 2)), "b": np.zeros(4), "sigma": 1.0}
    idata = fitted(written(alone, rows=rows), hyper="fixed", start=start)
    found = fitted(written(alone + away, rows=rows), hyper="fixed", start=idata)
    sd = found["posterior_sd"]["f"].sel(person="u0", dish=away).values
    assert sd[0] < 0.7
    assert (np.diff(sd) > 0.01).all()
    # Far from all others an item has the prior alone.
    assert sd[-1] == pytest.approx(np.sqrt(1.1), rel=1e-6)


def test_without_features_new_items_have_the_prior():
    idata = fitted(written(OLD, features=False), held_out=0, max_iter=10, evidence_tol=1e-2)
    found = fitted(written(OLD + NEW, features=False), hyper="fixed", start=idata)
    assert not found["posterior_mean"]["V"].sel(dish=NEW).values.any()
    np.testing.assert_allclose(found["posterior_mean"]["f"].sel(dish=NEW), 0.0, atol=1e-12)
    sigma = float(idata["posterior_mean"]["sigma"])
    np.testing.assert_allclose(found["posterior_sd"]["f"].sel(dish=NEW), sigma, rtol=1e-10)


def test_newcomers_with_new_items_equal_a_fit_at_these_values(old):
    _, idata = old
    rows = ["new"] * 3, ["x", "a", "x"], ["b", "b", "c"]
    model = written(OLD + NEW, ["new"], rows)
    found = fitted(model, hyper="fixed", start=idata)
    values = {name: conditional(OLD + NEW, OLD, idata["posterior_mean"][name].values) for name in ("V", "b")} | {
        "sigma": float(idata["posterior_mean"]["sigma"])
    }
    expected = fitted(model, hyper="fixed", start=values)
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(found[what]["f"], expected[what]["f"], atol=1e-9)


def test_set_data_adds_items(old):
    _, idata = old
    model = written(OLD, X=np.array([FEATURES[item] for item in OLD]))
    first = fitted(model, hyper="fixed", start=idata)
    np.testing.assert_allclose(first["posterior_mean"]["f"], idata["posterior_mean"]["f"], atol=1e-6)
    with model:
        pm.set_data({"X": np.array([FEATURES[item] for item in OLD + NEW])}, coords={"dish": OLD + NEW})
    found = fitted(model, hyper="fixed", start=first)
    expected = fitted(written(OLD + NEW), hyper="fixed", start=idata)
    np.testing.assert_allclose(found["posterior_mean"]["f"], expected["posterior_mean"]["f"], atol=1e-6)


def test_other_features_by_set_data_make_another_kernel():
    X = np.array([FEATURES[item] for item in OLD])
    model, options = written(OLD, X=X), {"hyper": "fixed", "start": {"sigma": 1.0}}
    before = fitted(model, **options)["posterior_mean"]["f"]
    with model:
        pm.set_data({"X": X[::-1]})
    found = fitted(model, **options)["posterior_mean"]["f"]
    expected = fitted(written(OLD, X=X[::-1]), **options)["posterior_mean"]["f"]
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert np.abs(found - before).max() > 0.01


def test_a_search_starts_at_the_earlier_fit(old):
    _, idata = old
    found = fitted(written(OLD + NEW), hyper="optimize", start=idata, held_out=0, evidence_tol=1e-9)
    objective = found["fit"]["objective"].values
    assert objective[0] == pytest.approx(float(idata["fit"]["log_evidence"]), abs=1e-6)
    assert objective[-1] >= objective[0]


def test_rows_without_labels_and_other_models_are_refused(old):
    _, idata = old
    unlabelled = fitted(written(OLD, labels=False), hyper="fixed")
    again = fitted(written(OLD, labels=False), hyper="fixed", start=unlabelled)
    np.testing.assert_allclose(again["posterior_mean"]["f"], unlabelled["posterior_mean"]["f"], atol=1e-9)
    with pytest.raises(ValueError, match="coords in both models"):
        fitted(written(OLD + NEW, labels=False), hyper="fixed", start=unlabelled)
    with pytest.raises(ValueError, match="of which the model has none"):
        fitted(written(NEW, rows=(["u0"], ["x"], ["y"])), hyper="fixed", start=idata)
    with pm.Model(coords={"person": PEOPLE, "dish": OLD, "factor": range(2)}) as other:
        f = pmep.PreferenceUtility("f", V=pm.Flat("V", dims=("dish", "factor")), dims=("person", "dish"))
        pmep.PairwiseProbit("prefers", f, users=USERS, winners=WINNERS, losers=LOSERS)
    with pytest.raises(ValueError, match="hyperparameters V, b, sigma, and the model has V"):
        fitted(other, hyper="fixed", start=idata)
