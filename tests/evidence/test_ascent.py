"""Laplace's approximation and the two bounds: maxima found by other means, bounds below exact evidence, refusals."""

from contextlib import nullcontext
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.optimize
import scipy.stats

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.engines.loop import run
from pymc_ep.evidence.ascent.engine import EXPECTED, LAPLACE, LOCAL, Ascent
from pymc_ep.exceptions import ConvergenceWarning
from pymc_ep.forms import compiled_form, get_method
from pymc_ep.numerics.quadrature.gauss_hermite import standard_normal_rule

N = 20
X = np.linspace(0, 2, N)
KERNEL = 1.5 * np.exp(-0.5 * ((X[:, None] - X) / 0.7) ** 2) + 1e-3 * np.eye(N)
COUNTS = np.array([0, 3, 2, 7, 4, 1, 0, 2, 1, 3, 5, 2, 4, 1, 2, 0, 1, 0, 0, 1])
REALS = np.array(
    [0.3, 0.9, 4.0, 1.2, 0.4, -0.6, -0.8, -1.1, 0.1, 0.7, 0.2, 1.4, 0.8, 1.0, -3.0, 0.5, 0.3, -0.2, -0.4, 0.0]
)
RULES = {"laplace": LAPLACE, "vg": EXPECTED, "dsb": LOCAL}
OBSERVED = {
    "poisson": (
        lambda f: pm.Poisson("y", pm.math.exp(f), observed=COUNTS),
        lambda f: scipy.stats.poisson(np.exp(f)).logpmf(COUNTS),
    ),
    "probit": (
        lambda f: pm.Bernoulli("y", pm.math.invprobit(f), observed=COUNTS > 1),
        lambda f: scipy.stats.norm.logcdf(np.where(COUNTS > 1, f, -f)),
    ),
    "student_t": (
        lambda f: pm.StudentT("y", nu=4, mu=f, sigma=0.5, observed=REALS),
        lambda f: scipy.stats.t(4, f, 0.5).logpdf(REALS),
    ),
    "gamma": (
        lambda f: pm.Gamma("y", 2.0, pm.math.exp(-f), observed=COUNTS + 0.5),
        lambda f: scipy.stats.gamma(2.0, scale=np.exp(f)).logpdf(COUNTS + 0.5),
    ),
    "any": (
        lambda f: pm.Gumbel("y", f, 0.8, observed=REALS),
        lambda f: scipy.stats.gumbel_r(f, 0.8).logpdf(REALS),
    ),
}


@cache
def process(name):
    with pm.Model() as model:
        OBSERVED[name][0](pm.MvNormal("f", 0.2 * np.ones(N), KERNEL))
    return model


def curvatures(log_density, f, step=2e-3):
    """Second derivatives by differences of the sixth order, and of steps over which rounding is 1e-9 of them."""
    rows = {k: log_density(f + k * step) for k in range(-3, 4)}
    sums = {k: rows[k] + rows[-k] for k in (1, 2, 3)}
    return (1.5 * sums[1] - 0.15 * sums[2] + sums[3] / 90 - 49 / 18 * rows[0]) / step**2


@pytest.mark.parametrize("name", OBSERVED)
def test_laplace_against_a_mode_by_scipy_and_differences(name):
    log_density, inverse = OBSERVED[name][1], np.linalg.inv(KERNEL)

    def loss(f):
        return -log_density(f).sum() + 0.5 * (f - 0.2) @ inverse @ (f - 0.2)

    mode = scipy.optimize.minimize(loss, np.log1p(COUNTS) if name != "student_t" else REALS, method="BFGS").x
    for _ in range(20):
        slope = (log_density(mode + 1e-6) - log_density(mode - 1e-6)) / 2e-6
        precision = inverse - np.diag(curvatures(log_density, mode))
        mode = mode + np.linalg.solve(precision, slope - inverse @ (mode - 0.2))
    precision = inverse - np.diag(curvatures(log_density, mode))
    expected = -loss(mode) - 0.5 * (np.linalg.slogdet(precision)[1] + np.linalg.slogdet(KERNEL)[1])
    found = pmep.fit("laplace", model=process(name), draws=0, progressbar=False)
    fit = group(found, "fit")
    np.testing.assert_allclose(float(fit["log_evidence"]), expected, atol=1e-8)
    np.testing.assert_allclose(group(found, "posterior_mean")["f"], mode, atol=1e-8)
    sd = np.sqrt(np.linalg.inv(precision).diagonal())
    np.testing.assert_allclose(group(found, "posterior_sd")["f"], sd, rtol=1e-8)
    assert fit.attrs["log_evidence_is"].startswith("Laplace's approximation to the log density of the data")


