"""Hyperparameters of an earlier fit for a model of other items."""

import numpy as np

from pymc_ep.forms.registry import Rows
from pymc_ep.models.preferences.compiled import CompiledPreferences

__all__ = ["extended_to_items"]


def extended_to_items(
    form: CompiledPreferences, theta: np.ndarray, values: dict[str, np.ndarray], rows: Rows
) -> dict[str, np.ndarray]:
    """Return the hyperparameters of an earlier fit, with b and V at the items of the model.

    With K = L L^T and the old items first, V = L Vb. Comparisons of old items leave the rows of Vb at new items at
    zero, as L^T S L is zero there for statistics S of old items (see `pymc_ep.models.preferences.engine.maximisation`).
    Hence V at new items is K_no K_oo^{-1} V_o, and b likewise: their mean under the prior N(0, K) given the old ones.
    The prior of the utilities of old items remains the same. Where K is the identity, b and V are zero at new items.

    Parameters
    ----------
    form : CompiledPreferences
    theta : ndarray, (p,)
        Hyperparameters of the model, at which its kernel and the fit's are the same.
    values : dict of str to ndarray
        Hyperparameters of the fit.
    rows : callable
        ``rows(name)``: the row in the fit of each row of a hyperparameter, (n,), and -1 for new rows; None where rows
        have no labels.

    Raises
    ------
    ValueError
        For hyperparameters of other shapes without labels, or which have new rows and are neither b nor V.
    """
    shapes = {name: value.shape for name, value in form.constrained(theta).items()}
    of_items = {form.form.variables.get(key) for key in ("mean", "factors")}
    out = dict(values)
    for name, value in values.items():
        places = rows(name)
        if places is None and value.shape != shapes[name]:
            raise ValueError(
                f"start= has {name!r} of shape {value.shape}, and the model needs {shapes[name]}: rows are found by "
                f"their labels; give the dim of the rows of {name!r} coords in both models."
            )
        if places is None:
            continue
        old = places >= 0
        if not old.all() and name not in of_items:
            raise ValueError(
                f"start= has no row {int(np.argmin(old))} of {name!r}, and only b and V of {form.form.utilities!r} are "
                f"extended to new items; give the values as a dict."
            )
        if not old.any():
            raise ValueError(
                f"start= has other rows of {name!r}, of which the model has none; give it the labels of the fit."
            )
        out[name] = value[places]
        if not old.all():
            out[name][~old] = form.prior(theta)[1].extended(value[places[old]], old)
    return out
