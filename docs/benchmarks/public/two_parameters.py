"""Models with effects in two parameters, and of choices among several, on data of R's packages (by Rdatasets).

Each is the regression of the package's manual or vignette, or of the books that it goes with; numbers are standardised,
and priors are weak.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from scipy.interpolate import BSpline

from docs.benchmarks.public.base import codes, public, r_table

__all__: list[str] = []

exp, invlogit, softmax = pm.math.exp, pm.math.invlogit, pm.math.softmax


def _standardised(x: Any) -> np.ndarray:
    x = np.asarray(x, dtype=float)
    return (x - x.mean()) / x.std()


def _design(*columns: Any) -> np.ndarray:
    """Return a matrix of a one, and of columns: numbers standardised, factors as indicators of all but one level."""
    parts = [np.ones(len(columns[0]))]
    for column in map(pd.Series, columns):
        if pd.api.types.is_numeric_dtype(column) and column.nunique() > 2:
            parts.append(_standardised(column))
        else:
            levels, count = codes(column)
            parts += [(levels == k).astype(float) for k in range(1, count)]
    return np.column_stack(parts)


def _effects(name: str, design: np.ndarray, level: float = 0.0) -> Any:
    """Return the predictor of a design, with a wide prior of its level about a given one."""
    sd = np.r_[2.5, np.full(design.shape[1] - 1, 1.0)]
    return design @ pm.Normal(name, np.r_[level, np.zeros(design.shape[1] - 1)], sd)


def _groups(name: str, labels: Any, sd: float = 1.0) -> Any:
    """Return the effects of groups, with a scale of their own, for each row."""
    group, count = codes(labels)
    return pm.Normal(name, 0, pm.HalfNormal(f"{name}_sd", sd), shape=count)[group]


# Counts with zeros of their own


def _biochemists(observe: Callable[[Any, Any, np.ndarray], Any]) -> pm.Model:
    """Return a model of numbers of articles; `observe` takes their share that may be there, their rate, and them."""
    d = r_table("pscl/bioChemists")
    x = _design(d["fem"], d["mar"], d["kid5"], d["phd"], d["ment"])
    with pm.Model() as model:
        observe(invlogit(_effects("present", x, 1)), exp(_effects("rate", x)), d["art"].to_numpy())
    return model


@public("pscl_biochemists_poisson", "pscl")
def biochemists_poisson() -> pm.Model:
    return _biochemists(lambda psi, mu, y: pm.ZeroInflatedPoisson("art", psi=psi, mu=mu, observed=y))


@public("pscl_biochemists_negbinomial", "pscl")
def biochemists_negbinomial() -> pm.Model:
    return _biochemists(
        lambda psi, mu, y: pm.ZeroInflatedNegativeBinomial(
            "art", psi=psi, mu=mu, alpha=pm.Exponential("alpha", 0.5), observed=y
        )
    )


@public("pscl_biochemists_hurdle", "pscl")
def biochemists_hurdle() -> pm.Model:
    return _biochemists(lambda psi, mu, y: pm.HurdlePoisson("art", psi=psi, mu=mu, observed=y))


@public("vcd_crab_satellites", "vcdExtra")
def crab_satellites() -> pm.Model:
    d = r_table("vcdExtra/CrabSatellites")
    x = _design(d["width"], d["color"])
    with pm.Model() as model:
        psi, mu = invlogit(_effects("present", x)), exp(_effects("rate", x, 1))
        alpha = pm.Exponential("alpha", 0.5)
        pm.HurdleNegativeBinomial("satellites", psi=psi, mu=mu, alpha=alpha, observed=d["satellites"].to_numpy())
    return model


@public("aer_visits_hurdle", "AER")
def visits_hurdle() -> pm.Model:
    d = r_table("AER/NMES1988")
    x = _design(d["health"], d["chronic"], d["gender"], d["school"], d["insurance"])
    with pm.Model() as model:
        psi, mu = invlogit(_effects("any", x)), exp(_effects("rate", x, 1))
        alpha = pm.Exponential("alpha", 0.5)
        pm.HurdleNegativeBinomial("visits", psi=psi, mu=mu, alpha=alpha, observed=d["visits"].to_numpy())
    return model


# Dispersion


@public("mass_quine_dispersion", "MASS")
def quine_dispersion() -> pm.Model:
    d = r_table("MASS/quine")
    with pm.Model() as model:
        mu = exp(_effects("rate", _design(d["Eth"], d["Sex"], d["Age"], d["Lrn"]), 2))
        alpha = exp(_effects("size", _design(d["Eth"], d["Sex"])))
        pm.NegativeBinomial("days", mu=mu, alpha=alpha, observed=d["Days"].to_numpy())
    return model


@public("mass_epil_dispersion", "MASS")
def epil_dispersion() -> pm.Model:
    d = r_table("MASS/epil")
    with pm.Model() as model:
        x = _design(d["lbase"], d["trt"], d["lage"], d["V4"])
        mu = exp(_effects("rate", x, 1.5) + _groups("subject", d["subject"]))
        alpha = exp(_effects("size", _design(d["trt"], d["V4"]), 1))
        pm.NegativeBinomial("seizures", mu=mu, alpha=alpha, observed=d["y"].to_numpy())
    return model


def _beta(y: Any, mean: np.ndarray, precision: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        mu, nu = invlogit(_effects("mean", mean)), exp(_effects("precision", precision, 3))
        pm.Beta("y", mu=mu, nu=nu, observed=np.asarray(y))
    return model


@public("betareg_gasoline", "betareg")
def gasoline() -> pm.Model:
    d = r_table("betareg/GasolineYield")
    return _beta(d["yield"], _design(d["batch"].astype(str), d["temp"]), _design(d["temp"]))


@public("betareg_food", "betareg")
def food() -> pm.Model:
    d = r_table("betareg/FoodExpenditure")
    return _beta(d["food"] / d["income"], _design(d["income"], d["persons"]), _design(d["persons"]))


@public("betareg_reading", "betareg")
def reading() -> pm.Model:
    d = r_table("betareg/ReadingSkills")
    slow, iq = (d["dyslexia"] == "yes").to_numpy(float), d["iq"].to_numpy()
    mean = np.column_stack([np.ones(len(d)), slow, iq, slow * iq])
    return _beta(d["accuracy"], mean, np.column_stack([np.ones(len(d)), slow, iq]))


@public("betareg_anxiety", "betareg")
def anxiety() -> pm.Model:
    d = r_table("betareg/StressAnxiety")
    return _beta(d["anxiety"], _design(d["stress"]), _design(d["stress"]))


# Spread


@public("nlme_orthodont_spread", "nlme")
def orthodont_spread() -> pm.Model:
    d = r_table("nlme/Orthodont")
    girl, age = (d["Sex"] == "Female").to_numpy(float), (d["age"] - 11).to_numpy() / 3
    x = np.column_stack([np.ones(len(d)), age, girl, age * girl])
    with pm.Model() as model:
        mu = _effects("mean", x, 24) + _groups("subject", d["Subject"], 3)
        sigma = exp(_effects("spread", np.column_stack([np.ones(len(d)), girl])))
        pm.Normal("distance", mu, sigma, observed=d["distance"].to_numpy())
    return model


@public("lme4_sleepstudy_spread", "lme4")
def sleepstudy_spread() -> pm.Model:
    d = r_table("lme4/sleepstudy")
    days, time = d["Days"].to_numpy(), d["Reaction"].to_numpy() / 100
    with pm.Model() as model:
        mu = _effects("mean", np.column_stack([np.ones(len(d)), days]), 2.5)
        mu += _groups("level", d["Subject"]) + days * _groups("slope", d["Subject"])
        sigma = exp(_effects("spread", _design(days), -1) + _groups("noise", d["Subject"]))
        pm.Normal("time", mu, sigma, observed=time)
    return model


@public("nlme_machines_spread", "nlme")
def machines_spread() -> pm.Model:
    d = r_table("nlme/Machines")
    x = _design(d["Machine"])
    with pm.Model() as model:
        mu = 10 * _effects("mean", x, 5) + _groups("worker", d["Worker"].astype(str), 5)
        pm.Normal("score", mu, exp(_effects("spread", x, 1)), observed=d["score"].to_numpy())
    return model


@public("mass_mcycle_spread", "MASS")
def mcycle_spread() -> pm.Model:
    d = r_table("MASS/mcycle")
    at = d["times"].to_numpy()

    def spline(count: int) -> np.ndarray:
        inner = np.linspace(at.min(), at.max(), count - 2)
        return BSpline.design_matrix(at, np.r_[[inner[0]] * 3, inner, [inner[-1]] * 3], 3).toarray()

    mean, spread = spline(16), spline(8)
    with pm.Model() as model:
        curve = mean @ pm.Normal("curve", 0, pm.HalfNormal("curve_sd", 2), shape=mean.shape[1])
        log_sd = spread @ pm.Normal("log_sd", -1, 1.5, shape=spread.shape[1])
        pm.Normal("accel", curve, exp(log_sd), observed=d["accel"].to_numpy() / 30)
    return model


@public("survival_lung_shape", "survival")
def lung_shape() -> pm.Model:
    d = r_table("survival/cancer").dropna(subset=["ph.ecog"])
    years, died = d["time"].to_numpy() / 365.25, (d["status"] == 2).to_numpy()
    with pm.Model() as model:
        scale = exp(_effects("log_scale", _design(d["age"], d["sex"], d["ph.ecog"].astype(str))))
        shape = exp(_effects("log_shape", _design(d["sex"])))
        law = pm.Weibull.dist(shape, scale)
        pm.Censored("years", law, None, np.where(died, np.inf, years), observed=years)
    return model


# Choices among several


def _log_odds(design: np.ndarray, categories: int) -> Any:
    """Return log-odds to the first category, by coefficients of each other one."""
    width = design.shape[1]
    coef = pm.Normal("coef", 0, np.r_[2.5, np.full(width - 1, 1.0)][:, None], shape=(width, categories - 1))
    return pm.math.concatenate([np.zeros((len(design), 1)), design @ coef], axis=1)


def _counted(name: str, cell: list[str], kind: str, count: str) -> pm.Model:
    """Return a model of the kinds counted in each cell of a table, by indicators of the cell's factors."""
    wide = r_table(name).pivot_table(index=cell, columns=kind, values=count, aggfunc="sum", fill_value=0)
    cells, counts = wide.index.to_frame(index=False), wide.to_numpy(int)
    with pm.Model() as model:
        p = softmax(_log_odds(_design(*(cells[factor] for factor in cell)), counts.shape[1]), axis=1)
        pm.Multinomial("counts", n=counts.sum(axis=1), p=p, observed=counts)
    return model