def test_laplace_against_scikit_learn():
    """`GaussianProcessClassifier(ConstantKernel(1.7**2) * RBF(0.6))` of scikit-learn 1.9.1: log evidence and gradient.

    The gradient is in the logarithms of 1.7**2 and 0.6.
    """
    rng = np.random.default_rng(7)
    x = np.sort(rng.uniform(0, 4, 25))
    y = np.sin(2 * x) + 0.5 * rng.normal(size=25) > 0
    with pm.Model() as model:
        amp, ell = pm.LogNormal("amp", 0, 1), pm.LogNormal("ell", 0, 1)
        f = pm.MvNormal("f", np.zeros(25), amp**2 * pm.math.exp(-0.5 * ((x[:, None] - x) / ell) ** 2))
        pm.Bernoulli("y", logit_p=f, observed=y)
    form = compiled_form(model)
    value, gradient = get_method("laplace", form.form).evidence_op(form, {}).evaluate(np.log([1.7, 0.6]))
    np.testing.assert_allclose(value, -13.237390141422514, atol=1e-8)
    np.testing.assert_allclose(gradient * [0.5, 1.0], [1.08688783, -1.51294178], atol=1e-7)


@pytest.mark.parametrize("name", ["poisson", "student_t"])
def test_the_bound_against_direct_optimisation_of_mean_and_covariance(name):
    """With as many free numbers as a mean and a triangular factor have, and nodes enough for the expectations."""
    log_density, factor = OBSERVED[name][1], np.linalg.cholesky(KERNEL)
    node, weight = standard_normal_rule(60)
    lower = np.tril_indices(N)

    def loss(free):
        """For q = N(m0 + L u, L R R^T L^T), whose divergence is that of N(u, R R^T) from the standard normal."""
        whitened, root = free[:N], np.zeros((N, N))
        root[lower] = free[N:]
        whole = factor @ root
        sd = np.sqrt((whole**2).sum(axis=1))
        predictors = 0.2 + factor @ whitened + sd * node[:, None]
        slope = (log_density(predictors + 1e-5) - log_density(predictors - 1e-5)) / 2e-5
        expected = (weight @ log_density(predictors)).sum()
        by_root = np.tril(factor.T @ (((weight * node) @ slope / sd)[:, None] * whole))
        divergence = 0.5 * ((root**2).sum() - N + whitened @ whitened) - np.log(np.abs(root.diagonal())).sum()
        gradient = np.concatenate(
            [whitened - factor.T @ (weight @ slope), (root - np.diag(1 / root.diagonal()) - by_root)[lower]]
        )
        return divergence - expected, gradient

    start = np.concatenate([np.zeros(N), (0.5 * np.eye(N))[lower]])
    best = scipy.optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
    fit = pmep.fit("vg", model=process(name), draws=0, progressbar=False)
    np.testing.assert_allclose(float(group(fit, "fit")["log_evidence"]), -best.fun, atol=1e-8)
    np.testing.assert_allclose(group(fit, "posterior_mean")["f"], 0.2 + factor @ best.x[:N], atol=1e-5)


def slope_model(observe):
    """Observations y of b x: the evidence is an integral over the one number b."""
    with pm.Model() as model:
        x, y, width = pm.Data("x", np.ones(5)), pm.Data("y_", np.ones(5)), pm.Data("width", np.ones(1))
        observe(pm.Normal("b", 0, width, shape=1)[0] * x, y)
    return model


def draws_of(rng, eta):
    return {
        "poisson": rng.poisson(np.exp(eta)),
        "logit": rng.random(5) < scipy.special.expit(eta),
        "student_t": eta + 0.4 * rng.standard_t(3, 5),
        "laplace": eta + rng.laplace(0, 0.4, 5),
        "softplus": rng.poisson(np.logaddexp(0, eta)),
    }


SLOPES = {
    "poisson": (
        lambda eta, y: pm.Poisson("y", pm.math.exp(eta), observed=y),
        lambda eta, y: scipy.stats.poisson(np.exp(eta)).logpmf(y),
    ),
    "logit": (
        lambda eta, y: pm.Bernoulli("y", logit_p=eta, observed=y),
        lambda eta, y: -np.logaddexp(0, (1 - 2 * y) * eta),
    ),
    "student_t": (
        lambda eta, y: pm.StudentT("y", nu=3, mu=eta, sigma=0.4, observed=y),
        lambda eta, y: scipy.stats.t(3, eta, 0.4).logpdf(y),
    ),
    "laplace": (
        lambda eta, y: pm.Laplace("y", eta, 0.4, observed=y),
        lambda eta, y: scipy.stats.laplace(eta, 0.4).logpdf(y),
    ),
    "softplus": (
        lambda eta, y: pm.Poisson("y", pt.softplus(eta), observed=y),
        lambda eta, y: scipy.stats.poisson(np.logaddexp(0, eta)).logpmf(y),
    ),
}


