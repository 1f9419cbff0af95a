"""Models that do not fit, and calls."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
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
    line,
    mistake,
)


@mistake("fit outside of the model", "pymc #3251 'No context on context stack'")
def _() -> Any:
    with pm.Model():
        pm.Normal("y", line(), 1.0, observed=REALS)
    return fit()


@mistake("the model as first argument", "pymc: pm.sample(model)")
def _() -> Any:
    with pm.Model() as model:
        pm.Normal("y", line(), 1.0, observed=REALS)
    return pmep.fit(model, draws=0, progressbar=False)


@mistake("fit(1000), as pm.sample(1000)", "pymc: pm.sample(1000)")
def _() -> Any:
    with pm.Model():
        pm.Normal("y", line(), 1.0, observed=REALS)
        return pmep.fit(1000, progressbar=False)


@mistake("options of pm.sample", "pymc: tune, cores, target_accept")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), 1.0, observed=REALS), tune=1000, target_accept=0.95)


@mistake("method of pm.fit", "pymc: pm.fit(method='advi')")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), 1.0, observed=REALS), method="advi")


@mistake("observed= forgotten", "pymc #6179 'posterior samples without an observed kwarg'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), 1.0, shape=N))


@mistake("nothing unknown", "pymc4 #175 'model has no unobserved values'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", 1.0 + 2.0 * X, 1.0, observed=REALS))


@mistake("a Beta-Binomial test of two variants", "pymc-examples #708 'Bayesian A/B testing': no Gaussian variable")
def _() -> Any:
    return fit_with(lambda: pm.Binomial("y", n=[100, 120], p=pm.Beta("p", 1, 1, shape=2), observed=[23, 35]))


@mistake("a switch point in time", "pymc coal mining: DiscreteUniform")
def _() -> Any:
    def write() -> None:
        switch = pm.DiscreteUniform("switch", 0, N - 1)
        early, late = pm.Normal("early", 0, 1), pm.Normal("late", 0, 1)
        pm.Poisson("y", pt.exp(pm.math.switch(np.arange(N) < switch, early, late)), observed=COUNTS)

    return fit_with(write)


@mistake("a mixture of two normals with unknown means", "pymc mixtures")
def _() -> Any:
    def write() -> None:
        mu = pm.Normal("mu", [-1, 1], 1, shape=2)
        pm.NormalMixture("y", w=[0.5, 0.5], mu=mu, sigma=0.5, observed=REALS)

    return fit_with(write)


@mistake("softmax regression", "pymc #1004, #3622 'Softmax Regression'")
def _() -> Any:
    def write() -> None:
        alpha, beta = pm.Normal("alpha", 0, 1, shape=3), pm.Normal("beta", 0, 1, shape=3)
        pm.Categorical("y", p=pm.math.softmax(alpha + X[:, None] * beta, axis=-1), observed=[0, 1, 2, 0, 1, 2])

    return fit_with(write)


@mistake("a likelihood written as a Potential", "pymc #4057, #6791; 'pm.Potential(logp)'")
def _() -> Any:
    return fit_with(lambda: pm.Potential("loglike", pm.logp(pm.Poisson.dist(pt.exp(line())), COUNTS)))


@mistake("a Potential as a constraint", "pymc #6791 '-np.inf in pm.Potential'")
def _() -> Any:
    def write() -> None:
        eta = line()
        pm.Potential("positive", pm.math.switch(pt.any(eta < 0), -np.inf, 0.0))
        pm.Normal("y", eta, 1.0, observed=REALS)

    return fit_with(write)


def _simulated(a: np.ndarray) -> np.ndarray:
    return np.sin(a * X)


@mistake("a black-box function in the mean", "pymc-examples #631 'blackbox likelihood'; as_op")
def _() -> Any:
    simulator = pytensor.compile.ops.as_op(itypes=[pt.dscalar], otypes=[pt.dvector])(_simulated)
    return fit_with(lambda: pm.Normal("y", simulator(pm.Normal("a", 0, 1)), 1.0, observed=REALS))


@mistake("a recursion by scan", "pymc PR #6696; scan of a linear recursion")
def _() -> Any:
    def write() -> None:
        a, rho = pm.Normal("a", 0, 1), 0.8
        states = (
            pytensor.scan(lambda s: rho * s, outputs_info=[a], n_steps=N, return_updates=False)
            if (pm.__version__ > "6")
            else pytensor.scan(lambda s: rho * s, outputs_info=[a], n_steps=N)[0]
        )
        pm.Normal("y", states, 0.5, observed=REALS)

    return fit_with(write)


@mistake("exponential decay", "typical question: 'non-linear regression': a exp(-k t)")
def _() -> Any:
    def write() -> None:
        a, k = pm.Normal("a", 2, 1), pm.Normal("k", 1, 0.5)
        pm.Normal("y", a * pt.exp(-k * (X + 1)), 0.3, observed=2 * np.exp(-(X + 1)))

    return fit_with(write)


@mistake("total_size of a minibatch", "pymc #1038, #8300 'total_size-scaled values'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 1), 1.0, observed=REALS, total_size=600))


@mistake("pm.Minibatch as data", "pymc #7496 'Minibatches are tricky'")
def _() -> Any:
    def write() -> None:
        x, y = pm.Minibatch(X, REALS, batch_size=3)
        pm.Normal("y", line(x), 1.0, observed=y, total_size=N)

    return fit_with(write)


@mistake("dims of another length", "pymc #7891 'Check idata dims/coords for consistency'")
def _() -> Any:
    with pm.Model(coords={"three": list("abc"), "four": [1, 2, 3, 4]}):
        x = pm.Normal("x", 0, 1, dims="three")
        mu = pm.Deterministic("mu", 1 + x, dims="four")
        pm.Normal("y", mu, 1.0, observed=REALS[:3])
        return fit()


@mistake("coordinates that are pairs", "pymc #6496 'coord of type Sequence[Sequence]'")
def _() -> Any:
    with pm.Model(coords={"c": [("a", 1), ("a", 3), ("b", 2)]}):
        pm.Normal("y", pm.Normal("u", 0, 1, dims="c")[GROUP], 1.0, observed=REALS)
        return fit(draws=10)


@mistake("latent= misspelt", "the argument's own mistake")
def _() -> Any:
    with pm.Model():
        pm.Normal("y", line(), pm.HalfNormal("sigma", 1), observed=REALS)
        return fit(latent=["A", "b"])


@mistake("latent= names a scale", "the argument's own mistake")
def _() -> Any:
    with pm.Model():
        pm.Normal("y", line(), pm.HalfNormal("sigma", 1), observed=REALS)
        return fit(latent=["a", "b", "sigma"])


@mistake("latent= is a string", "a lone name instead of a list")
def _() -> Any:
    with pm.Model():
        pm.Normal("y", line(), pm.HalfNormal("sigma", 1), observed=REALS)
        return fit(latent="ab")


@mistake("start= outside the support", "pymc initval; start={'sigma': 0}")
def _() -> Any:
    with pm.Model():
        pm.Normal("y", line(), pm.HalfNormal("sigma", 1), observed=REALS)
        return fit(start={"sigma": 0.0})


@mistake("an unknown that nothing sees", "bambi #1003 'hyperpriors disconnected'")
def _() -> Any:
    def write() -> None:
        pm.Normal("unused", 0, 1)
        pm.HalfNormal("unused_scale", 1)
        pm.Normal("y", line(), 1.0, observed=REALS)

    return fit_with(write)
