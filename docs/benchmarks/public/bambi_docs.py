"""Formulas of Bambi's documentation and of R packages' help pages, with Bambi's default priors.

Where the documentation's data are not in Rdatasets they are simulated with its formula; the models say so.
"""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from scipy.special import expit

from docs.benchmarks.public.base import public, r_table, stan_data

__all__: list[str] = []

SOURCE = "Bambi"


def _built(formula: Any, data: pd.DataFrame, family: str = "gaussian", **options: Any) -> pm.Model:
    import bambi

    model = bambi.Model(formula, data, family=family, **options)
    model.build()
    return model.backend.model


@public("bambi_sleepstudy_fixed", SOURCE)
def sleepstudy_fixed() -> pm.Model:
    return _built("Reaction ~ Days", r_table("lme4/sleepstudy"))


@public("bambi_sleepstudy", SOURCE)
def sleepstudy() -> pm.Model:
    return _built("Reaction ~ 1 + Days + (Days | Subject)", r_table("lme4/sleepstudy"))


@public("bambi_pigs", SOURCE)
def pigs() -> pm.Model:
    return _built("Weight ~ Time + (Time | Pig)", r_table("geepack/dietox"))


@public("bambi_radon", SOURCE)
def radon() -> pm.Model:
    d = stan_data("radon_mn")
    data = pd.DataFrame({"log_radon": d["log_radon"], "floor": d["floor_measure"], "county": d["county_idx"]})
    return _built("log_radon ~ 1 + floor + (1 + floor | county)", data.astype({"county": "str"}))


@public("bambi_grouseticks", SOURCE)
def grouseticks() -> pm.Model:
    data = r_table("lme4/grouseticks").astype(dict.fromkeys(("YEAR", "BROOD", "INDEX", "LOCATION"), "str"))
    return _built("TICKS ~ YEAR + scale(HEIGHT) + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION)", data, "poisson")


@public("bambi_epil", SOURCE)
def epil() -> pm.Model:
    return _built(
        "y ~ lbase * trt + lage + V4 + (1 | subject)", r_table("MASS/epil").astype({"subject": "str"}), "poisson"
    )


@public("bambi_cbpp", SOURCE)
def cbpp() -> pm.Model:
    data = r_table("lme4/cbpp").astype({"herd": "str", "period": "str"})
    return _built("p(incidence, size) ~ period + (1 | herd)", data, "binomial")


@public("bambi_bacteria", SOURCE)
def bacteria() -> pm.Model:
    data = r_table("MASS/bacteria")
    data["y"] = (data["y"] == "y").astype(int)
    return _built("y ~ trt + week + (1 | ID)", data, "bernoulli")


def _beetles() -> pd.DataFrame:
    """Return Bliss's (1935) beetles: log dose, killed, exposed."""
    return pd.DataFrame(
        {
            "x": [1.6907, 1.7242, 1.7552, 1.7842, 1.8113, 1.8369, 1.8610, 1.8839],
            "n": [59, 60, 62, 56, 63, 59, 62, 60],
            "y": [6, 13, 18, 28, 52, 53, 61, 60],
        }
    )


@public("bambi_beetles_logit", SOURCE)
def beetles_logit() -> pm.Model:
    return _built("p(y, n) ~ x", _beetles(), "binomial")


@public("bambi_beetles_probit", SOURCE)
def beetles_probit() -> pm.Model:
    return _built("p(y, n) ~ x", _beetles(), "binomial", link="probit")


@public("bambi_beetles_cloglog", SOURCE)
def beetles_cloglog() -> pm.Model:
    return _built("p(y, n) ~ x", _beetles(), "binomial", link="cloglog")


@public("bambi_hsgp", SOURCE)
def hsgp() -> pm.Model:
    data = r_table("MASS/mcycle")
    return _built("accel ~ 0 + hsgp(times, m=10, c=2)", data)


@public("bambi_splines", SOURCE)
def splines() -> pm.Model:
    return _built("accel ~ 1 + bs(times, df=12)", r_table("MASS/mcycle"))


@public("bambi_t_regression", SOURCE, simulated=True)
def t_regression() -> pm.Model:
    rng = np.random.default_rng(8927)
    x = np.linspace(0, 1, 100)
    y = 1 + 2 * x + rng.normal(0, 0.5, 100)
    return _built("y ~ x", pd.DataFrame({"x": [*x, 0.1, 0.15, 0.2], "y": [*y, 8, 6, 9]}), "t")


