"""Digests that show whether a group of a result is as the fit wrote it."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_ep.engines.checkpoint import digest

__all__ = ["altered", "name_of", "sealed", "written"]

_SEAL = "written"
"""Attribute of a group: names of the attributes and arrays that the fit wrote, with digests, as JSON."""
_NUMBERS = "biuf"
"""Kinds, as `numpy.dtype.kind` names them, of numbers and flags."""
_OWN_CHECK = "settings"
"""Attribute without a digest: its reader names what is wrong in it."""


def sealed(name: str, group: xr.Dataset, words: Mapping[str, Any] | None = None, *, free: bool = False) -> xr.Dataset:
    """Return a group with the attributes `words`, and an attribute with names and digests of these and of its arrays.

    Arrays of draws have no digest, as they may be thinned. In a `free` group no array has a digest, as rows may be
    selected.
    """
    arrays = {
        str(key): "" if free or "draw" in array.dims else _of(array.to_numpy())
        for key, array in group.data_vars.items()
    }
    digests = {key: _of(value) for key, value in (words or {}).items() if isinstance(value, str) and key != _OWN_CHECK}
    seal = json.dumps({"group": name, "array": arrays, "attribute": digests})
    return group.assign_attrs({**(words or {}), _SEAL: seal})


def name_of(group: xr.Dataset) -> str:
    """Return the name of a group that a fit wrote; empty for a group without a seal."""
    return json.loads(group.attrs.get(_SEAL, "{}")).get("group", "")


def written(group: xr.Dataset, kind: str) -> dict[str, str]:
    """Return the digests of the arrays or attributes that a fit wrote, by name; empty for a group without a seal."""
    return json.loads(group.attrs.get(_SEAL, "{}")).get(kind, {})


def altered(group: xr.Dataset, kind: str, name: str) -> bool:
    """Return whether an array or attribute differs from its digest, if it has one; False for one the fit did not write.

    An array that was stored without a digest counts as altered where it is neither numeric nor of flags.
    """
    if (stored := written(group, kind).get(name)) is None:
        return False
    now = group.variables[name].to_numpy() if kind == "array" else group.attrs[name]
    return stored != _of(now) if stored else now.dtype.kind not in _NUMBERS


def _of(values: np.ndarray | str) -> str:
    """Return the digest of a string or an array; arrays of strings as JSON, as files store them in several types."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in _NUMBERS:
        values = json.dumps(values.tolist(), default=str)
    text_or_array = values if isinstance(values, str) else values.astype(values.dtype.newbyteorder("<"), copy=False)
    return digest(text_or_array).tobytes().hex()
