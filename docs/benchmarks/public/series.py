"""Time series, smooth curves and maps of the documentation of R-INLA, mgcv, brms, Stan and of PyMC's examples."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.public.base import codes, data_table, public, r_table, stan_data, stan_example

__all__: list[str] = []


@public("inla_tokyo_rainfall", "R-INLA", simulated=True)
def tokyo_rainfall() -> pm.Model:
    rng = np.random.default_rng(366)
    day = np.arange(366)
    n = np.where(day == 59, 1, 2)
    y = rng.binomial(n, 1 / (1 + np.exp(0.9 - 0.9 * np.sin(2 * np.pi * (day - 100) / 366))))
    weeks = day // 7
    with pm.Model() as model:
        sigma = pm.Exponential("sigma", 5)
        start = pm.Normal("start", 0, [2, 0.5])
        curve = pm.Normal("curve", 0, 1, shape=51)
        slope = start[1] + pt.cumsum(sigma * curve)
        f = pm.Deterministic("f", pt.concatenate([start[[0]], start[0] + pt.cumsum(slope)]))
        pm.Binomial("y", n=n, logit_p=pt.concatenate([f, f[[-1]]])[weeks], observed=y)
    return model


@public("inla_drivers_seasonal", "R-INLA")
def drivers_seasonal() -> pm.Model:
    y = np.log(r_table("MASS/drivers")["value"].to_numpy())
    month = np.arange(192) % 12
    law = (np.arange(192) >= 169).astype(int)
    with pm.Model() as model:
        level_sd, sigma = pm.HalfNormal("level_sd", 0.2), pm.HalfNormal("sigma", 0.2)
        season = pm.ZeroSumNormal("season", sigma=0.5, shape=12)
        belt = pm.Normal("belt", 0, 0.5)
        level = pm.GaussianRandomWalk("level", sigma=level_sd, init_dist=pm.Normal.dist(7, 1), steps=191)
        pm.Normal("y", level + season[month] + belt * law, sigma, observed=y)
    return model


@public("stan_uk_drivers", "posteriordb's rest")
def uk_drivers() -> pm.Model:
    d = stan_data("uk_drivers")
    with pm.Model() as model:
        s_season, s_level, s_y = (pm.HalfStudentT(f"sigma_{k}", nu=4, sigma=1) for k in ("season", "level", "y"))
        beta, lam = pm.Normal("beta", 0, 10), pm.Normal("lambda", 0, 10)
        # Twelve months in a row sum to a shock.
        init = pm.Normal.dist(0, 1, shape=11)
        seasonal = pm.AR("seasonal", rho=-np.ones(11), sigma=s_season, init_dist=init, steps=181)
        mu = pm.GaussianRandomWalk("mu", sigma=s_level, init_dist=pm.Normal.dist(7, 3), steps=191)
        mean = mu + beta * d["x"] + lam * d["w"] + seasonal
        pm.Normal("y", mean, s_y, observed=d["y"])
    return model


@public("nile_local_level", "PyMC discourse")
def nile() -> pm.Model:
    y = r_table("datasets/Nile")["value"].to_numpy(dtype=float)
    with pm.Model() as model:
        sigma_level, sigma = pm.HalfNormal("sigma_level", 100), pm.HalfNormal("sigma", 200)
        level = pm.GaussianRandomWalk("level", sigma=sigma_level, init_dist=pm.Normal.dist(1000, 500), shape=100)
        pm.Normal("flow", level, sigma, observed=y)
    return model


@public("bpa_house_martins", "Stan")
def house_martins() -> pm.Model:
    y = np.log([271, 261, 309, 318, 231, 216, 208, 226, 195, 226, 233, 209, 226, 192, 191, 225, 245, 205, 191, 174])
    with pm.Model() as model:
        first, mean_r = pm.Normal("logN_est1", 5.6, 10), pm.Normal("mean_r", 1, np.sqrt(1000))
        sigma_proc, sigma_obs = pm.Uniform("sigma_proc", 0, 1), pm.Uniform("sigma_obs", 0, 1)
        r = pm.Normal("r", mean_r, sigma_proc, shape=19)
        logN = pm.Deterministic("logN_est", first + pt.concatenate([pt.zeros(1), pt.cumsum(r)]))
        pm.Normal("y", logN, sigma_obs, observed=y)
    return model


@public("lynx_ar1_poisson", "PyMC discourse")
def lynx() -> pm.Model:
    y = r_table("datasets/lynx")["value"].to_numpy()
    with pm.Model() as model:
        mu, rho = pm.Normal("mu", 7, 1), pm.Uniform("rho", -1, 1)
        sigma = pm.HalfNormal("sigma", 1)
        f = pm.AR("f", rho=[rho], sigma=sigma, init_dist=pm.Normal.dist(0, 2), steps=113)
        pm.Poisson("caught", pm.math.exp(mu + f), observed=y)
    return model


@public("discoveries_grw_poisson", "PyMC discourse")
def discoveries() -> pm.Model:
    y = r_table("datasets/discoveries")["value"].to_numpy()
    with pm.Model() as model:
        step = pm.Exponential("step", 10)
        f = pm.GaussianRandomWalk("f", sigma=step, init_dist=pm.Normal.dist(1, 1), shape=100)
        pm.Poisson("found", pm.math.exp(f), observed=y)
    return model


@public("rolling_regression", "PyMC examples", simulated=True)
def rolling_regression() -> pm.Model:
    rng = np.random.default_rng(2010)
    x = rng.normal(0, 1, 200)
    y = np.cumsum(rng.normal(0, 0.05, 200)) + (1 + np.cumsum(rng.normal(0, 0.05, 200))) * x + rng.normal(0, 0.3, 200)
    with pm.Model(coords={"time": np.arange(200)}) as model:
        sigma_alpha, sigma_beta = pm.Exponential("sigma_alpha", 50.0), pm.Exponential("sigma_beta", 50.0)
        init = pm.Normal.dist(0, 1)
        alpha = pm.GaussianRandomWalk("alpha", sigma=sigma_alpha, init_dist=init, dims="time")
        beta = pm.GaussianRandomWalk("beta", sigma=sigma_beta, init_dist=init, dims="time")
        sd = pm.HalfNormal("sd", sigma=0.1)
        pm.Normal("y", mu=alpha + beta * x, sigma=sd, observed=y)
    return model


@public("brms_mcycle_spline", "brms")
def mcycle_spline() -> pm.Model:
    d = stan_data("mcycle_splines")
    with pm.Model() as model:
        intercept = pm.Normal("Intercept", -13, 36)
        bs = pm.Normal("bs", 0, 100)
        zs = pm.Normal("zs", 0, 1, shape=38)
        sds, sigma = pm.HalfStudentT("sds", nu=3, sigma=36), pm.HalfStudentT("sigma", nu=3, sigma=36)
        pm.Normal("Y", intercept + d["Xs"][:, 0] * bs + d["Zs_1_1"] @ (sds * zs), sigma, observed=d["Y"])
    return model


@public("scotland_bym2", "Stan")
def scotland_bym2() -> pm.Model:
    d = stan_example("knitr/car-iar-poisson/update_2021_02/scotland_connected")
    nodes = d["edges"] - 1 if "edges" in d else np.stack([d["node1"], d["node2"]]) - 1
    n = int(nodes.max()) + 1
    weights = np.zeros((n, n))
    weights[nodes[0], nodes[1]] = weights[nodes[1], nodes[0]] = 1
    precision = np.diag(weights.sum(axis=1)) - weights
    scale = np.exp(np.mean(np.log(np.diag(np.linalg.pinv(precision)))))
    with pm.Model() as model:
        b0, b1 = pm.Normal("b0", 0, 1), pm.Normal("b1", 0, 1)
        sigma, rho = pm.HalfNormal("sigma", 1), pm.Beta("rho", 0.5, 0.5)
        theta = pm.Normal("theta", 0, 1, shape=n)
        phi = pm.ICAR("phi", W=weights)
        mixture = pm.Deterministic("mixture", pt.sqrt(1 - rho) * theta + pt.sqrt(rho / scale) * phi)
        log_rate = np.log(d["E"]) + b0 + b1 * np.ravel(d["x"]) + sigma * mixture
        pm.Poisson("y", pm.math.exp(log_rate), observed=d["y"])
    return model


@public("inla_germany_bym", "R-INLA")
def germany_bym() -> pm.Model:
    areas = data_table("disease-mapping/germany_oral.csv")
    edges = data_table("disease-mapping/germany_oral_edges.csv").to_numpy()[:, :2].astype(int) - 1
    n = len(areas)
    weights = np.zeros((n, n))
    weights[edges[:, 0], edges[:, 1]] = weights[edges[:, 1], edges[:, 0]] = 1
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau_u, tau_v = pm.Gamma("tau_u", 1, 0.01), pm.Gamma("tau_v", 1, 0.01)
        u = pm.CAR("u", mu=np.zeros(n), tau=tau_u, alpha=0.99, W=weights)
        v = pm.Normal("v", 0, 1 / pt.sqrt(tau_v), shape=n)
        log_rate = np.log(areas["expected"].to_numpy()) + mu + u + v
        pm.Poisson("Y", pm.math.exp(log_rate), observed=areas["observed"].to_numpy())
    return model


@public("mgcv_airquality_gp", "mgcv")
def airquality_gp() -> pm.Model:
    d = r_table("datasets/airquality").dropna()
    y = d["Ozone"].to_numpy() / 10
    temp = ((d["Temp"] - d["Temp"].mean()) / d["Temp"].std()).to_numpy()
    wind = ((d["Wind"] - d["Wind"].mean()) / d["Wind"].std()).to_numpy()
    with pm.Model() as model:
        mu = pm.Normal("mu", 1, 1)
        ell, eta = pm.InverseGamma("ell", 5, 5, shape=2), pm.HalfNormal("eta", 1, shape=2)
        smooth = []
        for k, x in enumerate((temp, wind)):
            gp = pm.gp.Latent(cov_func=eta[k] ** 2 * pm.gp.cov.Matern52(1, ell[k]))
            smooth.append(gp.prior(f"f_{k}", X=x[:, None], reparameterize=True))
        shape = pm.HalfNormal("shape", 10)
        mean = pm.math.exp(mu + smooth[0] + smooth[1])
        pm.Gamma("ozone", alpha=shape, beta=shape / mean, observed=y)
    return model


@public("hsgp_birthdays", "PyMC examples", simulated=True)
def hsgp_counts() -> pm.Model:
    rng = np.random.default_rng(1969)
    x = np.linspace(0, 10, 150)
    group = rng.integers(0, 2, 150)
    curves = np.array([np.sin(x), 0.5 * np.cos(1.7 * x) + 0.1 * x])
    y = rng.negative_binomial(5, 5 / (5 + np.exp(1.5 + curves[group, np.arange(150)])))
    with pm.Model() as model:
        base = pm.Normal("base", 1, 1, shape=2)
        ell, eta = pm.InverseGamma("ell", 5, 8), pm.Exponential("eta", 1)
        gp = pm.gp.HSGP(m=[15], c=1.5, cov_func=eta**2 * pm.gp.cov.Matern52(1, ell))
        phi, sqrt_psd = gp.prior_linearized(X=x[:, None])
        weights = pm.Normal("weights", 0, 1, shape=(15, 2))
        f = pm.Deterministic("f", phi @ (weights * sqrt_psd[:, None]))
        alpha = pm.Exponential("alpha", 0.5)
        rate = pm.math.exp(base[group] + f[np.arange(150), group])
        pm.NegativeBinomial("y", mu=rate, alpha=alpha, observed=y)
    return model


@public("mastectomy_piecewise", "PyMC examples")
def mastectomy() -> pm.Model:
    d = r_table("HSAUR/mastectomy")
    metastasized = (d["metastized"] == "yes").astype(int).to_numpy()
    time, event = d["time"].to_numpy(), d["event"].astype(str).str.upper().eq("TRUE").to_numpy()
    bounds = np.arange(0, time.max() + 4, 3)
    last = np.floor((time - 0.01) / 3).astype(int)
    death = np.zeros((len(time), len(bounds) - 1), dtype=int)
    death[np.arange(len(time)), last] = event
    exposure = np.clip(time[:, None] - bounds[:-1], 0, 3)
    with pm.Model() as model:
        log_lambda0 = pm.Normal("log_lambda0", -5, 2, shape=len(bounds) - 1)
        beta = pm.Normal("beta", 0, sigma=1000)
        seen = exposure > 0
        patient, interval = np.nonzero(seen)
        log_rate = log_lambda0[interval] + beta * metastasized[patient] + np.log(exposure[seen])
        pm.Poisson("deaths", pm.math.exp(log_rate), observed=death[seen])
    return model


@public("veteran_weibull", "PyMC discourse")
def veteran_weibull() -> pm.Model:
    d = r_table("survival/veteran")
    cell, n = codes(d["celltype"])
    upper = np.where(d["status"] == 1, np.inf, d["time"])
    karno = ((d["karno"] - 60) / 20).to_numpy()
    with pm.Model() as model:
        alpha = pm.HalfNormal("alpha", 2)
        b0, b_karno, b_trt = pm.Normal("b0", 4, 2), pm.Normal("b_karno", 0, 1), pm.Normal("b_trt", 0, 1)
        sd_cell = pm.HalfNormal("sd_cell", 1)
        u = pm.Normal("u", 0, sd_cell, shape=n)
        scale = pm.math.exp(b0 + b_karno * karno + b_trt * (d["trt"] - 1).to_numpy() + u[cell])
        life = pm.Weibull.dist(alpha=alpha, beta=scale)
        pm.Censored("time", life, lower=None, upper=upper, observed=d["time"].to_numpy(dtype=float))
    return model


@public("diabetic_eyes_frailty", "R-INLA")
def diabetic_eyes() -> pm.Model:
    d = r_table("survival/diabetic")
    patient, n = codes(d["id"])
    high = pd.cut(d["age"], [0, 20, 100], labels=False).to_numpy()
    with pm.Model() as model:
        b0, b_trt, b_adult = pm.Normal("b0", -5, 3), pm.Normal("b_trt", 0, 2), pm.Normal("b_adult", 0, 2)
        sigma = pm.HalfNormal("sigma", 2)
        u = pm.Normal("frailty", 0, sigma, shape=n)
        log_rate = b0 + b_trt * d["trt"].to_numpy() + b_adult * high + u[patient] + np.log(d["time"].to_numpy())
        pm.Poisson("status", pm.math.exp(log_rate), observed=d["status"].to_numpy())
    return model
