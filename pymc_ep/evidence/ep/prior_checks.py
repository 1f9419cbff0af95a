"""Checks of the prior of a fit: of its moments and its covariance, and of the parameters of the sites."""

from typing import TYPE_CHECKING

import numpy as np
from pytensor.graph.traversal import ancestors

from pymc_ep.contracts.form import CompiledSiteForm, Likelihood
from pymc_ep.engines.prior import Prior
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.sites.rows_of_many import number_of_rows

if TYPE_CHECKING:
    from pymc_ep.evidence.ep.evidence import Evidence

__all__ = ["prior_at", "require_covariance", "require_finite_prior"]

_NAMED = 6
"""Most coefficients named in one message, so that it stays readable."""


def prior_at(evidence: "Evidence", theta: np.ndarray) -> Prior:
    """Return the prior at `theta`, (p,); raise a NumericalError for a covariance or precision that is singular."""
    try:
        return evidence.form.prior(theta)
    except np.linalg.LinAlgError as error:
        others = evidence.form.solver.name != "observations"
        instead = "; or use solver='observations', which factorises no prior covariance" if others else ""
        raise NumericalError(
            f"A covariance or precision matrix of {_gaussians(evidence)} is singular for {evidence.describe(theta)} "
            f"({error}). Check it, or add a multiple of the identity to it{instead}."
        ) from error


def require_finite_prior(evidence: "Evidence", theta: np.ndarray, prior: Prior) -> None:
    """Raise for site parameters out of their range, and for prior moments that are not finite, at `theta`, (p,)."""
    for group, y, parameters in zip(evidence.form.form.factors, evidence.observed, prior.parameters):
        of_each = y.reshape(number_of_rows(group.site.predictors), -1)[0]
        try:
            group.site.validate_parameters(parameters, group.name, of_each)
        except InvalidDataError as error:
            raise _of_hyperparameters(evidence.form, theta, group, error) from None
    bad = np.flatnonzero(~np.isfinite(np.asarray(prior.mean)))
    if bad.size:
        what = f"The prior mean of the predictor of {evidence.observation(bad[0])} is {float(prior.mean[bad[0]])}"
    elif (not_finite := prior.gaussian.not_finite()) is not None:
        value, coordinate, predictor = not_finite
        if evidence.form.solver.improper:
            # NaN in a design reaches all coefficients of its product, so that no index is given.
            name, _ = evidence.form.coefficient_places(theta)[coordinate]
            what = f"The effect of {name!r} on the predictor of {evidence.observation(predictor)} is {value}"
        else:
            place = f"at index ({coordinate}, {predictor}), that of {evidence.observation(predictor)}"
            what = f"The prior covariance of the predictors is {value} {place}"
    elif (bad := np.flatnonzero(~np.isfinite(variances := prior.gaussian.variances()))).size:
        place = f"at index ({bad[0]}, {bad[0]}), that of {evidence.observation(bad[0])}"
        what = f"The prior covariance of the predictors is {float(variances[bad[0]])} {place}"
    else:
        return
    raise NumericalError(
        f"{what}, for {evidence.describe(theta)}. {evidence.form.distance_cure(theta)}Check design, offsets and the "
        f"inputs of covariance functions for NaN and infinite values, and the initial values."
    )


def require_covariance(evidence: "Evidence", theta: np.ndarray, prior: Prior) -> None:
    """Raise where the prior covariance has a negative eigenvalue beyond rounding, or nothing determines a value.

    Such a value has a flat prior, and the observations do not determine it either. The check takes a factorisation,
    and is made at two values of the hyperparameters only: at the first, and at the result.
    """
    undetermined = prior.gaussian.undetermined()
    if undetermined.size:
        places = evidence.form.coefficient_places(theta)
        first = (places[i] for i in undetermined[:_NAMED])
        named = [f"{name!r}{list(index) if index else ''}" for name, index in first]
        named += [f"and {undetermined.size - _NAMED} more"] * (undetermined.size > _NAMED)
        raise InvalidDataError(
            f"The observations do not determine {', '.join(named)}: the prior is flat there, or sees differences "
            f"alone, and what observes it is zero or a linear combination of what observes other values. Leave it "
            f"out, observe it, or give it a proper prior, such as pm.Normal, or a potential that sees its level."
        )
    if not prior.gaussian.is_positive_semidefinite():
        eigenvalue = ""
        if not evidence.form.solver.improper:  # A precision of many unknowns has no dense covariance.
            least = float(np.linalg.eigvalsh(np.asarray(prior.gaussian.covariance_matrix()))[0])
            eigenvalue = f": its least eigenvalue is {least:.3g}"
        raise NumericalError(
            f"The prior covariance of the predictor, made by {_gaussians(evidence)}, is not positive definite for "
            f"{evidence.describe(theta)}{eigenvalue}. "
            f"{evidence.form.distance_cure(theta) or 'Add a multiple of the identity to it. '}Check the covariance "
            f"matrix or function."
        )


def _gaussians(evidence: "Evidence") -> str:
    """Return the names of the variables with a covariance, correlated observed vectors included."""
    return ", ".join(block.name for block in evidence.form.form.blocks)


def _of_hyperparameters(
    form: CompiledSiteForm, theta: np.ndarray, group: Likelihood, error: InvalidDataError
) -> InvalidDataError:
    """Return an error like `error`, of a likelihood's parameters, that names the hyperparameters they depend on.

    It also has their values at theta, (p,). If the parameters depend on no hyperparameter, it is `error` itself.
    """
    behind, values = set(ancestors(group.parameters)), form.constrained(theta)
    named = [f"{n!r} = {values[n]}" for n, v in zip(form.form.hyper_names, form.form.hyper_values) if v in behind]
    if not named:
        return error
    # The sentence of a site ends with the cure for constants.
    sentence = str(error).rpartition(". Correct")[0]
    return InvalidDataError(
        f"{sentence}. It follows from {', '.join(named)}: start elsewhere, by initval= or start={{...}}, and give "
        f"hyperparameters priors without such values: positive ones to scales, such as pm.HalfNormal, and "
        f"transform=pm.distributions.transforms.ordered, with an initval that increases, to cut points."
    )
