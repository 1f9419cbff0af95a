"""Fits of preferences: recognition, posterior, predictions, bad input."""

from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_ep as pmep
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError

U, N, D = 6, 5, 2
ITEMS = list("abcde")
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(N, 2))
KERNEL = np.exp(-((FEATURES[:, None] - FEATURES) ** 2).sum(-1)) + 0.1 * np.eye(N)
FACTORS, MEAN = RNG.normal(size=(N, D)), RNG.normal(size=N)
# Winners are random, so that users contradict themselves: EP is off by up to 0.01 in probabilities there.
USERS = np.repeat(np.arange(U - 1), 6)
WINNERS = RNG.integers(0, N, len(USERS))
LOSERS = (WINNERS + RNG.integers(1, N, len(USERS))) % N
NEW = np.array([0, 3, U - 1]), np.array([0, 1, 2]), np.array([4, 2, 0])
COORDS = {"user": [f"u{k}" for k in range(U)], "item": ITEMS, "factor": range(D)}


def held_model(compare=pmep.PairwiseProbit):
    """A model whose prior is known."""
    with pm.Model(coords=COORDS) as model:
        f = pmep.PreferenceUtility("f", V=FACTORS, b=MEAN, kernel=KERNEL, sigma=0.7, dims=("user", "item"))
        compare("prefers", f, users=USERS, winners=WINNERS, losers=LOSERS)
    return model


def learned_model(**priors):
    """The model of the documentation, with flat priors unless others are given."""
    with pm.Model(coords=COORDS) as model:
        V = priors.get("V", pm.Flat)("V", dims=("item", "factor"))
        b = priors.get("b", pm.Flat)("b", dims="item")
        sigma = priors.get("sigma", pm.HalfFlat)("sigma")
        f = pmep.PreferenceUtility("f", V=V, b=b, kernel=KERNEL, sigma=sigma, n_users=U, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=USERS, winners=WINNERS, losers=LOSERS)
    return model


shared_model = cache(learned_model)
"""For fits alone, which compile it once."""


def fitted(model, **options):
    return pmep.fit(model=model, random_seed=1, progressbar=False, **({"draws": 0} | options))


@pytest.fixture(scope="module")
def held():
    model = held_model()
    return model, fitted(model, draws=2000, chains=2)


def grid_moments(u, size=400_000):
    """Posterior mean and covariance of a user's utilities, by importance sampling of the prior."""
    covariance = FACTORS @ FACTORS.T + 0.49 * (KERNEL + 1e-6 * KERNEL.max() * np.eye(N))
    draws = np.random.default_rng(5).multivariate_normal(MEAN, covariance, size=size)
    own = u == USERS
    log_w = norm.logcdf(draws[:, WINNERS[own]] - draws[:, LOSERS[own]]).sum(axis=1)
    weights = np.exp(log_w - log_w.max())
    weights /= weights.sum()
    mean = weights @ draws
    return mean, (weights[:, None] * (draws - mean)).T @ (draws - mean), draws, weights


@pytest.mark.parametrize("u", [0, 3, U - 1])
def test_posterior_agrees_with_importance_sampling(held, u):
    _, idata = held
    mean, covariance, *_ = grid_moments(u)
    np.testing.assert_allclose(idata["posterior_mean"]["f"].values[u], mean, atol=0.03)
    np.testing.assert_allclose(idata["posterior_sd"]["f"].values[u], np.sqrt(np.diag(covariance)), rtol=0.03)
    draws = idata["posterior"]["f"].values.reshape(-1, U, N)[:, u]
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.12)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.25)


def test_new_comparisons_agree_with_importance_sampling(held):
    model, idata = held
    labels = tuple(np.array(axis)[index] for axis, index in zip((COORDS["user"], ITEMS, ITEMS), NEW))
    for given in (NEW, labels):
        found = pmep.log_predictive(idata, model, {"prefers": given})["prefers"].values
        for k, (u, i, j) in enumerate(zip(*NEW)):
            *_, draws, weights = grid_moments(u)
            assert np.exp(found[k]) == pytest.approx(weights @ norm.cdf(draws[:, i] - draws[:, j]), abs=0.012)


