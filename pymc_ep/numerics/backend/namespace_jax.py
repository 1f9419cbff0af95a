"""The part of `pymc_ep.numerics.backend.namespace` that needs JAX."""

from typing import Any

import jax.numpy

__all__ = ["jax_numpy"]


def jax_numpy() -> Any:
    """Return ``jax.numpy``."""
    return jax.numpy