@pytest.mark.parametrize("name", SLOPES)
def test_bounds_lie_below_the_exact_evidence(name):
    """At 10 data sets, and the local bound below the variational Gaussian one."""
    observe, log_density = SLOPES[name]
    model, nodes = slope_model(observe), np.linspace(-12, 12, 20001)
    form = compiled_form(model)
    ops = {
        m: get_method(m, form.form).evidence_op(form, {"max_iter": 2000})
        for m in ("vg", "dsb")
        if name != "poisson" or m == "vg"
    }
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x, width = rng.normal(size=5), np.array([rng.choice([0.3, 1.0, 2.0])])
        y = draws_of(rng, x * width * rng.normal())[name].astype(float)
        with model:
            pm.set_data({"x": x, "y_": y, "width": width})
        b = width * nodes
        log_joint = log_density(b[:, None] * x, y).sum(axis=1) + scipy.stats.norm.logpdf(nodes)
        exact = scipy.special.logsumexp(log_joint) + np.log(nodes[1] - nodes[0])
        found = {m: op.evaluate(np.zeros(0))[0] for m, op in ops.items()}
        assert exact - 0.7 < found["vg"] < exact + 1e-9
        assert found.get("dsb", -np.inf) <= found["vg"] + 1e-9


@pytest.mark.parametrize("method", RULES)
def test_what_is_maximised_never_falls(method):
    form = compiled_form(process("student_t"))
    form.solve_in("observations")
    prior = form.prior(form.start)
    engine = Ascent(RULES[method], form.sites, tol=1e-9)
    seen = []
    report = engine.step

    def step(problem, state):
        after = report(problem, state)
        seen.append(after.objective - state.objective)
        return after

    engine.step = step
    problem = pmep.evidence.ep.repeats.repeats_at(form, form.start, prior).problem(prior)
    for start in (None, tuple(np.zeros((2, N))), (10 * np.ones(N), 5 * np.ones(N))):
        ended = run(engine, problem, start, max_iter=500)
        assert ended.status.converged
    assert min(seen) > -1e-11


@pytest.mark.parametrize("method", RULES)
def test_gradients_in_site_parameters_and_of_shared_predictors(method):
    """Of repeated observations, which are one site, with and without parameters that are learned."""
    rng = np.random.default_rng(2)
    at, noise = rng.integers(0, 4, 20), rng.normal(size=20)
    with pm.Model() as model:
        u = pm.Normal("u", pm.Normal("level", 0, 1), pm.HalfNormal("s", 1.0), shape=4)
        pm.StudentT("y", nu=pm.Gamma("nu", 4, 1), mu=u[at], sigma=pm.HalfNormal("noise", 1.0), observed=at + noise)
        pm.Bernoulli("z", logit_p=u[at] - 1, observed=noise > 0)
        if method != "dsb":
            pm.Gamma("w", pm.HalfNormal("alpha", 2.0), pm.math.exp(u[at]), observed=np.abs(noise) + 0.1)
    form = compiled_form(model, latent=["u", "level"])
    op = get_method(method, form.form).evidence_op(form, {"tol": 1e-11, "max_iter": 2000})
    theta, step = form.start + 0.2, 1e-5
    gradient = op.evaluate(theta)[1]
    differences = [
        (op.evaluate(theta + e)[0] - op.evaluate(theta - e)[0]) / (2 * step) for e in step * np.eye(theta.size)
    ]
    np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-6)
    assert not op.counts.failed


def walk():
    n = 310
    counts = np.random.default_rng(0).poisson(np.exp(np.sin(np.arange(n) / 20)))
    with pm.Model() as model:
        x = pm.GaussianRandomWalk("x", 0.0, 0.2, init_dist=pm.Normal.dist(0, 1), steps=n - 1)
        pm.Poisson("y", pm.math.exp(x), observed=counts)
    return model


def effects():
    """Of 140 groups, each of two coefficients that meet no others: their precision falls into blocks."""
    rng, n = np.random.default_rng(1), 420
    at, x = np.arange(n) % 140, rng.normal(size=n)
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0, 1, shape=140), pm.Normal("slope", 0, 0.5, shape=140)
        pm.NegativeBinomial("y", mu=pm.math.exp(level[at] + slope[at] * x), alpha=3.0, observed=rng.poisson(2.0, n))
    return model


