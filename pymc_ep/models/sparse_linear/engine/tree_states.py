"""Checks of the two states of mixtures of coefficients, before and after a fit."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pymc_ep.engines.prior import perturbed
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.shape import correlations
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.models.sparse_linear.engine.bounded_sites import FactorForm, FactorSites
from pymc_ep.sites.tree_mixture import CompiledTreeMixture

__all__ = ["doubt_warning", "has_mixtures", "require_two_states", "state_parameters", "state_warnings", "trees"]

_SAME = 0.01
"""Difference of the states' scales, relative to the larger one, up to which they count as equal: far below the error
with which data determine a scale, and far above the tolerance of a fit."""
_IN_DOUBT, _MOST_IN_DOUBT = 0.65, 500
"""Product of two coefficients' doubts and their absolute correlation above which a warning is given, and largest number
of coefficients compared. With probability q of the second normal the doubt is 2 sqrt(q (1 - q)). In 60 regressions with
10 coefficients probabilities erred by up to 0.21 above this product and by 0.10 below."""


def has_mixtures(form: FactorForm) -> bool:
    """Return whether some coefficients of a compiled form are mixtures, on trees or each by itself."""
    return any(isinstance(site, CompiledTreeMixture) for site in form.sites)


def require_two_states(sites: FactorSites, theta: np.ndarray, *, learn: bool) -> None:
    """Raise InvalidDataError if the states of a mixture are equal at theta, (p,); with `learn`, if at every theta."""
    everywhere = [theta, perturbed(theta)] if learn else [theta]
    for i, tree, _ in trees(sites):
        # Lazily: the second theta may lie outside a domain, and is of no interest if states differ at the first.
        states = (state_parameters(tree, sites.prior(at).parameters[i]) for at in everywhere)
        if tree.site.low is tree.site.high and all(all(map(np.array_equal, low, high)) for low, high in states):
            name = sites.form.form.factors[i].name
            if learn:
                what = "all hyperparameters, so that they mean nothing; give low= and high= scales of their own"
            else:
                what = (
                    "the given hyperparameters, which hyper='fixed' holds, so that they mean nothing; give those of "
                    "the high state other values by start=, or learn them by hyper='optimize'"
                )
            raise InvalidDataError(f"The states of {name!r} are the same distribution at {what}.")


def state_warnings(sites: FactorSites, theta: np.ndarray) -> str:
    """Return warnings of mixtures with equal states, or a low state that is the wider, at learned theta, (p,)."""
    out = ""
    for i, tree, _ in trees(sites):
        name = sites.form.form.factors[i].name
        parameters = sites.prior(theta).parameters[i]
        low, high = (
            np.sqrt(tree.site.by_level(site.typical(sites.observed[i], *state_values)[1]))
            for site, state_values in zip((tree.site.low, tree.site.high), state_parameters(tree, parameters))
        )
        same = (np.abs(high - low) <= _SAME * np.maximum(low, high)) & (tree.site.low is tree.site.high)
        crossed = (low > high) & ~same
        if same.all():
            out += (
                f"; the states of {name!r} ended as the same distribution, so that its indicators mean nothing: a "
                f"SparseField with this potential says as much"
            )
        elif same.any():
            out += f"; the states of {name!r} ended as the same at {_listed(same)}, where its indicators mean nothing"
        if crossed.any():
            out += (
                f"; the low state of {name!r} ended as the wider one at {_listed(crossed)}, where its indicators are "
                f"probabilities of the narrower: with high = low + pm.HalfNormal(...) it cannot"
            )
    return out


def doubt_warning(at: EvidenceAt, mixtures: Mapping[str, tuple[slice, np.ndarray]]) -> str:
    """Return a warning of two correlated coefficients with uncertain states, at which EP errs; empty without such.

    Parameters
    ----------
    at : EvidenceAt
    mixtures : mapping of str to (slice, ndarray)
        For each independent mixture, by name: the slice of its coefficients among all predictors, and their
        probabilities q of the second normal, (n,).
    """
    for name, (rows, q) in mixtures.items():
        # Twice the standard deviation of the indicator: 1 at q = 1/2.
        doubt = 2.0 * np.sqrt(q * (1.0 - q))
        first = np.argsort(-doubt, kind="stable")[:_MOST_IN_DOUBT]
        first = first[doubt[first] > _IN_DOUBT]
        if len(first) < 2:
            continue
        places = at.repeats.owner[rows][first]
        both = doubt[first, None] * doubt[first] * np.abs(correlations(at, places, places))
        np.fill_diagonal(both, 0.0)
        if both.max() > _IN_DOUBT:
            i, j = sorted(first[list(np.unravel_index(both.argmax(), both.shape))].tolist())
            return (
                f"{name!r} at {i} and {j} are correlated, and both in doubt, so that their probabilities of the second "
                f"normal may be off by 0.2, and standard deviations by a half: drop one of them, or compare with "
                f"pm.sample"
            )
    return ""


def trees(sites: FactorSites) -> Iterator[tuple[int, CompiledTreeMixture, slice]]:
    """Yield the index of each tree mixture among the groups, the mixture, and its slice among all sites."""
    for i, (site, places) in enumerate(zip(sites.sites, sites.slices)):
        if isinstance(site, CompiledTreeMixture):
            yield i, site, places


def state_parameters(tree: CompiledTreeMixture, parameters: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the parameters of the low and of the high state, from all parameters of a mixture."""
    first = len(tree.site.low.parameters)
    return parameters[:first], parameters[first:-2]


def _listed(levels: np.ndarray) -> str:
    numbers = [str(k) for k in np.flatnonzero(levels)]
    return f"level {numbers[0]}" if len(numbers) == 1 else f"levels {', '.join(numbers[:-1])} and {numbers[-1]}"
