"""Data, priors, calls and results once more."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_ep as pmep
from docs.benchmarks.mistakes.common import (
    COUNTS,
    GROUP,
    REALS,
    N,
    W,
    X,
    fit,
    fit_with,
    fitted,
    frame,
    line,
    mistake,
    process,
)


@mistake("NaN put into a covariate by set_data", "pymc #4441; set_data does not look at what it sets")
def _() -> Any:
    with pm.Model():
        x = pm.Data("x", X)
        pm.Normal("y", line(x), pm.HalfNormal("s", 1), observed=REALS)
        pm.set_data({"x": np.where(np.arange(N) == 2, np.nan, X)})
        return fit()


@mistake("a table of repeated measurements with a gap", "Fine: pymc #4441, #8317: NaN in a matrix of observations")
def _() -> Any:
    y = np.array([[0.1, 0.3], [np.nan, 1.0], [1.2, 0.9]])
    return fit_with(lambda: pm.Normal("y", pm.Normal("u", 0, 1, shape=(3, 1)) * np.ones(2), 1.0, observed=y))


@mistake("a gap in observed vectors of two outcomes", "typical question: 'MvNormal with missing values'")
def _() -> Any:
    y = np.array([[0.1, 0.3], [np.nan, 1.0], [1.2, 0.9]])
    return fit_with(lambda: pm.MvNormal("y", pm.Normal("m", 0, 1, shape=2), np.eye(2) + 0.5, observed=y))


@mistake("gp.Marginal with a column of observations", "pymc #3482; y of shape (n, 1)")
def _() -> Any:
    def write() -> None:
        gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, pm.InverseGamma("ell", 3, 3)))
        gp.marginal_likelihood("y", X=X[:, None], y=REALS[:, None], sigma=0.5)

    return fit_with(write)


@mistake("two columns in a covariance function of one", "PyMC warns that one column of two is used")
def _() -> Any:
    return process(lambda: 1.0, np.column_stack([X, X**2]), 1)


@mistake("a model of pymc.dims with a gap", "pymc #8317 'pymc.dims does not impute missing observed data'")
def _() -> Any:
    import pymc.dims as pmd
    import xarray as xr

    y = xr.DataArray([1.0, np.nan, 0.5], dims=("a",))
    with pm.Model(coords={"a": [0, 1, 2]}):
        u = pmd.Normal("u", 0, 1, dims="a")
        pmd.Normal("y", u, 1.0, observed=y, dims=("a",))
        return fit()


@mistake("labels that occur twice", "coords from a column that is not unique")
def _() -> Any:
    with pm.Model(coords={"g": ["a", "a", "b"]}):
        pm.Normal("y", pm.Normal("u", 0, 1, dims="g")[GROUP], 1.0, observed=REALS)
        return fit(draws=10)


@mistake("a negative exposure", "exposure = end - start, with the two swapped in one row")
def _() -> Any:
    exposure = np.array([1.0, -2.0, 2.0, 1.0, 1.0, 2.0])
    return fit_with(lambda: pm.Poisson("y", exposure * pt.exp(line()), observed=COUNTS))


@mistake("an observation below the bound of a TruncatedNormal", "pymc PR #6128 'returns -inf for all values'")
def _() -> Any:
    return fit_with(lambda: pm.TruncatedNormal("y", line(), 1.0, lower=0.0, observed=REALS))


@mistake("noise with a Normal prior away from zero", "Fine: as above, Normal(1, 1)")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.Normal("s", 1, 1), observed=REALS))


@mistake("one negative scale among three", "a vector of prior scales with a wrong sign")
def _() -> Any:
    design = np.column_stack([np.ones(N), X, X**2])
    beta = lambda: pm.Normal("beta", 0, np.array([1.0, 2.0, -1.0]), shape=3)  # noqa: E731
    return fit_with(lambda: pm.Normal("y", design @ beta(), 1.0, observed=REALS))


@mistake("a precision that is not symmetric", "MvNormal(tau=) with one entry wrong")
def _() -> Any:
    tau = np.array([[1.0, 0.5, 0.0], [0.1, 1.0, 0.2], [0.0, 0.2, 1.0]])
    return fit_with(lambda: pm.Normal("y", pm.MvNormal("u", np.zeros(3), tau=tau)[GROUP], 1.0, observed=REALS))


@mistake("a covariance of observations that is not symmetric", "MvNormal observed, one entry wrong")
def _() -> Any:
    cov = np.array([[1.0, 0.5, 0.0], [0.1, 1.0, 0.2], [0.0, 0.2, 1.0]])
    return fit_with(lambda: pm.MvNormal("y", pm.Normal("a", 0, 1) * np.ones(3), cov, observed=REALS[:3]))


@mistake("CAR with row-standardised weights, normal observations", "libpysal's default transform")
def _() -> Any:
    phi = lambda: pm.CAR("phi", np.zeros(N), W / W.sum(1, keepdims=True), alpha=0.5, tau=1.0)  # noqa: E731
    return fit_with(lambda: pm.Normal("y", phi(), 1.0, observed=REALS))


@mistake("an amplitude with a Normal prior", "Fine: amp**2 * ExpQuad, amp ~ Normal(1, 0.3)")
def _() -> Any:
    def write() -> None:
        gp = pm.gp.Latent(cov_func=pm.Normal("amp", 1, 0.3) ** 2 * pm.gp.cov.ExpQuad(1, 1.0))
        pm.Normal("y", gp.prior("f", X=X[:, None]), 0.5, observed=REALS)

    return fit_with(write)


@mistake("an initial value outside the support", "pymc #6791 thread: initval")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.HalfNormal("s", 1, initval=-1.0), observed=REALS))


@mistake("Uniform priors on all coefficients", "'uninformative' Uniform(-10, 10)")
def _() -> Any:
    return fit_with(
        lambda: pm.Normal(
            "y", pm.Uniform("a", -10, 10) + pm.Uniform("b", -10, 10) * X, pm.HalfNormal("s", 1), observed=REALS
        )
    )


@mistake("positive slopes by HalfNormal", "Fine: pymc-marketing, positive coefficients")
def _() -> Any:
    design = np.column_stack([X, X**2, np.cos(X)])
    slopes = lambda: pm.HalfNormal("slopes", 1, shape=3)  # noqa: E731
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 1) + design @ slopes(), 0.5, observed=REALS))


@mistake("yesterday's posterior as an Interpolated prior", "pymc-examples 'Updating priors'")
def _() -> Any:
    at = np.linspace(-3, 3, 50)
    prior = lambda: pm.Interpolated("b", at, np.exp(-0.5 * at**2))  # noqa: E731
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 1) + prior() * X, 0.5, observed=REALS))


@mistake("draws= as a float", "draws=1e3")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), 1.0, observed=REALS), draws=1e3)


@mistake("idata_kwargs of pm.sample", "bambi #663: idata_kwargs={'log_likelihood': True}")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), 1.0, observed=REALS), idata_kwargs={"log_likelihood": True})


@mistake("predict(idata, new_x), as in scikit-learn", "new inputs as second argument")
def _() -> Any:
    _, idata = fitted()
    return pmep.predict(idata, frame()[["x"]])


@mistake("the advice hyper='sample' for an improper posterior", "HalfFlat, as the warning advises")
def _() -> Any:
    def write() -> None:
        u = pm.Normal("u", pm.Flat("m"), pm.HalfFlat("tau"), shape=2)
        pm.Normal("y", u[GROUP % 2], 1.0, observed=REALS)

    return fit_with(write, hyper="sample", draws=25, sample_kwargs={"tune": 100, "compute_convergence_checks": False})


@mistake("log likelihoods of a fit with draws=0", "pm.compute_log_likelihood, to use az.loo")
def _() -> Any:
    model, idata = fitted()
    return pm.compute_log_likelihood(idata, model=model, progressbar=False)


@mistake("predict() of the response without anything", "pmep.predict(idata) as bambi's model.predict(idata)")
def _() -> Any:
    model, idata = fitted()
    return pmep.predict(idata, model)
