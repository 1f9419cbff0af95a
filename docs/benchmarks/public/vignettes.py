"""Models of papers, vignettes and manuals, with small data as printed or simulated."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.interpolate import BSpline
from scipy.special import expit, ndtr

from docs.benchmarks.public.base import public

__all__: list[str] = []


@public("gelman_three_schools", "Gelman 2006")
def gelman_three_schools() -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 100), pm.HalfCauchy("tau", 25)
        theta = pm.Normal("theta", mu, tau, shape=3)
        pm.Normal("y", theta, [15.0, 10.0, 16.0], observed=[28.0, 8.0, -3.0])
    return model


@public("bda_newcomb", "Gelman et al. BDA")
def bda_newcomb() -> pm.Model:
    y = [28, 26, 33, 24, 34, -44, 27, 16, 40, -2, 29, 22, 24, 21, 25, 30, 23, 29, 31, 19, 24, 20, 36, 32, 36, 28]
    y += [25, 21]
    y += [28, 29, 37, 25, 28, 26, 30, 32, 36, 26, 30, 22, 36, 23, 27, 27, 28, 27, 31, 27, 26, 33, 26, 32, 32, 24]
    y += [39, 28, 24, 25, 32, 25, 29, 27, 28, 29, 16, 23]
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 25, 25), pm.HalfCauchy("sigma", 10)
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=mu, sigma=sigma, observed=np.array(y, dtype=float))
    return model


@public("bda_rat_tumours", "Gelman et al. BDA")
def bda_rat_tumours() -> pm.Model:
    y = [0] * 14 + [1] * 8 + [2] * 9 + [1, 5, 2, 5, 3, 2, 7, 7, 3, 3, 2, 9, 10, 4, 4, 4, 4, 4, 4, 4, 10, 4, 4, 4, 5]
    y += [11, 12, 5, 5, 6, 5, 6, 6, 6, 6, 16, 15, 15, 9, 4]
    n = [20] * 7 + [19] * 4 + [18] * 2 + [17] + [20] * 4 + [19] * 2 + [18] * 2 + [25, 24, 23, 20, 20, 20, 20, 20, 20]
    n += [10, 49, 19, 46, 27, 17, 49, 47, 20, 20, 13, 48, 50, 20, 20, 20, 20, 20, 20, 20, 48, 19, 19, 19, 22]
    n += [46, 49, 20, 20, 23, 19, 22, 20, 20, 20, 52, 46, 47, 24, 14]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", -2, 2), pm.HalfCauchy("tau", 1)
        group = pm.Normal("group", mu, tau, shape=71)
        pm.Binomial("y", n=n, logit_p=group, observed=y)
    return model


@public("bliss_mites", "Bliss & Fisher 1953", quadrature=True)
def bliss_mites() -> pm.Model:
    counts = np.repeat(np.arange(8), [70, 38, 17, 10, 9, 3, 2, 1])
    with pm.Model() as model:
        mu, alpha = pm.Normal("mu", 0, 2), pm.HalfCauchy("alpha", 2)
        pm.NegativeBinomial("count", mu=pm.math.exp(mu), alpha=alpha, observed=counts)
    return model


@public("finney_gall_cells", "Finney & Varley 1955", quadrature=True)
def finney_gall_cells() -> pm.Model:
    counts = np.repeat(np.arange(1, 10), [22, 18, 18, 11, 9, 6, 3, 0, 1])
    with pm.Model() as model:
        mu, alpha = pm.Normal("mu", 0, 2), pm.HalfCauchy("alpha", 5)
        whole = pm.NegativeBinomial.dist(mu=pm.math.exp(mu), alpha=alpha)
        pm.Truncated("count", whole, lower=1, upper=None, observed=counts)
    return model


@public("student_sleep", "Student 1908")
def student_sleep() -> pm.Model:
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    with pm.Model() as model:
        drug = pm.Normal("drug", 0, 5, shape=2)
        tau, sigma = pm.HalfCauchy("tau", 2), pm.HalfCauchy("sigma", 2)
        patient = pm.Normal("patient", 0, tau, shape=10)
        pm.StudentT("hours", nu=4, mu=drug[:, None] + patient[None, :], sigma=sigma, observed=[first, second])
    return model


@public("rousseeuw_phones", "Rousseeuw & Leroy")
def rousseeuw_phones() -> pm.Model:
    calls = [0.44, 0.47, 0.47, 0.59, 0.66, 0.73, 0.81, 0.88, 1.06, 1.20, 1.35, 1.49, 1.61, 2.12]
    calls += [11.90, 12.40, 14.20, 15.90, 18.20, 21.20, 4.30, 2.40, 2.70, 2.90]
    year = (np.arange(24) - 11.5) / 10
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10)
        sigma = pm.HalfCauchy("sigma", 2)
        pm.StudentT("calls", nu=3, mu=a + b * year, sigma=sigma, observed=calls)
    return model


@public("ezekiel_cars_spline", "Eilers & Marx")
def ezekiel_cars_spline() -> pm.Model:
    times = [2, 2, 1, 1, 3, 2, 4, 4, 4, 3, 2, 3, 4, 3, 5, 1, 1, 4, 1]
    speed = np.repeat([4.0, *range(7, 21), 22, 23, 24, 25], times)
    feet = [2, 10, 4, 22, 16, 10, 18, 26, 34, 17, 28, 14, 20, 24, 28, 26, 34, 34, 46, 26, 36, 60, 80, 20, 26, 54, 32]
    feet += [40, 32, 40, 50, 42, 56, 76, 84, 36, 46, 68, 32, 48, 52, 56, 64, 66, 54, 70, 92, 93, 120, 85]
    knots = np.concatenate([[4.0] * 3, np.linspace(4, 25, 7), [25.0] * 3])
    basis = BSpline.design_matrix(speed, knots, 3).toarray()
    with pm.Model() as model:
        sd_step, sigma = pm.HalfCauchy("sd_step", 20), pm.HalfCauchy("sigma", 20)
        first = pm.Normal("first", 0, 50)
        step = pm.Normal("step", 0, sd_step, shape=8)
        w = pm.Deterministic("w", pt.concatenate([[first], first + pt.cumsum(step)]))
        pm.Normal("feet", basis @ w, sigma, observed=np.array(feet, dtype=float))
    return model


@public("brockwell_lake_huron", "Brockwell & Davis")
def brockwell_lake_huron() -> pm.Model:
    y = [10.38, 11.86, 10.97, 10.80, 9.79, 10.39, 10.42, 10.82, 11.40, 11.32, 11.44, 11.68, 11.17, 10.53, 10.01, 9.91]
    y += [9.14, 9.16, 9.55, 9.67, 8.44, 8.24, 9.10, 9.09, 9.35, 8.82, 9.32, 9.01, 9.00, 9.80, 9.83, 9.72]
    y += [9.89, 10.01, 9.37, 8.69, 8.19, 8.67, 9.55, 8.92, 8.09, 9.37, 10.13, 10.14, 9.51, 9.24, 8.66, 8.86]
    with pm.Model() as model:
        mean, slope = pm.Normal("mean", 9, 5), pm.Normal("slope", 0, 5)
        eta, ls = pm.HalfCauchy("eta", 2), pm.InverseGamma("ls", 3, 8)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern32(1, ls=ls)).prior("f", np.arange(48.0)[:, None])
        sigma = pm.HalfCauchy("sigma", 1)
        pm.Normal("feet", mean + slope * (np.arange(48) - 23.5) / 10 + f, sigma, observed=y)
    return model


@public("brms_hurdle", "brms families", simulated=True)
def brms_hurdle() -> pm.Model:
    rng = np.random.default_rng(11)
    x = rng.normal(size=120)
    counts = pm.draw(pm.HurdleNegativeBinomial.dist(psi=0.6, mu=np.exp(0.8 + 0.5 * x), alpha=2.0), random_seed=11)
    with pm.Model() as model:
        b, psi = pm.Normal("b", 0, 2.5, shape=2), pm.Beta("psi", 1, 1)
        alpha = pm.HalfCauchy("alpha", 2)
        pm.HurdleNegativeBinomial("y", psi=psi, mu=pm.math.exp(b[0] + b[1] * x), alpha=alpha, observed=counts)
    return model


@public("brms_truncated_counts", "brms families", simulated=True)
def brms_truncated_counts() -> pm.Model:
    rng = np.random.default_rng(12)
    group, x = np.repeat(np.arange(10), 12), rng.normal(size=120)
    counts = rng.poisson(np.exp(0.3 + 0.4 * x + rng.normal(0, 0.4, 10)[group]))
    seen = counts > 0
    with pm.Model() as model:
        b, tau = pm.Normal("b", 0, 2.5, shape=2), pm.HalfStudentT("tau", nu=3, sigma=2.5)
        u = pm.Normal("u", 0, tau, shape=10)
        whole = pm.Poisson.dist(pm.math.exp(b[0] + b[1] * x[seen] + u[group[seen]]))
        pm.Truncated("y", whole, lower=1, upper=None, observed=counts[seen])
    return model


@public("stan_guide_stochastic_volatility", "Stan User's Guide", simulated=True)
def stan_guide_stochastic_volatility() -> pm.Model:
    rng = np.random.default_rng(13)
    h = np.zeros(120)
    for t in range(1, 120):
        h[t] = 0.95 * h[t - 1] + rng.normal(0, 0.3)
    y = np.exp((h - 1.0) / 2) * rng.normal(size=120)
    with pm.Model() as model:
        mu, phi = pm.Normal("mu", 0, 5), pm.Beta("phi", 20, 1.5)
        sigma = pm.HalfCauchy("sigma", 1)
        start = pm.Normal.dist(0, sigma / pt.sqrt(1 - phi**2))
        h = pm.AR("h", rho=[phi], sigma=sigma, init_dist=start, steps=119)
        pm.Normal("y", 0, pm.math.exp((mu + h) / 2), observed=y)
    return model


@public("stan_guide_measurement_error", "Stan User's Guide", simulated=True)
def stan_guide_measurement_error() -> pm.Model:
    rng = np.random.default_rng(14)
    true = rng.normal(2, 1.5, 30)
    y, measured = rng.normal(1 + 0.8 * true, 0.6), rng.normal(true, 0.5)
    with pm.Model() as model:
        mu_x, sd_x = pm.Normal("mu_x", 0, 10), pm.HalfCauchy("sd_x", 5)
        x = pm.Normal("x", mu_x, sd_x, shape=30)
        alpha, beta = pm.Normal("alpha", 0, 10), pm.Cauchy("beta", 0, 2.5)
        sigma = pm.HalfCauchy("sigma", 5)
        pm.Normal("x_measured", x, 0.5, observed=measured)
        pm.Normal("y", alpha + beta * x, sigma, observed=y)
    return model


@public("gpml_classification", "Rasmussen & Williams", simulated=True)
def gpml_classification() -> pm.Model:
    rng = np.random.default_rng(15)
    x = np.sort(rng.uniform(0, 10, 40))
    y = rng.binomial(1, ndtr(2 * np.sin(x)))
    with pm.Model() as model:
        eta, ls = pm.HalfCauchy("eta", 2), pm.InverseGamma("ls", 4, 6)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls)).prior("f", x[:, None], jitter=1e-6)
        pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y)
    return model


@public("inla_lattice_besag", "R-INLA book", simulated=True)
def inla_lattice_besag() -> pm.Model:
    rng, at = np.random.default_rng(16), np.arange(30).reshape(5, 6)
    W = np.zeros((30, 30), dtype=int)
    for one, other in ((at[:, 1:], at[:, :-1]), (at[1:], at[:-1])):
        W[one, other] = W[other, one] = 1
    expected = rng.gamma(5, 1, 30)
    y = rng.poisson(expected * np.exp(0.6 * np.sin(at.ravel() / 5) + rng.normal(0, 0.2, 30)))
    with pm.Model() as model:
        level, tau = pm.Normal("level", 0, 2), pm.HalfCauchy("tau", 1)
        phi = pm.ICAR("phi", W=W, sigma=tau)
        pm.Poisson("y", expected * pm.math.exp(level + phi), observed=y)
    return model


@public("rstanarm_rasch", "rstanarm", simulated=True)
def rstanarm_rasch() -> pm.Model:
    rng = np.random.default_rng(17)
    p = expit(rng.normal(0.5, 1.0, 25)[:, None] - rng.normal(0, 0.8, 8)[None, :])
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 2.5)
        sd_person, sd_item = pm.HalfCauchy("sd_person", 2.5), pm.HalfCauchy("sd_item", 2.5)
        person, item = pm.Normal("person", 0, sd_person, shape=25), pm.Normal("item", 0, sd_item, shape=8)
        pm.Bernoulli("y", logit_p=mean + person[:, None] - item[None, :], observed=rng.binomial(1, p))
    return model


@public("brms_beta_groups", "brms families", simulated=True)
def brms_beta_groups() -> pm.Model:
    rng = np.random.default_rng(18)
    group, x = np.repeat(np.arange(8), 8), rng.normal(size=64)
    mean = expit(-0.3 + 0.5 * x + rng.normal(0, 0.5, 8)[group])
    with pm.Model() as model:
        b, tau = pm.Normal("b", 0, 2.5, shape=2), pm.HalfCauchy("tau", 1)
        phi, u = pm.HalfCauchy("phi", 20), pm.Normal("u", 0, tau, shape=8)
        mu = pm.math.sigmoid(b[0] + b[1] * x + u[group])
        pm.Beta("y", mu=mu, nu=phi, observed=rng.beta(12 * mean, 12 * (1 - mean)))
    return model


@public("glmmtmb_slopes_negbinomial", "glmmTMB", simulated=True)
def glmmtmb_slopes_negbinomial() -> pm.Model:
    rng = np.random.default_rng(19)
    group, x = np.repeat(np.arange(15), 8), rng.uniform(-1, 1, 120)
    u, v = rng.normal(0, 0.5, 15), rng.normal(0, 0.4, 15)
    mean = np.exp(1.2 + u[group] + (0.6 + v[group]) * x)
    with pm.Model() as model:
        b, sd = pm.Normal("b", 0, 2.5, shape=2), pm.HalfCauchy("sd", 1, shape=2)
        alpha = pm.HalfStudentT("alpha", nu=3, sigma=5)
        u, v = pm.Normal("u", 0, sd[0], shape=15), pm.Normal("v", 0, sd[1], shape=15)
        rate = pm.math.exp(b[0] + u[group] + (b[1] + v[group]) * x)
        pm.NegativeBinomial("y", mu=rate, alpha=alpha, observed=rng.poisson(mean * rng.gamma(3, 1 / 3, 120)))
    return model


@public("zeger_counts_ar1", "Zeger 1988", simulated=True)
def zeger_counts_ar1() -> pm.Model:
    rng, state = np.random.default_rng(20), np.zeros(80)
    for t in range(1, 80):
        state[t] = 0.7 * state[t - 1] + rng.normal(0, 0.5)
    month = 2 * np.pi * np.arange(80) / 12
    X = np.column_stack([np.ones(80), np.arange(80) / 80, np.cos(month), np.sin(month)])
    y = rng.poisson(np.exp(X @ [0.8, -0.5, 0.3, -0.3] + state))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2.5, shape=4)
        rho, sigma = pm.Uniform("rho", -1, 1), pm.HalfCauchy("sigma", 1)
        u = pm.AR("u", rho=[rho], sigma=sigma, init_dist=pm.Normal.dist(0, 1), steps=79)
        pm.Poisson("y", pm.math.exp(X @ beta + u), observed=y)
    return model


@public("collett_rare_trials", "Collett", simulated=True)
def collett_rare_trials() -> pm.Model:
    with pm.Model() as model:
        mu, delta = pm.Normal("mu", -3, 2), pm.Cauchy("delta", 0, 2.5)
        tau = pm.HalfCauchy("tau", 1)
        centre = pm.Normal("centre", 0, tau, shape=6)
        eta = mu + centre[:, None] + delta * np.array([0, 1])
        n = np.array([[40, 42], [25, 24], [60, 61], [18, 20], [33, 30], [50, 48]])
        pm.Binomial("y", n=n, logit_p=eta, observed=[[3, 0], [1, 0], [4, 0], [0, 0], [2, 0], [5, 0]])
    return model
