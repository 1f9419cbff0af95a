"""Likelihoods of the cells of a matrix, for predictors that are inner products of Gaussian rows."""

from pymc_ep.sites.cells.likelihoods import CellBound, CellSite, CurvedCellSite, register_cell_site

__all__ = ["CellBound", "CellSite", "CurvedCellSite", "register_cell_site"]
