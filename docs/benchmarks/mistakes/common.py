"""How mistakes are written: small data, short models, and the decorator that lists them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

import pymc_ep as pmep

N = 6
X = np.linspace(-1.0, 1.0, N)
COUNTS = np.array([2, 0, 1, 3, 1, 4])
REALS = np.array([0.3, -0.4, 1.0, 1.3, 0.2, 1.9])
BITS = np.array([0, 1, 0, 1, 1, 0])
GROUP = np.array([0, 0, 1, 1, 2, 2])
W = np.diag(np.ones(N - 1), 1) + np.diag(np.ones(N - 1), -1)


class Mistake(NamedTuple):
    """What a user does, and where it was seen."""

    call: Callable[[], Any]
    seen: str
    bambi: bool


MISTAKES: dict[str, Mistake] = {}
"""All that `mistake` has listed, by name."""


def mistake(name: str, seen: str, bambi: bool = False) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """List a call that makes a mistake, or that is right and feared to be one."""

    def listed(call: Callable[[], Any]) -> Callable[[], Any]:
        assert name not in MISTAKES, f"{name!r} is there twice"
        MISTAKES[name] = Mistake(call, seen, bambi)
        return call

    return listed


def fit(**options: Any) -> Any:
    """Fit as a user does, quietly."""
    return pmep.fit(**({"draws": 0, "progressbar": False, "random_seed": 1} | options))


def line(x: Any = X) -> Any:
    """Return a + b x."""
    return pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * x


def fit_with(write: Callable[[], Any], **options: Any) -> Any:
    """Fit a model that a function writes."""
    with pm.Model():
        write()
        return fit(**options)


def frame(**columns: Any) -> pd.DataFrame:
    """Return a table as it comes from a file."""
    return pd.DataFrame({"x": X, "y": REALS, "n": COUNTS, "g": list("aabbcc")} | columns)


def fitted(**options: Any) -> tuple[pm.Model, Any]:
    """Return a straight line with pm.Data, fitted."""
    with pm.Model() as model:
        x = pm.Data("x", X)
        eta = pm.Deterministic("eta", line(x))
        pm.Normal("y", eta, pm.HalfNormal("sigma", 1), observed=REALS)
        return model, fit(**options)


def process(length: Callable[[], Any], inputs: np.ndarray = X[:, None], dim: int = 1) -> Any:
    """Fit counts under a Gaussian process."""

    def write() -> None:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(dim, length()))
        pm.Poisson("y", pt.exp(gp.prior("f", X=inputs)), observed=COUNTS)

    return fit_with(write)
