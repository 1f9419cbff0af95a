"""Fits say nothing: no warning, no log and no traceback of a rewrite that failed within PyTensor."""

import os
import subprocess
import sys

import pytest

MODELS = {
    "censored Weibull": """
        shape, scale = pm.HalfNormal("shape", 2), pm.math.exp(pm.Normal("a") + pm.Normal("b") * X)
        time = np.linspace(0.2, 3.0, 12)
        weibull = pm.Weibull.dist(alpha=shape, beta=scale)
        pm.Censored("y", weibull, lower=None, upper=2.0, observed=np.minimum(time, 2.0))
    """,
    "hurdle": """
        rate = pm.math.exp(pm.Normal("a") + pm.Normal("b") * X)
        pm.HurdlePoisson("y", psi=pm.Beta("psi", 1, 1), mu=rate, observed=COUNTS)
    """,
    "zero-inflated": """
        rate = pm.math.exp(pm.Normal("a", 0, pm.HalfNormal("s", 1), shape=3)[np.arange(12) % 3])
        pm.ZeroInflatedNegativeBinomial(
            "y", psi=pm.Beta("psi", 1, 1), mu=rate, alpha=pm.HalfNormal("alpha", 2), observed=COUNTS
        )
    """,
    "ordinal": """
        cuts = pm.Normal("cuts", [-1, 0, 1], 1, transform=pm.distributions.transforms.ordered, shape=3)
        pm.OrderedLogistic("y", eta=pm.Normal("b") * X, cutpoints=cuts, observed=np.arange(12) % 4)
    """,
    "truncated": """
        location = pm.Normal("a") + pm.Normal("b") * X
        normal = pm.Normal.dist(location, pm.HalfNormal("sigma", 1))
        pm.Truncated("y", normal, lower=-2.0, upper=None, observed=np.linspace(-1.5, 2.0, 12))
    """,
    "quantile": """
        location = pm.Normal("a") + pm.Normal("b") * X
        pm.AsymmetricLaplace("y", mu=location, b=pm.HalfNormal("scale", 1), q=0.8, observed=np.linspace(-1, 2, 12))
    """,
}
SCRIPT = """
import logging
import numpy as np, pymc as pm, pymc_ep as pmep

logging.basicConfig(level=logging.WARNING)
X, COUNTS = np.linspace(-1, 1, 12), np.array([0, 1, 0, 3, 2, 0, 1, 4, 0, 2, 5, 1])
with pm.Model():
{body}
    pmep.fit(draws=10, chains=1, progressbar=False, hyper="fixed")
"""


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_said(name):
    body = "\n".join(line.removeprefix("    ") for line in MODELS[name].splitlines())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
