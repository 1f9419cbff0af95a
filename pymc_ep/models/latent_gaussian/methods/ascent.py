"""Laplace's approximation, ``"laplace"``, the variational Gaussian, ``"vg"``, and local bounds, ``"dsb"``."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.evidence.ascent.engine import EXPECTED, LOCAL, Ascent, Rule
from pymc_ep.evidence.ascent.engine import LAPLACE as MODE
from pymc_ep.evidence.ascent.evidence import AscentEvidence
from pymc_ep.evidence.ep.op import EPEvidenceOp
from pymc_ep.models.latent_gaussian.compiled import CompiledLatentGaussian
from pymc_ep.models.latent_gaussian.form import LatentGaussian
from pymc_ep.models.latent_gaussian.methods import ep
from pymc_ep.models.latent_gaussian.methods.solution import rebuild
from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.sites.base import Site

__all__ = ["DSB", "LAPLACE", "OPTIONS", "VG"]

OPTIONS = {name: ep.OPTIONS[name] for name in ("tol", "max_iter", "solver")}
"""Options of all three methods, with their defaults."""


def _evidence_of(rule: Rule, form: SiteFunctions, settings: dict[str, Any], **others: Any) -> AscentEvidence:
    """Return the log evidence of a form by a rule of ascent; `others` are further arguments of `AscentEvidence`."""
    form.solve_in(settings["solver"])
    exact = form.solver.exact if settings["solver"] == "auto" else ""
    engine = Ascent(rule, form.sites, tol=settings["tol"])
    return AscentEvidence(form, engine, settings["max_iter"], exact=exact, **others)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    ep.checked(ep.OPTIONS | options)
    return OPTIONS | options


def _solve(rule: Rule, evidence: str, call: Call[CompiledLatentGaussian]) -> Solution:
    fit = ep.fitted(call, _checked(call.options), make=partial(_evidence_of, rule))
    solution = ep.solution_of(call.form, fit)
    if warning := fit.evidence.peaks(fit.mode.at).warning:
        solution = replace(solution, converged=False, status=f"{warning}; {solution.status}")
    return replace(
        solution,
        log_evidence_is=f"{evidence} the {solution.log_evidence_is}",
        objective_is=f"{evidence} the log evidence",
    )


def _evidence_op(rule: Rule, form: SiteFunctions, options: dict[str, Any]) -> EPEvidenceOp:
    return EPEvidenceOp(form, _checked(options), partial(_evidence_of, rule))


def _condition(rule: Rule, call: Call[SiteFunctions], thetas: np.ndarray) -> Solution:
    return ep.conditioned(call, thetas, _checked(call.options), partial(_evidence_of, rule))


def _takes(rule: Rule, site: Site | None) -> bool:
    return site is None or not rule.refusal(site)


def _method(name: str, rule: Rule, evidence: str) -> Method:
    return Method(
        name,
        LatentGaussian,
        partial(_solve, rule, evidence),
        rebuild,
        OPTIONS,
        ep.TREATMENTS,
        evidence_op=partial(_evidence_op, rule),
        condition=partial(_condition, rule),
        takes=partial(_takes, rule),
        choose_hyper=ep.choose_hyper,
        cost=ep.cost,
    )


LAPLACE = _method("laplace", MODE, "Laplace's approximation to")
VG = _method("vg", EXPECTED, "lower bound on")
DSB = _method("dsb", LOCAL, "lower bound on")
