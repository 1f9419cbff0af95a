"""Errors of site parameters that are out of their range because of hyperparameters."""

import numpy as np
from pytensor.graph.traversal import ancestors

from pymc_ep.contracts.form import CompiledSiteForm, Likelihood
from pymc_ep.exceptions import InvalidDataError

__all__ = ["of_hyperparameters"]


def of_hyperparameters(
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
