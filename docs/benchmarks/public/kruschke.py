"""Models of Kruschke's Doing Bayesian Data Analysis, as ported to PyMC; data simulated with his groups and sizes."""

import numpy as np
import pymc as pm
from scipy.special import expit

from docs.benchmarks.public.base import codes, public, r_table

__all__: list[str] = []

SOURCE = "Kruschke"


@public("kruschke_iq_one_group", SOURCE, simulated=True)
def iq_one_group() -> pm.Model:
    y = np.random.default_rng(63).normal(107, 25, 63)
    with pm.Model() as model:
        mu = pm.Normal("mu", y.mean(), sigma=y.std() * 100)
        sigma = pm.Uniform("sigma", y.std() / 1000, y.std() * 1000)
        pm.Normal("y", mu=mu, sigma=sigma, observed=y)
    return model


@public("kruschke_best", SOURCE)
def best() -> pm.Model:
    drug = [101, 100, 102, 104, 102, 97, 105, 105, 98, 101, 100, 123, 105, 103, 100, 95, 102, 106, 109, 102, 82, 102]
    drug += [100, 102, 102, 101, 102, 102, 103, 103, 97, 97, 103, 101, 97, 104, 96, 103, 124, 101, 101, 100, 101]
    drug += [101, 104, 100, 101]
    placebo = [99, 101, 100, 101, 102, 100, 97, 101, 104, 101, 102, 102, 100, 105, 88, 101, 100, 104, 100, 100, 100]
    placebo += [101, 102, 103, 97, 101, 101, 100, 101, 99, 101, 100, 100, 101, 100, 99, 101, 100, 102, 99, 100, 99]
    y = np.array(drug + placebo, dtype=float)
    group = np.repeat([0, 1], [len(drug), len(placebo)])
    with pm.Model() as model:
        means = pm.Normal("means", mu=y.mean(), sigma=y.std() * 2, shape=2)
        stds = pm.Uniform("stds", lower=1, upper=10, shape=2)
        nu = pm.Deterministic("nu", pm.Exponential("nu_minus_one", 1 / 29.0) + 1)
        pm.StudentT("y", nu=nu, mu=means[group], lam=stds[group] ** -2, observed=y)
    return model


@public("kruschke_robust_regression", SOURCE)
def robust_regression() -> pm.Model:
    d = r_table("MASS/hills")
    x, y = d["climb"].to_numpy(dtype=float), d["time"].to_numpy()
    zx, zy = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    with pm.Model() as model:
        beta0, beta1 = pm.Normal("beta0", mu=0, sigma=10), pm.Normal("beta1", mu=0, sigma=10)
        sigma = pm.Uniform("sigma", 10**-3, 10**3)
        nu = pm.Deterministic("nu", pm.Exponential("nu_minus_one", 1 / 29.0) + 1)
        pm.StudentT("zy", mu=beta0 + beta1 * zx, sigma=sigma, nu=nu, observed=zy)
    return model


@public("kruschke_sex_fruitflies", SOURCE, simulated=True)
def fruitflies() -> pm.Model:
    rng = np.random.default_rng(19)
    group = np.repeat(np.arange(5), 25)
    y = rng.normal(np.array([63.4, 65, 63.6, 57, 38.5])[group], 15)
    with pm.Model() as model:
        a0 = pm.Normal("a0", mu=y.mean(), sigma=y.std() * 5)
        a_sigma = pm.Gamma("a_sigma", alpha=1.64, beta=0.0321)
        a = pm.Normal("a", 0.0, sigma=a_sigma, shape=5)
        sigma = pm.Uniform("sigma", y.std() / 100, y.std() * 10)
        pm.Normal("y", a0 + a[group], sigma=sigma, observed=y)
    return model


