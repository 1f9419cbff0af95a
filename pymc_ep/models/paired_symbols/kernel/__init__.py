"""Row updates of the paired-symbol model, with bodies in NumPy, C, Numba and JAX."""

from pymc_ep.kernels import ArrayKernel, register_bodies, register_kernel
from pymc_ep.models.paired_symbols.kernel.body import (
    NOTHING,
    Background,
    Cells,
    Censored,
    Priors,
    Statistics,
    Symbols,
    curvature,
)
from pymc_ep.models.paired_symbols.kernel.dispatch import (
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

register_kernel(ArrayKernel("paired_symbols", __name__, ("c", "jax", "numba")))
register_bodies("numba", f"{__name__}.in_turn_numba")
