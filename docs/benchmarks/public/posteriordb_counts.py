"""posteriordb's models of counts and of binary data, its Gaussian processes, and some that are not latent Gaussian."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.public.base import public, stan_data

__all__: list[str] = []

SOURCE = "posteriordb"


def _wells(**columns: np.ndarray) -> pm.Model:
    d = stan_data("wells_data")
    design = np.column_stack(list(columns.values()))
    with pm.Model() as model:
        alpha = pm.Flat("alpha")
        beta = pm.Flat("beta", shape=design.shape[1])
        pm.Bernoulli("switched", logit_p=alpha + design @ beta, observed=d["switched"])
    return model


@public("wells_dist", SOURCE)
def wells_dist() -> pm.Model:
    d = stan_data("wells_data")
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=2)
        pm.Bernoulli("switched", logit_p=beta[0] + beta[1] * d["dist"], observed=d["switched"])
    return model


def _centred_wells() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = stan_data("wells_data")
    centred = [d[name] - d[name].mean() for name in ("dist", "arsenic", "educ")]
    return centred[0] / 100, centred[1], centred[2] / 4


@public("wells_interaction_c", SOURCE)
def wells_interaction_c() -> pm.Model:
    dist, arsenic, _ = _centred_wells()
    return _wells(dist=dist, arsenic=arsenic, inter=dist * arsenic)


@public("wells_dae_inter", SOURCE)
def wells_dae_inter() -> pm.Model:
    dist, arsenic, educ = _centred_wells()
    return _wells(dist=dist, arsenic=arsenic, educ=educ, da=dist * arsenic, de=dist * educ, ae=arsenic * educ)


@public("nes_logit", SOURCE)
def nes_logit() -> pm.Model:
    d = stan_data("nes_logit_data")
    with pm.Model() as model:
        alpha, beta = pm.Flat("alpha"), pm.Flat("beta", shape=1)
        pm.Bernoulli("vote", logit_p=alpha + d["income"][:, None] @ beta, observed=d["vote"])
    return model


@public("dogs", SOURCE)
def dogs() -> pm.Model:
    y = stan_data("dogs")["y"]
    before = np.pad(y, ((0, 0), (1, 0)))[:, :-1]
    shocks = before.cumsum(axis=1)
    avoided = np.arange(y.shape[1]) - shocks
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 100, shape=3)
        pm.Bernoulli("y", logit_p=beta[0] + beta[1] * avoided + beta[2] * shocks, observed=y)
    return model


@public("gp_pois_regr", SOURCE)
def gp_pois_regr() -> pm.Model:
    d = stan_data("gp_pois_regr")
    with pm.Model() as model:
        rho = pm.Gamma("rho", 25, 4)
        alpha = pm.HalfNormal("alpha", 2)
        f_tilde = pm.Normal("f_tilde", 0, 1, shape=d["N"])
        cov = (alpha**2 * pm.gp.cov.ExpQuad(1, rho))(d["x"][:, None]) + 1e-10 * np.eye(d["N"])
        f = pm.Deterministic("f", pt.linalg.cholesky(cov) @ f_tilde)
        pm.Poisson("k", pm.math.exp(f), observed=d["k"])
    return model


@public("gp_regr", SOURCE)
def gp_regr() -> pm.Model:
    d = stan_data("gp_pois_regr")
    with pm.Model() as model:
        rho, alpha, sigma = pm.Gamma("rho", 25, 4), pm.HalfNormal("alpha", 2), pm.HalfNormal("sigma", 1)
        cov = (alpha**2 * pm.gp.cov.ExpQuad(1, rho))(d["x"][:, None]) + sigma * np.eye(d["N"])
        pm.MvNormal("y", np.zeros(d["N"]), cov=cov, observed=d["y"])
    return model


@public("GLM_Poisson", SOURCE, obstacle="uniform priors")
def glm_poisson() -> pm.Model:
    d = stan_data("GLM_Poisson_Data")
    year = d["year"]
    with pm.Model() as model:
        alpha = pm.Uniform("alpha", -20, 20)
        beta1, beta2, beta3 = (pm.Uniform(f"beta{k}", -10, 10) for k in (1, 2, 3))
        pm.Poisson("C", pm.math.exp(alpha + beta1 * year + beta2 * year**2 + beta3 * year**3), observed=d["C"])
    return model


@public("GLMM_Poisson", SOURCE)
def glmm_poisson() -> pm.Model:
    d = stan_data("GLMM_Poisson_data")
    year = d["year"]
    with pm.Model() as model:
        alpha = pm.Uniform("alpha", -20, 20)
        beta1, beta2, beta3 = (pm.Uniform(f"beta{k}", -10, 10) for k in (1, 2, 3))
        sigma = pm.Uniform("sigma", 0, 5)
        eps = pm.Normal("eps", 0, sigma, shape=d["n"])
        log_rate = alpha + beta1 * year + beta2 * year**2 + beta3 * year**3 + eps
        pm.Poisson("C", pm.math.exp(log_rate), observed=d["C"])
    return model


@public("GLM_Binomial", SOURCE)
def glm_binomial() -> pm.Model:
    d = stan_data("GLM_Binomial_data")
    with pm.Model() as model:
        alpha, beta1, beta2 = (pm.Normal(name, 0, 100) for name in ("alpha", "beta1", "beta2"))
        pm.Binomial("C", d["N"], logit_p=alpha + beta1 * d["year"] + beta2 * d["year"] ** 2, observed=d["C"])
    return model


@public("GLMM1", SOURCE)
def glmm1() -> pm.Model:
    d = stan_data("GLMM_data")
    with pm.Model() as model:
        mu_alpha = pm.Normal("mu_alpha", 0, 10)
        sd_alpha = pm.Uniform("sd_alpha", 0, 5)
        alpha = pm.Normal("alpha", mu_alpha, sd_alpha, shape=d["nsite"])
        pm.Poisson("obs", pm.math.exp(alpha[d["obssite"] - 1]), observed=d["obs"])
    return model


@public("seeds", SOURCE)
def seeds() -> pm.Model:
    d = stan_data("seeds_data")
    with pm.Model() as model:
        alpha0, alpha1, alpha12, alpha2 = (pm.Normal(f"alpha{k}", 0, 1000) for k in (0, 1, 12, 2))
        tau = pm.Gamma("tau", 1e-3, 1e-3)
        b = pm.Normal("b", 0, 1 / pm.math.sqrt(tau), shape=d["I"])
        eta = alpha0 + alpha1 * d["x1"] + alpha2 * d["x2"] + alpha12 * d["x1"] * d["x2"] + b
        pm.Binomial("n", d["N"], logit_p=eta, observed=d["n"])
    return model


@public("seeds_stanified", SOURCE)
def seeds_stanified() -> pm.Model:
    d = stan_data("seeds_data")
    with pm.Model() as model:
        alpha0, alpha1, alpha12, alpha2 = (pm.Normal(f"alpha{k}", 0, 1) for k in (0, 1, 12, 2))
        sigma = pm.HalfCauchy("sigma", 1)
        b = pm.Normal("b", 0, sigma, shape=d["I"])
        eta = alpha0 + alpha1 * d["x1"] + alpha2 * d["x2"] + alpha12 * d["x1"] * d["x2"] + b
        pm.Binomial("n", d["N"], logit_p=eta, observed=d["n"])
    return model


@public("surgical", SOURCE)
def surgical() -> pm.Model:
    d = stan_data("surgical_data")
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1000)
        sigmasq = pm.InverseGamma("sigmasq", 1e-3, 1e-3)
        b = pm.Normal("b", mu, pm.math.sqrt(sigmasq), shape=d["N"])
        pm.Binomial("r", d["n"], logit_p=b, observed=d["r"])
    return model


@public("lsat", SOURCE)
def lsat() -> pm.Model:
    d = stan_data("lsat_data")
    answers = np.repeat(d["response"], np.diff(d["culm"], prepend=0), axis=0)
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 100, shape=d["T"])
        theta = pm.Normal("theta", 0, 1, shape=d["N"])
        beta = pm.HalfNormal("beta", 100)
        pm.Bernoulli("r", logit_p=beta * theta[:, None] - alpha, observed=answers)
    return model


@public("election88_full", SOURCE)
def election88_full() -> pm.Model:
    d = stan_data("election88")
    groups = {"a": "age", "b": "edu", "c": "age_edu", "d": "state", "e": "region_full"}
    black, female = d["black"], d["female"]
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 100, shape=5)
        eta = beta[0] + beta[1] * black + beta[2] * female + beta[4] * female * black + beta[3] * d["v_prev_full"]
        for name, group in groups.items():
            sigma = pm.Uniform(f"sigma_{name}", 0, 100)
            effect = pm.Normal(name, 0, sigma, shape=d[f"n_{group}"])
            eta = eta + effect[d[group] - 1]
        pm.Bernoulli("y", logit_p=eta, observed=d["y"])
    return model


@public("bym2_nyc", SOURCE)
def bym2_nyc() -> pm.Model:
    d = stan_data("traffic_accident_nyc")
    n = d["N"]
    neighbours = np.zeros((n, n))
    neighbours[d["node1"] - 1, d["node2"] - 1] = neighbours[d["node2"] - 1, d["node1"] - 1] = 1
    with pm.Model() as model:
        beta0, sigma, rho = pm.Normal("beta0", 0, 1), pm.HalfNormal("sigma", 1), pm.Beta("rho", 0.5, 0.5)
        theta = pm.Normal("theta", 0, 1, shape=n)
        phi = pm.ICAR("phi", W=neighbours, zero_sum_stdev=0.001)
        convolved = pm.math.sqrt(1 - rho) * theta + pm.math.sqrt(rho / d["scaling_factor"]) * phi
        pm.Poisson("y", pm.math.exp(np.log(d["E"]) + beta0 + convolved * sigma), observed=d["y"])
    return model


@public("dogs_log", SOURCE, obstacle="uniform priors, probabilities exp(eta)")
def dogs_log() -> pm.Model:
    y = stan_data("dogs")["y"]
    shocks = np.pad(y, ((0, 0), (1, 0)))[:, :-1].cumsum(axis=1)
    avoided = np.arange(y.shape[1]) - shocks
    with pm.Model() as model:
        beta1, beta2 = pm.Uniform("beta1", -100, 0), pm.Uniform("beta2", 0, 100)
        pm.Bernoulli("y", pm.math.sigmoid(beta1 * avoided + beta2 * shocks), observed=y)
    return model


@public("irt_2pl", SOURCE, obstacle="product of b and theta with discriminations, 20 of them")
def irt_2pl() -> pm.Model:
    d = stan_data("irt_2pl")
    with pm.Model() as model:
        sigma_theta, sigma_a, sigma_b = (pm.HalfCauchy(f"sigma_{name}", 2) for name in ("theta", "a", "b"))
        theta = pm.Normal("theta", 0, sigma_theta, shape=d["J"])
        a = pm.LogNormal("a", 0, sigma_a, shape=d["I"])
        mu_b = pm.Normal("mu_b", 0, 5)
        b = pm.Normal("b", mu_b, sigma_b, shape=d["I"])
        pm.Bernoulli("y", logit_p=a[:, None] * (theta - b[:, None]), observed=d["y"])
    return model


@public("low_dim_gauss_mix", SOURCE, obstacle="mixture")
def low_dim_gauss_mix() -> pm.Model:
    d = stan_data("low_dim_gauss_mix")
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
        sigma = pm.HalfNormal("sigma", 2, shape=2)
        theta = pm.Beta("theta", 5, 5)
        weights = pm.math.stack([theta, 1 - theta])
        pm.NormalMixture("y", w=weights, mu=mu, sigma=sigma, observed=d["y"])
    return model


@public("Rate_1", SOURCE, obstacle="no Gaussian variable")
def rate_1() -> pm.Model:
    d = stan_data("Rate_1_data")
    with pm.Model() as model:
        theta = pm.Beta("theta", 1, 1)
        pm.Binomial("k", d["n"], theta, observed=d["k"])
    return model


@public("accel_splines", SOURCE, obstacle="predictor of the scale")
def accel_splines() -> pm.Model:
    d = stan_data("mcycle_splines")
    with pm.Model() as model:
        level = pm.StudentT("Intercept", nu=3, mu=-13, sigma=36)
        bs = pm.Flat("bs", shape=d["Ks"])
        zs = pm.Normal("zs_1_1", 0, 1, shape=d["knots_1"])
        sds = pm.HalfStudentT("sds_1_1", nu=3, sigma=36)
        level_sigma = pm.StudentT("Intercept_sigma", nu=3, mu=0, sigma=10)
        bs_sigma = pm.Flat("bs_sigma", shape=d["Ks_sigma"])
        zs_sigma = pm.Normal("zs_sigma_1_1", 0, 1, shape=d["knots_sigma_1"])
        sds_sigma = pm.HalfStudentT("sds_sigma_1_1", nu=3, sigma=36)
        mu = level + d["Xs"] @ bs + sds * (d["Zs_1_1"] @ zs)
        log_sigma = level_sigma + d["Xs_sigma"] @ bs_sigma + sds_sigma * (d["Zs_sigma_1_1"] @ zs_sigma)
        pm.Normal("Y", mu, pm.math.exp(log_sigma), observed=d["Y"])
    return model
