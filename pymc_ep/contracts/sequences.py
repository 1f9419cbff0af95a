"""Interface of fits of sequences of items by users: probabilities of the items that follow."""

from typing import Any, Protocol

import numpy as np
import pymc as pm

__all__ = ["SequencePredictions"]


class SequencePredictions(Protocol):
    """Predictions of sequences that a form registers, for `pymc_ep.next_items`."""

    def rebuild(self, idata: Any, model: pm.Model) -> Any:
        """Return the posterior of a fit; raise a ValueError unless it is one of the present model."""

    def dims(self, model: pm.Model, posterior: Any) -> tuple[str, str]:
        """Return the dims of users and items."""

    def sizes(self, posterior: Any) -> tuple[int, int]:
        """Return the numbers of users and items."""

    def contexts(self, model: pm.Model, posterior: Any) -> tuple[str, int] | None:
        """Return the dim of contexts and their number; None where events have none."""

    def next_log_probabilities(self, posterior: Any, users: np.ndarray, context: int) -> np.ndarray:
        """Return the log probabilities of all items as the next one of some users in a context, (k, I), by position."""
