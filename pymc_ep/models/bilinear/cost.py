"""Cost of fits of a bilinear form, from its sizes."""

import math
from typing import NamedTuple

from pymc_ep.contracts.cost import Cost
from pymc_ep.models.bilinear.compiled import CompiledBilinear

__all__ = ["SHRINKAGE", "VARIATIONAL", "Rates", "cost_of"]


class Rates(NamedTuple):
    """Memory and time of a fit, on one core of a server of 2023.

    Attributes
    ----------
    numbers, cells : float
        Doubles in memory at a time: for each parameter of the posterior, and for each cell.
    seconds, cell_seconds : float
        Seconds of a step: for each parameter of the posterior, and for each cell.
    steps : int
        Mean number of steps until convergence.
    """

    numbers: float
    cells: float
    seconds: float
    cell_seconds: float
    steps: int


VARIATIONAL = Rates(57.0, 38.0, 2e-6, 8e-6, 15)
"""Rates of variational fits, measured with 1.2 million parameters and a million cells. L-BFGS keeps ten pairs of
vectors of all parameters."""
SHRINKAGE = Rates(10.0, 25.0, 6e-7, 2.5e-6, 60)
"""Rates of singular value shrinkage, measured with the same numbers of parameters and cells."""


def cost_of(form: CompiledBilinear, rates: Rates, max_iter: int, *, full: bool = False) -> Cost:
    """Return the cost of a fit with these rates and at most `max_iter` steps; with `full`, rows have covariances."""
    shapes, n = form.shapes, form.observed()[0].size
    (n_rows, d), (n_cols, _) = shapes[:2]
    steps, entries = min(rates.steps, max_iter), sum(math.prod(shape) for shape in shapes)
    # Mean and variance of each entry, and D (D - 1) / 2 covariances of each row.
    numbers = 2 * entries + (n_rows + n_cols) * d * (d - 1) // 2 * full
    kind = " with covariances" if full else ""
    return Cost(
        int(8 * (rates.numbers * numbers + rates.cells * n)),
        steps * (rates.seconds * numbers + rates.cell_seconds * n),
        f"{form.form.cells.name!r} with {n} cells of {n_rows} rows and {n_cols} columns needs",
        f"rows of {d} factors{kind} and {n} cells",
        f"some {steps} steps",
        "Take fewer factors or fewer cells" + (", or covariance='diagonal'." if full else "."),
    )