@pytest.mark.parametrize("method", ["laplace", "vg"])
@pytest.mark.parametrize(("write", "solvers"), [(walk, ("coefficients", "precision")), (effects, ("coefficients",))])
def test_every_representation_has_the_same_fit(write, solvers, method):
    model = write()
    fits = [
        pmep.fit(method, model=model, solver=solver, draws=0, progressbar=False)
        for solver in ("observations", *solvers)
    ]
    first, *others = fits
    name = "x" if write is walk else "level"
    for other in others:
        np.testing.assert_allclose(group(other, "fit")["log_evidence"], group(first, "fit")["log_evidence"], atol=1e-7)
        for part in ("posterior_mean", "posterior_sd"):
            np.testing.assert_allclose(group(other, part)[name], group(first, part)[name], atol=1e-7)
        np.testing.assert_allclose(group(other, "fit")["y_loo"], group(first, "fit")["y_loo"], atol=1e-6)


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("centre", [0.0, -2.0])
def test_another_maximum_is_told(method, centre):
    """Of a density with two peaks: where the fit sees both, and where it sees that one site is far from its own."""
    with pm.Model() as model:
        pm.StudentT("y", nu=1, mu=pm.Normal("f", centre, 3.0, shape=1)[[0, 0, 0]], sigma=0.3, observed=[-2.0, 2.5, 2.5])
    # From starts of all observations that they ignore, these two also find how much is in the other peak.
    told = nullcontext() if method == "vg" else pytest.warns(ConvergenceWarning, match="several peaks, and the result")
    with told:
        status = group(pmep.fit(method, model=model, draws=0, max_iter=1000, progressbar=False), "fit").attrs["status"]
    if centre and method == "laplace":
        assert "there is another maximum 4.3 nats below" in status
    elif method != "dsb":
        assert "1 of the sites curve upwards there, as outliers do, and there may be other maxima" in status


def two_predictors(f):
    pm.Normal("y", f, pm.math.exp(pm.Normal("spread", 0, 1, shape=N)), observed=REALS)


REFUSED = [
    *((method, two_predictors, "normal of two predictors, known to EP alone") for method in RULES),
    ("laplace", lambda f: pm.Laplace("y", f, 1.0, observed=REALS), "the log density of a laplace site has a kink"),
    ("laplace", lambda f: pmep.RectifiedPoisson("y", f, observed=COUNTS), "of a rectified_poisson site has a kink"),
    ("vg", lambda f: pmep.RectifiedPoisson("y", f, observed=COUNTS), "a rectified_poisson site vanishes at some"),
    ("dsb", lambda f: pm.Poisson("y", pm.math.exp(f), observed=COUNTS), "no Gaussian lower bound on a poisson site"),
]


@pytest.mark.parametrize(("method", "observe", "message"), REFUSED)
def test_a_likelihood_without_what_a_method_needs_is_refused_by_name(method, observe, message):
    with pm.Model() as model:
        observe(pm.MvNormal("f", np.zeros(N), KERNEL))
    with pytest.raises(pmep.UnsupportedModelError, match=f"Of 'y', .*{message}.*supported"):
        pmep.fit(method, model=model)


def test_a_density_that_ends_has_no_bound():
    with pm.Model() as model:
        pm.Exponential("y", pm.Normal("f", 1, 1, shape=3), observed=[1.0, 2.0, 3.0])
    with pytest.raises(pmep.NumericalError, match="is not finite"):
        pmep.fit("vg", model=model)


def test_options_are_checked_and_a_limit_of_steps_is_told():
    with pytest.raises(ValueError, match="method='vg' has no option 'power'"):
        pmep.fit("vg", model=process("poisson"), power=0.5)
    with pytest.raises(ValueError, match=r"tol=0 must be positive"):
        pmep.fit("laplace", model=process("poisson"), tol=0)
    with pytest.warns(pmep.ConvergenceWarning, match="stopped after 2 iterations .* raise max_iter"):
        pmep.fit("vg", model=process("poisson"), max_iter=2, draws=0, progressbar=False)


def test_diagnosis_has_no_expansion_about_ep():
    model = process("poisson")
    found = pmep.diagnose(pmep.fit("vg", model=model, random_seed=1, progressbar=False), model)
    assert "expansion is about EP" in found.attrs["absent"]
    assert abs(float(found["importance_correction"])) < 0.1


@pytest.mark.parametrize("method", RULES)
def test_a_variable_without_observations_is_refused(method):
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("b", 0, 1) * np.zeros(0), observed=np.zeros(0, dtype=int))
    with pytest.raises(pmep.InvalidDataError, match="'y' has no observations; pass at least one"):
        pmep.fit(method, model=model)
