"""Every likelihood a model may have: which site it becomes, and that EP's posterior is that of PyMC's own density.

With one observation a latent value EP is exact, so that posterior and evidence are integrals over one value each,
taken here by the trapezoidal rule from `pm.logp` of the distribution as the model writes it.
"""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.stats
from scipy.integrate import trapezoid

import pymc_ep as pmep
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.evidence import Evidence
from pymc_ep.forms import compiled_form
from pymc_ep.modes import numpy_mode

N = 8
COUNTS = np.array([0, 1, 3, 2, 0, 7, 1, 4])
BINARY = np.array([0, 1, 1, 0, 1, 0, 0, 1])
TRIALS = np.array([1, 2, 5, 9, 4, 7, 3, 6])
REALS = np.array([0.2, -0.4, 1.0, 0.6, 2.5, -1.3, 0.0, 0.9])
POSITIVE = np.array([0.2, 0.4, 1.0, 3.6, 2.5, 0.03, 7.0, 0.9])
SHARES = np.array([0.2, 0.4, 0.01, 0.6, 0.95, 0.3, 0.5, 0.9])
CATEGORIES = np.array([0, 1, 2, 3, 1, 2, 0, 3])
CUTS = np.array([-0.7, 0.3, 1.1])
KNOWN = np.linspace(0.5, 1.5, N)

