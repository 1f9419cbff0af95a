"""Fits of paired symbols from a model block: recognition, learned precisions, starts, checkpoints, and NUTS."""

from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import sparse
from scipy.special import digamma, expit

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.exceptions import ConvergenceWarning
from pymc_ep.forms import compiled_form
from tests.reference.stored import nuts

I, J, K = 30, 20, 2  # noqa: E741
USERS, ITEMS = [f"u{k}" for k in range(I)], [f"i{k}" for k in range(J)]
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0, "max_iter": 2000}


def counts_of(n_pairs=600, seed=0, scale=1.2):
    """Counts of pairs that were drawn from the model."""
    rng = np.random.default_rng(seed)
    u, v = scale * rng.normal(size=(I, K)), scale * rng.normal(size=(J, K))
    p = np.outer(rng.dirichlet(np.full(I, 3.0)), rng.dirichlet(np.full(J, 3.0))) * expit(u @ v.T)
    return sparse.csr_array(rng.multinomial(n_pairs, p.ravel() / p.sum()).reshape(I, J))


COUNTS = counts_of()


def model_of(prior="numbers", counts=COUNTS, biases=True, **kwargs):
    with pm.Model(coords={"user": USERS, "item": ITEMS, "factor": range(K)}) as model:
        own = other = {"sigma": 1.0}
        if prior == "gamma":
            own = other = {"tau": pm.Gamma("tau", 2.0, 2.0)}
        elif prior == "columns":
            own = {"tau": pm.Gamma("tau", 2.0, 2.0, dims="factor")}
            other = {"tau": pm.Exponential("tau_v", 1.0)}
        elif prior == "half normal":
            own = other = {"sigma": pm.HalfNormal("scale", 1.0)}
        U = pm.Normal("U", 0, **own, dims=("user", "factor"))
        V = pm.Normal("V", 0, **other, dims=("item", "factor"))
        b = pm.Normal("bu", 0, 1, dims="user") if biases else 0
        c = pm.Normal("bi", 0, 1, dims="item") if biases else 0
        pmep.PairedSymbols("views", U, V, b, c, observed=counts, **kwargs)
    return model


shared_model = cache(model_of)
"""For fits alone, which compile it once; what changes a model writes its own."""


def test_a_model_is_explained():
    text = pmep.explain(model_of("columns"))
    for part in ("paired symbols", "U: 30 x 2 values, Gaussian", "bi: 20 values", "tau: precision, Gamma", "600 pairs"):
        assert part in text
    assert "tau_v: precision" in text and "paired_vb" in text and "hyperparameters  none" in text.replace("   ", "  ")
    assert "PairedSymbols" in pmep.supported()


def test_a_fit_has_a_posterior_of_everything():
    model = shared_model()
    idata = pmep.fit(model=model, progressbar=False, random_seed=1, draws=250, chains=2, max_iter=2000)
    posterior = group(idata, "posterior")
    assert posterior["U"].dims == ("chain", "draw", "user", "factor")
    assert posterior["views_item_popularity"].dims == ("chain", "draw", "item")
    np.testing.assert_allclose(posterior["views_user_popularity"].sum("user"), 1.0)
    for name in ("U", "bi", "views_item_popularity"):
        mean, sd = (group(idata, f"posterior_{what}")[name] for what in ("mean", "sd"))
        drawn = posterior[name].stack(sample=("chain", "draw"))
        assert float(np.abs((drawn.mean("sample") - mean) / sd).max()) < 5 / np.sqrt(500)
        assert float(np.abs(drawn.std("sample") / sd - 1).max()) < 0.2
    fit = group(idata, "fit")
    assert bool(fit["converged"]) and fit.attrs["method"] == "paired_vb"
    assert np.diff(fit["objective"]).min() > -1e-9
    assert "lower bound" in fit.attrs["log_evidence_is"]


