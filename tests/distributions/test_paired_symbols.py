"""`PairedSymbols`: densities by enumeration, draws by their frequencies, and what it refuses."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import scipy.stats
from scipy import sparse
from scipy.special import expit

import pymc_ep as pmep
from pymc_ep.compat import group

I, J, K, D = 4, 3, 2, 12  # noqa: E741
RNG = np.random.default_rng(2)
U, V = RNG.normal(size=(I, K)), RNG.normal(size=(J, K))
B, C = RNG.normal(size=I), RNG.normal(size=J)
PI, PSI = RNG.dirichlet(np.ones(I)), RNG.dirichlet(np.ones(J))
PAIRS = np.stack([RNG.integers(0, I, D), RNG.integers(0, J, D)], axis=1)
COUNTS = sparse.coo_array((np.ones(D, dtype=int), PAIRS.T), shape=(I, J))
A = U @ V.T + B[:, None] + C


def cells():
    """Probabilities of all cells of an observed pair, and that of a censored pair."""
    drawn = np.outer(PI, PSI)
    return drawn * expit(A) / (drawn * expit(A)).sum(), (drawn * expit(-A)).sum()


def variable(n_pairs=D, **kwargs):
    popularities = {"user_popularity": PI, "item_popularity": PSI}
    return pmep.PairedSymbols.dist(U, V, B, C, n_pairs=n_pairs, **popularities, **kwargs)


def model_of(observed, dims=True, **kwargs):
    coords = {"user": list("abcd"), "item": list("xyz"), "factor": range(K)} if dims else {}
    with pm.Model(coords=coords) as model:
        own = {"dims": ("user", "factor")} if dims else {"shape": (I, K)}
        other = {"dims": ("item", "factor")} if dims else {"shape": (J, K)}
        u, v = pm.Normal("U", 0, 1, **own), pm.Normal("V", 0, 1, **other)
        b = pm.Normal("bu", 0, 1, **({"dims": "user"} if dims else {"shape": I}))
        pmep.PairedSymbols("views", u, v, b, 0, observed=observed, **kwargs)
    return model


@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_the_density_is_that_of_pairs_and_of_censored_pairs(ratio):
    drawn = np.outer(PI, PSI)
    expected = np.log((drawn * expit(A))[tuple(PAIRS.T)]).sum() + ratio * D * np.log((drawn * expit(-A)).sum())
    found = pm.logp(variable(censored_ratio=ratio), PAIRS).eval()
    assert found == pytest.approx(expected, rel=1e-12)


def test_pairs_and_counts_are_the_same_data():
    models = [model_of(PAIRS), model_of(COUNTS), model_of(COUNTS.tocsr()), model_of(sparse.csc_matrix(COUNTS))]
    point = models[0].initial_point() | {"U": U, "V": V, "bu": B}
    densities = [model.compile_logp()(point) for model in models]
    np.testing.assert_allclose(densities, densities[0], rtol=1e-12)
    stored = models[1].rvs_to_values[models[1]["views"]].eval()
    np.testing.assert_array_equal(stored[:, 2], COUNTS.toarray()[stored[:, 0], stored[:, 1]])
    assert stored[:, 2].sum() == D and (stored[:, 2] > 0).all()


@pytest.mark.parametrize(
    "observed",
    [
        PAIRS.tolist(),
        PAIRS.astype(np.float32),
        PAIRS.astype(np.int8),
        pd.DataFrame(PAIRS, columns=["user", "item"]),
        np.asfortranarray(PAIRS),
        np.repeat(PAIRS, 2, axis=0)[::2],
        pd.DataFrame({"user": PAIRS[:, 0], "item": np.array(list("xyz"))[PAIRS[:, 1]]}),
        [["abcd"[i], "xyz"[j]] for i, j in PAIRS],
    ],
    ids=["list", "float32", "int8", "pandas", "fortran", "strided", "labels of items", "labels"],
)
def test_ordinary_input_is_the_same_data(observed):
    stored = model_of(observed).rvs_to_values
    (value,) = [v.eval() for rv, v in stored.items() if rv.name == "views"]
    np.testing.assert_array_equal(value, PAIRS)


@pytest.mark.parametrize("mode", [None, "NUMBA"])
def test_draws_have_the_frequencies_of_the_cells(mode):
    pairs = pm.draw(variable(n_pairs=20_000), random_seed=1, mode=mode)
    assert pairs.shape == (20_000, 2)
    found = np.bincount(pairs[:, 0] * J + pairs[:, 1], minlength=I * J)
    assert scipy.stats.chisquare(found, 20_000 * cells()[0].ravel()).pvalue > 1e-3
    # The order is that of acceptance, which says nothing.
    first, second = (np.bincount(part[:, 0], minlength=I) for part in np.split(pairs, 2))
    assert scipy.stats.chi2_contingency([first, second]).pvalue > 1e-3


def test_batches_of_draws_differ():
    pairs = pm.draw(variable(n_pairs=30, size=(2, 3)), random_seed=1)
    assert pairs.shape == (2, 3, 30, 2)
    assert len({part.tobytes() for part in pairs.reshape(6, -1)}) == 6


def test_prior_and_posterior_predictive_streams():
    with model_of(PAIRS) as model:
        prior = group(pm.sample_prior_predictive(5, random_seed=1), "prior_predictive")["views"]
        assert prior.shape == (1, 5, D, 2) and prior.max() < I
        idata = pmep.fit(random_seed=1, draws=20, chains=2, progressbar=False)
        seen = pm.sample_posterior_predictive(idata, random_seed=1, progressbar=False)
    views = group(seen, "posterior_predictive")["views"]
    assert views.shape == (2, 20, D, 2)
    assert model.named_vars_to_dims["views_user_popularity"] == ("user",)


def test_popularities_can_be_given():
    with pm.Model():
        pi, psi = pm.Dirichlet("pi", np.full(I, 2.0)), pm.Dirichlet("psi", np.ones(J))
        u, v = pm.Normal("U", 0, 1, shape=(I, K)), pm.Normal("V", 0, 1, shape=(J, K))
        pmep.PairedSymbols("views", u, v, user_popularity=pi, item_popularity=psi, observed=PAIRS)
        idata = pmep.fit(random_seed=1, progressbar=False)
    assert {"pi", "psi"} < set(idata["posterior_mean"].data_vars)
    assert "views_user_popularity" not in idata["posterior_mean"]


def test_preferences_far_below_zero_are_told():
    none = pmep.PairedSymbols.dist(U, V, B - 60.0, C, n_pairs=2, user_popularity=PI, item_popularity=PSI)
    with pytest.raises(pmep.NumericalError, match="would take too long: preferences are all far below zero"):
        pm.draw(none, random_seed=1, mode="FAST_COMPILE")


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ([[0, 1], [4, 1]], r"'views' has the user 4 at row 1, but indices are at least 0 and less than 4"),
        ([[0, 1], [0, -1]], r"'views' has the item -1 at row 1"),
        ([[0.5, 1.0]], r"'views' has the index 0.5 at row 0, which is no whole number"),
        ([["a", "x"]], r"'views': user has 'a', but its dim has no labels: positions are 0 to 3"),
        ([0, 1, 2], r"'views' has observations of shape \(3,\); give pairs of user and item"),
        (np.zeros((3, 4)), r"'views' has observations of shape \(3, 4\)"),
        (COUNTS * -1, r"'views' has the count -1 at row \d and column \d; counts are at least 0"),
        (COUNTS * 0.5, r"'views' has the count 0.5 at row \d and column \d, which is no whole number"),
        (COUNTS.T, r"'views' has counts of shape \(3, 4\), but there are 4 users and 3 items; transpose"),
    ],
)
def test_bad_observations_are_named(observed, message):
    with pytest.raises(pmep.InvalidDataError, match=message):
        model_of(observed, dims=False)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"censored_ratio": 0.0}, "censored_ratio=0.0 of PairedSymbols must be positive"),
        ({"censored_ratio": "half"}, "censored_ratio='half' of PairedSymbols must be positive"),
        ({"alpha0": -1.0}, "alpha0=-1.0; concentrations are positive and finite"),
        ({"beta0": np.nan}, "beta0=nan; concentrations are positive and finite"),
        ({"n_pairs": 5}, "has observations and n_pairs=5; leave the latter out"),
        ({"item_popularity": None, "user_popularity": None, "observed": None}, "needs n_pairs="),
    ],
)
def test_bad_parameters_are_named(kwargs, message):
    with pytest.raises(pmep.InvalidDataError, match=message):
        model_of(**({"observed": PAIRS} | kwargs))


def test_shapes_that_differ_are_named():
    with pytest.raises(pmep.InvalidDataError, match="give both as many columns"):
        pmep.PairedSymbols.dist(U, V[:, :1], n_pairs=3, user_popularity=PI, item_popularity=PSI)
    with pytest.raises(pmep.InvalidDataError, match=r"user bias of PairedSymbols has 3 values, but .* has 4 rows"):
        pmep.PairedSymbols.dist(U, V, C, n_pairs=3, user_popularity=PI, item_popularity=PSI)
    with pytest.raises(pmep.InvalidDataError, match="outside of a model needs user_popularity"):
        pmep.PairedSymbols.dist(U, V, n_pairs=3)


N, N_LINKS = 3, 4
LINKS = np.array([[0, 1], [2, 1], [0, 1], [2, 0]])
W, F, RHO = RNG.normal(size=(N, K)), RNG.normal(size=N), RNG.dirichlet(np.ones(N))
LINK_COUNTS = np.array([[0, 2, 1], [2, 0, 1], [1, 1, 0]])


def links(n_pairs=N_LINKS, **kwargs):
    popularity = {"user_popularity": RHO, "item_popularity": RHO}
    return pmep.PairedSymbols.dist(W, W, F, F, n_pairs=n_pairs, **popularity, **kwargs)


def link_cells():
    """Probabilities of all ordered pairs that are kept, and of all that are censored."""
    kept, censored = np.zeros((N, N)), 0.0
    for i in range(N):
        for j in range(N):
            chance = 0.0 if i == j else expit(W[i] @ W[j] + F[i] + F[j])
            kept[i, j], censored = RHO[i] * RHO[j] * chance, censored + RHO[i] * RHO[j] * (1 - chance)
    return kept, censored


def link_model(observed, **kwargs):
    with pm.Model() as model:
        U, b = pm.Normal("U", 0, 1, shape=(N, K)), pm.Normal("b", 0, 1, shape=N)
        pmep.PairedSymbols("links", U, U, b, b, observed=observed, **kwargs)
    return model


@pytest.mark.parametrize("ratio", [0.5, 3.0])
def test_the_density_of_links_is_that_of_both_orders(ratio):
    kept, censored = link_cells()
    assert kept.sum() + censored == pytest.approx(1.0)
    expected = np.log((kept + kept.T)[tuple(LINKS.T)]).sum() + ratio * N_LINKS * np.log(censored)
    assert pm.logp(links(censored_ratio=ratio), LINKS).eval() == pytest.approx(expected, rel=1e-12)
    assert pm.logp(links(), np.array([[0, 1], [1, 1]])).eval() == -np.inf


@pytest.mark.parametrize("mode", [None, "NUMBA"])
def test_draws_of_links_have_the_frequencies_of_the_cells(mode):
    pairs = pm.draw(links(n_pairs=20_000), random_seed=1, mode=mode)
    kept = link_cells()[0]
    found = np.zeros((N, N))
    np.add.at(found, tuple(pairs.T), 1)
    assert not np.diag(found).any()
    off = ~np.eye(N, dtype=bool)
    assert scipy.stats.chisquare(found[off], 20_000 * kept[off] / kept.sum()).pvalue > 1e-3


def test_links_are_stored_once():
    each = [LINKS, *(sparse.coo_array(c) for c in (LINK_COUNTS, np.triu(LINK_COUNTS), np.tril(LINK_COUNTS)))]
    models = [link_model(observed) for observed in each]
    point = {"U": W, "b": F, "links_popularity_simplex__": np.array([0.3, -0.2])}
    densities = [model.compile_logp()(point) for model in models]
    np.testing.assert_allclose(densities, densities[0], rtol=1e-12)
    adjacent = link_model(sparse.csr_matrix(LINK_COUNTS > 0)).rvs_to_values
    assert [value.eval()[:, 2].tolist() for rv, value in adjacent.items() if rv.name == "links"] == [[1, 1, 1]]
    prior = group(pm.sample_prior_predictive(4, model=models[0], random_seed=1), "prior_predictive")["links"]
    assert prior.shape == (1, 4, N_LINKS, 2) and (prior[..., 0] != prior[..., 1]).all()


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        (
            sparse.coo_array(LINK_COUNTS + np.diag([0, 1, 0])),
            "'links' has the symbol 1 with itself at row and column 1",
        ),
        ([[0, 1], [2, 2]], "'links' has the symbol 2 with itself at row 1, but such pairs are never observed; leave"),
        (
            sparse.coo_array(LINK_COUNTS + np.array([[0, 3, 0], [0, 0, 0], [0, 0, 0]])),
            r"'links' has the count 5 at row 0 and column 1, but 2 at row 1 and column 0.* give symmetric counts",
        ),
        (sparse.coo_array(np.eye(2)), r"'links' has counts of shape \(2, 2\); give 3 rows and columns"),
        ([[0, 3]], "'links' has the symbol 3 at row 0"),
    ],
)
def test_bad_links_are_named(observed, message):
    with pytest.raises(pmep.InvalidDataError, match=message):
        link_model(observed)


def test_both_sides_of_links_share_all_parameters():
    with pm.Model():
        U, b, c = pm.Normal("U", 0, 1, shape=(N, K)), pm.Normal("b", 0, 1, shape=N), pm.Normal("c", 0, 1, shape=N)
        with pytest.raises(pmep.UnsupportedModelError, match="'y': both sides have the matrix U, whose"):
            pmep.PairedSymbols("y", U, U, b, c, observed=LINKS)
        pi = pm.Dirichlet("pi", np.ones(N))
        with pytest.raises(pmep.UnsupportedModelError, match="the popularity of one is pi and of the other"):
            pmep.PairedSymbols("x", U, U, b, b, user_popularity=pi, observed=LINKS)
        with pytest.raises(pmep.InvalidDataError, match="'w' has one popularity, of concentration alpha0"):
            pmep.PairedSymbols("w", U, U, alpha0=2.0, beta0=3.0, observed=LINKS)
