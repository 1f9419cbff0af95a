"""Steps of a sweep for one part of the users: functions that `Partitions.run` calls.

Each takes the pairs of the part, values of its users and shared values. It returns a new value of the part, and a term
of a sum over parts.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_ep.models.paired_symbols.engine.bound import SideTerms, side_terms
from pymc_ep.models.paired_symbols.engine.extrapolation import continued, squared_lengths, with_censored
from pymc_ep.models.paired_symbols.engine.updates import background, censored_logits
from pymc_ep.models.paired_symbols.engine.values import (
    GammaFactor,
    PairCounts,
    Points,
    Popularity,
    Rows,
    Side,
    expected_priors,
)
from pymc_ep.models.paired_symbols.kernel import (
    Background,
    Cells,
    Censored,
    Statistics,
    Symbols,
    pair_sums,
    row_statistics,
    update_rows,
)

__all__ = [
    "Shared",
    "UserTerms",
    "cells_of",
    "evaluate",
    "extrapolate",
    "item_statistics",
    "item_sums",
    "logits",
    "normalise",
    "trail_lengths",
    "update",
]


class Shared(NamedTuple):
    """Values that are the same for all parts: items, censored pairs and settings.

    Attributes
    ----------
    items : Symbols
    t : ndarray, (J,)
        Posterior of the item of a censored pair.
    of_items : Background
        Background of the items.
    number : float
        Number D' of censored pairs.
    total : float
        Sum of the posterior concentrations of all users.
    xi : float
        Parameter xi* of the cells without observed pairs.
    gammas : tuple of GammaFactor
    points : Points
        Whether the users' factors and biases are points.
    sequential : bool
    backend : str
        As for `VariationalBayes`.
    """

    items: Symbols
    t: np.ndarray
    of_items: Background
    number: float
    total: float
    xi: float
    gammas: tuple[GammaFactor, ...]
    points: Points
    sequential: bool
    backend: str


class UserTerms(NamedTuple):
    """Sums over the users of a part, or of all parts.

    Attributes
    ----------
    background : Background
    cells : ndarray, (4,)
        Sums of the columns of `pair_sums`, the last three weighted by the posterior s of censored users.
    side : SideTerms
    """

    background: Background
    cells: np.ndarray
    side: SideTerms


def evaluate(pairs: PairCounts, side: Side, users: Rows, shared: Shared) -> tuple[np.ndarray, UserTerms]:
    """Return the `pair_sums` of each user, (I, 4), and the users' terms of the bound."""
    sums = pair_sums(pairs.by_user, users.symbols, shared.items, shared.t, backend=shared.backend)
    s = users.popularity.censored
    cells = np.concatenate([[sums[:, 0].sum()], s @ sums[:, 1:]])
    terms = side_terms(side, users, pairs.users, shared.number, shared.total)
    return sums, UserTerms(background(users.symbols, s), cells, terms)


def logits(
    pairs: PairCounts,
    side: Side,
    users: Rows,
    sums: np.ndarray,
    of_items: Background,
    number: float,
    total: float,
    xi: float,
    constant: bool,
) -> tuple[np.ndarray, float]:
    """Return unnormalised log posterior probabilities of a censored user, (I,), and their log-sum-exp.

    The arguments from `of_items` to `xi` are fields of `Shared`, which has items as well and would be slower to pass.
    `constant` says whether preferences are left out.
    """
    posterior = Popularity.of(side.concentration, pairs.users, number, users.popularity.censored)
    out = censored_logits(posterior.concentration, total, users.symbols, of_items, sums, xi, constant=constant)
    return out, float(logsumexp(out))


def update(
    pairs: PairCounts, side: Side, users: Rows, logits: np.ndarray | None, normaliser: float, shared: Shared
) -> tuple[Rows, tuple[Background, np.ndarray]]:
    """Return updated users, and their `item_sums`.

    `logits`, (I,), less `normaliser` are the log posterior of a censored user. Without logits, popularities and the
    posterior of a censored user are not updated.
    """
    popularity = users.popularity
    if logits is not None:
        # The normaliser is a sum over the users of all parts, so that all s_i sum to one.
        s = np.exp(logits - normaliser)
        popularity = Popularity.of(side.concentration, pairs.users, shared.number, s)
    s = popularity.censored
    censored = Censored(shared.number, s, shared.t, shared.of_items, shared.xi)
    priors = expected_priors(side, shared.gammas)
    symbols = shared.points.of(
        update_rows(
            pairs.by_user,
            users.symbols,
            shared.items,
            priors,
            censored,
            sequential=shared.sequential,
            backend=shared.backend,
        )
    )
    updated = Rows(symbols, popularity)
    return updated, item_sums(pairs, updated, shared)[1]


def item_sums(pairs: PairCounts, users: Rows, shared: Shared) -> tuple[None, tuple[Background, np.ndarray]]:
    """Return the background of the users, and the `pair_sums` of the items with these users, (J, 4)."""
    s = users.popularity.censored
    sums = pair_sums(pairs.by_item, shared.items, users.symbols, s, backend=shared.backend)
    return None, (background(users.symbols, s), sums)


def item_statistics(
    pairs: PairCounts, users: Rows, items: Symbols, censored: Censored, rows: slice | np.ndarray, backend: str
) -> tuple[None, Statistics]:
    """Return the `Statistics` of the items `rows`, over their cells with the users of the part."""
    item_censored = censored._replace(other=users.popularity.censored)
    return None, row_statistics(cells_of(pairs.by_item, rows), items, users.symbols, item_censored, backend=backend)


def cells_of(cells: Cells, rows: slice | np.ndarray) -> Cells:
    """Return the cells of the own symbols `rows`, a slice or an array of indices."""
    if isinstance(rows, slice):
        ends = cells.ends[rows.start : rows.stop + 1]
        cell_slice = slice(int(ends[0]), int(ends[-1]))
        return Cells(ends - ends[0], cells.others[cell_slice], cells.counts[cell_slice])
    begin, n = cells.ends[rows], cells.ends[rows + 1] - cells.ends[rows]
    ends = np.concatenate([[0], np.cumsum(n)])
    places = np.repeat(begin - ends[:-1], n) + np.arange(ends[-1])
    return Cells(ends, cells.others[places], cells.counts[places])


def trail_lengths(pairs: PairCounts, *trail: Rows) -> tuple[None, np.ndarray]:
    """Return the `squared_lengths` of the users of the part, (2,), given three successive states."""
    return None, squared_lengths(trail)


def extrapolate(
    pairs: PairCounts, before: Rows, between: Rows, after: Rows, a: float
) -> tuple[tuple[Rows, np.ndarray], float]:
    """Return extrapolated users with unnormalised log posterior probabilities of a censored user; their log-sum-exp."""
    rows, out = continued((before, between, after), a)
    return (rows, out), float(logsumexp(out))


def normalise(pairs: PairCounts, further: tuple[Rows, np.ndarray], normaliser: float) -> tuple[Rows, None]:
    """Return the users from `extrapolate` with the posterior of a censored user: exp(log probability - normaliser)."""
    return with_censored(*further, normaliser), None
