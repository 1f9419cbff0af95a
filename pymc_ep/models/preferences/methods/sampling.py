"""Hyperparameters of preferences sampled by NUTS: their log evidence as an Op, and utilities by fits at the draws."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pymc_ep.contracts.evidence import EvidenceFit
from pymc_ep.contracts.method import Call
from pymc_ep.contracts.posterior import JointDraws
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Report
from pymc_ep.evidence import EvidenceOp
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.approximations import EXPECTATION, Approximation
from pymc_ep.models.preferences.engine.users import UserFactors
from pymc_ep.models.preferences.engine.values import ComparedUsers
from pymc_ep.models.preferences.evidence import PreferenceEvidence
from pymc_ep.models.preferences.methods.integration import at_draws, why_no_density
from pymc_ep.models.preferences.methods.options import capped, checked
from pymc_ep.models.preferences.methods.search import Found, Task
from pymc_ep.models.preferences.methods.solution import Fitted, rebuild, solution
from pymc_ep.models.preferences.posterior_mixture import PreferenceMixture

__all__ = ["condition", "evidence_op"]


class PreferenceEvidenceOp(EvidenceOp):
    """`EvidenceOp` of preferences, which uses the comparisons that the model has at each evaluation."""

    form: CompiledPreferences
    _compared: ComparedUsers | None = None

    def _fit(self, theta: np.ndarray) -> tuple[EvidenceFit, np.ndarray]:
        if (compared := self.form.compared()) is not self._compared:
            self._compared, self._evidence, self._start = compared, None, None
        return super()._fit(theta)


def evidence_op(
    form: CompiledPreferences, options: dict[str, Any], approximation: Approximation = EXPECTATION
) -> PreferenceEvidenceOp:
    """Return the log evidence as an Op of the unconstrained hyperparameters."""
    return PreferenceEvidenceOp(form, partial(_evidence, _settings(options), approximation))


def condition(
    call: Call[CompiledPreferences], thetas: np.ndarray, approximation: Approximation = EXPECTATION
) -> Solution:
    """Fit at each of k draws of the hyperparameters, (k, p); equally many draws of the solution are from each fit."""
    form, settings = call.form, _settings(call.options)
    evidence, every = _evidence(settings, approximation, form, "none", call.report), form.compared()
    centre, integral, status = at_draws(evidence, thetas, np.ones(len(thetas)))
    none = np.zeros(0)
    estimate = Found(centre.users, centre.theta, 0, status, none, none)
    compared = capped(form, every, settings)
    out = solution(form, Fitted(estimate, centre.log_z, integral, every, compared, ""), settings, approximation)
    posterior = rebuild(form, out.state, shaped=approximation.matched)
    assert isinstance(posterior, PreferenceMixture), "its state has a design"

    def draws(size: int, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        nodes = np.repeat(np.arange(len(thetas)), size // len(thetas))
        return posterior.draws_of(nodes, rng, log_likelihood=log_likelihood)

    scalars = {"n_evaluations": out.scalars["n_evaluations"]}
    return replace(out, scalars=scalars, traces={}, log_evidence_is="", draws=draws)


def _evidence(
    settings: dict[str, Any],
    approximation: Approximation,
    form: CompiledPreferences,
    density: str,
    report: Report | None = None,
) -> PreferenceEvidence:
    """Return the evidence of all comparisons, in this process."""
    compared = capped(form, form.compared(), settings)
    task = Task(Call(form, form.start), settings, approximation, compared, (settings["partitions"], None))
    with task.divided(np.ones(len(compared.order))) as (users, engine):
        return PreferenceEvidence(form, engine, users, UserFactors.first(compared.comparisons), report, density=density)


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    settings = checked(options)
    if reason := why_no_density(settings):
        raise ValueError(f"hyper='sample' {reason}; leave that option out.")
    if settings["client"] is not None:
        raise ValueError("hyper='sample' has all users in this process; leave client= out.")
    return settings