def test_comparisons_may_come_in_any_order(held):
    model, idata = held
    order = np.array([2, 0, 1, 0])
    one = pmep.log_predictive(idata, model, {"prefers": NEW})["prefers"].values
    other = pmep.log_predictive(idata, model, {"prefers": tuple(part[order] for part in NEW)})["prefers"].values
    np.testing.assert_allclose(other, one[order], rtol=1e-12)


def test_rankings_keep_the_first_ranks(held, monkeypatch):
    model, idata = held
    every = pmep.rank_items(idata, model, user="u0")
    monkeypatch.setattr("pymc_ep.models.preferences.predict.rankings._RANKS", 3)
    some = pmep.rank_items(idata, model, user="u0")
    np.testing.assert_array_equal(some["rank_probability"], every["rank_probability"].sel(rank=[1, 2, 3]))
    np.testing.assert_allclose(every["rank_probability"].sum("rank"), 1.0)
    np.testing.assert_allclose(every["rank_probability"].sum("item"), 1.0)


def test_rankings_agree_with_importance_sampling(held):
    model, idata = held
    found = pmep.rank_items(idata, model, user=["u3", "u0"])
    *_, draws, weights = grid_moments(3)
    ranks = np.argsort(np.argsort(-draws, axis=1), axis=1)
    expected = np.array([[weights[ranks[:, i] == r].sum() for r in range(N)] for i in range(N)])
    np.testing.assert_allclose(found["rank_probability"].values[0], expected, atol=0.04)
    np.testing.assert_allclose(found["probability_best"].values[0], expected[:, 0], atol=0.04)
    np.testing.assert_allclose(found["mean_rank"].values[0], 1.0 + weights @ ranks, atol=0.1)
    assert list(found["user"].values) == ["u3", "u0"]
    assert list(found["item"].values) == ITEMS


def test_informative_comparisons_agree_with_draws(held):
    model, idata = held
    found = pmep.next_pairs(idata, model, user="u5", n=10)
    draws = grid_moments(5)[2]

    def entropy(p):
        return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))

    for first, second, information, probability in zip(
        *(found[name].values for name in ("first", "second", "information", "probability"))
    ):
        p = norm.cdf(draws[:, ITEMS.index(first)] - draws[:, ITEMS.index(second)])
        assert probability == pytest.approx(p.mean(), abs=2e-3)
        p = np.clip(p, 1e-15, 1 - 1e-15)
        assert information == pytest.approx(entropy(p.mean()) - entropy(p).mean(), abs=2e-3)
    assert (np.diff(found["information"].values) <= 0).all()


def test_spellings_of_pymc_give_the_same_fit(held):
    _, expected = held
    with pm.Model(coords=COORDS) as model:
        f = pmep.PreferenceUtility("f", V=FACTORS, b=MEAN, kernel=KERNEL, sigma=0.7, dims=("user", "item"))
        # Half of the comparisons the other way round, as losses.
        lost = np.arange(len(USERS)) % 2 == 0
        one, two = np.where(lost, LOSERS, WINNERS), np.where(lost, WINNERS, LOSERS)
        pm.Bernoulli("prefers", p=pm.math.invprobit(f[USERS, one] - f[USERS, two]), observed=1 - lost)
    found = fitted(model)
    np.testing.assert_allclose(found["posterior_mean"]["f"], expected["posterior_mean"]["f"], atol=1e-6)
    assert float(found["fit"]["log_evidence"]) == pytest.approx(float(expected["fit"]["log_evidence"]), abs=1e-7)


def test_one_user_equals_the_latent_gaussian_fit(monkeypatch):
    """As EP finds it: utilities of users have no correction of their width."""
    monkeypatch.setattr("pymc_ep.evidence.ep.shape._LEAST_WIDENED", np.inf)
    own = USERS == 2
    covariance = FACTORS @ FACTORS.T + 0.49 * (KERNEL + 1e-6 * KERNEL.max() * np.eye(N))
    means = []
    for kind in ("utility", "gaussian"):
        with pm.Model(coords=COORDS) as model:
            if kind == "utility":
                f = pmep.PreferenceUtility("f", V=FACTORS, b=MEAN, kernel=KERNEL, sigma=0.7, dims="item")
            else:
                f = pm.MvNormal("f", MEAN, covariance, dims="item")
            pmep.PairwiseProbit("prefers", f, winners=WINNERS[own], losers=LOSERS[own])
        idata = fitted(model)
        means.append(idata)
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(means[0][what]["f"], means[1][what]["f"], atol=1e-5)
    evidence = [float(idata["fit"]["log_evidence"]) for idata in means]
    assert evidence[0] == pytest.approx(evidence[1], abs=1e-6)


