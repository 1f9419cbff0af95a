"""Predictions of two matrices with rows, such as users and items: rankings for each other, neighbours, new rows."""

from pymc_ep.tables.ranking import row_verbs
from pymc_ep.tables.rows import Ranked, RankedBlock, RowPredictions, Rows, best_first

__all__ = ["Ranked", "RankedBlock", "RowPredictions", "Rows", "best_first", "row_verbs"]
