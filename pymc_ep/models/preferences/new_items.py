"""Hyperparameters of an earlier fit, adapted to a model with other items."""

import numpy as np

from pymc_ep.forms.registry import Rows
from pymc_ep.models.preferences.compiled import CompiledPreferences

__all__ = ["extended_to_items"]


def extended_to_items(
    form: CompiledPreferences, theta: np.ndarray, values: dict[str, np.ndarray], rows: Rows
) -> dict[str, np.ndarray]:
    """Return the hyperparameters of an earlier fit, with b and V at the items of the model.

    With o the items of the fit and n the new ones, V at new items is K_no K_oo^{-1} V_o, and b_n = K_no K_oo^{-1} b_o.
    These are their means under a prior N(0, K), given the values at old items. The prior of the utilities of old items
    remains the same. Where K is the identity, b and V are zero at new items.

    A fit of the model to comparisons of old items alone would learn the same V. With K = L L^T and the old items first,
    V is L Vb, and the rows of Vb at new items stay at zero: L^T S L is zero there for statistics S of old items (see
    `pymc_ep.models.preferences.engine.maximisation`).

    Parameters
    ----------
    form : CompiledPreferences
    theta : ndarray, (p,)
        Unconstrained hyperparameters of the model, at which its kernel equals the kernel of the fit.
    values : dict of str to ndarray
        Hyperparameters of the fit.
    rows : callable
        ``rows(name)`` returns, for each row of a hyperparameter, (n,), the row of the same label in the fit, -1 for a
        new label; None where rows have no labels.

    Raises
    ------
    ValueError
        For a hyperparameter without labels whose shape differs, for a new row of a hyperparameter other than b and V,
        and for a hyperparameter all of whose rows are new.
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