@public("kruschke_two_way_anova", SOURCE)
def two_way_anova() -> pm.Model:
    d = r_table("datasets/warpbreaks")
    (wool, n_wools), (tension, n_tensions) = codes(d["wool"]), codes(d["tension"])
    y = d["breaks"].to_numpy(dtype=float)
    spread = y.std()
    with pm.Model() as model:
        a0 = pm.Normal("a0", y.mean(), spread * 5)
        s1, s2, s12 = (pm.Gamma(f"{k}_sd", alpha=1.28, beta=0.96 / spread) for k in ("a1", "a2", "a1a2"))
        a1, a2 = pm.Normal("a1", 0.0, s1, shape=n_wools), pm.Normal("a2", 0.0, s2, shape=n_tensions)
        a1a2 = pm.Normal("a1a2", 0.0, s12, shape=(n_wools, n_tensions))
        sigma = pm.Uniform("y_sigma", spread / 100, spread * 10)
        pm.Normal("y", a0 + a1[wool] + a2[tension] + a1a2[wool, tension], sigma=sigma, observed=y)
    return model


@public("kruschke_hierarchical_lines", SOURCE, simulated=True)
def hierarchical_lines() -> pm.Model:
    rng = np.random.default_rng(25)
    subject = np.repeat(np.arange(25), rng.integers(3, 9, 25))
    x = rng.normal(0, 1, len(subject))
    b0, b1 = rng.normal(0, 0.8, 25), rng.normal(0.6, 0.3, 25)
    y = b0[subject] + b1[subject] * x + 0.4 * rng.standard_t(4, len(subject))
    with pm.Model() as model:
        beta0, beta1 = pm.Normal("beta0", 0, 10), pm.Normal("beta1", 0, 10)
        sigma0, sigma1 = pm.Uniform("sigma0", 10**-3, 10**3), pm.Uniform("sigma1", 10**-3, 10**3)
        beta0_s = pm.Normal("beta0_s", mu=beta0, sigma=sigma0, shape=25)
        beta1_s = pm.Normal("beta1_s", mu=beta1, sigma=sigma1, shape=25)
        sigma = pm.Uniform("sigma", 10**-3, 10**3)
        nu = pm.Deterministic("nu", pm.Exponential("nu_minus_one", 1 / 29.0) + 1)
        pm.StudentT("y", mu=beta0_s[subject] + beta1_s[subject] * x, sigma=sigma, nu=nu, observed=y)
    return model


@public("kruschke_movies_ordinal", SOURCE, simulated=True)
def movies() -> pm.Model:
    rng = np.random.default_rng(13)
    movie = np.repeat(np.arange(12), 40)
    mu = rng.normal(1.5, 0.6, 12)
    y = np.digitize(rng.normal(mu[movie], 1.0), [0.5, 1.2, 1.9, 2.6])
    with pm.Model() as model:
        start = np.array([0.0, 1.0, 2.0, 3.0])
        cuts = pm.Normal("cuts", start, 2, transform=pm.distributions.transforms.ordered, initval=start)
        spread = pm.Exponential("spread", 1)
        eta = pm.Normal("eta", 0, spread, shape=12)
        pm.OrderedProbit("y", eta=eta[movie], cutpoints=cuts, observed=y)
    return model


@public("kruschke_batting_logit_normal", SOURCE, simulated=True)
def batting() -> pm.Model:
    rng = np.random.default_rng(9)
    position = np.repeat(np.arange(9), 12)
    skill = rng.normal(-1.1, 0.3, 9)[position] + rng.normal(0, 0.15, 108)
    at_bats = rng.integers(1, 400, 108)
    hits = rng.binomial(at_bats, expit(skill))
    with pm.Model() as model:
        mu = pm.Normal("mu", -1, 1)
        s_position, s_player = pm.HalfNormal("s_position", 1), pm.HalfNormal("s_player", 1)
        by_position = pm.Normal("by_position", mu, s_position, shape=9)
        player = pm.Normal("player", by_position[position], s_player, shape=108)
        pm.Binomial("hits", n=at_bats, p=pm.math.sigmoid(player), observed=hits)
    return model


@public("kruschke_therapeutic_touch", SOURCE, obstacle="no Gaussian variable")
def therapeutic_touch() -> pm.Model:
    right = np.array([1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 6, 6, 7, 7, 7, 8])
    with pm.Model() as model:
        omega = pm.Beta("omega", 1, 1)
        kappa = pm.Deterministic("kappa", pm.Gamma("kappa_minus_two", 0.01, 0.01) + 2)
        theta = pm.Beta("theta", alpha=omega * (kappa - 2) + 1, beta=(1 - omega) * (kappa - 2) + 1, shape=28)
        pm.Binomial("y", n=10, p=theta, observed=right)
    return model
