"""The model that a function call refers to, given as an argument or by a ``with`` block."""

import warnings
from collections.abc import Mapping
from typing import Any

import pymc as pm

__all__ = ["model_of", "warn_of_centring"]


def model_of(model: Any) -> pm.Model:
    """Return a PyMC model: the given one, for None the ``with`` block's, or a Bambi model's, built if necessary."""
    if model is None:
        try:
            return pm.modelcontext(None)
        except TypeError:
            raise TypeError("There is no model: call this within `with model:`, or give it by model=.") from None
    if type(model).__module__.partition(".")[0] == "bambi" and hasattr(model, "backend"):
        if not model.built:
            model.build()
        return model.backend.model
    if not isinstance(model, pm.Model):
        data = isinstance(model, Mapping) or hasattr(model, "__array__")
        more = " New inputs are set in the model: make them pm.Data, and call pm.set_data first." if data else ""
        raise TypeError(
            f"What is given as the model is of the type {type(model).__name__}; give the pm.Model, or the bambi.Model."
            f"{more}"
        )
    return model


def warn_of_centring(model: Any) -> None:
    """Warn where a Bambi model centres its covariates.

    The intercept of a fit is then at the covariates' means, whereas Bambi's own functions take it to be at zero.
    """
    # The second name is that before Bambi 0.21.
    attribute = next(
        (a for a in ("conditional_parameters", "distributional_components") if hasattr(type(model), a)), ""
    )
    if not attribute or not getattr(model, "center_predictors", False):
        return
    components = getattr(model, attribute).values()
    intercepts = [
        component.intercept_term.name for component in components if component.intercept_term and component.common_terms
    ]
    if intercepts:
        warnings.warn(
            f"Bambi centres its covariates: {intercepts[0]!r} of this fit is that at their means, which `predict` and "
            "`interpret` of Bambi take for that at zero. Before you use these, build it with center_predictors=False.",
            stacklevel=4,
        )
