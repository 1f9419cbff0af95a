"""Missing values, indices, shapes and types of data."""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.mistakes.common import (
    BITS,
    COUNTS,
    GROUP,
    REALS,
    N,
    X,
    fit,
    fit_with,
    frame,
    line,
    mistake,
)


@mistake(
    "NaN in a column of covariates",
    "typical question: 'Missing values in predictors'; pymc #4441 (imputation and pm.Data)",
)
def _() -> Any:
    df = frame(x=[0.1, np.nan, 0.3, 0.4, 0.5, 0.6])
    return fit_with(lambda: pm.Normal("y", line(df["x"].values), 1.0, observed=df["y"]))


@mistake("pm.observe with NaN", "pymc #7430 'BUG: automatic imputation with pm.observe'")
def _() -> Any:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1.0, shape=N)
    return fit(model=pm.observe(model, {"y": np.where(np.arange(N) == 4, np.nan, REALS)}))


@mistake(
    "every response missing", "typical question: 'Data in y contains missing values and will be automatically imputed'"
)
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), 1.0, observed=np.full(N, np.nan)))


@mistake("complete data as a masked array", "Fine: pymc #529 'ValueError when handling complete data as missing data'")
def _() -> Any:
    return fit_with(lambda: pm.Poisson("y", pt.exp(line()), observed=np.ma.masked_equal(COUNTS, -999)))


@mistake("None in a response of type object", "pymc #240, #49: None among observations")
def _() -> Any:
    y = pd.Series([0.3, None, 1.0, 1.3, 0.2, 1.9], dtype=object)
    return fit_with(lambda: pm.Normal("y", line(), 1.0, observed=y))


@mistake("missing counts coded as -999", "pymc PR #712, test_scores with fillna(-1)")
def _() -> Any:
    y = np.where(np.arange(N) == 4, -999, COUNTS)
    return fit_with(lambda: pm.Poisson("y", pt.exp(line()), observed=y))


@mistake(
    "missing group coded as -1 by pandas", "pd.Categorical(...).codes of a missing label; pymc indexes the last group"
)
def _() -> Any:
    codes = pd.Categorical(["a", "a", None, "b", "c", "c"]).codes
    return fit_with(lambda: pm.Normal("y", pm.Normal("u", 0, 1, shape=3)[codes], 1.0, observed=REALS))


@mistake("missing group coded as -1, by pm.Data", "the same with pm.Data of the index")
def _() -> Any:
    def write() -> None:
        index = pm.Data("index", pd.Categorical(["a", "a", None, "b", "c", "c"]).codes)
        pm.Normal("y", pm.Normal("u", 0, 1, shape=3)[index], 1.0, observed=REALS)

    return fit_with(write)


@mistake("groups numbered from 1", "pymc #2549 'index 87 is out of bounds for size 87'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.Normal("u", 0, 1, shape=3)[GROUP + 1], 1.0, observed=REALS))


@mistake("groups numbered from 1, by pm.Data and dims", "pymc #2549, with coords")
def _() -> Any:
    with pm.Model(coords={"group": ["a", "b", "c"]}):
        g = pm.Data("g", GROUP + 1)
        pm.Poisson("y", pt.exp(pm.Normal("u", 0, 1, dims="group")[g]), observed=COUNTS)
        return fit()


@mistake("labels by pd.factorize", "Fine: typical question: 'string categories as index'")
def _() -> Any:
    index, labels = pd.factorize(frame()["g"])
    with pm.Model(coords={"g": labels}):
        pm.Normal("y", pm.Normal("u", 0, pm.HalfNormal("s", 1), dims="g")[index], 1.0, observed=REALS)
        return fit()


@mistake("a level of the category without data", "Fine: bambi and pandas 'unused category'")
def _() -> Any:
    c = pd.Categorical(list("aabbdd"), categories=list("abcd"))
    with pm.Model(coords={"g": c.categories}):
        pm.Normal("y", pm.Normal("u", 0, 1, dims="g")[c.codes], 1.0, observed=REALS)
        return fit()


@mistake("response of shape (n, 1), predictor of shape (n,)", "pymc #4652 'Column vector breaks observed'; df[['y']]")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), 1.0, observed=frame()[["y"]]))


@mistake("response of shape (1, n), predictor of shape (n,)", "Fine: pymc #319 shapes of observed")
def _() -> Any:
    return fit_with(lambda: pm.Poisson("y", pt.exp(line()), observed=COUNTS[None]))


@mistake(
    "response longer than the covariates", "typical question: 'Input dimension mis-match'; rows dropped from x only"
)
def _() -> Any:
    def write() -> None:
        x = pm.Data("x", X[:-1])
        pm.Normal("y", line(x), 1.0, observed=REALS)

    return fit_with(write)


@mistake("trials of another length than successes", "typical question: 'Binomial n array of wrong length'")
def _() -> Any:
    return fit_with(lambda: pm.Binomial("y", pm.Data("n", np.full(N - 2, 5)), logit_p=line(), observed=COUNTS))


