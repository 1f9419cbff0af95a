"""posteriordb's hierarchical models with Gaussian noise."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.public.base import public, stan_data

__all__: list[str] = []

SOURCE = "posteriordb"


@public("eight_schools_centered", SOURCE)
def eight_schools_centered() -> pm.Model:
    d = stan_data("eight_schools")
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 5)
        mu = pm.Normal("mu", 0, 5)
        theta = pm.Normal("theta", mu, tau, shape=d["J"])
        pm.Normal("y", theta, d["sigma"], observed=d["y"])
    return model


@public("eight_schools_noncentered", SOURCE)
def eight_schools_noncentered() -> pm.Model:
    d = stan_data("eight_schools")
    with pm.Model() as model:
        theta_trans = pm.Normal("theta_trans", 0, 1, shape=d["J"])
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        theta = pm.Deterministic("theta", theta_trans * tau + mu)
        pm.Normal("y", theta, d["sigma"], observed=d["y"])
    return model


def _radon() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    d = stan_data("radon_mn")
    return d["log_radon"], d["floor_measure"], d["log_uppm"], d["county_idx"] - 1, d["J"]


@public("radon_pooled", SOURCE)
def radon_pooled() -> pm.Model:
    y, floor, _, _, _ = _radon()
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 10), pm.Normal("beta", 0, 10)
        sigma_y = pm.HalfNormal("sigma_y", 1)
        pm.Normal("y", alpha + beta * floor, sigma_y, observed=y)
    return model


@public("radon_county_intercept", SOURCE)
def radon_county_intercept() -> pm.Model:
    y, floor, _, county, counties = _radon()
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 10, shape=counties), pm.Normal("beta", 0, 10)
        sigma_y = pm.HalfNormal("sigma_y", 1)
        pm.Normal("y", alpha[county] + beta * floor, sigma_y, observed=y)
    return model


@public("radon_partially_pooled_centered", SOURCE)
def radon_partially_pooled_centered() -> pm.Model:
    y, _, _, county, counties = _radon()
    with pm.Model() as model:
        sigma_y, sigma_alpha = pm.HalfNormal("sigma_y", 1), pm.HalfNormal("sigma_alpha", 1)
        mu_alpha = pm.Normal("mu_alpha", 0, 10)
        alpha = pm.Normal("alpha", mu_alpha, sigma_alpha, shape=counties)
        pm.Normal("y", alpha[county], sigma_y, observed=y)
    return model


@public("radon_hierarchical_intercept_centered", SOURCE)
def radon_hierarchical_intercept_centered() -> pm.Model:
    y, floor, uranium, county, counties = _radon()
    with pm.Model() as model:
        sigma_y, sigma_alpha = pm.HalfNormal("sigma_y", 1), pm.HalfNormal("sigma_alpha", 1)
        mu_alpha = pm.Normal("mu_alpha", 0, 10)
        beta = pm.Normal("beta", 0, 10, shape=2)
        alpha = pm.Normal("alpha", mu_alpha, sigma_alpha, shape=counties)
        pm.Normal("y", alpha[county] + uranium * beta[0] + floor * beta[1], sigma_y, observed=y)
    return model


@public("radon_variable_intercept_slope_centered", SOURCE)
def radon_variable_intercept_slope_centered() -> pm.Model:
    y, floor, _, county, counties = _radon()
    with pm.Model() as model:
        sigma_y = pm.HalfNormal("sigma_y", 1)
        sigma_alpha, sigma_beta = pm.HalfNormal("sigma_alpha", 1), pm.HalfNormal("sigma_beta", 1)
        mu_alpha, mu_beta = pm.Normal("mu_alpha", 0, 10), pm.Normal("mu_beta", 0, 10)
        alpha = pm.Normal("alpha", mu_alpha, sigma_alpha, shape=counties)
        beta = pm.Normal("beta", mu_beta, sigma_beta, shape=counties)
        pm.Normal("y", alpha[county] + floor * beta[county], sigma_y, observed=y)
    return model


@public("radon_variable_slope_noncentered", SOURCE)
def radon_variable_slope_noncentered() -> pm.Model:
    y, floor, _, county, counties = _radon()
    with pm.Model() as model:
        alpha, mu_beta = pm.Normal("alpha", 0, 10), pm.Normal("mu_beta", 0, 10)
        sigma_y, sigma_beta = pm.HalfNormal("sigma_y", 1), pm.HalfNormal("sigma_beta", 1)
        beta_raw = pm.Normal("beta_raw", 0, 1, shape=counties)
        beta = pm.Deterministic("beta", mu_beta + sigma_beta * beta_raw)
        pm.Normal("y", alpha + floor * beta[county], sigma_y, observed=y)
    return model


@public("radon_county", SOURCE)
def radon_county() -> pm.Model:
    d = stan_data("radon_mod")
    with pm.Model() as model:
        mu_a = pm.Normal("mu_a", 0, 1)
        sigma_a, sigma_y = pm.Uniform("sigma_a", 0, 100), pm.Uniform("sigma_y", 0, 100)
        a = pm.Normal("a", mu_a, sigma_a, shape=d["J"])
        pm.Normal("y", a[d["county"] - 1], sigma_y, observed=d["y"])
    return model


@public("rats", SOURCE)
def rats() -> pm.Model:
    d = stan_data("rats_data")
    rat = d["rat"] - 1
    with pm.Model() as model:
        mu_alpha, mu_beta = pm.Normal("mu_alpha", 0, 100), pm.Normal("mu_beta", 0, 100)
        sigma_y, sigma_alpha, sigma_beta = (pm.HalfFlat(f"sigma_{name}") for name in ("y", "alpha", "beta"))
        alpha = pm.Normal("alpha", mu_alpha, sigma_alpha, shape=d["N"])
        beta = pm.Normal("beta", mu_beta, sigma_beta, shape=d["N"])
        pm.Normal("y", alpha[rat] + beta[rat] * (d["x"] - d["xbar"]), sigma_y, observed=d["y"])
    return model


@public("pilots", SOURCE)
def pilots() -> pm.Model:
    d = stan_data("pilots")
    with pm.Model() as model:
        sigma_a, sigma_b, sigma_y = (pm.Uniform(f"sigma_{name}", 0, 100) for name in ("a", "b", "y"))
        mu_a, mu_b = pm.Normal("mu_a", 0, 1), pm.Normal("mu_b", 0, 1)
        a = pm.Normal("a", 10 * mu_a, sigma_a, shape=d["n_groups"])
        b = pm.Normal("b", 10 * mu_b, sigma_b, shape=d["n_scenarios"])
        pm.Normal("y", a[d["group_id"] - 1] + b[d["scenario_id"] - 1], sigma_y, observed=d["y"])
    return model


@public("dugongs", SOURCE)
def dugongs() -> pm.Model:
    d = stan_data("dugongs_data")
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 1000), pm.Normal("beta", 0, 1000)
        growth = pm.Uniform("lambda", 0.5, 1)
        tau = pm.Gamma("tau", 1e-4, 1e-4)
        pm.Normal("Y", alpha - beta * growth ** d["x"], 1 / pm.math.sqrt(tau), observed=d["Y"])
    return model


def _states(kernel_years: np.ndarray, sds: tuple, lengths: tuple):
    cov = sum(s**2 * pm.gp.cov.ExpQuad(1, ls) for s, ls in zip(sds, lengths))
    return cov(kernel_years) + 1e-6 * np.eye(len(kernel_years))


@public("hierarchical_gp", SOURCE)
def hierarchical_gp() -> pm.Model:
    d = stan_data("state_wide_presidential_votes")
    years = np.arange(1.0, d["N_years"] + 1)[:, None]
    of_state, state, region, year = (d[k] - 1 for k in ("state_region_ind", "state_ind", "region_ind", "year_ind"))
    with pm.Model() as model:
        gp_region_std = pm.Normal("GP_region_std", 0, 1, shape=(d["N_years"], d["N_regions"]))
        gp_state_std = pm.Normal("GP_state_std", 0, 1, shape=(d["N_years"], d["N_states"]))
        year_std = pm.Normal("year_std", 0, 1, shape=d["N_years_obs"])
        state_std = pm.Normal("state_std", 0, 1, shape=d["N_states"])
        region_std = pm.Normal("region_std", 0, 1, shape=d["N_regions"])
        mu = pm.Normal("mu", 0.5, 0.5)
        tot_var = pm.Gamma("tot_var", 3, 3)
        prop_var = pm.Dirichlet("prop_var", 2 * np.ones(17))
        sd = pm.math.sqrt(17 * prop_var * tot_var)
        long_region, long_state = (pm.Weibull(f"length_GP_{name}_long", 30, 8) for name in ("region", "state"))
        short_region, short_state = (pm.Weibull(f"length_GP_{name}_short", 30, 3) for name in ("region", "state"))
        cov_region = _states(years, (sd[12], sd[14]), (long_region, short_region))
        cov_state = _states(years, (sd[13], sd[15]), (long_state, short_state))
        gp_region = pt.linalg.cholesky(cov_region) @ gp_region_std
        gp_state = pt.linalg.cholesky(cov_state) @ gp_state_std
        effects = sd[0] * year_std[year] + (sd[2:12][of_state] * state_std)[state] + sd[1] * region_std[region]
        pm.Normal("y", mu + effects + gp_region[year, region] + gp_state[year, state], sd[16], observed=d["y"])
    return model