@pytest.mark.parametrize("prior", ["gamma", "columns", "half normal"])
def test_precisions_are_learned(prior):
    """Fits with learned precisions have a higher bound than any at fixed ones near the learned mean."""
    idata = pmep.fit(model=shared_model(prior), **QUIET)
    mean = group(idata, "posterior_mean")
    names = {"gamma": ["tau"], "columns": ["tau", "tau_v"], "half normal": ["scale"]}[prior]
    assert set(names) <= set(mean.data_vars)
    sd = group(idata, "posterior_sd")
    assert all((sd[name] > 0).all() == (prior != "half normal") for name in names)
    assert np.diff(group(idata, "fit")["objective"]).min() > -1e-8


def test_the_mode_of_a_scale_is_that_of_bounds_at_fixed_scales():
    model = model_of("half normal", counts_of(4000))
    best = pmep.fit(model=model, **QUIET | {"tol": 1e-9})
    mode = float(group(best, "posterior_mean")["scale"])

    def objective(scale):
        held = pmep.fit(model=model, hyper="fixed", start={"scale": scale}, **QUIET | {"tol": 1e-9})
        return float(group(held, "fit")["objective"][-1])

    at_mode = objective(mode)
    assert at_mode == pytest.approx(float(group(best, "fit")["objective"][-1]), abs=1e-3)
    assert at_mode > max(objective(0.9 * mode), objective(1.1 * mode))


def test_biases_may_be_left_out():
    idata = pmep.fit(model=model_of(biases=False), **QUIET)
    assert set(group(idata, "posterior_mean").data_vars) == {"U", "V", "views_user_popularity", "views_item_popularity"}


def test_single_precision_sequential_updates_and_modes_agree():
    model = shared_model()
    base = float(group(pmep.fit(model=model, **QUIET | {"tol": 1e-9}), "fit")["log_evidence"])
    for options in ({"update": "sequential"}, {"dtype": "float32"}, {"compile_kwargs": {"mode": "JAX"}}):
        found = pmep.fit(model=model, **QUIET | {"tol": 1e-9} | options)
        assert float(group(found, "fit")["log_evidence"]) == pytest.approx(base, abs=0.05), options


def test_a_fit_resumes_from_its_checkpoint_and_starts_from_another(tmp_path):
    model, path = shared_model(), tmp_path / "fit.npz"
    whole = pmep.fit(model=model, **QUIET)
    with pytest.warns(ConvergenceWarning, match="stopped after"):
        pmep.fit(model=model, checkpoint=path, **QUIET | {"max_iter": 5})
    resumed = pmep.fit(model=model, checkpoint=path, **QUIET)
    n_iter = [int(group(one, "fit")["n_iter"]) for one in (whole, resumed)]
    assert n_iter[1] == n_iter[0]
    assert float(group(resumed, "fit")["log_evidence"]) == pytest.approx(
        float(group(whole, "fit")["log_evidence"]), abs=1e-8
    )
    again = pmep.fit(model=model, start=whole, **QUIET)
    assert int(group(again, "fit")["n_iter"]) <= 3
    with pytest.raises(ValueError, match=r"start= holds .* as 'precision_0_shape'"):
        pmep.fit(model=shared_model("gamma"), start=whole, **QUIET)


def test_results_survive_a_file(tmp_path):
    model = shared_model("gamma")
    idata = pmep.fit(model=model, **QUIET)
    path = str(tmp_path / "fit.nc")
    idata.to_netcdf(path)
    again = az.from_netcdf(path)
    for found in (pmep.recommend(one, model, user=USERS[:3], n=4) for one in (idata, again)):
        assert found["item"].shape == (3, 4)


def test_symbols_without_pairs_are_told():
    table = COUNTS.toarray()
    table[3], table[:, 5] = 0, 0
    idata = pmep.fit(model=model_of(counts=sparse.csr_array(table)), **QUIET)
    status = group(idata, "fit").attrs["status"]
    assert "1 of 30 rows of 'U' have no pair" in status and "1 of 20 rows of 'V' have no pair" in status


def test_pruned_factors_are_told():
    rng = np.random.default_rng(0)
    flat = sparse.csr_array(rng.multinomial(100, np.full(I * J, 1 / (I * J))).reshape(I, J))
    status = group(pmep.fit(model=model_of("gamma", flat), **QUIET), "fit").attrs["status"]
    assert "every factor is pruned" in status


