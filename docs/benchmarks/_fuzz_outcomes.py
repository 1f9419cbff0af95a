"""What fits of cases come to: each ends in one of a few classes."""

import logging
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import pymc_ep as pmep
from docs.benchmarks._fuzz_learned import learned_reference
from docs.benchmarks._fuzz_models import BLOCKS, Case, Numbers, model_of, numbers_of
from docs.benchmarks._fuzz_references import distance_from_fixed_point, reference_of
from pymc_ep.compat import Container, group

__all__ = ["CLASSES", "FAULTS", "LIMITS", "SHARE_LIMIT", "Outcome", "outcome_of"]

CLASSES = {
    "right": "within the limits of the reference",
    "fixed point": "a fixed point of EP; too hard for a reference",
    "warned": "ConvergenceWarning, and converged is False",
    "refused": "a documented exception",
    "EP's own error": "a fixed point of EP beyond the limits, without a warning",
    "not judged": "too hard for a reference and for the fixed point",
    "wrong": "none of these, without a warning",
    "undocumented exception": "any other",
    "slow": "more than a minute of computing without a word",
}
FAULTS = ("wrong", "undocumented exception", "slow")
MINUTE = 60.0
LIMITS = (0.2, 0.25, 0.25)
"""Errors of a right fit: of means in posterior standard deviations, of standard deviations in logarithms, of the log
evidence in nats. EP is exact where likelihoods are Normal or there is one observation; elsewhere these are what EP's
own error may be, a fifth of a standard deviation being what fits warn about."""
EXACT = 1e-3
"""The same limits where EP is exact."""
SHARES = (0.05, 0.5, 0.95)
"""Shares of a learned standard deviation's posterior below its quantiles, that draws of fits are counted at."""
SHARE_LIMIT = 0.05
"""Error of such a share beyond two Monte Carlo errors."""
FAR_SHARE = 0.1
"""Share of the last hundredth of tau's posterior in a variance beyond which standard deviations are not compared."""
KNOWN = 0.05
"""Error of a reference up to which it judges."""
FIXED = 0.01
"""Distance from a fixed point of EP, in posterior standard deviations, up to which sites count as there."""
DOCUMENTED = (pmep.UnsupportedModelError, pmep.InvalidDataError, pmep.NumericalError, pmep.ClusterError)


@dataclass(frozen=True)
class Outcome:
    """Class of a fit, the reference that judged it, and a sentence."""

    name: str
    judge: str
    said: str


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """Yield the list of what the package logs meanwhile."""
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.handle = told.append  # type: ignore[assignment]
    logging.getLogger("pymc_ep").addHandler(handler)
    try:
        yield told
    finally:
        logging.getLogger("pymc_ep").removeHandler(handler)


def outcome_of(case: Case) -> Outcome:
    """Fit a case and say what came of it."""
    numbers = numbers_of(case)
    model = model_of(case, numbers)
    numbers = numbers.only_seen()
    # Fixed, a prior is as it is written; learned, the fit is as a user makes it.
    options: dict[str, Any] = {"random_seed": 1} if case.learned else {"hyper": "fixed", "draws": 0}
    began = time.process_time()
    with logged() as told, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            fit = pmep.fit("ep", model=model, progressbar=False, **options)
        except DOCUMENTED as refusal:
            return Outcome("refused", type(refusal).__name__, str(refusal))
        except (ValueError, TypeError) as refusal:
            if any(repr(name) in str(refusal) for name in model.named_vars):
                return Outcome("refused", type(refusal).__name__, str(refusal))
            return Outcome("undocumented exception", type(refusal).__name__, traceback.format_exc(limit=-3))
        except Exception as fault:
            return Outcome("undocumented exception", type(fault).__name__, traceback.format_exc(limit=-3))
    if time.process_time() - began > MINUTE and not heard and not told:
        return Outcome("slow", "", f"{time.process_time() - began:.0f} s")
    announced = any(issubclass(one.category, pmep.ConvergenceWarning) for one in heard)
    status = str(group(fit, "fit").attrs["status"])
    if announced != (not bool(group(fit, "fit")["converged"])):
        return Outcome("wrong", "warning", f"converged and the warning disagree: {status}")
    if announced:
        return Outcome("warned", "", status)
    return judged_learned(case, numbers, fit) if case.learned else judged(case, numbers, fit)


