"""Scales written outside of a latent variable: the answer of the same model with the scale in the prior."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.sparse

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.recognise import recogniser

GROUPS, ROWS, SIDE = 320, 700, 18
QUIET = {"progressbar": False, "draws": 0}
rng = np.random.default_rng(0)
PLACE, X = rng.integers(GROUPS, size=ROWS), rng.normal(size=ROWS)
BITS = rng.integers(2, size=ROWS)
COUNTS = rng.poisson(1.0, size=SIDE**2)


def adjacency():
    line = scipy.sparse.diags_array([np.ones(SIDE - 1)] * 2, offsets=[-1, 1])
    eye = scipy.sparse.eye_array(SIDE)
    return (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)).toarray().astype(int)


def groups(outside):
    s = pm.HalfNormal("s", 1)
    u = pm.Deterministic("u", s * pm.Normal("z", shape=GROUPS)) if outside else pm.Normal("u", 0, s, shape=GROUPS)
    pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1) + u[PLACE], observed=BITS)


def after_indexing(outside):
    tau = pm.Gamma("tau", 2, 1)
    u = pm.Normal("z", shape=GROUPS) if outside else pm.Normal("u", 0, 1 / pm.math.sqrt(tau), shape=GROUPS)
    eta = u[PLACE] * X / pm.math.sqrt(tau) if outside else u[PLACE] * X
    pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1) + eta, observed=BITS)


def slopes(outside):
    s = pm.HalfNormal("s", 1, shape=2)
    if outside:
        u = pm.Deterministic("u", pm.Normal("z", shape=(GROUPS, 2)) * s)
    else:
        u = pm.Normal("u", 0, s, shape=(GROUPS, 2))
    pm.Normal("y", u[PLACE, 0] + u[PLACE, 1] * X, 0.5, observed=X)


def walk(outside):
    s = pm.HalfNormal("s", 1)
    step = 1.0 if outside else s
    first = pm.Normal.dist(0, step)
    x = pm.GaussianRandomWalk("z" if outside else "u", 0.0, step, init_dist=first, steps=GROUPS - 1)
    x = pm.Deterministic("u", s * x) if outside else x
    pm.Poisson("y", pm.math.exp(x), observed=COUNTS[:GROUPS])


def areas(outside):
    """The map of Besag, York and Mollie, scaled: Riebler et al. (2016)."""
    s, rho, n = pm.HalfNormal("s", 1), pm.Beta("rho", 2, 2), SIDE**2
    own, shared = pm.math.sqrt(1 - rho), pm.math.sqrt(rho / 0.5)
    if outside:
        theta, phi = pm.Normal("theta", 0, 1, shape=n), pm.ICAR("phi", W=adjacency())
        field = s * (own * theta + shared * phi)
    else:
        field = pm.Normal("own", 0, s * own, shape=n) + pm.ICAR(
            "shared", W=adjacency(), sigma=s * shared, zero_sum_stdev=0.001 * s * shared
        )
    pm.Poisson("y", pm.math.exp(pm.Deterministic("u", field)), observed=COUNTS)


def horseshoe(outside):
    """A scale of each coefficient times a common one, as in Carvalho, Polson and Scott (2010)."""
    design = np.random.default_rng(1).normal(size=(80, 12))
    scale = pm.HalfNormal("tau", 1) * pm.HalfNormal("local", 1, shape=12)
    beta = pm.Normal("z", shape=12) * scale if outside else pm.Normal("u", 0, scale, shape=12)
    beta = pm.Deterministic("u", beta) if outside else beta
    pm.Normal("y", pt.dot(design, beta), 0.3, observed=X[:80])


def shares(outside):
    """With a hyperparameter that multiplies what is not linear, as Bambi's beta."""
    s, k = pm.HalfNormal("s", 1), pm.HalfCauchy("k", 1)
    u = pm.Deterministic("u", s * pm.Normal("z", shape=30)) if outside else pm.Normal("u", 0, s, shape=30)
    p = pm.math.sigmoid(pm.Normal("a", 0, 1) + u[PLACE % 30])
    pm.Beta("y", p * k, (1 - p) * k, observed=1 / (1 + np.exp(-X)))


