"""The pairs of a fit, from the model or from files."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd

from pymc_ep.contracts.method import Call
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.models.paired_symbols.compiled import CompiledPairedSymbols
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.files import Side, pairs_in_files

__all__ = ["observed_pairs"]

_COLUMNS = ("user", "item")
"""Names of the columns of files, for matrices whose rows have no dim."""


@contextmanager
def observed_pairs(call: Call[CompiledPairedSymbols], partitions: Any, client: Any) -> Iterator[DividedPairs]:
    """Provide the pairs of the model as one part, or the pairs of files in parts, for a ``with`` block.

    Parameters
    ----------
    call : Call
    partitions : str, path, or sequence of these, optional
        Parquet files.
    client : distributed.Client, optional
        Cluster whose workers hold the parts.

    Raises
    ------
    InvalidDataError
        If both the model and files have pairs, or neither.
    ValueError
        For a client without files.
    """
    form = call.form
    if partitions is None:
        if client is not None:
            raise ValueError("client= is a cluster for pairs in files; name these by partitions=, or leave it out.")
        yield DividedPairs.whole(form.pairs())
        return
    if form.observed()[0].size:
        raise InvalidDataError(
            f"{form.form.pairs.name!r} has observations in the model beside the files of partitions=; give it "
            f"observed=[], or leave partitions= out."
        )
    sides = []
    for side, column, n in zip(form.form.sides, _COLUMNS, form.shapes):
        dim, labels = call.row_labels(side.factors.name)
        index = None if labels is None else pd.Index(labels)
        sides.append(Side(column if dim == side.factors.name else dim, n, index))
    with pairs_in_files(partitions, (sides[0], sides[1]), client) as pairs:
        yield pairs
