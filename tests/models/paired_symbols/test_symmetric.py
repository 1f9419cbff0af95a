"""Fits of symbols that are paired with each other, as co-authors, from a model block."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import sparse
from scipy.special import expit

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.exceptions import ConvergenceWarning

N, K = 25, 2
AUTHORS = [f"author {k}" for k in range(N)]
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0, "max_iter": 2000}


def counts_of(n_pairs=400, seed=0):
    """Symmetric counts of pairs that were drawn from the model."""
    rng = np.random.default_rng(seed)
    u, pi = 1.5 * rng.normal(size=(N, K)), rng.dirichlet(np.full(N, 3.0))
    p = np.triu(np.outer(pi, pi) * expit(u @ u.T), 1)
    once = rng.multinomial(n_pairs, p.ravel() / p.sum()).reshape(N, N)
    return sparse.csr_array(once + once.T)


COUNTS = counts_of()


def model_of(prior="numbers", observed=COUNTS, biases=True, **kwargs):
    with pm.Model(coords={"author": AUTHORS, "factor": range(K)}) as model:
        own = {"sigma": 1.0}
        if prior == "gamma":
            own = {"tau": pm.Gamma("tau", 2.0, 2.0, dims="factor")}
        elif prior == "half normal":
            own = {"sigma": pm.HalfNormal("scale", 1.0)}
        U = pm.Normal("U", 0, **own, dims=("author", "factor"))
        b = pm.Normal("b", 0, 1, dims="author") if biases else 0
        pmep.PairedSymbols("papers", U, U, b, b, observed=observed, **kwargs)
    return model


@pytest.fixture(scope="module")
def fitted():
    model = model_of()
    return model, pmep.fit(model=model, **QUIET | {"draws": 200, "log_likelihood": True, "chains": 1, "tol": 1e-9})


def dense(idata):
    """Mean of a, (N, N), and p(j | i), with -inf and zero on the diagonal."""
    mean, sd = (group(idata, f"posterior_{what}") for what in ("mean", "sd"))
    u, b, pi = (mean[name].to_numpy() for name in ("U", "b", "papers_popularity"))
    uu = u**2 + sd["U"].to_numpy() ** 2
    b_var = sd["b"].to_numpy() ** 2
    a = u @ u.T + b[:, None] + b
    variance = uu @ uu.T - (u**2) @ (u**2).T + b_var[:, None] + b_var
    p = expit(a / np.sqrt(1 + np.pi * variance / 8)) * pi
    np.fill_diagonal(p, 0.0)
    np.fill_diagonal(a, -np.inf)
    return a, p / p.sum(axis=1, keepdims=True)


def test_a_model_is_explained():
    text = pmep.explain(model_of("gamma"))
    for part in (
        "unordered pairs of alike symbols",
        "U: 25 x 2",
        "papers_popularity: 25",
        "tau: prec",
        "400 pairs, 400",
    ):
        assert part in text
    assert "user" not in text


def test_a_fit_has_a_posterior_of_everything(fitted):
    model, idata = fitted
    posterior, fit = group(idata, "posterior"), group(idata, "fit")
    assert set(posterior.data_vars) == {"U", "b", "papers_popularity"}
    assert posterior["papers_popularity"].dims == ("chain", "draw", "author")
    assert bool(fit["converged"]) and np.diff(fit["objective"]).min() > -1e-9
    np.testing.assert_array_equal(fit["papers_popularity_pairs"], COUNTS.sum(axis=1))
    assert "calibrat" not in " ".join(fit.data_vars)
    # Log densities of draws are those of the model.
    density = model.compile_logp([model["papers"]])
    point = model.initial_point()
    for k in range(3):
        draw = {name: posterior[name].to_numpy()[0, k] for name in posterior.data_vars}
        log_pi = np.log(draw["papers_popularity"])
        point = {"U": draw["U"], "b": draw["b"], "papers_popularity_simplex__": (log_pi - log_pi.mean())[:-1]}
        stored = float(group(idata, "log_likelihood")["papers"].to_numpy()[0, k].sum())
        assert stored == pytest.approx(float(density(point)), rel=1e-9)


@pytest.mark.parametrize("by", ["probability", "predictor_mean"])
def test_recommendations_are_the_best_unseen_others(fitted, by):
    model, idata = fitted
    a, p = dense(idata)
    scores = np.where(COUNTS.toarray() > 0, -np.inf, {"probability": p, "predictor_mean": a}[by])
    np.fill_diagonal(scores, -np.inf)
    found = pmep.recommend(idata, model, author=AUTHORS[3:5], n=3, by=by)
    for row, i in enumerate((3, 4)):
        best = np.argsort(-scores[i])[:3]
        assert found["U"].values[row].tolist() == [AUTHORS[j] for j in best]
        np.testing.assert_allclose(found["probability"].values[row], p[i, best], rtol=1e-6)
    every = pmep.recommend(idata, model, author=AUTHORS[:1], n=N - 1, exclude_observed=False, by=by)
    assert AUTHORS[0] not in every["U"].values
    assert float(every["probability"].sum()) == pytest.approx(1.0)
    assert pmep.recommend(idata, model, author=AUTHORS[:1], n=1).attrs["by"] == "probability"


def test_held_out_pairs_are_predicted_in_both_orders(fitted):
    model, idata = fitted
    p = dense(idata)[1]
    found = pmep.log_predictive(idata, model, {"papers": [[2, 7], [7, 2]]})["papers"]
    np.testing.assert_allclose(found, np.log([p[2, 7], p[7, 2]]), rtol=1e-6)
    with pytest.raises(pmep.InvalidDataError, match="'papers' has the symbol 4 with itself at row 1"):
        pmep.log_predictive(idata, model, {"papers": [[2, 7], [4, 4]]})


def test_neighbours_and_ranks(fitted):
    model, idata = fitted
    near = pmep.similar(idata, model, author=AUTHORS[:2], n=3)
    assert near["neighbour"].shape == (2, 3) and AUTHORS[0] not in near["neighbour"].values[0]
    unseen = np.flatnonzero(COUNTS.toarray()[0] == 0)[1:3]
    ranks = pmep.rank_items(idata, model, author=[AUTHORS[0]] * 2, U=[AUTHORS[j] for j in unseen])
    p = np.where(COUNTS.toarray()[0] > 0, 0.0, dense(idata)[1][0])
    np.testing.assert_array_equal(ranks["position"], [1 + (p > p[j]).sum() for j in unseen])


@pytest.mark.parametrize("prior", ["gamma", "half normal"])
def test_precisions_are_learned(prior):
    idata = pmep.fit(model=model_of(prior), **QUIET)
    name = {"gamma": "tau", "half normal": "scale"}[prior]
    mean = group(idata, "posterior_mean")[name]
    assert (mean > 0).all() and np.diff(group(idata, "fit")["objective"]).min() > -1e-8


def test_updates_storage_and_modes_agree():
    base = float(group(pmep.fit(model=model_of(), **QUIET | {"tol": 1e-9}), "fit")["log_evidence"])
    for options in ({"update": "sequential"}, {"dtype": "float32"}, {"compile_kwargs": {"mode": "JAX"}}):
        found = pmep.fit(model=model_of(), **QUIET | {"tol": 1e-9} | options)
        assert float(group(found, "fit")["log_evidence"]) == pytest.approx(base, abs=0.05), options


def test_options_of_two_sides_work_for_one():
    idata = pmep.fit(model=model_of(biases=False), estimate="U", constant_messages=True, **QUIET)
    assert not group(idata, "posterior_sd")["U"].any()
    assert np.diff(group(idata, "fit")["objective"]).min() > -1e-9


def test_a_fit_resumes_is_read_back_and_starts_another(tmp_path):
    model, path = model_of(), tmp_path / "fit.npz"
    whole = pmep.fit(model=model, **QUIET)
    with pytest.warns(ConvergenceWarning, match="stopped after"):
        pmep.fit(model=model, checkpoint=path, **QUIET | {"max_iter": 5})
    resumed = pmep.fit(model=model, checkpoint=path, **QUIET)
    bounds = [float(group(one, "fit")["log_evidence"]) for one in (whole, resumed)]
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-8)
    again = pmep.fit(model=model, start=whole, **QUIET)
    assert int(group(again, "fit")["n_iter"]) <= 3
    file = str(tmp_path / "fit.nc")
    whole.to_netcdf(file)
    read = pmep.recommend(az.from_netcdf(file), model, author=AUTHORS[:2], n=4)
    np.testing.assert_array_equal(read["U"], pmep.recommend(whole, model, author=AUTHORS[:2], n=4)["U"])


def test_pairs_are_the_same_data_as_counts():
    once = sparse.triu(COUNTS).tocoo()
    pairs = np.repeat(np.column_stack([once.col, once.row]), once.data, axis=0)
    bounds = [
        float(group(pmep.fit(model=model_of(observed=y), **QUIET), "fit")["log_evidence"]) for y in (COUNTS, pairs)
    ]
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-9)


def test_what_one_side_has_not_is_refused(fitted, tmp_path):
    model, idata = fitted
    with pytest.raises(ValueError, match="'papers' pairs the rows of 'U' with each other, which are updated in turn"):
        pmep.fit(model=model, partitions=f"{tmp_path}/*.parquet", **QUIET)
    with pytest.raises(pmep.UnsupportedModelError, match="'papers' pairs the rows of 'U' with each other, and fold_in"):
        pmep.fold_in(idata, model, {"author": [[0, 1]]})
    with pm.Model():
        data = pm.Data("data", np.array([[0, 1], [2, 2]]), shape=(None, 2))
        U = pm.Normal("U", 0, 1, shape=(3, 1))
        pmep.PairedSymbols("papers", U, U, observed=data)
        with pytest.raises(pmep.InvalidDataError, match="'papers' has the symbol 2 with itself at row 1"):
            pmep.fit(**QUIET)
