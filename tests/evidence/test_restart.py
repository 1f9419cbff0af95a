"""Where sites run away, EP starts anew at the mode, and with shorter steps than those that led there."""

import numpy as np

from pymc_ep.engines.loop import run
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.sweep import Problem
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.sites.compiled import compile_site


def test_a_restart_shortens_the_steps_and_ends_at_the_same_fixed_point(monkeypatch):
    rng = np.random.default_rng(2)
    rows = 3.0 * rng.normal(size=(3, 40))
    problem = Problem(
        np.zeros(40), FactorPrior(rows, np.ones(len(rows))), ((rng.random(40) < 0.5).astype(float),), ((),)
    )
    engine = EP([compile_site("logit")])
    expected = run(engine, problem, None, max_iter=100)

    calls = iter([True, True])
    dampings = []
    monkeypatch.setattr(engine, "_diverges", lambda trial: next(calls, False))
    step = engine.step

    def followed(problem, state):
        state = step(problem, state)
        dampings.append(state.damping)
        return state

    monkeypatch.setattr(engine, "step", followed)
    found = run(engine, problem, None, max_iter=100)
    assert dampings[:2] == [0.5, 0.25]
    assert found.status.converged
    np.testing.assert_allclose(found.state.sweep.log_z, expected.state.sweep.log_z, atol=1e-8)
    np.testing.assert_allclose(found.state.precision, expected.state.precision, atol=1e-6)
