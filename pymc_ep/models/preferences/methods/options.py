"""Options of the methods on preferences."""

from numbers import Real
from typing import Any

from pymc_ep.engines.options import check_positive, check_whole
from pymc_ep.models.preferences.compiled import CompiledPreferences
from pymc_ep.models.preferences.engine.values import ComparedUsers

__all__ = ["OPTIONS", "capped", "checked"]

OPTIONS = {
    "learn": "evidence",
    "held_out": 0.0,
    "max_pairs": None,
    "partitions": None,
    "client": None,
    "tol": 1e-8,
    "evidence_tol": 1e-5,
    "max_iter": 200,
    "seed": 0,
}
"""Options and their defaults."""
_WAYS = ("evidence", "em")


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return all options, given some; raise ValueError for one outside of its range."""
    options = OPTIONS | options
    if options["learn"] not in _WAYS:
        raise ValueError(f"learn={options['learn']!r} must be one of {', '.join(map(repr, _WAYS))}.")
    share = options["held_out"]
    if not (isinstance(share, Real) and 0 <= float(share) < 1):
        raise ValueError(f"held_out={share!r} must be a share of comparisons in [0, 1).")
    for name in ("tol", "evidence_tol"):
        check_positive(name, options[name])
    for name in ("max_pairs", "partitions"):
        if options[name] is not None:
            check_whole(name, options[name])
    check_whole("max_iter", options["max_iter"])
    check_whole("seed", options["seed"], least=0)
    return options


def capped(form: CompiledPreferences, compared: ComparedUsers, settings: dict[str, Any]) -> ComparedUsers:
    """Return the comparisons that the fit uses: at most ``max_pairs`` of each user."""
    if settings["max_pairs"] is None:
        return compared
    return compared.capped(settings["max_pairs"], settings["seed"], form.n_items)
