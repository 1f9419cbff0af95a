"""Interface of fits of utilities of items: rankings of the items of a user, and comparisons that tell most."""

from typing import Any, Protocol

import numpy as np
import pymc as pm
import xarray as xr

__all__ = ["UtilityPredictions"]


class UtilityPredictions(Protocol):
    """Predictions of utilities that a form registers, for `pymc_ep.rank_items` and `pymc_ep.next_pairs`."""

    def rebuild(self, idata: Any, model: pm.Model) -> Any:
        """Return the posterior of a fit; raise a ValueError unless it is one of the present model."""

    def variable(self, posterior: Any) -> str:
        """Return the name of the utilities, whose dims are those of users, if there are several, and of items."""

    def sizes(self, posterior: Any) -> tuple[int, ...]:
        """Return the shape of the utilities."""

    def ranks(self, posterior: Any, users: np.ndarray, rng: np.random.Generator) -> xr.Dataset:
        """Return the distribution of the ranks of all items for some users, by positions of these."""

    def informative(self, posterior: Any, user: int, n: int) -> xr.Dataset:
        """Return the n comparisons of a user that tell most of the utilities, by positions of items."""
