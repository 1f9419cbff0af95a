"""Methods side by side: what differs by more than it should is said, and what has no fit."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep


@pytest.fixture(scope="module")
def skewed():
    """Few bits in groups, of which Laplace's approximation is off."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, 3.0, shape=6)
        pm.Bernoulli("y", logit_p=effect[np.arange(12) % 6], observed=rng.random(12) < 0.9)
    return model


def test_differences_are_told_with_the_element_that_has_them(skewed):
    table = pmep.compare_methods(skewed)
    assert list(table.index) == ["ep", "laplace", "vg", "dsb"]
    first = table.loc["ep"]
    assert first["mean_difference"] == 0 and first["sd_ratio"] == 1
    fits = {name: pmep.fit(name, model=skewed, draws=0, progressbar=False) for name in ("ep", "laplace")}
    mean, sd = (
        {name: one[f"posterior_{what}"]["effect"].to_numpy() for name, one in fits.items()} for what in ("mean", "sd")
    )
    apart = np.abs(mean["laplace"] - mean["ep"]) / sd["ep"]
    assert table.loc["laplace", "mean_difference"] == pytest.approx(apart.max())
    assert table.loc["laplace", "mean_of"] == f"effect[{apart.argmax()}]"
    ratio = sd["laplace"] / sd["ep"]
    assert table.loc["laplace", "sd_ratio"] == pytest.approx(ratio[np.abs(np.log(ratio)).argmax()])
    assert table.loc["vg", "log_evidence"] <= table.loc["ep", "log_evidence"] + 0.01
    verdict = table.attrs["verdict"]
    assert "The mean of effect[" in verdict and "by 'laplace' is" in verdict
    assert verdict.endswith("Compare with pm.sample, started by pmep.start_point(idata).")
    assert repr(table).startswith(verdict)


def test_methods_that_agree_and_one_that_has_no_fit():
    with pm.Model() as model:
        pm.Laplace("y", pm.Normal("level", 0, 1), 0.5, observed=np.random.default_rng(0).normal(size=30))
    table = pmep.compare_methods(model, ("ep", "vg"))
    assert table.attrs["verdict"].startswith("The methods agree")
    table = pmep.compare_methods(model, ("ep", "laplace"))
    assert "'laplace' has no fit: Of 'y', the log density of a laplace site has a kink" in table.attrs["verdict"]
    assert not table.loc["laplace", "converged"]
    with pytest.raises(ValueError, match="needs two methods or more, and has ep"):
        pmep.compare_methods(model, ("ep",))
    with pytest.raises(ValueError, match="method='map' does not exist for this model"):
        pmep.compare_methods(model, ("ep", "map"))
