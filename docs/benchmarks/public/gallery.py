"""Models of PyMC's example gallery, with the priors given there; most of its data are simulated there too."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

from docs.benchmarks.public.base import data_table, public

__all__: list[str] = []

SOURCE = "PyMC gallery"


def _outliers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8927)
    x = np.linspace(0, 1, 100)
    y = 1 + 2 * x + rng.normal(scale=0.5, size=100)
    return np.append(x, [0.1, 0.15, 0.2]), np.append(y, [8, 6, 9])


@public("glm_robust", SOURCE, simulated=True)
def glm_robust() -> pm.Model:
    x, y = _outliers()
    with pm.Model() as model:
        xdata = pm.Data("x", x, dims="obs_id")
        intercept, slope = pm.Normal("intercept", 0, 1), pm.Normal("slope", 0, 1)
        sigma = pm.HalfCauchy("sigma", beta=10)
        mu = pm.Deterministic("mu", intercept + slope * xdata, dims="obs_id")
        pm.StudentT("y", mu=mu, sigma=sigma, nu=3, observed=y, dims="obs_id")
    return model


@public("glm_poisson_sneezes", SOURCE, simulated=True)
def glm_poisson() -> pm.Model:
    rng = np.random.default_rng(8927)
    sneezes = np.concatenate([rng.poisson(rate, 1000) for rate in (1, 3, 6, 36)])
    alcohol, nomeds = np.tile(np.repeat([0.0, 1.0], 1000), 2), np.repeat([0.0, 1.0], 2000)
    with pm.Model() as model:
        b0, b1, b2 = (pm.Normal(name, 0, 10) for name in ("Intercept", "alcohol", "nomeds"))
        b3 = pm.Normal("alcohol:nomeds", 0, 10)
        theta = b0 + b1 * alcohol + b2 * nomeds + b3 * alcohol * nomeds
        pm.Poisson("y", mu=pm.math.exp(theta), observed=sneezes)
    return model


@public("glm_logistic_interaction", SOURCE, simulated=True)
def glm_logistic() -> pm.Model:
    rng = np.random.default_rng(8927)
    x1, x2 = rng.normal(0, 2, 250), rng.normal(0, 2, 250)
    y = rng.binomial(1, expit(-0.5 + x1 - x2 + 2 * x1 * x2))
    design = np.column_stack([np.ones(250), x1, x2, x1 * x2])[:175]
    with pm.Model(coords={"coeffs": ["Intercept", "x1", "x2", "x1:x2"]}) as model:
        data, observed = pm.Data("X", design), pm.Data("y", y[:175])
        b = pm.Normal("b", 0, 1, dims="coeffs")
        p = pm.Deterministic("p", pm.math.invlogit(pm.math.dot(data, b)))
        pm.Bernoulli("obs", p=p, observed=observed)
    return model


def _bounded() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(12345)
    x = rng.uniform(-10, 10, 200)
    return x, rng.normal(x, 2)


def _cut_regression(x: np.ndarray, y: np.ndarray, cut: type) -> pm.Model:
    with pm.Model() as model:
        slope, intercept = pm.Normal("slope", 0, 1), pm.Normal("intercept", 0, 1)
        sigma = pm.HalfNormal("σ", sigma=1)
        cut("obs", pm.Normal.dist(mu=slope * x + intercept, sigma=sigma), lower=-5, upper=5, observed=y)
    return model


@public("censored_regression", SOURCE, simulated=True)
def censored_regression() -> pm.Model:
    x, y = _bounded()
    return _cut_regression(x, y.clip(-5, 5), pm.Censored)


@public("truncated_regression", SOURCE, simulated=True)
def truncated_regression() -> pm.Model:
    x, y = _bounded()
    inside = np.abs(y) <= 5
    return _cut_regression(x[inside], y[inside], pm.Truncated)


@public("gp_latent_student_t", SOURCE, simulated=True)
def gp_latent_student_t() -> pm.Model:
    rng = np.random.default_rng(8998)
    x = np.linspace(0, 10, 50)
    cov_true = 16 * np.exp(-0.5 * np.subtract.outer(x, x) ** 2)
    y = rng.multivariate_normal(np.zeros(50), cov_true, method="eigh") + rng.standard_t(5, 50)
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", alpha=2, beta=1), pm.HalfNormal("eta", sigma=5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell))
        f = gp.prior("f", X=x[:, None])
        sigma = pm.HalfNormal("sigma", sigma=2.0)
        nu = 1 + pm.Gamma("nu", alpha=2, beta=0.1)
        pm.StudentT("y", mu=f, lam=1.0 / sigma, nu=nu, observed=y)
    return model


@public("gp_latent_classification", SOURCE, simulated=True)
def gp_latent_classification() -> pm.Model:
    rng = np.random.default_rng(8888)
    x = np.linspace(0, 10, 300)
    cov_true = np.exp(-0.5 * (np.subtract.outer(x, x) / 0.5) ** 2)
    y = rng.binomial(1, expit(rng.multivariate_normal(np.zeros(300), cov_true, method="eigh")))
    with pm.Model() as model:
        ell, eta = pm.InverseGamma("ell", mu=1.0, sigma=0.5), pm.Exponential("eta", lam=1.0)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell))
        f = gp.prior("f", X=x[:, None])
        p = pm.Deterministic("p", pm.math.invlogit(f))
        pm.Bernoulli("y", p=p, observed=y)
    return model


@public("rugby", SOURCE, simulated=True)
def rugby() -> pm.Model:
    rng = np.random.default_rng(9)
    home, away = np.array([(i, j) for i in range(6) for j in range(6) if i < j] * 4).T
    swap = rng.random(len(home)) < 0.5
    home, away = np.where(swap, away, home), np.where(swap, home, away)
    attack, defence = rng.normal(0, 0.3, 6), rng.normal(0, 0.3, 6)
    at_home = rng.poisson(np.exp(2.9 + 0.2 + attack[home] + defence[away]))
    visiting = rng.poisson(np.exp(2.9 + attack[away] + defence[home]))
    with pm.Model(coords={"team": [f"team {k}" for k in range(6)]}) as model:
        home_team, away_team = pm.Data("home_team", home, dims="match"), pm.Data("away_team", away, dims="match")
        advantage = pm.Normal("home", mu=0, sigma=1)
        sd_att, sd_def = pm.HalfNormal("sd_att", sigma=2), pm.HalfNormal("sd_def", sigma=2)
        intercept = pm.Normal("intercept", mu=3, sigma=1)
        atts_star = pm.Normal("atts_star", mu=0, sigma=sd_att, dims="team")
        defs_star = pm.Normal("defs_star", mu=0, sigma=sd_def, dims="team")
        atts = pm.Deterministic("atts", atts_star - pt.mean(atts_star), dims="team")
        defs = pm.Deterministic("defs", defs_star - pt.mean(defs_star), dims="team")
        home_theta = pt.exp(intercept + advantage + atts[home_team] + defs[away_team])
        away_theta = pt.exp(intercept + atts[away_team] + defs[home_team])
        pm.Poisson("home_points", mu=home_theta, observed=at_home, dims="match")
        pm.Poisson("away_points", mu=away_theta, observed=visiting, dims="match")
    return model


@public("structural_ar", SOURCE, simulated=True)
def structural_ar() -> pm.Model:
    rng = np.random.default_rng(8929)
    y = np.full(210, 10.0)
    for t in range(2, 210):
        y[t] = 10 - 0.9 * y[t - 1] + rng.normal(0, 0.3)
    with pm.Model(coords={"obs_id": np.arange(200)}) as model:
        coefs = pm.Normal("coefs", [10, 0.2], [0.1, 0.1])
        sigma = pm.HalfNormal("sigma", 8)
        init = pm.Normal.dist(9, 0.1, size=1)
        ar1 = pm.AR("ar", coefs, sigma=sigma, init_dist=init, constant=True, steps=199, dims="obs_id")
        pm.Normal("likelihood", mu=ar1, sigma=sigma, observed=y[10:], dims="obs_id")
    return model


@public("scotland_car", SOURCE)
def scotland_car() -> pm.Model:
    areas = data_table("disease-mapping/scotland_lip.csv")
    edges = data_table("disease-mapping/scotland_lip_edges.csv").to_numpy()[:, :2] - 1
    # CAR wants a neighbour for every district, which the three island ones have not.
    inland = np.unique(edges)
    weights = np.zeros((len(areas), len(areas)))
    weights[edges[:, 0], edges[:, 1]] = weights[edges[:, 1], edges[:, 0]] = 1
    kept = areas.iloc[inland]
    n = len(inland)
    with pm.Model() as model:
        beta0, beta1 = pm.Normal("beta0", 0.0, tau=1e-5), pm.Normal("beta1", 0.0, tau=1e-5)
        tau_ind, tau_spat = pm.Gamma("tau_ind", alpha=3.2761, beta=1.81), pm.Gamma("tau_spat", alpha=1.0, beta=1.0)
        alpha = pm.Beta("alpha", alpha=1, beta=1)
        theta = pm.Normal("theta", mu=0, tau=tau_ind, shape=n)
        phi = pm.CAR("phi", mu=np.zeros(n), tau=tau_spat, alpha=alpha, W=weights[np.ix_(inland, inland)], shape=n)
        log_rate = np.log(kept["expected"].to_numpy()) + beta0 + beta1 * kept["aff_percent"].to_numpy()
        mu = pm.Deterministic("mu", pt.exp(log_rate + theta + phi))
        pm.Poisson("y_i", mu=mu, observed=kept["observed"].to_numpy())
    return model


@public("stochastic_volatility", SOURCE, simulated=True)
def stochastic_volatility() -> pm.Model:
    rng = np.random.default_rng(10)
    volatility = np.cumsum(rng.normal(0, 0.1, 300)) - 4.5
    returns = np.exp(volatility) * rng.standard_t(8, 300)
    with pm.Model(coords={"time": np.arange(300)}) as model:
        step_size = pm.Exponential("step_size", 10)
        init = pm.Normal.dist(0, 100)
        walk = pm.GaussianRandomWalk("volatility", sigma=step_size, dims="time", init_dist=init)
        nu = pm.Exponential("nu", 0.1)
        pm.StudentT("returns", nu=nu, lam=np.exp(-2 * walk), observed=returns, dims="time")
    return model


@public("coal_log_gaussian_cox", SOURCE)
def coal_log_gaussian_cox() -> pm.Model:
    import pymc_ep

    counts, edges = np.histogram(pymc_ep.datasets.load_coal(), bins=100)
    centres = (edges[:-1] + edges[1:]) / 2
    area = edges[1] - edges[0]
    with pm.Model() as model:
        mu = pm.Normal("mu", sigma=3)
        rho = pm.Uniform("rho", lower=25, upper=300)
        variance = pm.InverseGamma("variance", alpha=1, beta=1)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(mu), cov_func=variance * pm.gp.cov.Matern52(1, rho))
        log_intensity = gp.prior("log_intensity", X=centres[:, None])
        pm.Poisson("counts", mu=pm.math.exp(log_intensity) * area, observed=counts)
    return model


@public("coal_switchpoint", SOURCE, obstacle="discrete unknown")
def coal_switchpoint() -> pm.Model:
    import pymc_ep

    counts, _ = np.histogram(pymc_ep.datasets.load_coal(), bins=np.arange(1851, 1964))
    years = np.arange(len(counts))
    with pm.Model() as model:
        switchpoint = pm.DiscreteUniform("switchpoint", lower=0, upper=len(counts) - 1)
        early, late = pm.Exponential("early_rate", 1.0), pm.Exponential("late_rate", 1.0)
        pm.Poisson("disasters", pm.math.switch(switchpoint >= years, early, late), observed=counts)
    return model


@public("hierarchical_baseball", SOURCE, simulated=True, obstacle="no Gaussian variable")
def hierarchical_baseball() -> pm.Model:
    rng = np.random.default_rng(11)
    hits = rng.binomial(45, rng.beta(0.27 * 60, 0.73 * 60, 18))
    with pm.Model() as model:
        phi = pm.Uniform("phi", lower=0.0, upper=1.0)
        kappa_log = pm.Exponential("kappa_log", lam=1.5)
        kappa = pm.Deterministic("kappa", pt.exp(kappa_log))
        theta = pm.Beta("theta", alpha=phi * kappa, beta=(1.0 - phi) * kappa, shape=18)
        pm.Binomial("y", n=45, p=theta, observed=hits)
    return model