def times(outside):
    """With one predictor in two parameters, as Bambi's gamma."""
    s, k = pm.HalfNormal("s", 1), pm.HalfCauchy("k", 1)
    u = pm.Deterministic("u", s * pm.Normal("z", shape=30)) if outside else pm.Normal("u", 0, s, shape=30)
    mu = pm.math.exp(pm.Normal("a", 0, 1) + u[PLACE % 30] * np.ones(ROWS, dtype=int))
    pm.Gamma("y", mu=mu, sigma=mu / k**0.5, observed=np.exp(X))


def basis(outside):
    """The coefficients of a process in a Hilbert space."""
    phi = np.random.default_rng(2).normal(size=(90, 15))
    root = pm.HalfNormal("s", 1) * pm.math.exp(-0.25 * (pm.HalfNormal("ell", 1) * np.arange(15.0)) ** 2)
    beta = pm.Normal("z", shape=15) if outside else pm.Normal("u", 0, root, shape=15)
    pm.Bernoulli("y", logit_p=phi @ (beta * root) if outside else phi @ beta, observed=BITS[:90])


def factor_of_two():
    """Cholesky factor of the covariance of two effects."""
    return pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Gamma.dist(4, 4, shape=2), compute_corr=True)[0]


def correlated(outside):
    """With effects of each group in a row."""
    chol = factor_of_two()
    if outside:
        u = pm.Deterministic("u", pt.dot(pm.Normal("z", shape=(GROUPS, 2)), chol.T))
    else:
        u = pm.MvNormal("u", 0, chol=chol, shape=(GROUPS, 2))
    pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1) + u[PLACE, 0] + u[PLACE, 1] * X, observed=BITS)


def correlated_columns(outside):
    """With effects of each group in a column."""
    chol = factor_of_two()
    if outside:
        u = pm.Deterministic("u", (chol @ pm.Normal("z", shape=(2, GROUPS))).T)
    else:
        u = pm.MvNormal("u", 0, chol=chol, shape=(GROUPS, 2))
    pm.Poisson("y", pm.math.exp(u[PLACE, 0] + u[PLACE, 1] * X), observed=BITS)


def standard_deviations_apart(outside):
    """With a factor of their correlation, and their standard deviations as a scale of each, times another of both."""
    s, r, k = pm.HalfNormal("s", 1, shape=2), pm.Uniform("r", -1, 1, initval=0.3), pm.HalfNormal("c", 1)
    factor = pt.stacklists([[1.0, 0.0], [r, pt.sqrt(1 - r**2)]])
    if outside:
        u = k * (s[:, None] * pt.dot(factor, pm.Normal("z", 0, [1.0, 2.0], shape=(40, 2)).T))
        u = pm.Deterministic("u", u.T)
    else:
        u = pm.MvNormal("u", 0, chol=k * s[:, None] * factor * [1.0, 2.0], shape=(40, 2))
    pm.Normal("y", u[PLACE % 40, 0] + u[PLACE % 40, 1] * X, 0.5, observed=X)


def transposed(outside):
    """With a scale that divides each column of what a transpose gives."""
    chol, c = factor_of_two(), pm.HalfNormal("c", 1, shape=2)
    if outside:
        u = pm.Deterministic("u", (pm.Normal("z", shape=(2, 30)).T @ chol.T) / c)
    else:
        u = pm.MvNormal("u", 0, chol=chol / c[:, None], shape=(30, 2))
    pm.Bernoulli("y", logit_p=u[PLACE % 30, 0] + u[PLACE % 30, 1] * X, observed=BITS)


MIXED = [correlated, correlated_columns, standard_deviations_apart, transposed]
SPELLINGS = [groups, after_indexing, slopes, walk, areas, horseshoe, shares, times, basis, *MIXED]


def model_of(write, outside):
    with pm.Model() as model:
        write(outside)
    return model


