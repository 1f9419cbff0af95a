"""Softmax likelihoods: their spellings, EP against quadrature, the same answer however a model is written."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import logsumexp, softmax

import pymc_ep as pmep
from pymc_ep.exceptions import ConvergenceWarning, InvalidDataError, UnsupportedModelError
from pymc_ep.models.latent_gaussian.recognise.recogniser import recognise_latent_gaussian

ROWS = 24
RNG = np.random.default_rng(3)
X = RNG.standard_normal(ROWS)
G = RNG.integers(0, 4, ROWS)
KIND = RNG.integers(0, 4, ROWS)
COUNTS = RNG.multinomial(5, [0.4, 0.3, 0.2, 0.1], ROWS)


def log_odds(categories=4):
    """Log-odds of all categories but the first, with effects of groups."""
    level, slope = (pm.Normal(name, 0.0, 1.0, shape=categories - 1) for name in ("level", "slope"))
    effect = pm.Normal("effect", 0.0, 0.7, shape=(4, categories - 1))
    return level + X[:, None] * slope + effect[G]


def with_zero(eta, place=0):
    return pt.concatenate([eta[:, :place], pt.zeros((ROWS, 1)), eta[:, place:]], axis=1)


def by_logits():
    pm.Categorical("y", logit_p=with_zero(log_odds()), observed=KIND)


def by_softmax():
    pm.Categorical("y", p=pm.math.softmax(with_zero(log_odds()), axis=-1), observed=KIND.astype("int8"))


def by_exponentials():
    rates = pm.math.exp(with_zero(log_odds()))
    pm.Categorical("y", p=rates / rates.sum(axis=1, keepdims=True), observed=KIND.tolist())


def by_remainder():
    rates = pm.math.exp(log_odds())
    whole = 1.0 + rates.sum(axis=1, keepdims=True)
    pm.Categorical("y", p=pt.concatenate([1.0 / whole, rates / whole], axis=1), observed=KIND)


def by_counts():
    p = pm.math.softmax(with_zero(log_odds()), axis=-1)
    pm.Multinomial("y", n=1, p=p, observed=np.eye(4, dtype=int)[KIND])


def fitted(model, **options):
    return pmep.fit(model=model, **{"draws": 0, "progressbar": False, "random_seed": 1} | options)


@pytest.mark.parametrize("write", [by_softmax, by_exponentials, by_remainder, by_counts])
def test_spellings_agree(write):
    with pm.Model() as written:
        by_logits()
    with pm.Model() as other:
        write()
    assert recognise_latent_gaussian(other).groups[0].site.predictors == 3
    one, two = fitted(written), fitted(other)
    assert float(two["fit"]["log_evidence"]) == pytest.approx(float(one["fit"]["log_evidence"]), abs=1e-8)
    np.testing.assert_allclose(two["posterior_sd"]["slope"], one["posterior_sd"]["slope"], rtol=1e-7)


def test_two_categories_are_a_logit():
    with pm.Model() as model:
        pm.Categorical("y", logit_p=with_zero(log_odds(2)), observed=KIND % 2)
    with pm.Model() as bits:
        pm.Bernoulli("y", logit_p=log_odds(2)[:, 0], observed=KIND % 2)
    one, two = fitted(model), fitted(bits)
    assert float(one["fit"]["log_evidence"]) == pytest.approx(float(two["fit"]["log_evidence"]), abs=1e-9)


@pytest.mark.parametrize(("categories", "error"), [(3, 1e-3), (4, 1e-3), (6, 5e-3)])
def test_order_of_rows_and_of_categories(categories, error):
    """All categories have a predictor and the same prior, so that none is the first.

    Rules for more than four log-odds have nodes without symmetry, and so an error that changes with the order.
    """
    kind = np.arange(ROWS) % categories

    def model(rows, order):
        with pm.Model() as model:
            slope, level = (pm.Normal(name, 0.0, 1.0, shape=categories) for name in ("slope", "level"))
            eta = level + X[rows, None] * slope
            pm.Categorical("y", logit_p=eta, observed=np.argsort(order)[kind[rows]])
        return model

    same, order = np.arange(categories), np.roll(np.arange(categories), 1)
    one = fitted(model(np.arange(ROWS), same))
    for rows, categories_in, tolerance in ((np.arange(ROWS)[::-1], same, 1e-8), (np.arange(ROWS), order, error)):
        other = fitted(model(rows, categories_in))
        evidence = [float(found["fit"]["log_evidence"]) for found in (one, other)]
        assert evidence[1] == pytest.approx(evidence[0], abs=10 * tolerance)
        for group in ("posterior_mean", "posterior_sd"):
            np.testing.assert_allclose(
                other[group]["slope"], one[group]["slope"].to_numpy()[categories_in], atol=tolerance
            )


def exact_moments(eta_of, log_likelihood):
    """Log evidence, means and standard deviations of two standard normal latents, by a fine grid."""
    z = np.linspace(-6.0, 6.0, 241)
    a, b = np.meshgrid(z, z, indexing="ij")
    log_p = -0.5 * (a**2 + b**2) - np.log(2 * np.pi) + log_likelihood(eta_of(a, b))
    log_z = logsumexp(log_p) + 2 * np.log(z[1] - z[0])
    mass = np.exp(log_p - logsumexp(log_p))
    means = np.array([(mass * v).sum() for v in (a, b)])
    return log_z, means, np.sqrt([(mass * (v - m) ** 2).sum() for v, m in zip((a, b), means)])


DESIGN = np.array([[0.0, 0.0], [1.0, 0.5], [-0.5, 1.0], [0.3, -1.0]])
"""Log-odds of four categories by two latent values."""


@pytest.mark.parametrize("counted", [False, True])
def test_ep_agrees_with_quadrature_of_two_latent_values(counted):
    observed = COUNTS[:6] if counted else np.eye(4)[KIND[:6]]
    scale = np.linspace(0.5, 1.5, 6)

    def log_likelihood(eta):
        log_p = np.log(softmax(eta, axis=-1))
        ways = sum(np.log(np.arange(1, n + 1)).sum() for n in observed.sum(axis=1))
        ways -= sum(np.log(np.arange(1, n + 1)).sum() for n in observed.ravel())
        return sum((observed[i] * log_p[i]).sum(axis=-1) for i in range(6)) + ways

    def eta_of(a, b):
        return [s * (a[..., None] * DESIGN[:, 0] + b[..., None] * DESIGN[:, 1]) for s in scale]

    log_z, means, sds = exact_moments(eta_of, log_likelihood)
    with pm.Model() as model:
        latent = pm.Normal("latent", 0.0, 1.0, shape=2)
        eta = scale[:, None] * pt.dot(DESIGN, latent)
        if counted:
            pm.Multinomial("y", n=5, p=pm.math.softmax(eta, axis=-1), observed=observed)
        else:
            pm.Categorical("y", logit_p=eta, observed=observed.argmax(axis=1))
    found = fitted(model)
    assert float(found["fit"]["log_evidence"]) == pytest.approx(log_z, abs=0.02)
    np.testing.assert_allclose((found["posterior_mean"]["latent"] - means) / sds, 0.0, atol=0.05)
    np.testing.assert_allclose(found["posterior_sd"]["latent"] / sds, 1.0, atol=0.04)


def test_many_choices_settle_the_answer():
    """With many observations of few coefficients the posterior is that of the mode and its curvature."""
    rng, n, categories = np.random.default_rng(0), 4000, 4
    x = np.column_stack([np.ones(n), rng.standard_normal(n)])
    truth = np.array([[0.0, 0.0], [0.3, 0.8], [-0.4, -0.5], [0.1, 0.2]])
    kind = np.argmax(x @ truth.T + rng.gumbel(size=(n, categories)), axis=1)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0.0, 3.0, shape=(3, 2))
        eta = pt.concatenate([pt.zeros((n, 1)), pt.dot(x, slope.T)], axis=1)
        pm.Categorical("y", logit_p=eta, observed=kind)
    found = fitted(model)
    at, onehot = np.zeros((3, 2)), np.eye(categories)[kind]
    for _ in range(30):
        p = softmax(np.column_stack([np.zeros(n), x @ at.T]), axis=1)
        slope_of = ((onehot - p)[:, 1:].T @ x - at / 9.0).ravel()
        weight = np.einsum("nk,kl->nkl", p[:, 1:], np.eye(3)) - np.einsum("nk,nl->nkl", p[:, 1:], p[:, 1:])
        curvature = np.einsum("nkl,ni,nj->kilj", weight, x, x).reshape(6, 6) + np.eye(6) / 9.0
        at = at + np.linalg.solve(curvature, slope_of).reshape(3, 2)
    sd = np.sqrt(np.diag(np.linalg.inv(curvature))).reshape(3, 2)
    np.testing.assert_allclose((found["posterior_mean"]["slope"] - at) / sd, 0.0, atol=0.03)
    np.testing.assert_allclose(found["posterior_sd"]["slope"] / sd, 1.0, atol=0.01)


def test_missing_observations_and_predictions():
    with pm.Model(coords={"row": range(ROWS), "kind": list("abcd")}) as model:
        z = pm.Data("z", X, dims="row")
        level, slope = pm.Normal("level", 0.0, 1.0, dims="kind"), pm.Normal("slope", 0.0, 1.0, dims="kind")
        kind = pm.Data("kinds", KIND, dims="row")
        pm.Categorical("y", logit_p=level + z[:, None] * slope, observed=kind, dims="row")
    idata = fitted(model, draws=400)
    assert idata["fit"]["y_loo"].dims == ("row",)
    found = pmep.predict(idata, model, response=True)
    assert found["y_mean"].dims == ("row", "y_category")
    np.testing.assert_allclose(found["y_mean"].sum("y_category"), 1.0)
    # Of new rows, whose densities of all four categories add up to one.
    with model:
        pm.set_data({"z": X[:3], "kinds": KIND[:3]}, coords={"row": range(3)})
    each = [np.exp(pmep.log_predictive(idata, model, {"y": np.full(3, k)})["y"]) for k in range(4)]
    np.testing.assert_allclose(sum(each), 1.0, atol=2e-3)
    predicted = pmep.predict(idata, model, response=True)["y_mean"].to_numpy()
    np.testing.assert_allclose(np.transpose(each), predicted, atol=0.02)


@pytest.mark.parametrize("counted", [False, True])
def test_leaving_out_a_group_is_fitting_without(counted):
    rng, g = np.random.default_rng(0), np.repeat(np.arange(6), 8)
    choices, counts = rng.integers(0, 3, 48), rng.multinomial(4, [0.2, 0.3, 0.5], 48)

    def fit_of(kept):
        with pm.Model() as model:
            eta = pm.Normal("level", 0, 1, shape=3) + pm.Normal("u", 0, 0.7, shape=(6, 3))[g[kept]]
            if counted:
                pm.Multinomial("y", n=4, p=pm.math.softmax(eta, axis=1), observed=counts[kept])
            else:
                pm.Categorical("y", logit_p=eta, observed=choices[kept])
        return model, fitted(model, draws=0)

    model, whole = fit_of(np.full(48, True))
    left_out = pmep.loo(whole, model, groups=g)
    scores = left_out.elpd_i if hasattr(left_out, "elpd_i") else left_out.loo_i
    evidences = [float(found["fit"]["log_evidence"]) for found in (whole, fit_of(g != 3)[1])]
    assert float(scores[3]) == pytest.approx(evidences[0] - evidences[1], abs=5e-3)


def test_counts_have_one_result_a_row():
    with pm.Model(coords={"row": range(ROWS), "kind": list("abcd")}) as model:
        eta = pm.Normal("level", 0.0, 1.0, dims="kind") + X[:, None] * pm.Normal("slope", 0.0, 1.0, dims="kind")
        pm.Multinomial("y", n=5, p=pm.math.softmax(eta, axis=-1), observed=COUNTS, dims=("row", "kind"))
    idata = fitted(model, draws=200, log_likelihood=True)
    assert idata["fit"]["y_loo"].dims == ("row",)
    assert idata["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    assert pmep.predict(idata, model, response=True)["y_mean"].dims == ("row", "kind")
    assert (pmep.log_predictive(idata, model, {"y": COUNTS})["y"] > idata["fit"]["y_loo"]).all()
    with pytest.raises(InvalidDataError, match=r"counts of shape \(24, 4\) but the given values have shape \(24,\)"):
        pmep.log_predictive(idata, model, {"y": COUNTS[:, 0]})


@pytest.mark.parametrize(
    ("observed", "message"),
    [(np.where(X > 0, 4, 0), "categories from 0 to 3"), (np.where(X > 0, -1, 0), "numbers of categories")],
)
def test_unknown_categories_are_named(observed, message):
    with pm.Model() as model:
        pm.Categorical("y", logit_p=with_zero(log_odds()), observed=observed)
    with pytest.raises(InvalidDataError, match=rf"'y' has the value.*at index.*{message}"):
        fitted(model)


def test_counts_of_another_sum_are_named():
    with pm.Model() as model:
        pm.Multinomial("y", n=6, p=pm.math.softmax(with_zero(log_odds()), axis=-1), observed=COUNTS)
    with pytest.raises(InvalidDataError, match=r"'y'.*counts that add up to n"):
        fitted(model)


def test_columns_of_one_matrix_are_two_predictors():
    def logp(value, first, second):
        chosen = pt.switch(pt.eq(value, 1), first, pt.switch(pt.eq(value, 2), second, 0.0))
        return chosen - pt.log1p(pt.exp(first) + pt.exp(second))

    with pm.Model() as own:
        eta = log_odds(3)
        pm.CustomDist("y", eta[:, 0], eta[:, 1], logp=logp, signature="(),()->()", observed=KIND % 3, dtype="int64")
    with pm.Model() as built_in:
        pm.Categorical("y", logit_p=with_zero(log_odds(3)), observed=KIND % 3)
    one, two = fitted(own), fitted(built_in)
    assert float(one["fit"]["log_evidence"]) == pytest.approx(float(two["fit"]["log_evidence"]), abs=1e-6)


def test_large_errors_of_the_quadrature_are_announced():
    """Of one choice among ten of each person, whose log-odds are known by the prior alone."""
    with pm.Model() as model:
        eta = pm.Normal("eta", 0.0, 6.0, shape=(8, 10))
        pm.Categorical("y", logit_p=eta, observed=np.arange(8))
    with pytest.warns(ConvergenceWarning, match=r"observation \d of 'y'.*quadrature.*narrower priors"):
        fitted(model)


def test_bounds_of_predictors_are_no_softmax():
    with pm.Model() as model:
        eta = pm.Normal("level", 0.0, 5.0, shape=4) + X[:, None] * pm.Normal("slope", 0.0, 5.0, shape=4)
        pm.Categorical("y", logit_p=pm.math.clip(eta, -5.0, 5.0), observed=KIND)
    with pytest.raises(UnsupportedModelError, match="categories of 'y' are not a softmax"):
        fitted(model)


def test_weights_that_do_not_add_up_to_one_are_no_softmax():
    with pm.Model() as model:
        pm.Categorical("y", p=pm.math.exp(with_zero(log_odds())), observed=KIND)
    with pytest.raises(UnsupportedModelError, match="categories of 'y' are not a softmax"):
        fitted(model)


def test_one_row_of_probabilities_for_all_observations():
    with pm.Model() as one:
        pm.Categorical("y", logit_p=pm.Normal("level", 0.0, 1.0, shape=4), observed=KIND)
    with pm.Model() as repeated:
        pm.Categorical("y", logit_p=pm.Normal("level", 0.0, 1.0, shape=4) + np.zeros((ROWS, 1)), observed=KIND)
    evidence = [float(fitted(model)["fit"]["log_evidence"]) for model in (one, repeated)]
    assert evidence[0] == pytest.approx(evidence[1], abs=1e-8)


@pytest.mark.parametrize("categories", [3, 4])
def test_unknown_new_categories_are_named(categories):
    with pm.Model() as model:
        pm.Categorical("y", logit_p=with_zero(log_odds(categories)), observed=KIND % categories)
    idata = fitted(model)
    with pytest.raises(InvalidDataError, match=rf"categories from 0 to {categories - 1}"):
        pmep.log_predictive(idata, model, {"y": KIND % categories + 1})
