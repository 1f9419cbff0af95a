"""Models of Bambi."""

from typing import Any

import numpy as np
import pandas as pd

import pymc_ep as pmep
from docs.benchmarks.mistakes.common import (
    COUNTS,
    N,
    fit,
    frame,
    mistake,
)


def _bambi(formula: str, data: pd.DataFrame, family: str = "gaussian", **options: Any) -> Any:
    import bambi as bmb

    return bmb.Model(formula, data, family=family, **options)


@mistake("Bambi: binary response of strings", "Fine: bambi #271", bambi=True)
def _() -> Any:
    df = frame(y=["yes", "no", "yes", "no", "yes", "yes"])
    return fit(model=_bambi("y ~ x", df, "bernoulli"))


@mistake("Bambi: a missing covariate", "bambi: 'dropna=True'", bambi=True)
def _() -> Any:
    return fit(model=_bambi("y ~ x + (1|g)", frame(x=[0.1, np.nan, 0.3, 0.4, 0.5, 0.6]), dropna=True))


@mistake("Bambi: the model as first argument", "Fine? pmep.fit(bambi_model)", bambi=True)
def _() -> Any:
    return pmep.fit(_bambi("y ~ x", frame()), draws=0, progressbar=False)


@mistake("Bambi: negative counts under poisson", "family='poisson' with differences", bambi=True)
def _() -> Any:
    return fit(model=_bambi("n ~ x", frame(n=[2, 0, -1, 3, 1, 4]), "poisson"))


@mistake("Bambi: one group only", "bambi #52 'a categorical predictor of a single category'", bambi=True)
def _() -> Any:
    return fit(model=_bambi("y ~ x + (1|g)", frame(g=["a"] * N)))


@mistake("Bambi: a prior with negative sigma", "bambi priors", bambi=True)
def _() -> Any:
    import bambi as bmb

    return fit(model=_bambi("y ~ x", frame(), priors={"x": bmb.Prior("Normal", mu=0, sigma=-1)}))


@mistake(
    "Bambi: family categorical", "bambi #852 'Unable to predict and fit when using categorical family'", bambi=True
)
def _() -> Any:
    return fit(model=_bambi("g ~ x", frame(), "categorical"))


@mistake("Bambi: offset of log zero", "bambi PR #534 'Treat offset accordingly'", bambi=True)
def _() -> Any:
    return fit(model=_bambi("n ~ x + offset(log(e))", frame(e=[1.0, 0.0, 2.0, 1.0, 1.0, 1.0], n=COUNTS + 1), "poisson"))


@mistake("Bambi: a hyperprior that is dropped", "bambi #1003 'silently drops mu'", bambi=True)
def _() -> Any:
    import bambi as bmb

    prior = bmb.Prior("Normal", mu=bmb.Prior("Normal", mu=2.0, sigma=0.25), sigma=bmb.Prior("HalfNormal", sigma=1.0))
    return fit(model=_bambi("y ~ 0 + (0 + x | g)", frame(), priors={"x|g": prior}, noncentered=True))


@mistake("Bambi: predict by Bambi from a fit", "bambi Model.predict(idata, data=new)", bambi=True)
def _() -> Any:
    model = _bambi("y ~ x + (1|g)", frame())
    idata = fit(model=model, draws=20)
    return model.predict(idata, data=frame().head(2), inplace=False)


@mistake("Bambi: pmep.predict after the fit", "pmep.predict(idata, bambi_model)", bambi=True)
def _() -> Any:
    model = _bambi("y ~ x + (1|g)", frame())
    return pmep.predict(fit(model=model), model, response=True)