# Site, distribution as a function of the predictor, observations.
LIKELIHOODS = {
    "poisson_exp": ("poisson", lambda f: pm.Poisson.dist(pt.exp(f)), COUNTS),
    "negative_binomial": ("negative_binomial", lambda f: pm.NegativeBinomial.dist(mu=pt.exp(f), alpha=1.7), COUNTS),
    "negative_binomial_with_exposure": (
        "negative_binomial",
        lambda f: pm.NegativeBinomial.dist(mu=KNOWN * pt.exp(f), alpha=KNOWN),
        COUNTS,
    ),
    "negative_binomial_n_p": (
        "negative_binomial",
        lambda f: pm.NegativeBinomial.dist(n=1.7, p=pt.sigmoid(-f)),
        COUNTS,
    ),
    "bernoulli_logit": ("logit", lambda f: pm.Bernoulli.dist(logit_p=f), BINARY),
    "bernoulli_probit": ("probit", lambda f: pm.Bernoulli.dist(pm.math.invprobit(f)), BINARY),
    "bernoulli_cloglog": ("cloglog", lambda f: pm.Bernoulli.dist(1 - pt.exp(-pt.exp(f))), BINARY),
    "binomial_logit": ("binomial_logit", lambda f: pm.Binomial.dist(TRIALS, logit_p=f), TRIALS // 2),
    "binomial_probit": ("binomial_probit", lambda f: pm.Binomial.dist(TRIALS, pm.math.invprobit(f)), TRIALS),
    "binomial_cloglog": ("binomial_cloglog", lambda f: pm.Binomial.dist(9, 1 - pt.exp(-pt.exp(f))), TRIALS),
    "exponential_mean": ("exponential", lambda f: pm.Exponential.dist(scale=pt.exp(f)), POSITIVE),
    "exponential_rate": ("exponential", lambda f: pm.Exponential.dist(lam=pt.exp(f + KNOWN)), POSITIVE),
    "gamma_mean": ("gamma", lambda f: pm.Gamma.dist(alpha=2.5, beta=2.5 / pt.exp(f)), POSITIVE),
    "gamma_rate": ("gamma", lambda f: pm.Gamma.dist(alpha=KNOWN, beta=pt.exp(f)), POSITIVE),
    "beta": ("beta", lambda f: pm.Beta.dist(mu=pt.sigmoid(f), nu=6.0), SHARES),
    "ordered_logit": ("ordered_logit", lambda f: pm.OrderedLogistic.dist(eta=f, cutpoints=CUTS), CATEGORIES),
    "ordered_probit": ("ordered_probit", lambda f: pm.OrderedProbit.dist(eta=f, cutpoints=CUTS), CATEGORIES),
    "ordered_probit_scaled": (
        "ordered_probit",
        lambda f: pm.OrderedProbit.dist(eta=f, cutpoints=CUTS, sigma=1.5),
        CATEGORIES,
    ),
    "normal": ("normal", lambda f: pm.Normal.dist(f, 0.7), REALS),
    "student_t": ("student_t", lambda f: pm.StudentT.dist(nu=4, mu=f, sigma=0.7), REALS),
    "laplace": ("laplace", lambda f: pm.Laplace.dist(f, 0.7), REALS),
    # By quadrature of the distribution's own log density.
    "censored_normal": (
        "generic",
        lambda f: pm.Censored.dist(pm.Normal.dist(f, 0.7), lower=-0.4, upper=1.0),
        np.clip(REALS, -0.4, 1.0),
    ),
    "censored_poisson": (
        "generic",
        lambda f: pm.Censored.dist(pm.Poisson.dist(pt.exp(f)), lower=None, upper=3),
        np.minimum(COUNTS, 3),
    ),
    "truncated_normal": (
        "generic",
        lambda f: pm.Truncated.dist(pm.Normal.dist(f, 0.7), lower=-1.5, upper=None),
        REALS,
    ),
    "truncated_gamma": (
        "generic",
        lambda f: pm.Truncated.dist(pm.Gamma.dist(alpha=2.0, beta=pt.exp(f)), lower=None, upper=KNOWN + 7.0),
        POSITIVE,
    ),
    "lognormal": ("generic", lambda f: pm.LogNormal.dist(f, 0.5), POSITIVE),
    "weibull": ("generic", lambda f: pm.Weibull.dist(alpha=1.4, beta=pt.exp(f)), POSITIVE),
    "gumbel": ("generic", lambda f: pm.Gumbel.dist(f, 0.6), REALS),
    "logistic": ("generic", lambda f: pm.Logistic.dist(f, 0.6), REALS),
    "skew_normal": ("generic", lambda f: pm.SkewNormal.dist(mu=f, sigma=0.8, alpha=2.0), REALS),
    "asymmetric_laplace": ("asymmetric_laplace", lambda f: pm.AsymmetricLaplace.dist(kappa=2.0, mu=f, b=1.5), REALS),
    "von_mises": ("generic", lambda f: pm.VonMises.dist(mu=f, kappa=3.0), REALS),
    "zero_inflated_poisson": ("generic", lambda f: pm.ZeroInflatedPoisson.dist(psi=0.7, mu=pt.exp(f)), COUNTS),
    "zero_inflation": ("generic", lambda f: pm.ZeroInflatedPoisson.dist(psi=pt.sigmoid(f), mu=2.0), COUNTS),
    "hurdle_poisson": ("generic", lambda f: pm.HurdlePoisson.dist(psi=0.7, mu=pt.exp(f)), COUNTS),
    "hurdle_gamma": ("generic", lambda f: pm.HurdleGamma.dist(psi=0.7, alpha=2.0, beta=pt.exp(f)), POSITIVE),
    "gamma_mean_and_sd": ("generic", lambda f: pm.Gamma.dist(mu=pt.exp(f), sigma=0.8), POSITIVE),
    "geometric": ("generic", lambda f: pm.Geometric.dist(pt.sigmoid(f)), COUNTS + 1),
    "beta_binomial": (
        "generic",
        lambda f: pm.BetaBinomial.dist(alpha=3 * pt.sigmoid(f), beta=3 * pt.sigmoid(-f), n=TRIALS),
        TRIALS // 2,
    ),
    "unlisted_link": ("generic", lambda f: pm.Poisson.dist(pt.exp(f) + 1.0), COUNTS),
    "square": ("generic", lambda f: pm.Poisson.dist(pt.exp(f**2)), COUNTS),
    "absolute_value": ("generic", lambda f: pm.Normal.dist(pt.abs(f), 0.5), REALS),
    "step": ("generic", lambda f: pm.Normal.dist(pt.switch(f > 0.3, 1.0, 0.0), 0.5), REALS),
    "positive_rate": ("generic", lambda f: pm.Exponential.dist(lam=f + 1.0), POSITIVE),
    "one_predictor_twice": ("generic", lambda f: pm.Normal.dist(f, pt.exp(0.3 * f)), REALS),
    # In a scale or a shape, beside a location that is known; REALS have a value right at it.
    "normal_log_sd": ("generic", lambda f: pm.Normal.dist(0.0, pt.exp(f)), REALS),
    "normal_log_precision": ("generic", lambda f: pm.Normal.dist(KNOWN - 1, tau=2.0 * pt.exp(0.6 * f - 1)), REALS),
    "student_t_log_precision": ("generic", lambda f: pm.StudentT.dist(nu=4, mu=0.0, lam=pt.exp(-2 * f)), REALS),
    "laplace_log_scale": ("generic", lambda f: pm.Laplace.dist(0.3, KNOWN * pt.exp(f)), REALS),
    "normal_softplus_sd": ("generic", lambda f: pm.Normal.dist(0.25, pt.softplus(f)), REALS),
    "normal_cut_log_sd": ("generic", lambda f: pm.Normal.dist(0.25, pt.exp(pt.clip(f, -1.0, 0.3))), REALS),
    "student_t_degrees_of_freedom": ("generic", lambda f: pm.StudentT.dist(nu=pt.exp(f), mu=0.25, sigma=0.7), REALS),
    "gamma_shape": ("generic", lambda f: pm.Gamma.dist(alpha=pt.exp(f), beta=1.5), POSITIVE),
    "negative_binomial_alpha": ("generic", lambda f: pm.NegativeBinomial.dist(mu=2.0, alpha=pt.exp(f)), COUNTS),
    "beta_concentration": ("generic", lambda f: pm.Beta.dist(mu=0.37, nu=pt.exp(f)), SHARES),
}
LOG_CONCAVE = ("normal_log_sd", "normal_log_precision", "student_t_log_precision", "laplace_log_scale")
"""Those generic ones that are known to be so, and need no search for peaks."""


def observe(dist, y):
    """Add a distribution to the model as an observed variable, as the class of its name would."""
    return pm.modelcontext(None).register_rv(dist, "y", observed=y)


def one_value_each(write, y):
    """A model of independent standard normal values, one for each observation."""
    with pm.Model() as model:
        observe(write(pm.Normal("f", 0.2, 1.2, shape=N)), y)
    return model


def by_trapezoids(write, y):
    """Posterior mean and standard deviation of each value, and the log evidence."""
    # Graded to the places where the densities below jump or end.
    steps = np.geomspace(1e-13, 1.0, 2_001)
    grid = np.concatenate(
        [np.linspace(-14, 14, 40_001), *(end + sign * steps for end in (0.3, -1.0) for sign in (1, -1))]
    )
    grid.sort()
    f = pt.matrix("f")
    mode = numpy_mode().including("local_remove_check_parameter")
    log_t = pytensor.function([f], pm.logp(write(f), y), mode=mode)
    with np.errstate(all="ignore"):
        table = log_t(np.repeat(grid[:, None], N, axis=1))
    prior = -0.5 * ((grid - 0.2) / 1.2) ** 2 - 0.5 * np.log(2 * np.pi * 1.2**2)
    weight = np.exp(np.where(np.isfinite(table), table, -np.inf) + prior[:, None])
    total = trapezoid(weight, grid, axis=0)
    mean = trapezoid(weight * grid[:, None], grid, axis=0) / total
    variance = trapezoid(weight * (grid[:, None] - mean) ** 2, grid, axis=0) / total
    return mean, np.sqrt(variance), np.log(total).sum()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_posterior_and_evidence(name):
    site, write, y = LIKELIHOODS[name]
    model = one_value_each(write, y)
    (group,) = compiled_form(model).form.groups
    assert group.site.name.startswith(site)
    if site == "generic":
        assert "quadrature of the distribution's own log density" in pmep.explain(model)
        assert group.site.log_concave == (name in LOG_CONCAVE)
    idata = pmep.fit(model=model, draws=0, progressbar=False)
    mean, deviation, log_evidence = by_trapezoids(write, y)
    assert bool(idata["fit"]["converged"])
    np.testing.assert_allclose(idata["posterior_mean"]["f"], mean, atol=2e-6)
    np.testing.assert_allclose(idata["posterior_sd"]["f"], deviation, rtol=2e-6)
    np.testing.assert_allclose(idata["fit"]["log_evidence"], log_evidence, atol=2e-6)


# Distribution with one more parameter s, a random variable.
WITH_HYPERPARAMETER = {
    "censored": (lambda f, s: pm.Censored.dist(pm.Normal.dist(f, s), lower=-0.4, upper=1.0), np.clip(REALS, -0.4, 1.0)),
    "gumbel": (lambda f, s: pm.Gumbel.dist(f, s), REALS),
    "skew_normal": (lambda f, s: pm.SkewNormal.dist(mu=f, sigma=s, alpha=2 * s), REALS),
    "beta": (lambda f, s: pm.Beta.dist(mu=pt.sigmoid(f), nu=5 * s), SHARES),
    "location_beside_a_log_scale": (lambda f, s: pm.StudentT.dist(nu=3 * s, mu=s, sigma=s * pt.exp(f)), REALS),
    "negative_binomial": (lambda f, s: pm.NegativeBinomial.dist(mu=pt.exp(f), alpha=s), COUNTS),
    "ordered_logit": (
        lambda f, s: pm.OrderedLogistic.dist(eta=f, cutpoints=pt.stack([-s, 0.2 * s, 0.9 * s])),
        CATEGORIES,
    ),
}


@pytest.mark.parametrize("name", WITH_HYPERPARAMETER)
def test_gradient_of_the_evidence_in_a_parameter_of_the_likelihood(name):
    write, y = WITH_HYPERPARAMETER[name]
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        # Two observations of each value, so that the sites depend on each other.
        f = pm.Normal("f", 0.2, 1.2, shape=N // 2)
        observe(write(f[np.arange(N) // 2], s), y)
    form = compiled_form(model)
    evidence = Evidence(form, EP(form.sites, tol=1e-11), max_iter=500)
    theta, step = np.array([-0.3]), 1e-4
    up, down = (evidence.at(theta + sign * step).value for sign in (1, -1))
    np.testing.assert_allclose(evidence.gradient(evidence.at(theta)), (up - down) / (2 * step), rtol=2e-6)


def test_the_widest_parameter_carries_the_predictor_by_default():
    with pm.Model() as model:
        f, skew = pm.Normal("f", 0.0, 1.0, shape=N), pm.Normal("skew", 0.0, 1.0)
        pm.SkewNormal("y", mu=f, sigma=0.5, alpha=skew, observed=REALS)
    form = compiled_form(model).form
    assert form.latent_names == ("f",)
    assert form.hyper_names == ("skew",)


@pytest.mark.parametrize(("size", "latent"), [(1, "level"), (N, "log_sd")])
def test_a_wider_predictor_of_the_scale_comes_before_that_of_the_mean(size, latent):
    with pm.Model() as model:
        level, log_sd = pm.Normal("level", 0.0, 1.0, shape=1), pm.Normal("log_sd", 0.0, 1.0, shape=size)
        pm.Normal("y", level, pt.exp(log_sd), observed=REALS)
    form = compiled_form(model).form
    assert form.latent_names == (latent,)
    assert {*form.latent_names, *form.hyper_names} == {"level", "log_sd"}
    for name in ("level", "log_sd"):
        assert compiled_form(model, [name]).form.latent_names == (name,)


def test_far_ends_of_a_log_scale_are_safe():
    """Where the scale overflows or underflows, as a wide cavity makes it do, and right at the location."""
    model = one_value_each(lambda f: pm.StudentT.dist(nu=4, mu=0.0, sigma=pt.exp(f)), REALS)
    (site,) = compiled_form(model).sites
    for mean in (-900.0, 0.0, 900.0):
        # At the location t is exp(-f) times a constant, and moves the cavity by its variance.
        found = site.moments(0.0, mean, 1e6)
        np.testing.assert_allclose(found.mean, mean - 1e6, rtol=1e-9)
        np.testing.assert_allclose(found.variance, 1e6, rtol=1e-9)
        # Elsewhere t has slopes 4 and -1 far out, and next to nothing is left of such a cavity.
        found = site.moments(0.4, mean, 1e6)
        assert all(np.isfinite(part) for part in found)
        assert abs(found.mean) < 3.0
        assert found.variance < 3.0


def test_a_nonlinear_curve_is_no_reason_to_call_its_inner_term_a_predictor():
    with pm.Model() as model:
        height, rate = pm.Normal("height", 1.0, 1.0), pm.Normal("rate", 0.0, 1.0)
        pm.Normal("y", height * pt.exp(-rate * KNOWN), 0.3, observed=REALS)
    assert compiled_form(model).form.latent_names == ("height",)


def test_a_deterministic_on_the_way_changes_nothing():
    def evidence(named):
        with pm.Model() as model:
            rate = pt.exp(pm.Normal("f", 0.2, 1.2, shape=N))
            pm.ZeroInflatedPoisson("y", 0.7, pm.Deterministic("rate", rate) if named else rate, observed=COUNTS)
        return float(pmep.fit(model=model, draws=0, progressbar=False)["fit"]["log_evidence"])

    np.testing.assert_allclose(evidence(True), evidence(False), rtol=1e-12)


def test_scalars_of_a_zero_inflated_model():
    """Evidence by quadrature of PyMC's own density of both, whichever is integrated out."""
    with pm.Model() as model:
        psi, mu = pm.Normal("psi", 0.5, 1.0), pm.Normal("mu", 0.7, 0.5)
        pm.ZeroInflatedPoisson("y", psi=pt.sigmoid(psi), mu=pt.exp(mu), observed=COUNTS)
    density = model.compile_fn(model.logp(sum=True), inputs=[model.rvs_to_values[v] for v in (psi, mu)])
    at, step = np.linspace(-3.0, 5.0, 120), 8.0 / 119 * 4.0 / 119
    rates = np.linspace(-1.5, 2.5, 120)
    logs = np.array([[float(density({"psi": a, "mu": b})) for b in rates] for a in at])
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    for latent, other in (("mu", "psi"), ("psi", "mu")):
        assert compiled_form(model).form.latent_names == ("mu",)
        found = pmep.fit(model=model, latent=[latent], draws=0, progressbar=False, random_seed=1)
        assert compiled_form(model, [latent]).form.hyper_names == (other,)
        np.testing.assert_allclose(
            found["fit"]["log_evidence"], np.log(np.exp(logs - logs.max()).sum() * step) + logs.max(), atol=0.02
        )
        np.testing.assert_allclose(found["posterior_mean"]["psi"], weight.sum(axis=1) @ at, atol=0.03)
        np.testing.assert_allclose(found["posterior_mean"]["mu"], weight.sum(axis=0) @ rates, atol=0.01)


def test_the_predictor_of_a_registered_site_comes_before_that_of_the_shape():
    """Mean and sd, each with a predictor, both behind the Op's two parameters: a tie, but for the site."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.0), pm.Normal("b", 0.0, 1.0)
        c, d = pm.Normal("c", 0.0, 1.0), pm.Normal("d", 0.0, 1.0)
        mean = pt.exp(a + b * KNOWN)
        pm.Gamma("y", mu=mean, sigma=mean / pt.sqrt(pt.exp(c + d * KNOWN)), observed=POSITIVE)
    form = compiled_form(model).form
    assert form.latent_names == ("a", "b")
    assert form.groups[0].site.name == "gamma"


def test_cutpoints_whose_number_is_not_in_their_type():
    """As Bambi writes ordered categories: probabilities as differences, cutpoints with the length of a dim."""
    with pm.Model(coords={"cut": range(3)}) as model:
        cuts = pm.Normal("cuts", CUTS, 0.5, dims="cut", transform=pm.distributions.transforms.ordered)
        eta = pm.Normal("b", 0.0, 1.0) * KNOWN
        below = pt.sigmoid(cuts - eta[:, None])
        p = pt.concatenate([below[:, :1], below[:, 1:] - below[:, :-1], 1 - below[:, -1:]], axis=1)
        pm.Categorical("y", p=p, observed=CATEGORIES)
    form = compiled_form(model).form
    assert form.latent_names == ("b",)
    assert form.groups[0].site.name == "ordered_logit"


def test_bad_observations_are_named():
    with pm.Model() as model:
        pm.Binomial("y", TRIALS, logit_p=pm.Normal("f", 0.0, 1.0, shape=N), observed=TRIALS + (np.arange(N) == 3))
    with pytest.raises(
        pmep.InvalidDataError, match=r"'y' has the value 10.0 at index 3 with n = 9.0.*no more successes"
    ):
        pmep.fit(model=model, draws=0, progressbar=False)
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 1.0, shape=N)
        pm.OrderedLogistic("y", eta=f, cutpoints=CUTS, observed=CATEGORIES + (np.arange(N) == 3))
    with pytest.raises(pmep.InvalidDataError, match=r"'y' has the value 4.0 at index 3.*categories from 0 to 3"):
        pmep.fit(model=model, draws=0, progressbar=False)


STACKS = np.array(
    [
        [80, 27, 89, 42], [80, 27, 88, 37], [75, 25, 90, 37], [62, 24, 87, 28], [62, 22, 87, 18], [62, 23, 87, 18],
        [62, 24, 93, 19], [62, 24, 93, 20], [58, 23, 87, 15], [58, 18, 80, 14], [58, 18, 89, 14], [58, 17, 88, 13],
        [58, 18, 82, 11], [58, 19, 93, 12], [50, 18, 89, 8], [50, 18, 86, 7], [50, 19, 72, 8], [50, 19, 79, 8],
        [50, 20, 80, 9], [56, 20, 82, 15], [70, 20, 91, 15],
    ]
)  # fmt: skip
"""Loss of ammonia at a plant (Brownlee 1965): air flow, temperature, acid, loss."""

ROBUST = {
    "student": lambda mu, s: pm.StudentT.dist(nu=4, mu=mu, sigma=s),
    **{f"quantile {q}": lambda mu, s, q=q: pm.AsymmetricLaplace.dist(q=q, mu=mu, b=1 / s) for q in (0.1, 0.5, 0.9)},
}


@pytest.mark.parametrize("name", ROBUST)
def test_stack_losses_settle(name):
    """Robust and quantile regression, at the mode of the scale, against importance sampling from a wide Gaussian."""
    x = (STACKS[:, :3] - STACKS[:, :3].mean(axis=0)) / STACKS[:, :3].std(axis=0)
    x = np.column_stack([np.ones(len(x)), x])
    with pm.Model() as model:
        s = pm.HalfNormal("s", 10.0)
        b = pm.Normal("b", 0, 10, shape=4)
        observe(ROBUST[name](x @ b, s), STACKS[:, 3])
    result = pmep.fit(model=model, hyper="optimize", draws=0, progressbar=False)
    fit = result["fit"]
    assert bool(fit["converged"])
    mean, sd = (result[f"posterior_{what}"]["b"].to_numpy() for what in ("mean", "sd"))
    rng = np.random.default_rng(0)
    # The coefficients depend on each other: their spread is that of least squares, widened to the sds found.
    shape = np.linalg.inv(x.T @ x)
    shape = shape * np.max(sd**2 / np.diag(shape))
    proposal = scipy.stats.multivariate_t(mean, shape, df=5, seed=rng)
    draws = proposal.rvs(100_000)
    predictors, value = pt.dmatrix(), float(fit["hyper_mode_s"])
    log_density = pm.logp(ROBUST[name](predictors, value), STACKS[:, 3].astype(float)).sum(axis=1)
    log_t = pytensor.function([predictors], log_density, mode=numpy_mode())
    log_w = log_t(draws @ x.T) + scipy.stats.norm(0, 10).logpdf(draws).sum(axis=1) - proposal.logpdf(draws)
    weight = np.exp(log_w - log_w.max())
    expected = weight @ draws / weight.sum()
    spread = np.sqrt(weight @ (draws - expected) ** 2 / weight.sum())
    np.testing.assert_allclose((mean - expected) / spread, 0, atol=0.15)
    np.testing.assert_allclose(sd, spread, rtol=0.15)
    np.testing.assert_allclose(fit["log_evidence"], np.log(weight.mean()) + log_w.max(), atol=0.2)


def test_coefficients_in_one_vector_behind_an_unlisted_link():
    """They have another shape than the offsets that links are looked for with."""
    x = np.linspace(-1.0, 1.0, N)

    def evidence(coefficients):
        with pm.Model() as model:
            a, b = coefficients()
            pm.Poisson("y", pt.exp(a + b * x) + 1.0, observed=COUNTS)
        return float(pmep.fit(model=model, draws=0, progressbar=False)["fit"]["log_evidence"])

    def vector():
        both = pm.Normal("both", shape=2)
        return both[0], both[1]

    one, other = evidence(vector), evidence(lambda: (pm.Normal("a"), pm.Normal("b")))
    np.testing.assert_allclose(one, other, rtol=1e-7)
