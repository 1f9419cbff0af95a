"""Likelihoods of the cells of a matrix, for predictors that are inner products of two Gaussian vectors."""

from pymc_ep.sites.cells.base import CellBound, CellSite, CurvedCellSite, register_cell_site
from pymc_ep.sites.cells.likelihoods import (
    BernoulliCells,
    NegativeBinomialCells,
    NormalCells,
    PoissonCells,
    SoftplusPoissonCells,
)

__all__ = ["CellBound", "CellSite", "CurvedCellSite", "register_cell_site"]

register_cell_site("poisson", PoissonCells(), PoissonCells(truncated=True))
register_cell_site("negative_binomial", NegativeBinomialCells(), NegativeBinomialCells(truncated=True))
register_cell_site("logit", BernoulliCells())
register_cell_site("softplus_poisson", SoftplusPoissonCells())
register_cell_site("normal", NormalCells())
