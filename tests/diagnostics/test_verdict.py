"""The verdict on fits that are known to be right or wrong."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_ep as pmep
from pymc_ep.diagnostics.verdict import verdict
from pymc_ep.results import fit_group


def lines_of(model, **options):
    result = pmep.fit(model=model, random_seed=1, progressbar=False, **options)
    return pmep.diagnose(result, model).attrs["verdict"].splitlines(), result


def test_an_exact_fit(gaussian):
    model, result = gaussian
    first, *rest = pmep.diagnose(result, model).attrs["verdict"].splitlines()
    assert first == "Nothing that was measured speaks against this fit."
    assert any("relative effective sample size 1: the approximation is near the exact posterior" in one for one in rest)


@pytest.mark.parametrize("size", [12, 30, 100])
@pytest.mark.parametrize("likelihood", ["counts", "bits"])
def test_right_small_fits_are_not_doubted(likelihood, size):
    """Regressions that EP gets right; the sampled tail of their weights has any shape."""
    rng = np.random.default_rng(size)
    design = rng.normal(size=(size, 3))
    with pm.Model() as model:
        eta = pm.math.dot(design, pm.Normal("b", 0.0, 1.0, shape=3))
        if likelihood == "counts":
            pm.Poisson("y", pm.math.exp(eta), observed=rng.poisson(1.5, size=size))
        else:
            pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, size))
    lines, result = lines_of(model)
    assert lines[0] == "Nothing that was measured speaks against this fit."
    assert "pareto_k" not in pmep.diagnose(result, model)


def test_binary_data_in_small_groups_with_a_large_effect():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 3)
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, 8.0, shape=60)
        level = pm.Normal("level", 0.0, 1.0)
        bits = rng.binomial(1, 1 / (1 + np.exp(-rng.normal(0, 8, 60))))[group]
        # Predictors that are told apart: those of a group have one site together otherwise, which is nearly exact.
        pm.Bernoulli("y", logit_p=level + u[group] + 1e-9 * np.arange(180), observed=bits)
    lines, _ = lines_of(model)
    assert lines[0].startswith("Doubtful")
    assert "posteriors are not Gaussian, as of binary data in small groups" in lines[1] and "most at y[" in lines[1]


def schools():
    y, sd = [28.0, 8, -3, 7, -1, 1, 18, 12], [15.0, 10, 16, 11, 9, 11, 10, 18]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        pm.Normal("y", pm.Normal("theta", mu, tau, shape=8), sd, observed=y)
    return model


def test_hyperparameters_that_ran_to_a_boundary():
    lines, _ = lines_of(schools(), hyper="optimize")
    assert lines[0] == "Not to be trusted."
    assert "('tau') are held at their maximum" in lines[1] and "hyper='integrate'" in lines[1]
    assert any("near the exact posterior given these hyperparameters" in one for one in lines)


def test_other_treatments_say_what_they_leave_out():
    lines, _ = lines_of(schools(), hyper="fixed", start={"tau": 5.0})
    assert any("('tau') are held at given values" in one for one in lines)
    lines, _ = lines_of(schools(), hyper="integrate")
    assert any("('tau') are integrated over" in one for one in lines)


def test_a_fit_that_did_not_converge(poisson):
    with pytest.warns(pmep.ConvergenceWarning):
        lines, _ = lines_of(poisson[0], max_iter=1)
    assert lines[0] == "Not to be trusted."
    assert lines[1].startswith("- The result may be off: stopped after 1 iterations")


@pytest.mark.parametrize(
    ("ess", "sd", "first", "told"),
    [
        (0.99, 0.05, "Nothing", "as good as exact"),
        (0.7, 0.5, "Nothing", "which the weights correct"),
        (0.2, 0.1, "Doubtful", "not met well"),
        (0.99, 1.5, "Doubtful", "not met well"),
    ],
)
def test_the_integration_by_its_own_numbers(gaussian, ess, sd, first, told):
    fit = fit_group(gaussian[1]).assign(hyper_ess=ess, hyper_log_weight_sd=sd)
    lines = verdict({}, fit, "integrate", ("tau",), 9, held=False).splitlines()
    assert lines[0].startswith(first) and told in lines[1]


def test_weights_fail_in_few_dimensions_and_say_nothing_in_many(gaussian):
    fit = fit_group(gaussian[1])
    found = xr.Dataset({"weights_ess": 40.0, "pareto_k": 0.9, "log_weight": ("draw", np.zeros(1000))})
    few = verdict(found, fit, "fixed", (), 5, held=True)
    assert few.startswith("Doubtful") and "with only 5 unknowns" in few and "start_point" in few
    for unknowns in (5, 500):
        varied = verdict(found, fit, "optimize", ("tau",), unknowns, held=False)
        assert varied.startswith("Doubtful") and "the Gaussian of 'tau' is likely far from their posterior" in varied
    many = verdict(found, fit, "fixed", (), 500, held=True)
    assert many.startswith("Nothing") and "says little" in many


def test_a_series_that_diverges_is_absent(poisson, monkeypatch):
    """One site whose cumulants are absurd, as numbers without digits would be."""
    model, result = poisson
    whole = pmep.diagnostics.report.all_cumulants

    def absurd(*arguments):
        skewness, kurtosis = whole(*arguments)
        kurtosis[3:5] = 1e11
        return skewness, kurtosis

    monkeypatch.setattr(pmep.diagnostics.report, "all_cumulants", absurd)
    found = pmep.diagnose(result, model)
    assert "cumulant_correction" not in found and "y_evidence_share" not in found
    assert "so that the series diverges" in found.attrs["absent"]