def test_constant_messages_are_a_fixed_point_of_popularities():
    idata = pmep.fit(model=shared_model(), constant_messages=True, **QUIET)
    fit = group(idata, "fit")
    assert np.diff(fit["objective"]).min() > -1e-9
    censored = fit["views_item_popularity_censored"].to_numpy()
    expected = np.exp(digamma(1.0 + COUNTS.sum(axis=0) + 600 * censored))
    np.testing.assert_allclose(censored, expected / expected.sum(), rtol=1e-8)
    free = group(pmep.fit(model=shared_model(), **QUIET), "fit")
    assert float(free["log_evidence"]) > float(fit["log_evidence"])


def test_many_factors_few_items():
    with pm.Model():
        U, V = pm.Normal("U", 0, 1, shape=(I, 40)), pm.Normal("V", 0, 1, shape=(J, 40))
        pmep.PairedSymbols("views", U, V, observed=COUNTS)
        status = group(pmep.fit(**QUIET), "fit").attrs["status"]
    assert "of 40 factors no more than 20 can matter" in status


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u, v: {"U": 2.0 * u, "V": v}, "is no random variable itself, but a function of"),
        (lambda u, v: {"U": pm.Laplace("L", 0, 1, shape=(I, K)), "V": v}, "'L' has the prior Laplace"),
        (lambda u, v: {"U": u, "V": v, "user_bias": pm.HalfNormal("h", 1, shape=I)}, "'h' has the prior HalfNorm"),
        (lambda u, v: {"U": u, "V": v, "censored_ratio": pm.Gamma("r", 2, 1)}, "must be numbers, as no fit learns"),
        (lambda u, v: {"U": u, "V": v, "user_popularity": np.full(I, 1 / I)}, "are no pm.Dirichlet"),
    ],
)
def test_what_has_no_closed_form_is_refused(change, message):
    with pm.Model():
        u, v = pm.Normal("U", 0, 1, shape=(I, K)), pm.Normal("V", 0, 1, shape=(J, K))
        given = change(u, v)
        pmep.PairedSymbols("views", **given, observed=COUNTS)
        with pytest.raises(pmep.UnsupportedModelError, match=message):
            pmep.fit(**QUIET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u, b, pi: {"item_bias": b}, "'views' has the bias b for users and for items"),
        (lambda u, b, pi: {"item_popularity": pi}, "'views' has the popularity pi for users and for items"),
        (lambda u, b, pi: {"item_bias": pm.Normal("c", b, 1, shape=I)}, "'b' enters the model elsewhere"),
        (lambda u, b, pi: {"item_bias": pm.Normal("c", pi, 1, shape=I)}, "'pi' enters the model elsewhere"),
        (lambda u, b, pi: {"V": pm.Normal("W", 0, pm.math.exp(u), shape=(I, K))}, "'U' enters the model elsewhere"),
    ],
)
def test_what_both_sides_share_is_refused(change, message):
    with pm.Model():
        u, v = pm.Normal("U", 0, 1, shape=(I, K)), pm.Normal("V", 0, 1, shape=(I, K))
        b, pi = pm.Normal("b", 0, 1, shape=I), pm.Dirichlet("pi", np.ones(I))
        given = {"U": u, "V": v, "user_bias": b, "user_popularity": pi} | change(u, b, pi)
        pmep.PairedSymbols("views", **given, observed=sparse.csr_array(np.eye(I, dtype=int)))
        with pytest.raises(pmep.UnsupportedModelError, match=message):
            pmep.fit(**QUIET)


def test_other_uses_and_other_observations_are_refused():
    with model_of() as model:
        pm.Normal("y", model["U"].sum(), 1, observed=0.5)
        with pytest.raises(pmep.UnsupportedModelError, match="can have no other observed variable"):
            pmep.fit(**QUIET)
    with model_of() as model:
        pm.Potential("p", -(model["U"] ** 2).sum())
        with pytest.raises(pmep.UnsupportedModelError, match="'U' enters the model elsewhere"):
            pmep.fit(**QUIET)
    with pytest.raises(pmep.UnsupportedModelError, match="latent= leaves out 'bu'"):
        pmep.fit(model=shared_model(), latent=["U", "V"], **QUIET)


