"""The log evidence or bound of each method that offers one: value, gradient, maximum, and what it must not depend on.

A method is here once a model of its form is; nothing is written for a method by itself.
"""

import warnings
from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import sparse

import pymc_ep as pmep
from pymc_ep.compat import group, make_container, to_dataset
from pymc_ep.forms import able_methods, compiled_form, get_method, methods

OPTIONS = {
    "vg": {"tol": 1e-13, "max_iter": 2000},
    "vbmf": {"tol": 1e-13, "max_iter": 20000},
    "dsb": {"tol": 1e-8, "outer": 500, "variance": "exact"},
    "paired_vb": {"tol": 1e-13, "max_iter": 20000},
}
"""Tight tolerances: differences of values are taken over small steps."""
STARTS_BY_POSITION = {"vbmf", "paired_vb"}
"""Methods that start at random numbers, one a row: rows in another order may end in another maximum."""


def order(n, seed):
    return np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)


def process(seed=None):
    n = 10
    x = np.linspace(0, 3, n)
    y, rows = np.array([2, 3, 1, 4, 6, 5, 3, 2, 1, 2]), order(n, seed)
    with pm.Model() as model:
        amp, ell = pm.HalfNormal("amp", 1.0), pm.InverseGamma("ell", 4.0, 3.0)
        distance = (x[:, None] - x)[rows][:, rows]
        f = pm.MvNormal("f", np.zeros(n), amp**2 * pm.math.exp(-0.5 * distance**2 / ell**2) + 1e-6 * np.eye(n))
        pm.Poisson("y", pt.softplus(f), observed=y[rows])
    return model


def ratings(seed=None):
    rng = np.random.default_rng(4)
    rows, cols = np.nonzero(rng.random((9, 7)) < 0.9)
    y = (rng.normal(size=(9, 2))[rows] * rng.normal(size=(7, 2))[cols]).sum(-1) + 0.3 * rng.normal(size=len(rows))
    at, to = order(len(rows), seed), np.argsort(order(9, seed))
    with pm.Model() as model:
        scale, noise = pm.HalfNormal("scale", 1.0), pm.HalfNormal("noise", 1.0)
        v, w = pm.Normal("v", 0, scale, shape=(9, 2)), pm.Normal("w", 0, 1, shape=(7, 2))
        pm.Normal("y", (v[to[rows[at]]] * w[cols[at]]).sum(-1), noise, observed=y[at])
    return model


def visits(seed=None):
    rng = np.random.default_rng(3)
    rows, cols = np.divmod(np.arange(48), 6)
    y = rng.poisson(np.exp(0.5 + (rng.normal(size=(8, 1))[rows] * rng.normal(size=(6, 1))[cols]).sum(-1)))
    at, to = order(48, seed), np.argsort(order(8, seed))
    with pm.Model() as model:
        scale, level = pm.HalfNormal("scale", 1.0), pm.Normal("level", 0, 1)
        v, w = pm.Normal("v", 0, scale, shape=(8, 1)), pm.Normal("w", 0, 1, shape=(6, 1))
        b = pm.Normal("b", 0, 0.5, shape=8)
        own = to[rows[at]]
        pm.Poisson("y", pm.math.exp((v[own] * w[cols[at]]).sum(-1) + b[own] + level), observed=y[at])
    return model


def field(seed=None, potential=lambda scale: pm.Laplace.dist(0, scale)):
    rng, n = np.random.default_rng(3), 12
    y, rows = np.repeat([0.0, 2.0, 1.0], 4) + rng.normal(0, 0.3, n), order(n, seed)
    with pm.Model() as model:
        differences = np.diff(np.eye(n), axis=0)[:, rows]
        u = pmep.SparseField("u", operator=differences, potential=potential(pm.HalfNormal("b", 1)))
        pm.Normal("y", u, pm.InverseGamma("noise", 4, 1), observed=y[rows])
    return model


def heavy_field(seed=None):
    return field(seed, lambda scale: pm.StudentT.dist(nu=4, mu=0, sigma=scale))