def test_logits_equal_the_latent_gaussian_fit():
    own = USERS == 1
    covariance = FACTORS @ FACTORS.T + 0.49 * (KERNEL + 1e-6 * KERNEL.max() * np.eye(N))
    idata = fitted(held_model(pmep.PairwiseLogit))
    with pm.Model(coords=COORDS) as model:
        f = pm.MvNormal("f", MEAN, covariance, dims="item")
        # Told apart, as repeated comparisons have one site in the latent Gaussian form, and one each here.
        difference = f[WINNERS[own]] - f[LOSERS[own]] + 1e-9 * np.arange(own.sum())
        pm.Bernoulli("prefers", logit_p=difference, observed=np.ones(own.sum()))
    expected = fitted(model)
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(idata[what]["f"].values[1], expected[what]["f"], atol=1e-5)


@pytest.mark.parametrize("method", ["laplace", "jaakkola"])
def test_approximations_agree_with_ep_where_priors_are_narrow(method):
    models = []
    for scale in (1.0, 0.05):
        with pm.Model(coords=COORDS) as model:
            f = pmep.PreferenceUtility(
                "f", V=scale * FACTORS, b=MEAN, kernel=KERNEL, sigma=0.7 * scale, dims=("user", "item")
            )
            pmep.PairwiseLogit("prefers", f, users=USERS, winners=WINNERS, losers=LOSERS)
        models.append(model)
    gaps = []
    for model in models:
        one, other = (fitted(model, method=name, draws=5) for name in ("ep", method))
        gaps.append(
            [
                float(np.abs((other[what]["f"] - one[what]["f"]) / one["posterior_sd"]["f"]).max())
                for what in ("posterior_mean", "posterior_sd")
            ]
            + [abs(float(other["fit"]["log_evidence"]) - float(one["fit"]["log_evidence"]))]
        )
        log_p = pmep.log_predictive(other, model, {"prefers": NEW})["prefers"].values
        assert (log_p < 0).all()
    assert (np.array(gaps[0]) > 20 * np.array(gaps[1])).all()
    assert max(gaps[1]) < 0.02


def test_the_bound_of_the_logistic_refuses_probits():
    with pytest.raises(UnsupportedModelError, match=r"'prefers' has a probit likelihood.*PairwiseLogit"):
        fitted(held_model(), method="jaakkola")
    assert pmep.explain(held_model()).count("jaakkola") == 0
    assert "jaakkola" in pmep.explain(held_model(pmep.PairwiseLogit))


@pytest.mark.parametrize("learn", ["evidence", "em"])
def test_flat_priors_are_learned_up_to_where_held_out_comparisons_are_most_probable(learn):
    idata = fitted(shared_model(), learn=learn, held_out=0.1)
    assert np.isfinite(float(idata["fit"]["log_evidence"]))
    assert np.abs(idata["posterior_mean"]["V"].values).max() > 1e-3
    assert "held out" in idata["fit"].attrs["status"] or "converged" in idata["fit"].attrs["status"]