def test_data_that_do_not_fit_the_matrices_are_named():
    with model_of(counts=[[0, 1], [30, 2]]), pytest.raises(pmep.InvalidDataError, match="has the user 30 at row 1"):
        pmep.fit(**QUIET)
    with model_of(counts=np.zeros((0, 2), dtype=int)), pytest.raises(pmep.InvalidDataError, match="has no pairs"):
        pmep.fit(**QUIET)
    with pm.Model(coords={"user": USERS, "item": ITEMS, "factor": range(2), "other": range(3)}):
        U = pm.Normal("U", 0, 1, dims=("user", "factor"))
        V = pm.Normal("V", 0, 1, dims=("item", "other"))
        pmep.PairedSymbols("views", U, V, observed=COUNTS)
        with pytest.raises(pmep.InvalidDataError, match="'U' and 'V' have 2 and 3 columns; give both as many"):
            pmep.fit(**QUIET)
    with pm.Model():
        U = pm.Normal("U", 0, -1.0, shape=(I, K))
        pmep.PairedSymbols("views", U, pm.Normal("V", 0, 1, shape=(J, K)), observed=COUNTS)
        with pytest.raises(pmep.InvalidDataError, match=r"'U' has the prior standard deviation -1 at index \(0, 0\)"):
            pmep.fit(**QUIET)


