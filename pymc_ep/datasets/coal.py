"""Explosions in British coal mines, the usual example of a one-dimensional point process."""

from importlib.resources import files

import numpy as np

__all__ = ["load_coal"]


def load_coal() -> np.ndarray:
    """Return the dates of the explosions with ten or more deaths in British coal mines, 1851 to 1962.

    Returns
    -------
    ndarray of float, shape (191,)
        Decimal years in ascending order, from 15 March 1851 to 22 March 1962. Two explosions share one date,
        so bins can hold counts of two however narrow they are.

    Notes
    -----
    R. G. Jarrett (1979), A note on the intervals between coal-mining disasters, Biometrika 66, 191-193, as
    distributed by the R package boot (`boot::coal`), which marks it "Unlimited distribution". The 111 yearly
    counts that tutorials often use differ from these dates in a few years.
    """
    with files(__package__).joinpath("coal.csv").open() as lines:
        return np.loadtxt(lines, skiprows=1)