def test_a_kernel_with_hyperparameters_is_learned_by_its_evidence():
    with pm.Model(coords=COORDS) as model:
        length = pm.InverseGamma("length", 3.0, 2.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        kernel = pm.gp.cov.ExpQuad(2, length)
        f = pmep.PreferenceUtility("f", kernel=kernel, X=FEATURES, sigma=sigma, jitter=0.1, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=USERS, winners=WINNERS, losers=LOSERS)
    with pytest.warns(UserWarning, match="the spread of sigma would widen"):
        idata = fitted(model, hyper="optimize", evidence_tol=1e-9)
    best = {name: float(idata["posterior_mean"][name]) for name in ("length", "sigma")}

    def objective(**values):
        found = fitted(model, hyper="fixed", start=best | values)
        prior = pm.logp(pm.InverseGamma.dist(3.0, 2.0), values.get("length", best["length"])).eval()
        prior += pm.logp(pm.HalfNormal.dist(1.0), values.get("sigma", best["sigma"])).eval()
        return float(found["fit"]["log_evidence"]) + prior

    at_best = objective()
    for name, value in best.items():
        for factor in (0.9, 1.1):
            assert objective(**{name: factor * value}) < at_best + 1e-6


def test_result_survives_a_file(held, tmp_path):
    model, idata = held
    file = str(tmp_path / "fit.nc")
    idata.to_netcdf(file)
    again = az.from_netcdf(file)
    before, after = (pmep.log_predictive(one, model, {"prefers": NEW})["prefers"].values for one in (idata, again))
    np.testing.assert_allclose(before, after, rtol=1e-12)


def test_a_fit_runs_on_jax(monkeypatch):
    bodies, ran = pytest.importorskip("pymc_ep.models.preferences.kernel.jax"), []
    losses = bodies.precision_losses
    monkeypatch.setattr(bodies, "precision_losses", lambda *given: ran.append(given) or losses(*given))
    options = {"held_out": 0, "evidence_tol": 1e-3}
    here, there = (fitted(shared_model(), **options, **more) for more in ({}, {"compile_kwargs": {"mode": "JAX"}}))
    assert ran
    assert float(there["fit"]["log_evidence"]) == pytest.approx(float(here["fit"]["log_evidence"]), rel=1e-6)


def test_fits_of_other_comparisons_are_refused(held):
    _, idata = held
    with pm.Model(coords=COORDS) as other:
        f = pmep.PreferenceUtility("f", V=FACTORS, b=MEAN, kernel=KERNEL, sigma=0.7, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=USERS, winners=LOSERS, losers=WINNERS)
    with pytest.raises(ValueError, match="comparisons"):
        pmep.rank_items(idata, other, user="u0")


def busy_model(n_pairs=10_000, n_items=200):
    """One user with thousands of comparisons, beside others with two each."""
    rng = np.random.default_rng(2)
    users = np.concatenate([np.zeros(n_pairs, dtype=int), np.repeat(np.arange(1, U), 2)])
    winners = rng.integers(0, n_items, len(users))
    losers = (winners + rng.integers(1, n_items, len(users))) % n_items
    with pm.Model(coords={"user": range(U), "item": range(n_items)}) as model:
        f = pmep.PreferenceUtility("f", b=np.zeros(n_items), sigma=1.0, n_users=U, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=users, winners=winners, losers=losers)
    return model, users, winners, losers


def test_capped_comparisons_are_a_fit_of_a_sample():
    model, users, winners, losers = busy_model(n_pairs=300)
    found = fitted(model, max_pairs=40, seed=3)
    status = found["fit"].attrs["status"]
    assert "260 of 310 comparisons are left out, as a user has no more than max_pairs=40" in status
    kept = found["fit"]["prefers_precision"].values > 0
    np.testing.assert_array_equal(np.bincount(users[kept]), [40, 2, 2, 2, 2, 2])
    with pm.Model(coords={"user": range(U), "item": range(200)}) as sample:
        f = pmep.PreferenceUtility("f", b=np.zeros(200), sigma=1.0, n_users=U, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=users[kept], winners=winners[kept], losers=losers[kept])
    expected = fitted(sample)
    for what in ("posterior_mean", "posterior_sd"):
        np.testing.assert_allclose(found[what]["f"].values, expected[what]["f"].values, rtol=1e-9, atol=1e-12)
    new = {"prefers": ([0, 0, 4], [1, 5, 9], [2, 8, 7])}
    one, other = (pmep.log_predictive(*of, new)["prefers"].values for of in ((found, model), (expected, sample)))
    np.testing.assert_allclose(one, other, rtol=1e-9)
    again = fitted(model, max_pairs=40, seed=4)["fit"]["prefers_precision"].values > 0
    assert (again != kept).any()


def test_a_user_may_have_thousands_of_comparisons():
    model, users, winners, losers = busy_model()
    idata = fitted(model)
    assert idata["fit"].attrs["status"] == "the factors of all users have settled"
    # Winners are random: of 100 comparisons of an item about half are won.
    won = np.bincount(winners[users == 0], minlength=200) - np.bincount(losers[users == 0], minlength=200)
    assert np.corrcoef(won, idata["posterior_mean"]["f"].values[0])[0, 1] > 0.95
    assert idata["posterior_sd"]["f"].values[0].max() < 0.3


@pytest.mark.parametrize("place", [(3, 4), (0, 4)], ids=["of uncompared items", "of a compared and an uncompared one"])
def test_a_kernel_that_is_indefinite_without_comparisons_is_refused(place):
    """No comparison meets the negative eigenvalue, of which a standard deviation of zero would come."""
    kernel = np.eye(5)
    kernel[place] = kernel[place[::-1]] = 1.5
    with pm.Model() as model:
        f = pmep.PreferenceUtility("f", V=np.zeros((5, 0)), b=np.zeros(5), kernel=kernel, sigma=1.0, n_users=1)
        pmep.PairwiseProbit("y", f, users=np.zeros(3, int), winners=[0, 1, 0], losers=[1, 2, 2])
    with pytest.raises(InvalidDataError, match=r"kernel= is not positive definite: its least eigenvalue is -0\.5"):
        fitted(model)


def test_too_little_memory_is_foreseen(monkeypatch):
    monkeypatch.setattr("pymc_ep.numerics.memory._free_memory", lambda: 1000)
    with pytest.raises(InvalidDataError, match=r"5 items of 'f' and the 5 that user 1 compared need .*max_pairs="):
        fitted(held_model())


def test_draws_of_the_prior_have_its_moments():
    with held_model():
        draws = pm.sample_prior_predictive(3000, random_seed=1)
    f = draws["prior"]["f"].values.reshape(-1, U, N)
    covariance = FACTORS @ FACTORS.T + 0.49 * KERNEL
    np.testing.assert_allclose(np.cov(f[:, 0].T), covariance, atol=0.35)
    np.testing.assert_allclose(f.mean(axis=(0, 1)), MEAN, atol=0.06)
    assert abs(np.corrcoef(f[:, 0, 0], f[:, 1, 0])[0, 1]) < 0.08


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, float])
def test_any_type_of_positions_is_taken(held, dtype):
    _, expected = held
    with pm.Model(coords={"factor": range(D)}) as model:
        f = pmep.PreferenceUtility("f", V=FACTORS, b=MEAN.tolist(), kernel=KERNEL, sigma=0.7, n_users=U)
        rows = (part.astype(dtype) for part in (USERS, WINNERS, LOSERS))
        pmep.PairwiseProbit("prefers", f, **dict(zip(("users", "winners", "losers"), rows)))
    found = fitted(model)
    np.testing.assert_allclose(found["posterior_mean"]["f"], expected["posterior_mean"]["f"], atol=1e-9)


