"""Devices on which JAX computes."""

from contextlib import AbstractContextManager

import jax

from pymc_ep.exceptions import InvalidDataError

__all__ = ["current_device", "free_bytes", "placed_on"]


def placed_on(name: str) -> AbstractContextManager[object]:
    """Return a context in which JAX computes on the first device of a kind, `name`: ``"cpu"``, ``"gpu"`` or ``"tpu"``.

    Raises
    ------
    InvalidDataError
        If JAX has no such device; the message names the devices that it has.
    """
    try:
        return jax.default_device(jax.devices(name)[0])
    except RuntimeError as error:
        there = ", ".join(sorted({repr(device.platform) for device in jax.devices()}))
        raise InvalidDataError(
            f"device={name!r} is not there, as JAX sees {there} alone: install JAX for it, as by "
            f"pip install 'jax[cuda13]' for NVIDIA's, or leave device= out."
        ) from error


def current_device() -> jax.Device:
    """Return the device on which JAX computes now."""
    device = jax.config.jax_default_device
    # It may be the name of a platform.
    return device if isinstance(device, jax.Device) else jax.devices(device)[0]


def free_bytes() -> int | None:
    """Return the free bytes of the device on which JAX computes now; None for a CPU, which reports none."""
    stats = current_device().memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if {"bytes_limit", "bytes_in_use"} <= set(stats) else None
