"""What a fit takes is told before anything large is formed."""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.cost import cost_of
from pymc_ep.numerics import memory

PEAK = """
from pathlib import Path
import numpy as np, pymc as pm, pymc_ep as pmep
from pymc_ep.forms import compiled_form
from pymc_ep.models.latent_gaussian.cost import cost_of

def fitted(n):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, 0.3))
        pm.Poisson("y", pm.math.exp(gp.prior("f", np.linspace(0, 1, n)[:, None])), observed=np.arange(n) % 3)
        pmep.fit(draws=0, progressbar=False)
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return cost_of(compiled_form(model), "fixed").memory, peak

before, (told, after) = fitted(50)[1], fitted(1200)
print((after - before) / told)
"""


def walk(n):
    """Of which predictors depend by learned coefficients, so that algebra is dense."""
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        path = pm.GaussianRandomWalk("path", mu=0.0, sigma=1.0, init_dist=pm.Normal.dist(0.0, 2.0), shape=n)
        pm.Poisson("y", pm.math.exp(path + sigma * path[::-1]), observed=np.arange(n) % 3)
    return model


def grouped(n):
    with pm.Model() as model:
        effect = pm.Normal("effect", 0.0, pm.HalfNormal("sd", 1.0), shape=n // 4)
        pm.Poisson("y", pm.math.exp(effect[np.arange(n) // 4]), observed=np.arange(n) % 3)
    return model


def test_a_fit_that_exceeds_the_memory_is_refused_before_it_begins():
    model = walk(300_000)
    assert "cost             A fit of 300000 observations needs 8640.0 GB" in pmep.explain(model)
    with pytest.raises(pmep.InvalidDataError, match=r"300000 observations needs 8640\.0 GB.*HSGP"):
        pmep.fit(model=model)


def test_a_long_fit_is_told(monkeypatch, caplog):
    """The fit is stopped as it begins: only what is said before counts."""

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("pymc_ep.models.latent_gaussian.methods.ep.fitted", stop)
    monkeypatch.setattr(memory, "_free_memory", lambda: None)
    for n, said in ((4000, True), (200, False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
            pmep.fit(model=walk(n))
        assert ("This fit takes about 3 minutes: some 20 fits" in caplog.text) == said


def test_the_cost_of_groups_is_linear_in_them():
    costs = [cost_of(compiled_form(grouped(n)), "optimize") for n in (4000, 16000)]
    assert 3.0 < costs[1].memory / costs[0].memory < 5.0
    assert 3.0 < costs[1].seconds / costs[0].seconds < 5.0
    assert costs[1].seconds < 60.0
    assert costs[1].arrays == "4000 blocks of up to 1, and 0 that couple with all, of 16000 predictors"


def test_the_solver_that_is_asked_for_counts(monkeypatch):
    model = grouped(4000)
    monkeypatch.setattr(memory, "_free_memory", lambda: 10**8)
    with pytest.raises(pmep.InvalidDataError, match="12 matrices of 4000 x 4000"):
        pmep.fit(model=model, solver="observations")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak memory as Linux tells it")
def test_memory_is_told_within_a_factor_of_two():
    """Peak of a process that fits a process of 1200 points, over what one of 50 points took."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PEAK], capture_output=True, text=True, check=True)
    assert 0.5 < float(done.stdout) < 2.0


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    without = memory._free_memory()
    for limit, expected in (("max\n", without), ("1000000\n", 600_000 + 50_000)):
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("400000\n")
        (tmp_path / "memory.stat").write_text("anon 350000\ninactive_file 50000\n")
        assert memory._free_memory() == pytest.approx(expected, rel=0.2)


def test_time_of_densities_whose_peaks_are_searched_for():
    """A Beta likelihood of 2,000 takes eight times as long as a Poisson one, by measurement and foretold."""

    def cost(observe):
        with pm.Model() as model:
            observe(pm.Normal("a", 0.0, 1.0) * np.ones(2000))
        return cost_of(compiled_form(model), "fixed")

    beta = cost(lambda eta: pm.Beta("y", mu=pm.math.sigmoid(eta), nu=3.0, observed=np.full(2000, 0.3)))
    poisson = cost(lambda eta: pm.Poisson("y", pm.math.exp(eta), observed=np.arange(2000) % 3))
    assert beta.seconds == pytest.approx(8 * poisson.seconds, rel=0.1)
