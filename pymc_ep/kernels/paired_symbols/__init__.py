"""Row updates of the paired-symbol model, with bodies in NumPy, C, Numba and JAX."""

from pymc_ep.kernels.paired_symbols.body import (
    NOTHING,
    Background,
    Cells,
    Censored,
    Priors,
    Statistics,
    Symbols,
    curvature,
)
from pymc_ep.kernels.paired_symbols.dispatch import (
    pair_sums,
    row_backend,
    row_statistics,
    solve_rows,
    update_in_turn,
    update_rows,
)

__all__ = [
    "NOTHING",
    "Background",
    "Cells",
    "Censored",
    "Priors",
    "Statistics",
    "Symbols",
    "curvature",
    "pair_sums",
    "row_backend",
    "row_statistics",
    "solve_rows",
    "update_in_turn",
    "update_rows",
]
