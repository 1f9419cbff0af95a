"""What is to be said of rows of a matrix that no cell is observed in."""

import numpy as np

from pymc_ep.engines.bilinear.values import Cells
from pymc_ep.forms.bilinear.compiled import CompiledBilinear

__all__ = ["with_unseen_rows"]


def with_unseen_rows(
    sentence: str, form: CompiledBilinear, cells: Cells, proper: str = "have their prior as posterior"
) -> str:
    """Return a sentence on a fit with the numbers of rows without a cell, where there are any, and what they have."""
    remarks = [sentence]
    for matrix, pairs in zip(form.form.matrices, (cells.by_left, cells.by_right)):
        counts = np.diff(pairs.ends)
        if unseen := int((counts == 0).sum()):
            # A flat prior has no mode to go to.
            where = "are where they started, as its prior is flat" if matrix.flat else proper
            remarks.append(f"{unseen} of {len(counts)} rows of {matrix.name!r} have no cell and {where}")
    return "; ".join(remarks)