@pytest.mark.parametrize(
    "options", [{"tol": 0.0}, {"update": "jacobi"}, {"dtype": "float16"}, {"constant_messages": 1}, {"max_iter": 0}]
)
def test_bad_options_are_named(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        pmep.fit(model=shared_model(), **QUIET | options)


def test_all_pairs_observed_and_one_user():
    for table in (np.ones((I, J), dtype=int), np.ones((1, J), dtype=int)):
        with pm.Model():
            U, V = pm.Normal("U", 0, 1, shape=(len(table), K)), pm.Normal("V", 0, 1, shape=(J, K))
            pmep.PairedSymbols("views", U, V, observed=sparse.csr_array(table))
            found = group(pmep.fit(**QUIET), "posterior_mean")
        assert np.isfinite(found["V"]).all()


def few_pairs():
    """A table of four users and three items, with preferences and popularities."""
    rng = np.random.default_rng(3)
    table = rng.poisson(np.outer([3.0, 1.0, 2.0, 1.0], [2.0, 1.0, 0.5]))
    with pm.Model() as model:
        U, V = pm.Normal("U", 0, 0.5, shape=(4, 1)), pm.Normal("V", 0, 0.5, shape=(3, 1))
        b, c = pm.Normal("b", 0, 0.5, shape=4), pm.Normal("c", 0, 0.5, shape=3)
        pmep.PairedSymbols("views", U, V, b, c, observed=sparse.csr_array(table))
    return model


def test_means_agree_with_nuts():
    """Independent factors make standard deviations too small."""
    model, long = few_pairs(), nuts("few pairs")
    found = group(pmep.fit(model=model, **QUIET | {"tol": 1e-10}), "posterior_mean")
    assert compiled_form(model).form.latent_names[0] == "U"
    for name in ("b", "c", "views_user_popularity", "views_item_popularity"):
        assert np.abs((found[name].to_numpy() - long[name]) / long[f"{name}_sd"]).max() < 0.5, name


def test_matrices_may_be_points():
    idata = pmep.fit(model=shared_model(), estimate=["V", "bi"], **QUIET)
    sd = group(idata, "posterior_sd")
    assert not sd["V"].any() and not sd["bi"].any() and (sd["U"] > 0).all()
    assert "and the estimated V, bi" in group(idata, "fit").attrs["log_evidence_is"]
    new = pmep.fold_in(idata, shared_model(), {"item": COUNTS.T[:2]})
    assert not new["V_sd"].any() and new["V_converged"].all()
    again = pmep.fit(model=shared_model(), start=idata, estimate=["V", "bi"], **QUIET)
    assert int(group(again, "fit")["n_iter"]) <= 3
    with pytest.raises(ValueError, match="a fit with another estimate="):
        pmep.fit(model=shared_model(), start=idata, **QUIET)
    with pytest.raises(ValueError, match="makes points of 'U', whose scale 'tau' is to be learned"):
        pmep.fit(model=shared_model("gamma"), estimate="U", **QUIET)
    with pytest.raises(ValueError, match="makes points of 'V', whose scale 'scale' is to be learned"):
        pmep.fit(model=shared_model("half normal"), estimate="V", **QUIET)
    with pytest.raises(ValueError, match="estimate= names 'W', which is neither a matrix nor a bias"):
        pmep.fit(model=shared_model(), estimate=["W"], **QUIET)


def relabelled(users, items, counts):
    with pm.Model(coords={"user": users, "item": items, "factor": range(K)}) as model:
        U, V = pm.Normal("U", 0, 1, dims=("user", "factor")), pm.Normal("V", 0, 1, dims=("item", "factor"))
        b, c = pm.Normal("bu", 0, 1, dims="user"), pm.Normal("bi", 0, 1, dims="item")
        pmep.PairedSymbols("views", U, V, b, c, observed=sparse.csr_array(counts))
    return model


def test_rows_of_an_earlier_fit_are_known_by_their_labels():
    """A fit that starts from another order, and with new and without old rows, takes fewer sweeps to the same bound."""
    counts = counts_of(4000).toarray()
    before = pmep.fit(model=relabelled(USERS[:25], ITEMS, counts[:25]), **QUIET)
    order = np.random.default_rng(0).permutation(np.arange(2, I))
    model = relabelled([USERS[k] for k in order], ITEMS[::-1], counts[order][:, ::-1])
    fits = (pmep.fit(model=model, start=start, **QUIET) for start in (None, before))
    cold, warm = (group(found, "fit") for found in fits)
    assert int(warm["n_iter"]) < int(cold["n_iter"])
    assert float(warm["log_evidence"]) > float(cold["log_evidence"]) - 0.5
    assert float(warm["objective"][1]) > float(cold["objective"][3])


def test_other_rows_without_labels_are_no_start():
    def plain(n):
        with pm.Model() as model:
            U, V = pm.Normal("U", 0, 1, shape=(n, K)), pm.Normal("V", 0, 1, shape=(J, K))
            pmep.PairedSymbols("views", U, V, observed=COUNTS[:n])
        return model

    before = pmep.fit(model=plain(20), **QUIET)
    with pytest.raises(ValueError, match=r"needs one of shape \(25, 2\); give rows labels by coords="):
        pmep.fit(model=plain(25), start=before, **QUIET)


def test_a_dim_that_grows_is_fitted_at_its_present_length():
    model = model_of()
    pmep.fit(model=model, **QUIET)
    model.set_dim("user", I + 1, coord_values=(*USERS, "new"))
    assert "U: 31 x 2 values" in pmep.explain(model)
    idata = pmep.fit(model=model, **QUIET)
    assert group(idata, "posterior_mean")["U"].shape == (I + 1, K)
    assert "1 of 31 rows of 'U' have no pair" in group(idata, "fit").attrs["status"]


def test_a_fit_interrupted_before_its_first_sweep_is_not_calibrated(monkeypatch):
    from pymc_ep.models.paired_symbols.engine.variational_bayes import VariationalBayes

    def interrupted(engine, problem, state):
        raise KeyboardInterrupt

    monkeypatch.setattr(VariationalBayes, "step", interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted after 1 iterations"):
        idata = pmep.fit(model=shared_model(), **QUIET)
    assert "preference_exponent" not in group(idata, "fit")
    assert pmep.recommend(idata, shared_model(), user=["u1"], n=2).attrs["by"] == "probability"
