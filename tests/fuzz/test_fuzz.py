"""Models that nobody would choose, drawn with scales over twelve decades: right, warned or refused, and never wrong."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="needs hypothesis")

import pymc_ep as pmep
from docs.benchmarks import _fuzz_outcomes
from docs.benchmarks._fuzz_likelihoods import LIKELIHOODS
from docs.benchmarks._fuzz_models import BLOCKS, Case, numbers_of
from docs.benchmarks._fuzz_outcomes import FAULTS, outcome_of
from docs.benchmarks._fuzz_references import by_importance, by_quadrature, closed_form, distance_from_fixed_point
from docs.benchmarks._fuzz_runs import drawn_outcomes

ORDINARY = Case("normal", "regression", 3, 1, True, 0.0, 0.5, 0.0, 0.0, -0.5, 0.0)


def of(**fields):
    return Case(**vars(ORDINARY) | fields)


def insist(case, outcome):
    assert outcome.name not in FAULTS, f"{outcome.name}, by {outcome.judge}: {outcome.said}\n{case}"


def judged_well(outcomes):
    """Whether most fits had a judge, and few were warned about or refused: else nothing has been tested."""
    count = Counter(outcome.name for outcome in outcomes.values())
    return count["right"] > 0.7 * len(outcomes) and count["not judged"] < 0.05 * len(outcomes)


# Likelihoods of all kinds with blocks of all shapes; each pair compiles a model, which takes most of the time.
FEW = {
    "likelihoods": ("normal", "student_t", "poisson", "bernoulli_probit", "ordered_logit"),
    "blocks": ("intercept", "groups", "random walk"),
}


def test_few_models():
    assert judged_well(drawn_outcomes(80, 0, insist, **FEW))


def test_many_models():
    assert judged_well(drawn_outcomes(700, 1, insist))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_is_right_at_ordinary_scales(likelihood):
    scale = -0.5 if LIKELIHOODS[likelihood].kind in ("real", "above", "within") else 0.5
    outcome = outcome_of(of(likelihood=likelihood, block="intercept", n=3, scale=scale, observed=0.5))
    assert outcome.name == "right", outcome


@pytest.mark.parametrize("likelihood", ["normal", "poisson"])
def test_missing_observations_say_nothing(likelihood):
    outcome = outcome_of(of(likelihood=likelihood, block="groups", n=3, observed=0.5, missing=True))
    assert outcome.name == "right", outcome


def test_a_learned_sd_is_that_of_quadrature():
    outcome = outcome_of(of(block="groups", n=8, learned=True))
    assert (outcome.name, outcome.judge) == ("right", "closed form"), outcome


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_that_of_its_matrices(block):
    outcome = outcome_of(of(block=block, n=8))
    assert (outcome.name, outcome.judge) == ("right", "closed form"), outcome


def test_references_agree():
    """Quadrature and importance sampling find what the closed form has."""
    for case, find, error in ((of(block="intercept"), by_quadrature, 1e-9), (ORDINARY, by_importance, 0.03)):
        numbers = numbers_of(case)
        exact, found = closed_form(numbers), find(case, numbers, numbers.design @ numbers.root)
        assert found.error < error
        assert abs(found.log_evidence - exact.log_evidence) < error
        np.testing.assert_allclose((found.mean - exact.mean) / exact.sd, 0.0, atol=error)
        np.testing.assert_allclose(found.sd, exact.sd, rtol=error)


def test_a_fixed_point_is_known_from_its_surroundings():
    """Normal likelihoods are their own sites."""
    numbers = numbers_of(ORDINARY)
    precision = np.full(3, numbers.s**-2.0)
    shift = precision * (numbers.y - numbers.offset)
    assert distance_from_fixed_point(ORDINARY, numbers, shift, precision) < 1e-9
    assert distance_from_fixed_point(ORDINARY, numbers, shift, 1.1 * precision) > 0.02


@pytest.mark.parametrize("likelihood", ["normal", "poisson"])
@pytest.mark.parametrize("part", ["posterior_mean", "posterior_sd"])
def test_a_wrong_fit_is_found(monkeypatch, part, likelihood):
    case = of(likelihood=likelihood, observed=0.5)

    def wrong(method, **options):
        found = pmep.fit(method, **options)
        found[part]["b"] = found[part]["b"] * 1.5 + 1.0
        found["fit_state"]["shift"] = found["fit_state"]["shift"] + 1.0
        return found

    others = {name: getattr(pmep, name) for name in pmep.__all__}
    monkeypatch.setattr(_fuzz_outcomes, "pmep", SimpleNamespace(**others | {"fit": wrong}))
    assert outcome_of(case).name == "wrong"


def test_an_exception_without_a_name_is_found(monkeypatch):
    def broken(method, **options):
        raise ValueError("cannot convert float NaN to integer")

    others = {name: getattr(pmep, name) for name in pmep.__all__}
    monkeypatch.setattr(_fuzz_outcomes, "pmep", SimpleNamespace(**others | {"fit": broken}))
    assert outcome_of(ORDINARY).name == "undocumented exception"