@public("vcd_alligators", "vcdExtra")
def alligators() -> pm.Model:
    return _counted("vcdExtra/Alligator", ["lake", "sex", "size"], "food", "count")


@public("mass_housing", "MASS")
def housing() -> pm.Model:
    return _counted("MASS/housing", ["Infl", "Type", "Cont"], "Sat", "Freq")


@public("pscl_vote92", "pscl")
def vote92() -> pm.Model:
    d = r_table("pscl/vote92")
    x = _design(d["female"], d["persfinance"], d["natlecon"], d["dem"], d["rep"])
    vote, kinds = codes(d["vote"])
    distance = np.column_stack([_standardised(d[name]) for name in ("bushdis", "clintondis", "perotdis")])
    with pm.Model() as model:
        eta = _log_odds(x, kinds) + pm.Normal("distance", 0, 1) * distance
        pm.Categorical("vote", logit_p=eta, observed=vote)
    return model


@public("ecdat_fishing", "Ecdat")
def fishing() -> pm.Model:
    d = r_table("Ecdat/Fishing")
    mode, kinds = codes(d["mode"])
    names = sorted(d["mode"].unique())
    price, catch = (d[[first + name for name in names]].to_numpy() for first in "pc")
    with pm.Model() as model:
        eta = _log_odds(_design(d["income"]), kinds)
        eta += pm.Normal("price", 0, 2) * price / 100 + pm.Normal("catch", 0, 2) * catch
        pm.Categorical("mode", logit_p=eta, observed=mode)
    return model


@public("cardata_beps", "carData")
def beps() -> pm.Model:
    d = r_table("carData/BEPS")
    x = _design(*(d[name] for name in d.columns if name != "vote"))
    vote, kinds = codes(d["vote"])
    with pm.Model() as model:
        pm.Categorical("vote", logit_p=_log_odds(x, kinds), observed=vote)
    return model
