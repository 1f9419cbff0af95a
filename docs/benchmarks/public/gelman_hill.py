"""Models of Gelman & Hill's Data Analysis Using Regression and Multilevel/Hierarchical Models, from Stan's examples."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.public.base import public, stan_data, stan_example

__all__: list[str] = []

SOURCE = "Gelman & Hill"


@public("arm_earnings_vary", SOURCE)
def earnings_vary() -> pm.Model:
    d = stan_example("ARM/Ch.13/earnings_vary_si")
    eth = d["eth"] - 1
    with pm.Model() as model:
        sigma_a1, sigma_a2, sigma_y = (pm.HalfCauchy(name, 5) for name in ("sigma_a1", "sigma_a2", "sigma_y"))
        mu_a1, mu_a2 = pm.Normal("mu_a1", 0, 1), pm.Normal("mu_a2", 0, 1)
        a1 = pm.Normal("a1", 10 * mu_a1, sigma_a1, shape=4)
        a2 = pm.Normal("a2", 0.01 * mu_a2, sigma_a2, shape=4)
        pm.Normal("log_earn", a1[eth] + a2[eth] * d["height"], sigma_y, observed=np.log(d["earn"]))
    return model


@public("arm_earnings_latin_square", SOURCE)
def earnings_latin_square() -> pm.Model:
    d = stan_example("ARM/Ch.13/earnings_latin_square")
    eth, age, x = d["eth"] - 1, d["age"] - 1, d["x_centered"]
    with pm.Model() as model:
        mu = {k: pm.Normal(f"mu_{k}", 0, 1) for k in ("a1", "a2", "b1", "b2", "c", "d")}
        sigma = {k: pm.Uniform(f"sigma_{k}", 0, 100) for k in ("a1", "a2", "b1", "b2", "c", "d", "y")}
        a1 = pm.Normal("a1", 10 * mu["a1"], sigma["a1"], shape=4)
        a2 = pm.Normal("a2", mu["a2"], sigma["a2"], shape=4)
        b1 = pm.Normal("b1", 10 * mu["b1"], sigma["b1"], shape=3)
        b2 = pm.Normal("b2", 0.1 * mu["b2"], sigma["b2"], shape=3)
        c = pm.Normal("c", 10 * mu["c"], sigma["c"], shape=(4, 3))
        slope = pm.Normal("d", 0.1 * mu["d"], sigma["d"], shape=(4, 3))
        y_hat = a1[eth] + a2[eth] * x + b1[age] + b2[age] * x + c[eth, age] + slope[eth, age] * x
        pm.Normal("y", y_hat, sigma["y"], observed=d["y"])
    return model


@public("arm_radon_group_predictor", SOURCE)
def radon_group_predictor() -> pm.Model:
    d = stan_data("radon_mn")
    county = d["county_idx"] - 1
    uranium = pd.Series(d["log_uppm"]).groupby(county).first().to_numpy()
    with pm.Model() as model:
        gamma = pm.Flat("gamma", shape=2)
        sigma_a, sigma_y = pm.HalfFlat("sigma_a"), pm.HalfFlat("sigma_y")
        a = pm.Normal("a", mu=gamma[0] + gamma[1] * uranium, sigma=sigma_a, shape=85)
        b = pm.Flat("b")
        pm.Normal("y", a[county] + b * d["floor_measure"], sigma_y, observed=d["log_radon"])
    return model


@public("arm_radon_correlated", SOURCE)
def radon_correlated() -> pm.Model:
    d = stan_data("radon_mn")
    county = d["county_idx"] - 1
    uranium = pd.Series(d["log_uppm"]).groupby(county).first().to_numpy()
    with pm.Model() as model:
        g = pm.Normal("g", 0, 5, shape=4)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(0.5, shape=2))
        mean = pt.stack([g[0] + g[1] * uranium, g[2] + g[3] * uranium], axis=1)
        ab = pm.MvNormal("ab", mu=mean, chol=chol, shape=(85, 2))
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("y", ab[county, 0] + ab[county, 1] * d["floor_measure"], sigma, observed=d["log_radon"])
    return model


@public("arm_election88", SOURCE)
def election88() -> pm.Model:
    d = stan_example("ARM/Ch.17/latent_glm_17.7")
    age, edu, state, region = (d[k] - 1 for k in ("age", "edu", "state", "region"))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=4)
        b_prev = pm.Normal("b_v_prev", 0, 2)
        s_age, s_edu, s_cross, s_state, s_region = (
            pm.HalfNormal(f"sigma_{k}", 1) for k in ("age", "edu", "age_edu", "state", "region")
        )
        b_age, b_edu = pm.Normal("b_age", 0, s_age, shape=4), pm.Normal("b_edu", 0, s_edu, shape=4)
        b_cross = pm.Normal("b_age_edu", 0, s_cross, shape=(4, 4))
        b_region = pm.Normal("b_region", 0, s_region, shape=5)
        b_state = pm.Normal("b_state", b_region[region] + b_prev * d["v_prev"], s_state, shape=51)
        female, black = d["female"], d["black"]
        eta = b[0] + b[1] * female + b[2] * black + b[3] * female * black
        eta = eta + b_age[age] + b_edu[edu] + b_cross[age, edu] + b_state[state]
        pm.Bernoulli("y", logit_p=eta, observed=d["y"])
    return model


def _police() -> tuple[np.ndarray, ...]:
    d = stan_example("ARM/Ch.17/multilevel_poisson_17.5")
    stops, offset = d["stops"].astype(int), d["offeset"].astype(float)
    good = np.isfinite(offset)
    return stops[good], offset[good], d["precint"][good] - 1, d["eth"][good] - 1


@public("arm_police_stops", SOURCE)
def police_stops() -> pm.Model:
    stops, offset, precinct, eth = _police()
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 100)
        s_e, s_eth, s_p = (pm.HalfNormal(f"sigma_{k}", 10) for k in ("epsilon", "eth", "precint"))
        b_eth = pm.Normal("b_eth", 0, s_eth, shape=int(eth.max()) + 1)
        b_precinct = pm.Normal("b_precint", 0, s_p, shape=int(precinct.max()) + 1)
        epsilon = pm.Normal("epsilon", 0, s_e, shape=len(stops))
        log_rate = offset + mu + b_eth[eth] + b_precinct[precinct] + epsilon
        pm.Poisson("stops", pm.math.exp(log_rate), observed=stops)
    return model


@public("arm_police_stops_negbinomial", SOURCE)
def police_stops_negbinomial() -> pm.Model:
    stops, offset, precinct, eth = _police()
    with pm.Model() as model:
        b_eth = pm.Normal("b_eth", 0, 5, shape=int(eth.max()) + 1)
        s_p, phi = pm.HalfNormal("sigma_precinct", 1), pm.HalfCauchy("phi", 5)
        b_precinct = pm.Normal("b_precinct", 0, s_p, shape=int(precinct.max()) + 1)
        rate = pm.math.exp(offset + b_eth[eth] + b_precinct[precinct])
        pm.NegativeBinomial("stops", mu=rate, alpha=phi, observed=stops)
    return model


@public("arm_electric_pairs", SOURCE)
def electric_pairs() -> pm.Model:
    d = stan_example("ARM/Ch.23/electric_multi_preds")
    grade, pair, grade_pair = d["grade"] - 1, d["pair"] - 1, d["grade_pair"] - 1
    with pm.Model() as model:
        mu_a = pm.Normal("mu_a", 0, 1, shape=4)
        sigma_a, sigma_y = pm.Uniform("sigma_a", 0, 100, shape=4), pm.Uniform("sigma_y", 0, 100, shape=4)
        a = pm.Normal("a", 40 * mu_a[grade_pair], sigma_a[grade_pair], shape=96)
        b, c = pm.Normal("b", 0, 100, shape=4), pm.Normal("c", 0, 100, shape=4)
        y_hat = a[pair] + b[grade] * d["treatment"] + c[grade] * d["pre_test"]
        pm.Normal("y", y_hat, sigma_y[grade], observed=d["y"])
    return model


@public("arm_roaches", SOURCE)
def roaches() -> pm.Model:
    d = stan_example("ARM/Ch.8/roaches")
    with pm.Model() as model:
        b = pm.Normal("b", 0, [5, 2.5, 2.5, 2.5])
        phi = pm.Exponential("phi", 1)
        eta = np.log(d["exposure2"]) + b[0] + b[1] * d["roach1"] / 100 + b[2] * d["treatment"] + b[3] * d["senior"]
        pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=phi, observed=d["y"])
    return model


@public("arm_roaches_overdispersed", SOURCE)
def roaches_overdispersed() -> pm.Model:
    d = stan_example("ARM/Ch.8/roaches")
    with pm.Model() as model:
        beta_0, beta = pm.Flat("beta_0"), pm.Flat("beta", shape=3)
        tau = pm.Gamma("tau", 0.001, 0.001)
        lam = pm.Normal("lambda", 0, 1 / pt.sqrt(tau), shape=len(d["y"]))
        eta = np.log(d["exposure2"]) + beta_0 + beta[0] * d["roach1"] / 100
        eta = eta + beta[1] * d["senior"] + beta[2] * d["treatment"] + lam
        pm.Poisson("y", pm.math.exp(eta), observed=d["y"])
    return model


@public("arm_wells_probit", SOURCE)
def wells_probit() -> pm.Model:
    d = stan_data("wells_data")
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=3)
        eta = beta[0] + beta[1] * d["dist"] / 100 + beta[2] * d["arsenic"]
        pm.Bernoulli("switched", p=pm.math.invprobit(eta), observed=d["switched"])
    return model


@public("arm_storable_votes", SOURCE)
def storable_votes() -> pm.Model:
    d = stan_example("ARM/Ch.17/multilevel_ordered_categorical_17.6")
    player = d["player"] - 1
    with pm.Model() as model:
        start = np.array([-1.0, 1.0])
        cuts = pm.Normal("cuts", 0, 5, shape=2, transform=pm.distributions.transforms.ordered, initval=start)
        slope, sigma = pm.Normal("slope", 0, 5), pm.HalfCauchy("sigma", 2.5)
        u = pm.Normal("u", 0, sigma, shape=int(player.max()) + 1)
        x = d["x"] - d["x"].mean()
        pm.OrderedLogistic("y", eta=slope * x + u[player], cutpoints=cuts, observed=d["y"] - 1)
    return model