BAD_ROWS = [
    ({"winners": ["a"], "losers": ["a"]}, "itself at index 0"),
    ({"winners": ["a", "z"], "losers": ["b", "c"], "users": ["u0", "u1"]}, "'z' at index 1"),
    ({"winners": ["a"], "losers": ["b"], "users": ["me"]}, "users= has 'me'"),
    ({"winners": ["a", "b"], "losers": ["b"]}, "2 winners"),
    ({"winners": [0.5], "losers": ["b"]}, "0.5"),
    ({"winners": [9], "losers": [1]}, "9 at index 0"),
    ({"winners": ["a"], "losers": ["b"], "users": None}, "need users="),
]


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS, ids=[message for _, message in BAD_ROWS])
def test_bad_comparisons_are_named(rows, message):
    with pm.Model(coords=COORDS):
        f = pmep.PreferenceUtility("f", V=FACTORS, dims=("user", "item"))
        with pytest.raises(InvalidDataError, match=message):
            pmep.PairwiseProbit("prefers", f, **({"users": ["u0"]} | rows))


ASYMMETRIC, NOT_FINITE = KERNEL.copy(), KERNEL.copy()
ASYMMETRIC[0, 1] += 0.2
NOT_FINITE[2, 2] = np.nan
BAD_PRIORS = [
    ({"kernel": ASYMMETRIC}, "not symmetric"),
    ({"kernel": NOT_FINITE}, "nan"),
    ({"kernel": KERNEL[:3]}, "square"),
    ({"kernel": np.eye(4), "V": FACTORS}, "5 items"),
    ({"kernel": pm.gp.cov.ExpQuad(2, 1.0)}, "needs the features"),
    ({"kernel": pm.gp.cov.ExpQuad(2, 1.0), "X": np.full((5, 2), np.nan)}, "feature nan"),
    ({}, "give V="),
    ({"V": FACTORS, "n_users": U + 1, "shape": (U, N)}, "n_users"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_PRIORS, ids=[message for _, message in BAD_PRIORS])
def test_bad_priors_are_named(arguments, message):
    with pm.Model(), pytest.raises(InvalidDataError, match=message):
        pmep.PreferenceUtility("f", **arguments)


def test_singular_kernels_are_named():
    """Two items of equal features, without a jitter."""
    kernel = np.exp(-((FEATURES[[0, 0, 1, 2, 3], None] - FEATURES[[0, 0, 1, 2, 3]]) ** 2).sum(-1))
    with pm.Model(coords=COORDS) as model:
        f = pmep.PreferenceUtility("f", kernel=kernel, jitter=0.0, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=["u0"], winners=["a"], losers=["b"])
    with pytest.raises((InvalidDataError, pmep.NumericalError), match="jitter"):
        fitted(model)


def test_other_likelihoods_and_other_uses_are_refused():
    with pm.Model(coords=COORDS) as model:
        f = pmep.PreferenceUtility("f", V=FACTORS, dims=("user", "item"))
        pm.Normal("y", f[USERS, WINNERS] - f[USERS, LOSERS], 1.0, observed=np.zeros(len(USERS)))
    with pytest.raises(UnsupportedModelError, match="binary"):
        fitted(model)
    with pm.Model(coords=COORDS) as model:
        f = pmep.PreferenceUtility("f", V=FACTORS, dims=("user", "item"))
        pm.Bernoulli("y", pm.math.invprobit(2.0 * (f[USERS, WINNERS] - f[USERS, LOSERS])), observed=USERS * 0)
    with pytest.raises(UnsupportedModelError, match="sigma and V"):
        fitted(model)
    with held_model() as model:
        pm.Potential("extra", -(model["f"][0, 0] ** 2))
    with pytest.raises(UnsupportedModelError, match="elsewhere"):
        fitted(model)
    with pytest.raises(UnsupportedModelError, match="closed form"):
        fitted(learned_model(b=lambda name, dims: pm.Normal(name, 0, 1, dims=dims)), learn="em")


@pytest.mark.parametrize("learn", ["evidence", "em"])
def test_a_checkpoint_is_resumed(learn, tmp_path):
    path = tmp_path / "fit.npz"
    options = {"learn": learn, "held_out": 0, "evidence_tol": 1e-9}
    with pytest.warns(pmep.ConvergenceWarning):
        fitted(shared_model(), max_iter=4, checkpoint=path, **options)
    with pytest.warns(pmep.ConvergenceWarning):
        second = fitted(shared_model(), max_iter=7, checkpoint=path, **options)
    with pytest.warns(pmep.ConvergenceWarning):
        whole = fitted(shared_model(), max_iter=7, **options)
    np.testing.assert_allclose(second["fit"]["objective"], whole["fit"]["objective"], rtol=1e-10)
    assert path.exists()


def test_a_checkpoint_of_other_comparisons_is_refused(tmp_path):
    path = tmp_path / "fit.npz"
    fitted(shared_model(), checkpoint=path, keep_checkpoint=True)
    with pm.Model(coords=COORDS) as other:
        V, b, sigma = pm.Flat("V", dims=("item", "factor")), pm.Flat("b", dims="item"), pm.HalfFlat("sigma")
        f = pmep.PreferenceUtility("f", V=V, b=b, kernel=KERNEL, sigma=sigma, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, users=USERS, winners=LOSERS, losers=WINNERS)
    with pytest.raises(ValueError, match="another definition of 'prefers'"):
        fitted(other, checkpoint=path)


@pytest.mark.parametrize("learn", ["evidence", "em"])
def test_an_interrupted_search_returns_what_it_reached(learn, monkeypatch):
    calls = []

    def interrupted(self, objective, change):
        calls.append(objective)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("pymc_ep.engines.base.Report.__call__", interrupted)
    with pytest.warns(pmep.ConvergenceWarning, match="interrupted"):
        idata = fitted(shared_model(), learn=learn)
    assert len(calls) == 3
    assert np.isfinite(float(idata["fit"]["log_evidence"]))