@public("bambi_negative_binomial", SOURCE, simulated=True)
def negative_binomial() -> pm.Model:
    rng = np.random.default_rng(1)
    n = 314
    programme = rng.choice(["General", "Academic", "Vocational"], n, p=[0.13, 0.53, 0.34])
    score = rng.normal(48, 25, n).clip(1, 99)
    level = pd.Series(programme).map({"General": 2.4, "Academic": 1.9, "Vocational": 1.0}).to_numpy()
    mean = np.exp(level - 0.15 * (score - 48) / 25)
    days = rng.poisson(rng.gamma(1.0, mean))
    data = pd.DataFrame({"daysabs": days, "prog": programme, "math": score})
    return _built("daysabs ~ 0 + prog + scale(math)", data, "negativebinomial")


@public("bambi_gamma", SOURCE, simulated=True)
def gamma() -> pm.Model:
    rng = np.random.default_rng(2)
    n = 1000
    age, gender, area = rng.integers(1, 7, n), rng.choice(["F", "M"], n), rng.choice(list("ABCDEF"), n)
    mean = np.exp(7.6 - 0.05 * age + 0.15 * (gender == "M") + 0.1 * (area == "F"))
    data = pd.DataFrame({"cost": rng.gamma(0.8, mean / 0.8), "agecat": age, "gender": gender, "area": area})
    return _built("cost ~ C(agecat) + gender + C(area)", data, "gamma", link="log")


@public("bambi_beta", SOURCE, simulated=True)
def beta() -> pm.Model:
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 1, 200)
    mean = expit(0.2 + 0.8 * weight)
    return _built("p ~ weight", pd.DataFrame({"p": rng.beta(20 * mean, 20 * (1 - mean)), "weight": weight}), "beta")


@public("bambi_batting", SOURCE, simulated=True)
def batting() -> pm.Model:
    rng = np.random.default_rng(4)
    tries = rng.integers(1, 30, 15)
    skill = rng.normal(-1.1, 0.3, 15)
    data = pd.DataFrame(
        {"H": rng.binomial(tries, expit(skill)), "AB": tries, "playerID": [f"p{k:02d}" for k in range(15)]}
    )
    return _built("p(H, AB) ~ 1 + (1 | playerID)", data, "binomial")


@public("bambi_ordinal", SOURCE, simulated=True)
def ordinal() -> pm.Model:
    rng = np.random.default_rng(5)
    n = 1000
    data = pd.DataFrame({name: rng.integers(0, 2, n) for name in ("action", "intention", "contact")})
    eta = (
        -0.5 * data["action"]
        - 0.3 * data["intention"]
        - 0.35 * data["contact"]
        - 0.4 * data["action"] * data["intention"]
    )
    cuts = np.array([-2.6, -1.9, -1.3, -0.3, 0.4, 1.3])
    data["response"] = (eta.to_numpy()[:, None] + rng.logistic(size=(n, 1)) > cuts).sum(axis=1) + 1
    data["response"] = pd.Categorical(data["response"], ordered=True)
    return _built(
        "response ~ 0 + action + intention + contact + action:intention + contact:intention", data, "cumulative"
    )


@public("bambi_zero_inflated", SOURCE, simulated=True)
def zero_inflated() -> pm.Model:
    rng = np.random.default_rng(6)
    n = 250
    data = pd.DataFrame(
        {"child": rng.integers(0, 4, n), "camper": rng.integers(0, 2, n), "persons": rng.integers(1, 5, n)}
    )
    mean = np.exp(-0.8 - 0.9 * data["child"] + 0.7 * data["camper"] + 0.8 * data["persons"])
    data["count"] = np.where(rng.random(n) < 0.3, 0, rng.poisson(mean))
    return _built("count ~ child + camper + persons", data, "zero_inflated_poisson")


@public("bambi_distributional", SOURCE, simulated=True, obstacle="predictor of the shape")
def distributional() -> pm.Model:
    import bambi

    rng = np.random.default_rng(7)
    x = rng.uniform(-1.5, 1.5, 120)
    y = rng.gamma(np.exp(0.25 + 0.5 * x) ** 2, np.exp(1 + x))
    formula = bambi.Formula("y ~ x", "alpha ~ x")
    return _built(formula, pd.DataFrame({"x": x, "y": y}), "gamma", link={"mu": "log", "alpha": "log"})


@public("bambi_categorical", SOURCE, simulated=True)
def categorical() -> pm.Model:
    rng = np.random.default_rng(8)
    x = rng.normal(0, 1, 150)
    kind = np.array(["a", "b", "c"])[np.argmax(np.outer(x, [-1, 0, 1]) + rng.gumbel(size=(150, 3)), axis=1)]
    return _built("kind ~ x", pd.DataFrame({"x": x, "kind": kind}), "categorical")
