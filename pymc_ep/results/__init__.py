"""Layout of the ArviZ container: how a solution is written into it and read back."""

from pymc_ep.results.container import build_container, check_dims, labelled, model_dims
from pymc_ep.results.reading import (
    fit_group,
    fit_method,
    fit_state,
    hyper_modes,
    latent_of,
    posterior_moments,
    settings,
)
from pymc_ep.results.selection import require_dims, selected, selected_names
from pymc_ep.results.writing import STORED_NUMBERS, layout_of, write_solution

__all__ = [
    "STORED_NUMBERS",
    "build_container",
    "check_dims",
    "fit_group",
    "fit_method",
    "fit_state",
    "hyper_modes",
    "labelled",
    "latent_of",
    "layout_of",
    "model_dims",
    "posterior_moments",
    "require_dims",
    "selected",
    "selected_names",
    "settings",
    "write_solution",
]
