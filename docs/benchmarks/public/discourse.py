"""Models as asked about on PyMC's discourse and in its examples, among them those that integration could break on."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.public.base import codes, public, r_table

__all__: list[str] = []

SOURCE = "PyMC discourse"


@public("horseshoe_regression", SOURCE, simulated=True)
def horseshoe_regression() -> pm.Model:
    rng = np.random.default_rng(12)
    X = rng.normal(0, 1, (80, 12))
    y = X[:, :3] @ [2.0, -1.0, 0.5] + rng.normal(0, 1, 80)
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 0.1)
        lam = pm.HalfCauchy("lam", 1, shape=12)
        z = pm.Normal("z", 0, 1, shape=12)
        beta = pm.Deterministic("beta", z * lam * tau)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", X @ beta, sigma, observed=y)
    return model


@public("finnish_horseshoe", SOURCE, simulated=True)
def finnish_horseshoe() -> pm.Model:
    rng = np.random.default_rng(20)
    X = rng.normal(0, 1, (100, 8))
    y = rng.binomial(1, 1 / (1 + np.exp(-X[:, :2] @ [2.0, -1.5])))
    with pm.Model() as model:
        tau, c2 = pm.HalfStudentT("tau", 2, 0.2), pm.InverseGamma("c2", alpha=2, beta=2)
        lam = pm.HalfStudentT("lam", 5, shape=8)
        lam_tilde = pt.sqrt(c2) * lam / pt.sqrt(c2 + tau**2 * lam**2)
        z = pm.Normal("z", 0, 1, shape=8)
        b0 = pm.Normal("b0", 0, 2)
        beta = pm.Deterministic("beta", z * tau * lam_tilde)
        pm.Bernoulli("y", logit_p=b0 + X @ beta, observed=y)
    return model


@public("marketing_mix", SOURCE, simulated=True)
def marketing_mix() -> pm.Model:
    rng = np.random.default_rng(104)
    spend = rng.gamma(2, 0.5, (104, 4))
    carried = np.array([np.convolve(s, 0.5 ** np.arange(8))[:104] for s in spend.T]).T
    week = np.arange(104)
    seasons = np.column_stack([f(2 * np.pi * k * week / 52) for k in (1, 2) for f in (np.sin, np.cos)])
    y = 5 + carried @ [0.8, 0.4, 0.1, 0.0] + 0.01 * week + 0.5 * seasons[:, 0] + rng.normal(0, 0.4, 104)
    with pm.Model() as model:
        intercept, trend = pm.Normal("intercept", 4, 2), pm.Normal("trend", 0, 0.1)
        fourier = pm.Laplace("fourier", 0, 1, shape=4)
        beta = pm.HalfNormal("beta", 1, shape=4)
        sigma = pm.HalfNormal("sigma", 1)
        mu = intercept + trend * week + seasons @ fourier + carried @ beta
        pm.Normal("sales", mu, sigma, observed=y)
    return model


@public("ab_test_segments", SOURCE, simulated=True)
def ab_test_segments() -> pm.Model:
    rng = np.random.default_rng(7)
    n = rng.integers(50, 900, (12, 2))
    logit = rng.normal(-3, 0.5, 12)[:, None] + [0, 1] * rng.normal(0.1, 0.05, 12)[:, None]
    y = rng.binomial(n, 1 / (1 + np.exp(-logit)))
    with pm.Model(coords={"segment": np.arange(12), "arm": ["A", "B"]}) as model:
        base, lift = pm.Normal("base", -3, 1), pm.Normal("lift", 0, 0.5)
        sd_base, sd_lift = pm.HalfNormal("sd_base", 1), pm.HalfNormal("sd_lift", 0.5)
        segment = pm.Normal("segment_base", base, sd_base, dims="segment")
        effect = pm.Normal("segment_lift", lift, sd_lift, dims="segment")
        p = pm.math.sigmoid(pt.stack([segment, segment + effect], axis=1))
        pm.Binomial("conversions", n=n, p=p, observed=y, dims=("segment", "arm"))
    return model


@public("lkj4_slopes", SOURCE, simulated=True)
def lkj4_slopes() -> pm.Model:
    rng = np.random.default_rng(44)
    group = np.repeat(np.arange(30), 12)
    X = np.column_stack([np.ones(360), rng.normal(0, 1, (360, 3))])
    sds = np.array([1.0, 0.5, 0.3, 0.05])
    effects = rng.multivariate_normal(np.zeros(4), np.diag(sds) @ (0.6 * np.eye(4) + 0.4) @ np.diag(sds), 30)
    y = X @ [1, 0.5, -0.5, 0.0] + (X * effects[group]).sum(axis=1) + rng.normal(0, 0.8, 360)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=4)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=4, eta=2, sd_dist=pm.HalfNormal.dist(1, shape=4))
        z = pm.Normal("z", 0, 1, shape=(30, 4))
        u = pm.Deterministic("u", z @ chol.T)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", X @ beta + (X * u[group]).sum(axis=1), sigma, observed=y)
    return model


@public("lkj3_counts", SOURCE, simulated=True)
def lkj3_counts() -> pm.Model:
    rng = np.random.default_rng(33)
    group = np.repeat(np.arange(15), 10)
    X = np.column_stack([np.ones(150), rng.normal(0, 1, (150, 2))])
    effects = rng.normal(0, [0.7, 0.3, 0.1], (15, 3))
    y = rng.poisson(np.exp(X @ [1.0, 0.3, 0.0] + (X * effects[group]).sum(axis=1)))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=1, sd_dist=pm.Exponential.dist(1, shape=3))
        u = pm.MvNormal("u", mu=np.zeros(3), chol=chol, shape=(15, 3))
        pm.Poisson("y", pm.math.exp(X @ beta + (X * u[group]).sum(axis=1)), observed=y)
    return model


@public("group_noise_scales", SOURCE, simulated=True)
def group_noise_scales() -> pm.Model:
    rng = np.random.default_rng(10)
    group = np.repeat(np.arange(10), 8)
    y = rng.normal(rng.normal(0, 1, 10)[group], rng.gamma(4, 0.25, 10)[group])
    with pm.Model() as model:
        tau, spread = pm.HalfNormal("tau", 2), pm.HalfNormal("spread", 2)
        a = pm.Normal("a", 0, tau, shape=10)
        sigma = pm.HalfNormal("sigma", spread, shape=10)
        pm.Normal("y", a[group], sigma[group], observed=y)
    return model


@public("owls_zero_inflated", SOURCE, simulated=True)
def owls_zero_inflated() -> pm.Model:
    rng = np.random.default_rng(599)
    nest = np.sort(rng.integers(0, 27, 300))
    satiated, male = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    brood = rng.integers(2, 7, 27)[nest]
    rate = np.exp(0.6 - 0.3 * satiated + rng.normal(0, 0.4, 27)[nest] + np.log(brood))
    y = rng.binomial(1, 0.75, 300) * rng.poisson(rate * rng.gamma(3, 1 / 3, 300))
    with pm.Model() as model:
        b0, b_food, b_sex = pm.Normal("b0", 0, 2), pm.Normal("b_food", 0, 1), pm.Normal("b_sex", 0, 1)
        sd_nest = pm.HalfNormal("sd_nest", 1)
        u = pm.Normal("nest", 0, sd_nest, shape=27)
        psi, alpha = pm.Beta("psi", 2, 2), pm.Exponential("alpha", 0.5)
        mu = pm.math.exp(b0 + b_food * satiated + b_sex * male + u[nest] + np.log(brood))
        pm.ZeroInflatedNegativeBinomial("calls", psi=psi, mu=mu, alpha=alpha, observed=y)
    return model


@public("gasoline_beta", SOURCE)
def gasoline_beta() -> pm.Model:
    d = r_table("betareg/GasolineYield")
    batch, n = codes(d["batch"])
    temp = ((d["temp"] - d["temp"].mean()) / d["temp"].std()).to_numpy()
    with pm.Model() as model:
        b0, b_temp = pm.Normal("b0", 0, 2), pm.Normal("b_temp", 0, 1)
        sd_batch, phi = pm.HalfNormal("sd_batch", 1), pm.Gamma("phi", 2, 0.01)
        u = pm.Normal("batch", 0, sd_batch, shape=n)
        mu = pm.math.sigmoid(b0 + b_temp * temp + u[batch])
        pm.Beta("yield", alpha=mu * phi, beta=(1 - mu) * phi, observed=d["yield"].to_numpy())
    return model


@public("ship_damage", SOURCE)
def ship_damage() -> pm.Model:
    d = r_table("MASS/ships")
    d = d[d["service"] > 0]
    (kind, n), (year, n_years) = codes(d["type"]), codes(d["year"])
    late = (d["period"] == 75).astype(int).to_numpy()
    with pm.Model() as model:
        b0, b_late = pm.Normal("b0", -6, 2), pm.Normal("b_late", 0, 1)
        sd_kind, sd_year, sd_cell = (pm.HalfCauchy(f"sd_{k}", 1) for k in ("kind", "year", "cell"))
        u, v = pm.Normal("kind", 0, sd_kind, shape=n), pm.Normal("year", 0, sd_year, shape=n_years)
        e = pm.Normal("cell", 0, sd_cell, shape=len(d))
        rate = pm.math.exp(np.log(d["service"].to_numpy()) + b0 + b_late * late + u[kind] + v[year] + e)
        pm.Poisson("incidents", rate, observed=d["incidents"].to_numpy())
    return model


@public("insurance_claims", SOURCE)
def insurance_claims() -> pm.Model:
    d = r_table("MASS/Insurance")
    (group, _), (age, _), (district, _) = codes(d["Group"]), codes(d["Age"]), codes(d["District"])
    with pm.Model() as model:
        b0 = pm.Flat("b0")
        s_g, s_a, s_d = (pm.HalfNormal(f"sd_{k}", 1) for k in ("group", "age", "district"))
        g, a, u = (pm.Normal(k, 0, s, shape=4) for k, s in (("group", s_g), ("age", s_a), ("district", s_d)))
        rate = pm.math.exp(np.log(d["Holders"].to_numpy()) + b0 + g[group] + a[age] + u[district])
        pm.Poisson("claims", rate, observed=d["Claims"].to_numpy())
    return model


@public("quantile_regression", SOURCE)
def quantile_regression() -> pm.Model:
    d = r_table("MASS/mcycle")
    x = ((d["times"] - d["times"].mean()) / d["times"].std()).to_numpy()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 50, shape=4)
        scale = pm.HalfNormal("scale", 50)
        mu = b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3
        pm.AsymmetricLaplace("accel", mu=mu, b=1 / scale, q=0.9, observed=d["accel"].to_numpy())
    return model


@public("bcg_meta_analysis", SOURCE)
def bcg_meta_analysis() -> pm.Model:
    d = r_table("HSAUR/BCG")
    treated, control = d["BCGTB"] / d["BCGVacc"], d["NoVaccTB"] / d["NoVacc"]
    effect = np.log(treated / control).to_numpy()
    se = np.sqrt(1 / d["BCGTB"] - 1 / d["BCGVacc"] + 1 / d["NoVaccTB"] - 1 / d["NoVacc"]).to_numpy()
    latitude = ((d["Latitude"] - d["Latitude"].mean()) / 10).to_numpy()
    with pm.Model() as model:
        mu, b, tau = pm.Normal("mu", 0, 1), pm.Normal("b_latitude", 0, 1), pm.HalfCauchy("tau", 0.5)
        theta = pm.Normal("theta", mu + b * latitude, tau, shape=len(d))
        pm.Normal("effect", theta, se, observed=effect)
    return model


def _eight_schools() -> tuple[np.ndarray, np.ndarray]:
    return np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


@public("eight_schools_half_flat", SOURCE)
def eight_schools_half_flat() -> pm.Model:
    y, sigma = _eight_schools()
    with pm.Model() as model:
        mu, tau = pm.Flat("mu"), pm.HalfFlat("tau")
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, sigma, observed=y)
    return model


@public("eight_schools_student", SOURCE)
def eight_schools_student() -> pm.Model:
    y, sigma = _eight_schools()
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 20), pm.HalfCauchy("tau", 25)
        nu = pm.Gamma("nu", 2, 0.1)
        theta = pm.StudentT("theta", nu=nu, mu=mu, sigma=tau, shape=8)
        pm.Normal("y", theta, sigma, observed=y)
    return model


@public("one_group", SOURCE, simulated=True)
def one_group() -> pm.Model:
    y = np.random.default_rng(1).normal(2, 1, 15)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        a = pm.Normal("a", mu, tau, shape=1)
        unused = pm.Gamma("unused", 2, 1)
        spare = pm.Normal("spare", 0, unused)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", a[np.zeros(15, dtype=int)] + 0 * spare, sigma, observed=y)
    return model


@public("rare_events_groups", SOURCE, simulated=True)
def rare_events_groups() -> pm.Model:
    rng = np.random.default_rng(3)
    n = rng.integers(5, 40, 25)
    y = np.where(np.arange(25) == 4, 2, 0)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", -3, 2), pm.HalfCauchy("sigma", 2.5)
        a = pm.Normal("a", mu, sigma, shape=25)
        pm.Binomial("y", n=n, logit_p=a, observed=y)
    return model


@public("matched_pairs_binary", SOURCE, simulated=True)
def matched_pairs_binary() -> pm.Model:
    rng = np.random.default_rng(60)
    pair, treated = np.repeat(np.arange(60), 2), np.tile([0, 1], 60)
    y = rng.binomial(1, 1 / (1 + np.exp(-(-0.5 + 1.0 * treated + rng.normal(0, 3, 60)[pair]))))
    with pm.Model() as model:
        b0, b = pm.Normal("b0", 0, 3), pm.Normal("b", 0, 3)
        sigma = pm.Exponential("sigma", 0.3)
        u = pm.Normal("u", 0, sigma, shape=60)
        pm.Bernoulli("y", logit_p=b0 + b * treated + u[pair], observed=y)
    return model


@public("gp_ard_negbinomial", SOURCE, simulated=True)
def gp_ard_negbinomial() -> pm.Model:
    rng = np.random.default_rng(71)
    X = rng.uniform(0, 3, (70, 3))
    y = rng.negative_binomial(4, 4 / (4 + np.exp(1 + np.sin(2 * X[:, 0]) + 0.3 * X[:, 1])))
    with pm.Model() as model:
        mu = pm.Normal("mu", 1, 1)
        ell, eta = pm.InverseGamma("ell", 3, 3, shape=3), pm.HalfNormal("eta", 1)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(3, ls=ell))
        f = gp.prior("f", X=X)
        alpha = pm.Exponential("alpha", 0.2)
        pm.NegativeBinomial("y", mu=pm.math.exp(mu + f), alpha=alpha, observed=y)
    return model


@public("missing_outcomes_student", SOURCE)
def missing_outcomes_student() -> pm.Model:
    d = r_table("datasets/airquality").dropna(subset=["Solar.R"])
    columns = [d[k] for k in ("Solar.R", "Wind", "Temp")]
    X = np.column_stack([((c - c.mean()) / c.std()).to_numpy() for c in columns])
    month, n = codes(d["Month"])
    y = np.log(d["Ozone"].to_numpy())
    with pm.Model() as model:
        b0, b = pm.Normal("b0", 3, 2), pm.Normal("b", 0, 1, shape=3)
        sd_month, sigma, nu = pm.HalfNormal("sd_month", 1), pm.HalfNormal("sigma", 1), pm.Gamma("nu", 2, 0.1)
        u = pm.Normal("month", 0, sd_month, shape=n)
        mu = b0 + X @ b + u[month]
        pm.StudentT("ozone", nu=nu, mu=mu, sigma=sigma, observed=np.ma.masked_invalid(y))
    return model


@public("toothgrowth_scales", SOURCE)
def toothgrowth() -> pm.Model:
    d = r_table("datasets/ToothGrowth")
    cell = pd.factorize(d["supp"] + d["dose"].astype(str), sort=True)[0]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 20, 10), pm.HalfNormal("tau", 10)
        mean = pm.Normal("mean", mu, tau, shape=6)
        log_sigma = pm.Normal("log_sigma", 1, 1, shape=6)
        pm.Normal("len", mean[cell], pm.math.exp(log_sigma)[cell], observed=d["len"].to_numpy())
    return model