def fixed(model, **options):
    start = {"k": 2.7} if "k" in model.named_vars else None
    with model:
        return pmep.fit(hyper="fixed", start=start, **QUIET, **options)


def moments(idata):
    kinds = ("posterior_mean", "posterior_sd")
    return {(kind, name): values.to_numpy() for kind in kinds for name, values in group(idata, kind).data_vars.items()}


def evidence(idata):
    return float(group(idata, "fit")["log_evidence"])


@pytest.mark.parametrize("write", SPELLINGS, ids=lambda write: write.__name__)
def test_scale_in_the_prior(write):
    inside, outside = (fixed(model_of(write, where)) for where in (False, True))
    assert any(block.outer_scale is not None for block in compiled_form(model_of(write, True)).form.blocks)
    if write is not areas:  # PyMC's density of an ICAR field is not normalised.
        assert evidence(outside) == pytest.approx(evidence(inside), abs=1e-8)
    a, b = moments(inside), moments(outside)
    for name in a.keys() & b.keys():
        np.testing.assert_allclose(b[name], a[name], rtol=1e-7, atol=1e-8)


def both_parts(outside):
    """Seen with a scale and without."""
    z, s = pm.Normal("z", shape=GROUPS), pm.HalfNormal("s", 1)
    pm.Normal("y", s * z[PLACE], 0.5, observed=X)
    pm.Normal("t", z, 2.0, observed=X[:GROUPS])


def off_centre(outside):
    """With a mean that the scale multiplies as well, and other factors beside."""
    m, s, c = pm.Normal("m"), pm.HalfNormal("s", 1), pm.HalfNormal("c", 1)
    z = pm.Normal("z", m, 1, shape=30)
    w = pm.Deterministic("w", c * (m - s * pm.math.concatenate([np.arange(2), z, 2 * z]) / 3)) + 1
    pm.Deterministic("twice", 2 * z)
    pm.Poisson("y", pm.math.exp(w[PLACE % 62] + c * m), observed=BITS)


def single_precision(outside):
    z = pm.Normal("z", shape=30)
    pm.Normal("y", pm.HalfNormal("s", 1) * z[PLACE % 30].astype("float32"), 1.0, observed=X)


def by_column(outside):
    """With a scale of each column, which is taken from both after indexing."""
    z, s = pm.Normal("z", shape=(20, 2)), pm.HalfNormal("s", 1, shape=2)
    pm.Bernoulli("y", logit_p=s[0] * z[PLACE % 20, 0] + s[1] * z[PLACE % 20, 1] * X, observed=BITS)


def mixed_and_not(outside):
    """Seen through a matrix twice, and once without it."""
    chol, z = factor_of_two(), pm.Normal("z", shape=(20, 2))
    first, second = pt.dot(z, chol.T)[PLACE % 20, 0], pt.dot(chol, z.T)[1, PLACE % 20]
    pm.Bernoulli("y", logit_p=first + second * X, observed=BITS)
    pm.Normal("t", z, 2.0, observed=np.c_[X[:20], X[20:40]])


@pytest.mark.parametrize(
    "write",
    [*SPELLINGS, both_parts, off_centre, single_precision, by_column, mixed_and_not],
    ids=lambda write: write.__name__,
)
def test_as_written(monkeypatch, write):
    found = fixed(model_of(write, True), solver="coefficients" if write is walk else "auto")
    monkeypatch.setattr(recogniser, "absorb_scales", lambda blocks, outputs, *_: (blocks, outputs, {}))
    left = fixed(model_of(write, True), solver="coefficients" if write is walk else "auto")
    assert evidence(found) == pytest.approx(evidence(left), abs=1e-8)
    a, b = moments(found), moments(left)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("of", [lambda slope: slope, pm.math.abs, pm.math.sqr], ids=["itself", "size", "square"])
