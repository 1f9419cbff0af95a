"""What a fit of a small model costs, counted: functions that are compiled, and factorisations."""

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_ep as pmep
from pymc_ep import concurrency
from pymc_ep.numerics.backend.cholesky import counts

GROUPS = 12


def grouped(seed):
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.arange(GROUPS), rng.integers(GROUPS, size=40)])
    with pm.Model() as model:
        level, sd = pm.Normal("level", 0, 5), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", level, sd, shape=GROUPS)
        pm.Poisson("y", pm.math.exp(effect[group]), observed=rng.poisson(3.0, size=len(group)))
    return model


@pytest.fixture
def compiled(monkeypatch):
    """Number of calls of `pytensor.function`, in a list."""
    made, function = [0], pytensor.function

    def counted(*arguments, **options):
        made[0] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(pytensor, "function", counted)
    return made


def test_functions_and_factorisations_of_a_fit(compiled):
    pmep.fit(model=grouped(0), progressbar=False)
    model = grouped(1)
    # Models of one structure share them.
    concurrency._SHARED.clear()
    compiled[0], before = 0, counts["factorizations"]
    pmep.fit(model=model, progressbar=False)
    # Measured when this was written: 21 functions, and 122 factorisations of 43 fits beside those at 200 draws.
    assert 0 < compiled[0] <= 22
    assert 200 < counts["factorizations"] - before < 200 + 200
    compiled[0] = 0
    pmep.fit(model=model, progressbar=False)
    assert compiled[0] == 0
