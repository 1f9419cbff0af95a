"""What is done with results."""

from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

import pymc_ep as pmep
from docs.benchmarks.mistakes.common import (
    COUNTS,
    GROUP,
    REALS,
    N,
    X,
    fit,
    fit_with,
    fitted,
    line,
    mistake,
)


@mistake("predict at new x, observations constant", "pymc #7560 'linear model doesn't work on out-of-sample data'")
def _() -> Any:
    model, idata = fitted()
    with model:
        pm.set_data({"x": np.array([2.0, 3.0])})
        return pmep.predict(idata, response=True)


@mistake("predict with a name that does not exist", "var_names misspelt")
def _() -> Any:
    model, idata = fitted()
    return pmep.predict(idata, model, var_names=["etaa"])


@mistake("predict a scale", "var_names of a hyperparameter")
def _() -> Any:
    model, idata = fitted()
    return pmep.predict(idata, model, var_names=["sigma"])


@mistake("predict from the result of another model", "pymc #2561; idata of a model with other variables")
def _() -> Any:
    _, idata = fitted()
    with pm.Model() as other:
        pm.Normal("y", pm.Normal("c", 0, 1) * X, 1.0, observed=REALS)
    return pmep.predict(idata, other, var_names=["c"])


@mistake("predict from the result of a model with other priors", "same names, another model in the notebook")
def _() -> Any:
    _, idata = fitted()
    with pm.Model() as other:
        x = pm.Data("x", X)
        eta = pm.Deterministic("eta", pm.Normal("a", 0, 9) + pm.Normal("b", 5, 0.1) * x)
        pm.Normal("y", eta, pm.HalfNormal("sigma", 1), observed=REALS)
    return pmep.predict(idata, other, var_names=["eta"])


@mistake("predict from a result of pm.sample_prior_predictive", "wrong idata in the notebook")
def _() -> Any:
    model, _ = fitted()
    return pmep.predict(pm.sample_prior_predictive(10, model=model, random_seed=1), model, var_names=["eta"])


@mistake("predict a new group by its number", "bambi #693 'predictions on new groups': index out of range")
def _() -> Any:
    with pm.Model():
        g = pm.Data("g", GROUP)
        pm.Deterministic("eta", pm.Normal("u", 0, 1, shape=3)[g])
        pm.Normal("y", pm.Normal("m", 0, 1) + pm.modelcontext(None)["u"][g], 1.0, observed=REALS)
        idata = fit()
        pm.set_data({"g": np.array([0, 3])})
        return pmep.predict(idata, var_names=["eta"])


@mistake("predict with NaN in the new x", "new rows with missing values")
def _() -> Any:
    model, idata = fitted()
    with model:
        pm.set_data({"x": np.array([2.0, np.nan, 3.0, 1.0, 1.0, 1.0])})
        return pmep.predict(idata, var_names=["eta"])


@mistake("quantiles in percent", "quantiles=[5, 95]")
def _() -> Any:
    model, idata = fitted()
    return pmep.predict(idata, model, response=True, quantiles=[5, 95])


@mistake("kind= of Bambi", "bambi: kind='response_params'")
def _() -> Any:
    model, idata = fitted()
    return pmep.predict(idata, model, response=True, kind="response_params")


@mistake("az.summary of a fit with draws=0", "arviz 'no posterior group'")
def _() -> Any:
    return az.summary(fitted()[1])


@mistake("posterior predictive of a fit with draws=0", "arviz 'no posterior group'")
def _() -> Any:
    model, idata = fitted()
    return pm.sample_posterior_predictive(idata, model=model, progressbar=False)


@mistake("az.loo of a fit", "pymc4 #292 'log likelihood not found in inference data object'")
def _() -> Any:
    return az.loo(fitted(draws=50)[1])


@mistake("pmep.loo after the data changed", "set_data, then loo")
def _() -> Any:
    model, idata = fitted()
    with model:
        pm.set_data({"x": X + 1})
        return pmep.loo(idata)


@mistake("diagnose the result of another model", "wrong model in the notebook")
def _() -> Any:
    _, idata = fitted(draws=50)
    with pm.Model() as other:
        pm.Normal("y", pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * X, pm.HalfNormal("sigma", 1), observed=REALS)
    return pmep.diagnose(idata, other)


@mistake("comparison of models of different data", "az.compare with rows dropped in one")
def _() -> Any:
    model, idata = fitted(draws=50)
    with pm.Model() as fewer:
        pm.Normal("y", line(X[:4]), 1.0, observed=REALS[:4])
        other = fit(draws=50)
    return az.compare({"a": pmep.loo(idata, model), "b": pmep.loo(other, fewer)})


@mistake("start= the result of another model", "start=idata of an earlier model")
def _() -> Any:
    _, idata = fitted()
    return fit_with(
        lambda: pm.Poisson("y", pt.exp(pm.Normal("c", 0, pm.HalfNormal("t", 1), shape=N)), observed=COUNTS), start=idata
    )


@mistake("log_predictive of a wrong number of values", "scores of held-out rows without set_data")
def _() -> Any:
    model, idata = fitted()
    return pmep.log_predictive(idata, model, {"y": np.array([0.1, 0.2])})


@mistake("results saved with coordinates that are pairs", "arviz #2165 'Support saving MultiIndex coordinates'")
def _() -> Any:
    pairs = pd.MultiIndex.from_tuples([("a", 1), ("a", 3), ("b", 2)])
    with pm.Model(coords={"c": pairs}):
        pm.Normal("y", pm.Normal("u", 0, 1, dims="c")[GROUP], 1.0, observed=REALS)
        fit(draws=10).to_netcdf("/tmp/s/forum/pairs.nc")


@mistake("predict without its model", "no context, no model=")
def _() -> Any:
    _, idata = fitted()
    return pmep.predict(idata)


@mistake("compare_to_mcmc with its arguments swapped", "which one is the reference?")
def _() -> Any:
    model, idata = fitted(draws=50)
    with model:
        nuts = pm.sample(
            20, tune=20, chains=2, cores=1, progressbar=False, random_seed=1, compute_convergence_checks=False
        )
    return pmep.compare_to_mcmc(nuts, idata)