def test_a_slope_that_may_be_zero_is_no_scale(of):
    """Errors in a covariate: at a slope of zero, where a normal prior begins, its values have their prior."""
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        truth = pm.Normal("truth", X[:20], 0.5)
        pm.Binomial("y", 5, logit_p=pm.Normal("level") + of(slope) * truth, observed=BITS[:20])
    found = fixed(model)
    assert compiled_form(model).form.blocks[-1].outer_scale is None
    np.testing.assert_allclose(group(found, "posterior_mean")["truth"], X[:20])
    np.testing.assert_allclose(group(found, "posterior_sd")["truth"], 0.5)


@pytest.mark.parametrize("write", MIXED, ids=lambda write: write.__name__)
def test_matrix_in_the_prior_under_the_sparse_precision(write):
    form = compiled_form(model_of(write, True))
    form.solve_in("auto")
    assert (form.solver.name == "precision") == (form.sizes[1] >= 300)
    assert {block.outer_scale.ndim for block in form.form.blocks if block.outer_scale is not None} == {2}


@pytest.mark.parametrize("hyper", ["integrate", "optimize"])
def test_draws_of_mixed_effects_have_the_moments(hyper):
    """The standard variables too, which are w M^-1, with effects of each group in a column."""
    with pm.Model() as model:
        z = pm.Normal("z", shape=(2, 8))
        u = pm.Deterministic("u", pt.dot(factor_of_two(), z))
        pm.Bernoulli("y", logit_p=u[0, PLACE[:90] % 8] + u[1, PLACE[:90] % 8] * X[:90], observed=BITS[:90])
    idata = pmep.fit(model=model, hyper=hyper, draws=2000, chains=2, random_seed=1, progressbar=False)
    for name in ("z", "u") if hyper == "integrate" else ("z",):
        drawn = group(idata, "posterior")[name]
        mean, sd = (group(idata, kind)[name].to_numpy() for kind in ("posterior_mean", "posterior_sd"))
        np.testing.assert_allclose(drawn.std(("chain", "draw")).to_numpy() / sd, 1.0, atol=0.12)
        np.testing.assert_allclose((drawn.mean(("chain", "draw")).to_numpy() - mean) / sd, 0.0, atol=0.1)


@pytest.mark.parametrize("hyper", ["integrate", "optimize"])
def test_draws_have_the_moments_where_the_scale_may_be_near_zero(hyper):
    """The standard variable too, which is w / s."""
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        z = pm.Normal("z", shape=8)
        pm.Deterministic("u", s * z)
        pm.Bernoulli("y", logit_p=pm.Normal("a") + s * z[PLACE[:60] % 8], observed=BITS[:60])
    idata = pmep.fit(model=model, hyper=hyper, draws=2000, chains=2, random_seed=1, progressbar=False)
    for name in ("z", "u") if hyper == "integrate" else ("z",):
        drawn = group(idata, "posterior")[name]
        mean, sd = (group(idata, kind)[name].to_numpy() for kind in ("posterior_mean", "posterior_sd"))
        np.testing.assert_allclose(drawn.std(("chain", "draw")).to_numpy() / sd, 1.0, atol=0.12)
        np.testing.assert_allclose((drawn.mean(("chain", "draw")).to_numpy() - mean) / sd, 0.0, atol=0.1)


def test_squares_of_scales_are_numbers():
    """As those of the last frequencies of a smooth process, whose spectral densities underflow."""
    decay = np.array([0.0, 1.0, 370.0, 800.0])
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        spectrum = pm.math.exp(-decay * s)
        pm.Normal("y", pm.math.dot(np.ones((20, 4)), pm.Normal("z", shape=4) * spectrum), 0.5, observed=X[:20])
    form = compiled_form(model, None)
    scale = form.rows.outer_scales(np.zeros((1, 1)))["z"]
    assert np.isfinite(1.0 / scale**2).all() and (scale[0, 2:] < 1e-90).all()
    found = pmep.fit(model=model, hyper="fixed", start={"s": 1.0}, random_seed=1, progressbar=False)
    np.testing.assert_allclose(group(found, "posterior_sd")["z"][2:], 1.0, rtol=1e-9)
