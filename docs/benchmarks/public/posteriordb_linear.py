"""posteriordb's regressions with Gaussian noise. Where Stan's program gives no prior, the prior is flat here too."""

from typing import Any

import numpy as np
import pymc as pm

from docs.benchmarks.public.base import public, stan_data

__all__: list[str] = []

SOURCE = "posteriordb"


def _linear(y: np.ndarray, columns: list[np.ndarray], sigma: Any = pm.HalfFlat, **scale: float) -> pm.Model:
    """``y ~ normal(beta[1] + beta[2] * x + ..., sigma)`` with flat coefficients."""
    design = np.column_stack([np.ones_like(y, dtype=float), *columns])
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=design.shape[1])
        noise = sigma("sigma", **scale)
        pm.Normal("y", design @ beta, noise, observed=y)
    return model


def _kidscore(data: dict[str, Any], *columns: np.ndarray) -> pm.Model:
    return _linear(data["kid_score"], list(columns), pm.HalfCauchy, beta=2.5)


@public("kidscore_momiq", SOURCE)
def kidscore_momiq() -> pm.Model:
    d = stan_data("kidiq")
    return _kidscore(d, d["mom_iq"])


@public("kidscore_momhsiq", SOURCE)
def kidscore_momhsiq() -> pm.Model:
    d = stan_data("kidiq")
    return _kidscore(d, d["mom_hs"], d["mom_iq"])


@public("kidscore_interaction", SOURCE)
def kidscore_interaction() -> pm.Model:
    d = stan_data("kidiq")
    return _kidscore(d, d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"])


@public("kidscore_mom_work", SOURCE)
def kidscore_mom_work() -> pm.Model:
    d = stan_data("kidiq_with_mom_work")
    return _linear(d["kid_score"], [1.0 * (d["mom_work"] == level) for level in (2, 3, 4)])


@public("earn_height", SOURCE)
def earn_height() -> pm.Model:
    d = stan_data("earnings")
    return _linear(d["earn"], [d["height"]])


@public("logearn_height", SOURCE)
def logearn_height() -> pm.Model:
    d = stan_data("earnings")
    return _linear(np.log(d["earn"]), [d["height"]])


@public("logearn_interaction_z", SOURCE)
def logearn_interaction_z() -> pm.Model:
    d = stan_data("earnings")
    z = (d["height"] - d["height"].mean()) / d["height"].std(ddof=1)
    return _linear(np.log(d["earn"]), [z, d["male"], z * d["male"]])


@public("mesquite", SOURCE)
def mesquite() -> pm.Model:
    d = stan_data("mesquite")
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return _linear(d["weight"], [d[name] for name in names])


@public("logmesquite_logvolume", SOURCE)
def logmesquite_logvolume() -> pm.Model:
    d = stan_data("mesquite")
    return _linear(np.log(d["weight"]), [np.log(d["diam1"] * d["diam2"] * d["canopy_height"])])


@public("logmesquite_logvas", SOURCE)
def logmesquite_logvas() -> pm.Model:
    d = stan_data("mesquite")
    area = d["diam1"] * d["diam2"]
    columns = [area * d["canopy_height"], area, d["diam1"] / d["diam2"], d["total_height"], d["density"]]
    return _linear(np.log(d["weight"]), [*map(np.log, columns), d["group"]])


def _nes(year: int) -> pm.Model:
    d = stan_data(f"nes{year}")
    ages = [1.0 * (d["age_discrete"] == level) for level in (2, 3, 4)]
    return _linear(d["partyid7"], [d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]])


@public("nes1980", SOURCE)
def nes1980() -> pm.Model:
    return _nes(1980)


@public("nes2000", SOURCE)
def nes2000() -> pm.Model:
    return _nes(2000)


@public("sesame_one_pred_a", SOURCE)
def sesame_one_pred_a() -> pm.Model:
    d = stan_data("sesame_data")
    return _linear(d["watched"], [d["encouraged"]])


@public("kilpisjarvi", SOURCE)
def kilpisjarvi() -> pm.Model:
    d = stan_data("kilpisjarvi_mod")
    with pm.Model() as model:
        alpha = pm.Normal("alpha", d["pmualpha"], d["psalpha"])
        beta = pm.Normal("beta", d["pmubeta"], d["psbeta"])
        sigma = pm.HalfFlat("sigma")
        pm.Normal("y", alpha + beta * d["x"], sigma, observed=d["y"])
    return model


def _blr(name: str) -> pm.Model:
    d = stan_data(name)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 10, shape=d["D"])
        sigma = pm.HalfNormal("sigma", 10)
        pm.Normal("y", d["X"] @ beta, sigma, observed=d["y"])
    return model


@public("sblrc_blr", SOURCE)
def sblrc_blr() -> pm.Model:
    return _blr("sblrc")


@public("sblri_blr", SOURCE)
def sblri_blr() -> pm.Model:
    return _blr("sblri")


@public("arK", SOURCE)
def ar_k() -> pm.Model:
    d = stan_data("arK")
    y, order = d["y"], d["K"]
    lags = np.column_stack([y[order - k : len(y) - k] for k in range(1, order + 1)])
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 10)
        beta = pm.Normal("beta", 0, 10, shape=order)
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("y", alpha + lags @ beta, sigma, observed=y[order:])
    return model


@public("diamonds", SOURCE)
def diamonds() -> pm.Model:
    d = stan_data("diamonds")
    centred = d["X"][:, 1:] - d["X"][:, 1:].mean(axis=0)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=centred.shape[1])
        intercept = pm.StudentT("Intercept", nu=3, mu=8, sigma=10)
        sigma = pm.HalfStudentT("sigma", nu=3, sigma=10)
        pm.Normal("y", intercept + centred @ b, sigma, observed=d["Y"])
    return model
