"""Runs of many cases, as Hypothesis draws them."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from docs.benchmarks._fuzz_models import Case, cases
from docs.benchmarks._fuzz_outcomes import Outcome, outcome_of

__all__ = ["drawn_outcomes"]


def drawn_outcomes(
    count: int, start: int, heard: Callable[[Case, Outcome], None] = lambda case, outcome: None, **among: Any
) -> dict[Case, Outcome]:
    """Fit about so many models, each once, and return what came of them.

    Parameters
    ----------
    count : int
        Examples that Hypothesis draws. It varies some of them, one scale at a time, and repeats few.
    start : int
        Seed.
    heard : callable
        Called with each case and its outcome: where it raises, Hypothesis looks for the smallest case that raises.
    **among
        ``likelihoods`` and ``blocks``, by default all; ``learned``, whether one sd is, and fits are the default ones.
    """
    outcomes: dict[Case, Outcome] = {}

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(**among))
    def run(case: Case) -> None:
        if case not in outcomes:
            outcomes[case] = outcome_of(case)
        heard(case, outcomes[case])

    run()
    return outcomes
