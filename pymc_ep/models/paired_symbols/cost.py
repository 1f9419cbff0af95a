"""Cost of a fit of paired symbols, from its sizes."""

from pymc_ep.contracts.cost import Cost
from pymc_ep.models.paired_symbols.compiled import CompiledPairedSymbols

__all__ = ["cost_of"]

_NUMBERS, _PAIRS = 33, 16
"""Doubles in memory at a time for each factor of a symbol, and for each pair. Measured with a million factors, whose
values after three sweeps are kept for extrapolation, and with two million pairs."""
_SECONDS, _PAIR_SECONDS = 3e-8, 1e-8
"""Seconds of a sweep for each entry of the K x K moments of a symbol, and of a pair, on one core of a server of
2023."""
_SWEEPS = 50
"""Average number of sweeps until convergence."""


def cost_of(form: CompiledPairedSymbols, max_iter: int) -> Cost:
    """Return the memory and time of a fit; pairs in files are not counted, as they are read in parts."""
    n_users, n_items, width = form.shapes
    n, sweeps = len(form.observed()[0]), min(_SWEEPS, max_iter)
    symbols = n_users + n_items
    return Cost(
        8 * (_NUMBERS * symbols * width + _PAIRS * n),
        sweeps * width**2 * (_SECONDS * symbols + _PAIR_SECONDS * n),
        f"{form.form.pairs.name!r} with {n} rows of pairs and {symbols} symbols needs",
        f"{symbols} symbols of {width} factors and {n} rows of pairs",
        f"some {sweeps} sweeps",
        "Take fewer factors, or pairs in files by partitions=, on the workers of client=.",
    )