def comparisons(seed=None):
    """Under a scale that is known to some tenths: of one that is not, methods say that its mode is not enough."""
    rng, at, to = np.random.default_rng(3), order(30, seed), np.argsort(order(5, seed))
    who, one, x = np.repeat(np.arange(5), 6), rng.integers(0, 4, 30), np.linspace(0, 1, 4)
    other, utilities = (one + rng.integers(1, 4, 30)) % 4, 1.5 * rng.normal(size=(5, 4))
    wins = rng.random(30) < 1 / (1 + np.exp(utilities[who, other] - utilities[who, one]))
    won, lost = np.where(wins, one, other), np.where(wins, other, one)
    with pm.Model() as model:
        f = pmep.PreferenceUtility(
            "f",
            b=np.zeros(4),
            kernel=np.exp(-0.5 * ((x[:, None] - x) / 0.4) ** 2) + 0.1 * np.eye(4),
            sigma=pm.Gamma("sigma", alpha=50, beta=50),
            shape=(5, 4),
        )
        pmep.PairwiseLogit("prefers", f, users=to[who[at]], winners=won[at], losers=lost[at])
    return model


def links(seed=None):
    """Unordered pairs of alike symbols."""
    rng, n = np.random.default_rng(6), 14
    one, two = np.triu_indices(n, 1)
    seen = rng.random(len(one)) < np.where(one % 2 == two % 2, 0.7, 0.1)
    rows = np.argsort(order(n, seed))[np.column_stack([one, two])[seen]]
    with pm.Model() as model:
        U = pm.Normal("U", 0, pm.Gamma("s", alpha=50, beta=50), shape=(n, 1))
        bias = pm.Normal("bias", 0, 1, shape=n)
        pmep.PairedSymbols("links", U, U, bias, bias, observed=rows)
    return model


def pairs(seed=None):
    liked = np.arange(20)[:, None] % 2 == np.arange(12) % 2
    views = np.random.default_rng(2).binomial(1, np.where(liked, 0.8, 0.05))[order(20, seed)]
    with pm.Model() as model:
        U = pm.Normal("U", 0, pm.Gamma("s", alpha=50, beta=50), shape=(20, 1))
        V = pm.Normal("V", 0, 1, shape=(12, 1))
        bias = pm.Normal("bias", 0, pm.Gamma("spread", alpha=50, beta=50), shape=20)
        pmep.PairedSymbols("views", U, V, bias, 0, observed=sparse.csr_array(views))
    return model


MODELS = (process, ratings, visits, field, heavy_field, comparisons, links, pairs)
shared = cache(lambda write, seed=None: write(seed))


def _offered(write):
    return [method for method in able_methods(compiled_form(shared(write)).form) if method.evidence_op is not None]


def _cases():
    found = [
        (write, method.name, {k: v for k, v in OPTIONS.get(method.name, {}).items() if k in method.options})
        for write in MODELS
        for method in _offered(write)
    ]
    return [*found, (ratings, "vg", OPTIONS["vg"] | {"covariance": "full"})]


CASES = _cases()
every_method = pytest.mark.parametrize(
    ("write", "method", "options"),
    CASES,
    ids=["-".join([w.__name__, m, *(["full"] if "covariance" in o else [])]) for w, m, o in CASES],
)


def evidence_op(write, method, options, seed=None):
    form = compiled_form(shared(write, seed))
    return get_method(method, form.form).evidence_op(form, options)


def points(op, count=3):
    """Hyperparameters about the model's initial ones."""
    start = op.form.start
    return [start, *(start + 0.4 * np.random.default_rng(1).normal(size=(count - 1, start.size)))]


def test_every_method_that_offers_sampling_is_here():
    offered = {(method.form, method.name) for method in methods() if "sample" in method.hyper}
    here = {(type(compiled_form(shared(write)).form), method) for write, method, _ in CASES}
    assert offered == here


@every_method
def test_gradient_against_differences(write, method, options):
    op, step = evidence_op(write, method, options), 1e-4
    for theta in points(op):
        gradient = op.evaluate(theta)[1]
        moves = step * np.eye(theta.size)
        differences = [(op.evaluate(theta + e)[0] - op.evaluate(theta - e)[0]) / (2 * step) for e in moves]
        np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-4)
    assert not op.counts.failed