def moments(fit: Container, part: str, case: Case) -> np.ndarray:
    """Return means or standard deviations of all latent variables of a case, (d,)."""
    values = group(fit, part)
    return np.concatenate([np.ravel(values[name].to_numpy()) for name in BLOCKS[case.block].names])


def judged(case: Case, numbers: Numbers, fit: Container) -> Outcome:
    """Compare a fit that says that it has converged with its reference, or with the fixed point of EP."""
    mean, sd = moments(fit, "posterior_mean", case), moments(fit, "posterior_sd", case)
    log_evidence = float(group(fit, "fit")["log_evidence"])
    if not (np.all(np.isfinite(mean)) and np.all(sd > 0) and np.isfinite(log_evidence)):
        return Outcome("wrong", "finite numbers", f"means {mean}, sds {sd}, log evidence {log_evidence}")
    reference = reference_of(case, numbers)
    said, judge = "no reference", ""
    if reference is not None and reference.error < KNOWN:
        errors = np.array(
            [
                np.abs((mean - reference.mean) / reference.sd).max(),
                np.abs(np.log(sd / reference.sd)).max(),
                abs(log_evidence - reference.log_evidence),
            ]
        )
        exact = reference.kind == "closed form" or (case.n == 1 and reference.kind == "quadrature")
        limits = np.full(3, EXACT) if exact else np.array(LIMITS)
        said = "means {:.2g} sd, sds {:.2g}, evidence {:.2g} nats".format(*errors)
        judge = reference.kind
        limits = limits + 2 * reference.error
        limits[2] += reference.rounding
        if np.all(errors <= limits):
            return Outcome("right", judge, said)
        if exact:
            return Outcome("wrong", judge, said)
    state = group(fit, "fit_state")
    precision = state["precision"].to_numpy()
    # The state's predictors may be counted from anywhere, which their prior mean tells.
    shift = state["shift"].to_numpy() - precision * state["prior_mean"].to_numpy()
    distance = distance_from_fixed_point(case, numbers, shift, precision)
    if distance is None:
        return Outcome("wrong" if judge else "not judged", judge, said)
    said = f"{said}; {distance:.2g} sd from a fixed point"
    if distance > FIXED:
        return Outcome("wrong", judge or "fixed point", said)
    return Outcome("EP's own error" if judge else "fixed point", judge or "fixed point", said)


def judged_learned(case: Case, numbers: Numbers, fit: Container) -> Outcome:
    """Compare a fit that learned a standard deviation with quadrature over its logarithm."""
    mean, sd = moments(fit, "posterior_mean", case), moments(fit, "posterior_sd", case)
    log_evidence = float(group(fit, "fit")["log_evidence"])
    draws = group(fit, "posterior")["tau"].to_numpy().ravel()
    if not (np.all(np.isfinite(mean)) and np.all(sd > 0) and np.isfinite(log_evidence) and np.all(draws > 0)):
        return Outcome("wrong", "finite numbers", f"means {mean}, sds {sd}, log evidence {log_evidence}")
    reference = learned_reference(case, numbers)
    if reference is None or reference.error > KNOWN:
        return Outcome("not judged", "", "no reference")
    q = np.array(SHARES)
    shares = np.mean(np.log(draws) < reference.quantiles(q)[:, None], axis=1)
    noise = 2 * np.sqrt(q * (1 - q) / len(np.unique(draws)))
    errors = np.array(
        [
            np.abs((mean - reference.mean) / reference.sd).max(),
            np.abs(np.log(sd / reference.sd)).max(),
            abs(log_evidence - reference.log_evidence),
            (np.abs(shares - q) - noise).max(),
        ]
    )
    said = "means {:.2g} sd, sds {:.2g}, evidence {:.2g} nats, shares of tau {:.2g}".format(*errors)
    limits = np.array([*LIMITS, SHARE_LIMIT]) + 2 * reference.error
    if reference.far_share > FAR_SHARE:
        limits[1] = np.inf
    limits[2] += reference.rounding
    return Outcome("right" if np.all(errors <= limits) else "wrong", reference.kind, said)
