"""Models of the BUGS examples, with their priors as Stan's translations have them."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.public.base import public, stan_example

__all__: list[str] = []

SOURCE = "BUGS"


def _data(name: str, volume: int = 1) -> dict:
    return stan_example(f"bugs_examples/vol{volume}/{name}")


def _blocker(delta: pt.TensorVariable, d: dict) -> None:
    mu = pm.Normal("mu", 0, 316, shape=22)
    pm.Binomial("rt", n=d["nt"], logit_p=mu + delta, observed=d["rt"])
    pm.Binomial("rc", n=d["nc"], logit_p=mu, observed=d["rc"])


@public("bugs_blocker", SOURCE)
def blocker() -> pm.Model:
    with pm.Model() as model:
        d0, sigmasq_delta = pm.Normal("d", 0, 1000), pm.InverseGamma("sigmasq_delta", 0.001, 0.001)
        _blocker(pm.Normal("delta", d0, pm.math.sqrt(sigmasq_delta), shape=22), _data("blocker/blocker"))
    return model


@public("bugs_blocker_student", SOURCE)
def blocker_student() -> pm.Model:
    with pm.Model() as model:
        d0, sigmasq_delta = pm.Normal("d", 0, 1000), pm.InverseGamma("sigmasq_delta", 0.001, 0.001)
        delta = pm.StudentT("delta", nu=4, mu=d0, sigma=pm.math.sqrt(sigmasq_delta), shape=22)
        _blocker(delta, _data("blocker/blocker"))
    return model


def _dyes(y: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1e5)
        tau_between, tau_within = pm.Gamma("tau_between", 0.001, 0.001), pm.Gamma("tau_within", 0.001, 0.001)
        mu = pm.Normal("mu", theta, 1 / pt.sqrt(tau_between), shape=6)
        pm.Normal("y", mu[:, None], 1 / pt.sqrt(tau_within), observed=y)
    return model


@public("bugs_dyes", SOURCE)
def dyes() -> pm.Model:
    return _dyes(_data("dyes/dyes")["y"])


@public("bugs_epil", SOURCE)
def epil() -> pm.Model:
    d = _data("epil/epil")
    base, age = d["log_Base4"] - d["log_Base4_bar"], d["log_Age"] - d["log_Age_bar"]
    trt, bt, v4 = d["Trt"] - d["Trt_bar"], d["BT"] - d["BT_bar"], d["V4"] - d["V4_bar"]
    with pm.Model() as model:
        a0, a_base, a_trt, a_bt, a_age, a_v4 = (
            pm.Normal(n, 0, 100) for n in ("a0", "alpha_Base", "alpha_Trt", "alpha_BT", "alpha_Age", "alpha_V4")
        )
        tau_b1, tau_b = pm.Gamma("tau_b1", 0.001, 0.001), pm.Gamma("tau_b", 0.001, 0.001)
        b1 = pm.Normal("b1", 0, 1 / pt.sqrt(tau_b1), shape=59)
        b = pm.Normal("b", 0, 1 / pt.sqrt(tau_b), shape=(59, 4))
        person = a0 + a_base * base + a_trt * trt + a_bt * bt + a_age * age + b1
        pm.Poisson("y", pm.math.exp(person[:, None] + a_v4 * v4[None, :] + b), observed=d["y"])
    return model


@public("bugs_equiv", SOURCE)
def equiv() -> pm.Model:
    d = _data("equiv/equiv")
    period = np.array([1, 2])
    treatment = (d["group"][:, None] * (2 * period - 3) + 3) // 2
    with pm.Model() as model:
        mu, phi, pi = (pm.Normal(name, 0, 1000) for name in ("mu", "phi", "pi"))
        sigmasq1 = pm.InverseGamma("sigmasq1", 0.001, 0.001)
        sigmasq2 = pm.InverseGamma("sigmasq2", 0.001, 0.001)
        delta = pm.Normal("delta", 0, pt.sqrt(sigmasq2), shape=10)
        m = mu + d["sign"][treatment - 1] * phi / 2 + d["sign"] * pi / 2 + delta[:, None]
        pm.Normal("Y", m, pt.sqrt(sigmasq1), observed=d["Y"])
    return model


@public("bugs_kidney", SOURCE)
def kidney() -> pm.Model:
    d = _data("kidney/kidney")
    joined = {k: np.concatenate([d[f"{k}_uc"], d[f"{k}_rc"]]) for k in ("t", "disease", "patient", "sex", "age")}
    upper = np.where(np.arange(76) < 58, np.inf, joined["t"])
    diseases = np.eye(4)[joined["disease"] - 1][:, 1:]
    with pm.Model() as model:
        alpha, b_age, b_sex = (pm.Normal(name, 0, 100) for name in ("alpha", "beta_age", "beta_sex"))
        b_disease = pm.Normal("beta_disease", 0, 100, shape=3)
        tau, r = pm.Gamma("tau", 0.001, 0.001), pm.Gamma("r", 1, 0.001, initval=1.0)
        b = pm.Normal("b", 0, 1 / pt.sqrt(tau), shape=38)
        eta = alpha + b_age * joined["age"] + b_sex * joined["sex"] + diseases @ b_disease + b[joined["patient"] - 1]
        life = pm.Weibull.dist(alpha=r, beta=pm.math.exp(-eta / r))
        pm.Censored("t", life, lower=None, upper=upper, observed=joined["t"])
    return model


@public("bugs_mice", SOURCE)
def mice() -> pm.Model:
    d = _data("mice/mice")
    t = np.concatenate([d["t_uncensored"], d["censor_time"]]).astype(float)
    group = np.concatenate([d["group_uncensored"], d["group_censored"]]) - 1
    upper = np.where(np.arange(80) < 65, np.inf, t)
    with pm.Model() as model:
        beta, r = pm.Normal("beta", 0, 100, shape=4), pm.Exponential("r", 0.001, initval=1.0)
        life = pm.Weibull.dist(alpha=r, beta=pm.math.exp(-beta[group] / r))
        pm.Censored("t", life, lower=None, upper=upper, observed=t)
    return model


@public("bugs_magnesium", SOURCE)
def magnesium() -> pm.Model:
    d = _data("magnesium/magnesium")
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 10), pm.Uniform("tau", 0, 50)
        phi = pm.Normal("phi", 0, 10, shape=8)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Binomial("rc", n=d["nc"], logit_p=phi, observed=d["rc"])
        pm.Binomial("rt", n=d["nt"], logit_p=phi + theta, observed=d["rt"])
    return model


@public("bugs_oxford", SOURCE)
def oxford() -> pm.Model:
    d = _data("oxford/oxford")
    year = d["year"].astype(float)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1000, shape=120)
        alpha, beta1, beta2 = (pm.Normal(name, 0, 1000) for name in ("alpha", "beta1", "beta2"))
        sigma_sq = pm.InverseGamma("sigma_sq", 0.001, 0.001)
        b = pm.Normal("b", 0, 1, shape=120)
        shift = alpha + beta1 * year + beta2 * (year**2 - 22) + b * pt.sqrt(sigma_sq)
        pm.Binomial("r0", n=d["n0"], logit_p=mu, observed=d["r0"])
        pm.Binomial("r1", n=d["n1"], logit_p=mu + shift, observed=d["r1"])
    return model


@public("bugs_salm", SOURCE)
def salm() -> pm.Model:
    d = _data("salm/salm")
    x, logx = d["x"].astype(float), np.log(d["x"] + 10.0)
    with pm.Model() as model:
        alpha_star, beta, gamma = (pm.Normal(name, 0, 1000) for name in ("alpha_star", "beta", "gamma"))
        tau = pm.Gamma("tau", 0.001, 0.001)
        lam = pm.Normal("lambda", 0, 1 / pt.sqrt(tau), shape=(6, 3))
        dose = alpha_star + beta * (logx - logx.mean()) + gamma * (x - x.mean())
        pm.Poisson("y", pm.math.exp(dose[:, None] + lam), observed=d["y"])
    return model


def _stacks() -> tuple[np.ndarray, np.ndarray]:
    d = _data("stacks/stacks_a_normal")
    x = d["x"].astype(float)
    return (x - x.mean(axis=0)) / x.std(axis=0, ddof=1), d["Y"].astype(float)


@public("bugs_stacks", SOURCE)
def stacks() -> pm.Model:
    z, y = _stacks()
    with pm.Model() as model:
        beta0, beta = pm.Normal("beta0", 0, 316), pm.Normal("beta", 0, 316, shape=3)
        sigmasq = pm.InverseGamma("sigmasq", 0.001, 0.001)
        pm.Normal("Y", beta0 + z @ beta, pt.sqrt(sigmasq), observed=y)
    return model


@public("bugs_stacks_student", SOURCE)
def stacks_student() -> pm.Model:
    z, y = _stacks()
    with pm.Model() as model:
        beta0, beta = pm.Normal("beta0", 0, 316), pm.Normal("beta", 0, 316, shape=3)
        sigmasq = pm.InverseGamma("sigmasq", 0.001, 0.001)
        pm.StudentT("Y", nu=4, mu=beta0 + z @ beta, sigma=pt.sqrt(sigmasq), observed=y)
    return model


@public("bugs_stacks_laplace_ridge", SOURCE)
def stacks_laplace_ridge() -> pm.Model:
    z, y = _stacks()
    with pm.Model() as model:
        beta0, phi = pm.Normal("beta0", 0, 316), pm.Gamma("phi", 0.01, 0.01)
        beta = pm.Normal("beta", 0, pt.sqrt(1 / phi), shape=3)
        b = pm.InverseGamma("b", 0.001, 0.001)
        pm.Laplace("Y", mu=beta0 + z @ beta, b=b, observed=y)
    return model


@public("bugs_air", SOURCE)
def air() -> pm.Model:
    d = _data("air/air", 2)
    with pm.Model() as model:
        theta1, theta2 = pm.Normal("theta1", 0, 32), pm.Normal("theta2", 0, 32)
        X = pm.Normal("X", d["alpha"] + d["beta"] * d["Z"], np.sqrt(d["sigma2"]))
        pm.Binomial("y", n=d["n"], logit_p=theta1 + theta2 * X, observed=d["y"])
    return model


@public("bugs_birats", SOURCE)
def birats() -> pm.Model:
    d = _data("birats/birats", 2)
    with pm.Model() as model:
        mu = pm.Normal("mu_beta", [0, 0], [1000, 1000])
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=1, sd_dist=pm.HalfNormal.dist(50, size=2))
        beta = pm.MvNormal("beta", mu=mu, chol=chol, shape=(30, 2))
        sigma = pm.HalfNormal("sigma", 20)
        pm.Normal("y", beta[:, [0]] + beta[:, [1]] * d["x"], sigma, observed=d["y"])
    return model


@public("bugs_schools", SOURCE)
def schools() -> pm.Model:
    d = _data("schools/schools", 2)
    lrt, school = d["LRT"], d["school"] - 1
    fixed = np.column_stack([lrt**2, d["VR"][:, 1], d["Gender"], d["School_gender"], d["School_denom"]])
    random = np.column_stack([np.ones(len(lrt)), lrt, d["VR"][:, 0]])
    with pm.Model() as model:
        beta, gamma = pm.Normal("beta", 0, 100, shape=8), pm.Normal("gamma", 0, 10, shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=1, sd_dist=pm.HalfNormal.dist(1, size=3))
        alpha = pm.MvNormal("alpha", mu=gamma, chol=chol, shape=(38, 3))
        theta, phi = pm.Normal("theta", 0, 100), pm.Normal("phi", 0, 100)
        mu = (random * alpha[school]).sum(axis=1) + fixed @ beta
        pm.Normal("Y", mu, pm.math.exp(-0.5 * (theta + phi * lrt)), observed=d["Y"])
    return model


@public("bugs_ice", SOURCE)
def ice() -> pm.Model:
    d = _data("ice/ice", 2)
    later = d["age"] > 1
    with pm.Model() as model:
        sigma = pm.Uniform("sigma", 0, 1)
        alpha = pm.Normal("alpha", 0, 1000, shape=12)
        first = pm.Normal("first", 0, sigma * 1e3, shape=2)
        curve = pm.Normal("curve", 0, sigma, shape=9)
        slope = first[1] - first[0] + pt.cumsum(curve)
        beta = pm.Deterministic("beta", pt.concatenate([first, first[1] + pt.cumsum(slope)]))
        age = pt.concatenate([pt.zeros(1), alpha])
        log_rate = age[np.where(later, d["age"] - 1, 0)] + np.log(d["pyr"]) + beta[d["year"] - 1]
        pm.Poisson("cases", pm.math.exp(log_rate), observed=d["cases"])
    return model


@public("bugs_hepatitis", SOURCE)
def hepatitis() -> pm.Model:
    d = _data("hepatitis/hepatitis", 3)
    person, y0 = d["idxn1"] - 1, d["y0"]
    with pm.Model() as model:
        s_y, s_a, s_b = (pm.InverseGamma(f"sigmasq_{k}", 0.001, 0.001) for k in ("y", "alpha", "beta"))
        alpha0, beta0, gamma = (pm.Normal(name, 0, 1000) for name in ("alpha0", "beta0", "gamma"))
        alpha = pm.Normal("alpha", alpha0, pt.sqrt(s_a), shape=106)
        beta = pm.Normal("beta", beta0, pt.sqrt(s_b), shape=106)
        mean = alpha[person] + beta[person] * (d["tvec1"] - 6.5) + gamma * (y0[person] - y0.mean())
        pm.Normal("Y", mean, pt.sqrt(s_y), observed=d["Yvec1"])
    return model


@public("bugs_pump", SOURCE, obstacle="no Gaussian variable")
def pump() -> pm.Model:
    t = np.array([94.3, 15.7, 62.9, 126, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5])
    x = np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])
    with pm.Model() as model:
        alpha, beta = pm.Exponential("alpha", 1.0), pm.Gamma("beta", 0.1, 1.0)
        theta = pm.Gamma("theta", alpha, beta, shape=10)
        pm.Poisson("x", theta * t, observed=x)
    return model
