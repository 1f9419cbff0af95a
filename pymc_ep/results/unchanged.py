"""Check that a model still has the data of a fit."""

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["require_unchanged"]

_ROUNDING = 1e-6
"""Largest difference that counts as rounding, relative to an element: above float32's, which is 6e-8."""
_OF_LARGEST = 1e-9
"""Largest difference that counts as rounding, relative to the largest element: for sums that cancel to about zero."""


def require_unchanged(
    state: Mapping[str, np.ndarray], present: Mapping[str, np.ndarray], changed: Sequence[str] | None = None
) -> None:
    """Raise where an array stored by a fit differs from the present model's.

    `changed` are the names of shared data whose values have changed since the fit; None where they are not known.
    """
    for name, now in present.items():
        held, scale = state[name], np.max(np.abs(now.astype(float)), initial=1e-300)
        if held.shape != now.shape or not np.allclose(held, now, rtol=_ROUNDING, atol=_OF_LARGEST * scale):
            what = f"{name.replace('_', ' ')} {'differ' if name.endswith('s') else 'differs'}"
            if changed is not None and not changed and not name.startswith("observed"):
                raise ValueError(
                    f"The result is that of another model: its {what}, and its shared data do not. Give the model of "
                    f"the fit, with the same priors and constants; or fit anew."
                )
            raise ValueError(
                f"The data of the model have changed since the fit (its {what}). Set those of the fit again, and put "
                f"new inputs into variables of their own; or fit anew."
            )
