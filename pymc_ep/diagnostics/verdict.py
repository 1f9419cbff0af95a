"""Sentences that interpret the numbers of `diagnose`, the worst first."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pymc_ep.evidence.ep.cumulants import SHIFTED

__all__ = ["Finding", "verdict"]

_FINE, _NOTE, _DOUBT, _WRONG = range(4)
"""Levels of a finding, from the best to the worst."""
_FIRST = {
    _FINE: "Nothing that was measured speaks against this fit.",
    _DOUBT: "Doubtful: check this fit before its numbers are used.",
    _WRONG: "Not to be trusted.",
}
_FIRST[_NOTE] = _FIRST[_FINE]
"""Summary line by the worst level."""

_HEAVY = 0.7
"""Pareto k above which weighted means are of no use (Vehtari et al. 2024)."""
_FEW = 0.5
"""Relative effective sample size above which the approximation counts as near at any Pareto k."""
_LOW_DIMENSION = 30
"""Most unknowns for which uneven weights show a poor approximation rather than the dimension: standard deviations a
tenth too small in 30 directions leave a relative effective sample size of one half."""
_NOTED, _LARGE = 0.3, 1.0
"""Corrections of the log evidence, in nats, above which EP's error is noted, and above which EP is doubtful: evidence
off by a factor of 1.3, and of e."""
_NOTED_SHIFT = 0.1
"""Shift of a hyperparameter by EP's error, in standard deviations, above which it is noted."""
_EXACT, _DOUBTFUL = 0.9, 0.5
"""Relative effective sample sizes of the hyperparameters' weights: above the first the integral counts as exact, below
the second it is doubtful."""


class Finding(NamedTuple):
    """A sentence of the verdict, and its level, from `_FINE` to `_WRONG`."""

    level: int
    sentence: str


def verdict(
    numbers: Mapping[Any, Any],
    fit: xr.Dataset,
    hyper: str,
    names: tuple[str, ...],
    unknowns: int,
    *,
    held: bool,
    warning: str = "",
) -> str:
    """Return a summary line, and then one line for each finding, the worst first.

    Parameters
    ----------
    numbers : mapping of str to array_like
        Results that `diagnose` returns, by name.
    fit : xarray.Dataset
        The group ``fit``.
    hyper : str
        Treatment of the hyperparameters.
    names : tuple of str
        Names of the hyperparameters.
    unknowns : int
        Number of latent values and hyperparameters.
    held : bool
        Whether draws and moments leave the hyperparameters at one value.
    warning : str
        A further reason for doubt, or empty.
    """
    findings = [
        *_convergence(fit),
        *_hyperparameters(fit, hyper, names, held=held),
        *_weights(numbers, hyper, names, unknowns, given=bool(names) and held),
        *_cumulants(numbers),
        *([Finding(_DOUBT, f"{warning[0].upper()}{warning[1:]}.")] if warning else []),
    ]
    findings.sort(key=lambda finding: -finding.level)
    first = _FIRST[max((finding.level for finding in findings), default=_FINE)]
    return "\n".join([first, *(f"- {finding.sentence}" for finding in findings)])


def _convergence(fit: xr.Dataset) -> list[Finding]:
    if bool(fit["converged"]):
        return []
    return [Finding(_WRONG, f"The result may be off: {fit.attrs['status']}.")]


def _hyperparameters(fit: xr.Dataset, hyper: str, names: tuple[str, ...], *, held: bool) -> list[Finding]:
    """Judge the treatment of the hyperparameters."""
    if not names:
        return []
    subject = f"Hyperparameters ({', '.join(map(repr, names))})"
    if hyper == "fixed":
        return [Finding(_NOTE, f"{subject} are held at given values; their uncertainty is in no number of this fit.")]
    if hyper == "sample":
        return [
            Finding(_NOTE, f"{subject} were sampled; their R-hat and effective sample sizes are those of az.summary.")
        ]
    if "hyper_ess" in fit or "hyper_log_weight_sd" in fit:
        return [_integral(fit, subject)]
    if "hyper_weight" in fit:
        weights = fit["hyper_weight"].to_numpy()
        effective = 1.0 / np.square(weights).sum()
        return [
            Finding(_NOTE, f"{subject} are integrated over {len(weights)} fits, as good as {effective:.0f} equal ones.")
        ]
    if held:
        return [
            Finding(
                _WRONG,
                f"{subject} are held at their maximum, where the density has no curvature or runs to a boundary: means "
                f"and standard deviations of everything are those at that one value. Integrate over them, by "
                f"hyper='integrate' or hyper='sample'.",
            )
        ]
    return [
        Finding(
            _NOTE,
            f"{subject} have a Gaussian about their maximum in place of their posterior, which is skewed where few "
            f"groups tell about a scale; hyper='integrate' replaces it.",
        )
    ]