@every_method
def test_value_is_that_of_a_fit_with_fixed_hyperparameters(write, method, options):
    model, op = shared(write), evidence_op(write, method, options)
    theta = points(op)[-1]
    values = op.form.constrained(theta)
    fixed = pmep.fit(method, model=model, hyper="fixed", start=values, draws=0, progressbar=False, **options)
    np.testing.assert_allclose(op.evaluate(theta)[0], float(group(fixed, "fit")["log_evidence"]), atol=1e-6)


@every_method
def test_no_dependence_on_what_came_before(write, method, options):
    used, fresh = evidence_op(write, method, options), evidence_op(write, method, options)
    first, *others = points(used)
    far = first - 3.0
    for theta in (first, *others, far):
        used.evaluate(theta)
    value, gradient = used.evaluate(others[0])
    expected, expected_gradient = fresh.evaluate(others[0])
    np.testing.assert_allclose(value, expected, atol=1e-7)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-5)


@every_method
def test_rows_in_another_order_have_the_same_value(write, method, options):
    if method in STARTS_BY_POSITION:
        pytest.skip("starts at random numbers by position")
    op, other = evidence_op(write, method, options), evidence_op(write, method, options, seed=5)
    for theta in points(op, 2):
        np.testing.assert_allclose(other.evaluate(theta)[0], op.evaluate(theta)[0], atol=1e-5)


@every_method
def test_the_potential_is_a_graph_of_the_models_values(write, method, options):
    marginal = pmep.marginalize(shared(write), method=method, **options)
    (log_z,) = [p for p in marginal.potentials if p.name == f"{method}_log_evidence"]
    values = list(marginal.value_vars)
    function = pytensor.function(values, [log_z, *pytensor.grad(log_z, values)])
    op = evidence_op(write, method, options)
    theta = points(op)[-1]
    value, *gradient = function(*op.form.unpack(theta))
    expected, expected_gradient = op.evaluate(theta)
    np.testing.assert_allclose(value, expected, atol=1e-7)
    np.testing.assert_allclose(np.concatenate([np.ravel(g) for g in gradient]), expected_gradient, rtol=1e-5, atol=1e-5)


@every_method
def test_its_mode_is_that_of_learning(write, method, options):
    model = shared(write)
    learned = pmep.fit(method, model=model, hyper="optimize", draws=0, progressbar=False, **options)
    marginal = pmep.marginalize(model, method=method, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        mode = pm.find_MAP(model=marginal, progressbar=False)
    for name in (rv.name for rv in marginal.free_RVs):
        np.testing.assert_allclose(mode[name], group(learned, "fit")[f"hyper_mode_{name}"], rtol=5e-3, atol=1e-3)


@every_method
def test_latent_variables_are_recovered_at_draws(write, method, options):
    model, op = shared(write), evidence_op(write, method, options)
    thetas = np.array(points(op, 4))
    given = {name: v.reshape(2, 2, *v.shape[1:]) for name, v in op.form.constrained(thetas).items()}
    draws = to_dataset(given, coords={}, dims={}, sample_dims=("chain", "draw"))
    idata = pmep.recover(
        make_container({"posterior": draws}),
        model,
        method=method,
        draws=50,
        random_seed=1,
        progressbar=False,
        log_likelihood=True,
        **options,
    )
    posterior, means = group(idata, "posterior"), group(idata, "posterior_mean")
    assert bool(group(idata, "fit")["converged"])
    for name in compiled_form(model).form.latent_names:
        drawn = posterior[name].to_numpy().reshape(200, -1)
        error = drawn.std(axis=0) / np.sqrt(200)
        assert np.all(np.abs(drawn.mean(axis=0) - np.ravel(means[name])) < 5 * error + 1e-9)
    for name, values in given.items():
        np.testing.assert_array_equal(posterior[name].to_numpy(), np.repeat(values, 50, axis=1))