@mistake("set_data of x alone, then fit", "pymc #6230, #7897 'can not make predictions for a new set of x'")
def _() -> Any:
    with pm.Model():
        x = pm.Data("x", X)
        pm.Normal("y", line(x), 1.0, observed=REALS)
        pm.set_data({"x": np.array([1.0, 2.0, 3.0])})
        return fit()


@mistake("two Series with different indices", "pandas aligns: filtered.x / other.x is NaN; 'index misaligned'")
def _() -> Any:
    exposure = pd.Series(np.ones(3), index=[0, 1, 2]) / pd.Series(np.ones(3), index=[2, 3, 4])
    return fit_with(lambda: pm.Poisson("y", exposure.values * pt.exp(pm.Normal("a", 0, 1)), observed=[1, 0, 2, 1, 1]))


@mistake("dates as nanoseconds in a Gaussian process", "typical question: 'GP with datetime index'")
def _() -> Any:
    days = pd.date_range("2020-01-01", periods=N).to_numpy().astype("datetime64[ns]").astype("int64").astype(float)

    def write() -> None:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, pm.InverseGamma("ell", 3, 3)))
        pm.Normal("y", gp.prior("f", X=days[:, None]), 0.5, observed=REALS)

    return fit_with(write)


@mistake("dates as nanoseconds as a slope's covariate", "typical question: 'linear trend with dates'")
def _() -> Any:
    days = pd.date_range("2020-01-01", periods=N).to_numpy().astype("datetime64[ns]").astype("int64").astype(float)
    return fit_with(lambda: pm.Normal("y", line(days), pm.HalfNormal("s", 1), observed=REALS))


@mistake("binary data of type bool", "Fine: typical question: 'bool observed'")
def _() -> Any:
    return fit_with(lambda: pm.Bernoulli("y", logit_p=line(), observed=BITS.astype(bool)))


@mistake("binary data coded as 1 and 2", "R's factors as integers")
def _() -> Any:
    return fit_with(lambda: pm.Bernoulli("y", logit_p=line(), observed=BITS + 1))


@mistake("binary data coded as -1 and 1", "labels of support vector machines")
def _() -> Any:
    return fit_with(lambda: pm.Bernoulli("y", p=pm.math.invprobit(line()), observed=2 * BITS - 1))


@mistake("shares as Bernoulli observations", "bambi/pymc 'family binomial with proportions'; constants are cast to 0")
def _() -> Any:
    return fit_with(lambda: pm.Bernoulli("y", logit_p=line(), observed=np.array([0.2, 0.7, 0.5, 0.9, 0.4, 1.0])))


@mistake("rates as Poisson observations", "typical question: 'Poisson with non-integer data'; constants are truncated")
def _() -> Any:
    return fit_with(lambda: pm.Poisson("y", pt.exp(line()), observed=COUNTS / 2.5))


@mistake("whole numbers above 2**31 in pm.Data", "pymc #4279 'Silent integer overflow', #4553 intX")
def _() -> Any:
    y = np.array([3_000_000_000, 5_000_000_000, 6_000_000_000], dtype=np.int64)
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 4e9, 2e9), 1e8, observed=pm.Data("income", y)))


@mistake("covariate above 2**31 in pm.Data", "pymc #4279, for a covariate: population")
def _() -> Any:
    def write() -> None:
        people = pm.Data("people", np.array([1_000_000_000, 2_000_000_000, 5_000_000_000]))
        pm.Poisson("y", 1e-9 * people * pt.exp(pm.Normal("a", 0, 1)), observed=[1, 2, 5])

    return fit_with(write)


@mistake("a complex covariate", "spectrum by np.fft without abs")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(np.fft.fft(X)), 1.0, observed=REALS))


@mistake("a filter that leaves no rows", "typical question: 'zero-size array to reduction operation'")
def _() -> Any:
    df = frame().query("x > 5")
    return fit_with(lambda: pm.Normal("y", line(df["x"].values), pm.HalfNormal("s", 1), observed=df["y"].values))


@mistake("one observation, its noise unknown", "Fine: typical question: 'posterior with one data point'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 1), pm.HalfNormal("s", 1), observed=[0.7]))


@mistake("a constant response, its noise unknown", "typical question: 'all observations equal'; mass at zero noise")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 10), pm.HalfNormal("s", 1), observed=np.full(N, 5.0)))


@mistake("a constant response, noise with a flat prior", "HalfFlat: the posterior is improper at s = 0")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 10), pm.HalfFlat("s"), observed=np.full(N, 5.0)))


@mistake("perfect separation under a very wide prior", "typical question: 'perfect separation in logistic regression'")
def _() -> Any:
    def write() -> None:
        eta = pm.Normal("a", 0, 100) + pm.Normal("b", 0, 100) * X
        pm.Bernoulli("y", logit_p=eta, observed=X > 0)

    return fit_with(write)


@mistake("perfect separation under Flat", "the same, improper")
def _() -> Any:
    return fit_with(lambda: pm.Bernoulli("y", logit_p=pm.Flat("a") + pm.Flat("b") * X, observed=X > 0))