def _integral(fit: xr.Dataset, subject: str) -> Finding:
    """Judge the integration by how unequal the exact weights of its points are."""
    numbers, ess = [], 1.0
    if "hyper_ess" in fit:
        ess = float(fit["hyper_ess"])
        numbers.append(f"relative effective sample size {ess:.2f}")
    if "hyper_log_weight_sd" in fit:
        sd = float(fit["hyper_log_weight_sd"])
        # Relative effective sample size of log-normal weights.
        ess = min(ess, float(np.exp(-(sd**2))))
        numbers.append(f"standard deviation of log weights {sd:.2g}")
    summary = f"{subject} are integrated over; exact weights have {', '.join(numbers)}"
    if ess >= _EXACT:
        return Finding(_FINE, f"{summary}: as good as exact.")
    if ess >= _DOUBTFUL:
        return Finding(_NOTE, f"{summary}, which the weights correct.")
    return Finding(
        _DOUBT,
        f"{summary}: their posterior is not met well. Compare with hyper='sample', or give them priors that are not "
        f"much wider than the data allow.",
    )


def _weights(
    numbers: Mapping[Any, Any], hyper: str, names: tuple[str, ...], unknowns: int, *, given: bool
) -> list[Finding]:
    """Judge the importance weights of draws."""
    if "weights_ess" not in numbers:
        return []
    relative = float(numbers["weights_ess"]) / np.size(numbers["log_weight"])
    summary = f"The draws' importance weights have the relative effective sample size {relative:.2g}"
    k = numbers.get("pareto_k")
    if k is None or relative >= _FEW:
        exact = "posterior given these hyperparameters" if given else "posterior"
        return [Finding(_FINE, f"{summary}: the approximation is near the exact {exact} wherever it has draws.")]
    summary += f" and Pareto k {float(k):.2f}"
    varied, heavy = bool(names) and hyper == "optimize", float(k) > _HEAVY
    if unknowns > _LOW_DIMENSION and not (varied and heavy):
        many = f"with {unknowns} unknowns small differences in each add up to that, so that it says little"
        return [Finding(_NOTE, f"{summary}; {many}.")]
    if not (varied or heavy):
        return [Finding(_NOTE, f"{summary}: the approximation covers the posterior, but differs from it visibly.")]
    if varied:
        listed = ", ".join(map(repr, names))
        why = f"the Gaussian of {listed} is likely far from their posterior; integrate over them by hyper='integrate'"
    else:
        why = f"with only {unknowns} unknowns the approximation is off; compare with pm.sample, started by "
        why += "pmep.start_point(idata)"
    return [Finding(_DOUBT, f"{summary}: {why}.")]


def _cumulants(numbers: Mapping[Any, Any]) -> list[Finding]:
    """Judge EP's error by the correction of its evidence."""
    if "cumulant_shift" in numbers:
        return [_shifted(float(numbers["cumulant_shift"]))]
    if "cumulant_correction" not in numbers:
        return []
    correction = float(numbers["cumulant_correction"])
    summary = f"Skewness and kurtosis of the sites move the log evidence by {correction:.2g} nats"
    if abs(correction) < _NOTED:
        return [Finding(_FINE, f"{summary}: EP's own error is small.")]
    if abs(correction) < _LARGE:
        return [Finding(_NOTE, f"{summary}: EP's own error is seen, in scales that are learned first.")]
    worst = ""
    if "worst_variable" in numbers:
        worst = f", most at {numbers['worst_variable'].values[0]}[{int(numbers['worst_index'].values[0])}]"
    return [
        Finding(
            _DOUBT,
            f"{summary}{worst}: posteriors are not Gaussian, as of binary data in small groups, and scales that are "
            f"learned may be off. Compare with pm.sample, started by pmep.start_point(idata).",
        )
    ]


def _shifted(shift: float) -> Finding:
    """Judge EP's error by its correction's largest shift of a hyperparameter, in standard deviations."""
    summary = (
        f"Skewness and kurtosis of the sites have moved hyperparameters by {shift:.2g} standard deviations at most"
    )
    if shift < _NOTED_SHIFT:
        return Finding(_FINE, f"{summary}: EP's own error is small, and corrected.")
    if shift < SHIFTED:
        return Finding(_NOTE, f"{summary}: EP's own error is seen, and corrected.")
    return Finding(
        _DOUBT,
        f"{summary}: EP's own error is large, as of binary data in small groups, and corrected but for about a sixth "
        f"of it. Compare with pm.sample, started by pmep.start_point(idata).",
    )
