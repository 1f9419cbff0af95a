"""Plots of fits and of their diagnostics. Matplotlib is imported when the first one is drawn."""

from pymc_ep.plots.agreement import plot_compare
from pymc_ep.plots.calibration import plot_calibration
from pymc_ep.plots.convergence import plot_convergence
from pymc_ep.plots.diagnosis import plot_diagnose
from pymc_ep.plots.forest import plot_forest
from pymc_ep.plots.hyper import plot_hyper
from pymc_ep.plots.image import plot_coverage, plot_image
from pymc_ep.plots.latent import plot_latent
from pymc_ep.plots.maps import plot_areas, plot_field
from pymc_ep.plots.pairs import plot_popularity, plot_preference, plot_rank_by_activity
from pymc_ep.plots.preferences import plot_item_map, plot_item_ranks
from pymc_ep.plots.relevance import plot_relevance
from pymc_ep.plots.wavelets import plot_coefficients, plot_states

__all__ = [
    "plot_areas",
    "plot_calibration",
    "plot_coefficients",
    "plot_compare",
    "plot_convergence",
    "plot_coverage",
    "plot_diagnose",
    "plot_field",
    "plot_forest",
    "plot_hyper",
    "plot_image",
    "plot_item_map",
    "plot_item_ranks",
    "plot_latent",
    "plot_popularity",
    "plot_preference",
    "plot_rank_by_activity",
    "plot_relevance",
    "plot_states",
]
