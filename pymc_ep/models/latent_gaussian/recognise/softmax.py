"""Categories without order, observed one by one or counted, whose probabilities are a softmax of affine predictors."""

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import MultinomialRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import log_softmax

from pymc_ep.distributions.shapes import require_shape
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.predictor import AffineTest, Found, NotAffineError, at_zero_noise_and_shape, require_latent
from pymc_ep.graphs.queries import apply_path, dominators, value_depends_on
from pymc_ep.models.latent_gaussian.recognise.ordered import before_selection
from pymc_ep.sites.base import get_site
from pymc_ep.sites.likelihoods.categorical import MOST_CATEGORIES, THREE_CATEGORIES, softmax_site

__all__ = ["SeveralPredictorsError", "find_softmax", "is_counted"]


class SeveralPredictorsError(UnsupportedModelError):
    """A likelihood has several predictors and the form takes one; fewer latent variables would not change that."""


_ROUNDING = 1e-6
"""Difference of log probabilities from a softmax, relative to the largest predictor, that counts as rounding."""
_SCALES = (1.0, 30.0)
"""Scales of the predictors at which probabilities are compared with a softmax; a bound on predictors shows at large
ones."""


def is_counted(rv: TensorVariable) -> bool:
    """Whether an observed variable has rows of counts of categories."""
    return isinstance(rv.owner.op, MultinomialRV)


def find_softmax(
    rv: TensorVariable,
    parameters: Sequence[TensorVariable],
    observed: TensorVariable | None,
    affine: AffineTest,
    *,
    several: bool,
) -> Found | None:
    """Return log-odds and site of a Categorical or Multinomial; None where its probabilities are no softmax.

    Parameters
    ----------
    rv : TensorVariable
    parameters : sequence of TensorVariable
        Parameters of the distribution, the last of which are probabilities, as graphs of hyperparameters and noise.
    observed : TensorVariable, optional
        Observations. The counts of a Multinomial are parameters of its site, and their sum stands for the observation.
    affine : AffineTest
    several : bool
        Whether the likelihood may have several predictors; else raise SeveralPredictorsError for three categories or
        more.
    """
    *number, probabilities = parameters
    require_latent(rv.name, [probabilities], affine)
    predictors = _predictors(probabilities, affine)
    if predictors is None:
        return None
    categories = np.shape(affine.compile(at_zero_noise_and_shape(predictors, affine), [])())[-1]
    # p_k = exp(eta_k - eta_0) / sum_j exp(eta_j - eta_0): category 0 has the predictor zero.
    first, *others = (predictors[..., k] - predictors[..., 0] for k in range(1, categories))
    if categories == 2 and not number:
        return Found(get_site("logit"), {}, first, "softmax", [])
    if categories == 2:
        raise NotAffineError(f"{rv.name!r} counts two categories: observe one of them as a pm.Binomial.")
    if categories > MOST_CATEGORIES:
        raise UnsupportedModelError(
            f"{rv.name!r} has {categories} categories, and a softmax takes {MOST_CATEGORIES} at most. Merge rare ones, "
            f"or use pm.sample."
        )
    if not several:
        raise SeveralPredictorsError(
            f"{rv.name!r} has {categories} categories without order, which have a predictor each, and this form takes "
            f"one predictor. Give its latent variables Gaussian priors."
        )
    if not number:
        site = THREE_CATEGORIES if categories == 3 else softmax_site(categories, False)
        return Found(site, {}, first, "softmax", [], tuple(others))
    counts = pt.zeros_like(predictors) if observed is None else observed
    require_shape(rv.name, counts.type.shape, predictors.type.shape)
    of_each = [counts[..., k] for k in range(categories)]
    return Found(softmax_site(categories, True), {}, first, "softmax", [number[0], *of_each], tuple(others))


def _predictors(probabilities: TensorVariable, affine: AffineTest) -> TensorVariable | None:
    """Return eta, (..., K), whose softmax along the last axis is the probabilities; None where there is no such eta.

    An affine graph with one column less than the probabilities lacks a category, whose predictor is then zero.
    """
    inner, path = before_selection(probabilities)
    for candidate in dominators([inner], affine.noise):
        # One row of probabilities may be that of all observations.
        if (candidate.ndim == inner.ndim or (candidate.ndim == 1 and not path)) and affine(candidate):
            predictors = _matched(inner, candidate, affine)
            if predictors is not None:
                return apply_path(path, predictors)
    return None


def _matched(probabilities: TensorVariable, current: TensorVariable, affine: AffineTest) -> TensorVariable | None:
    """Return the predictors of all categories, made of the affine graph `current`.

    None where their softmax is not the probabilities.
    """
    free = current.type("free")
    (replaced,) = graph_replace([probabilities], {current: free}, strict=False)
    if value_depends_on(replaced, list(affine.noise)) or not affine.point.keys().isdisjoint(ancestors([replaced])):
        return None
    function = affine.compile(at_zero_noise_and_shape(replaced, affine), [free], without_checks=True)
    shape = np.shape(affine.compile(at_zero_noise_and_shape(current, affine), [])())
    drawn = [scale * np.random.default_rng(0).uniform(-1.0, 1.0, shape) for scale in _SCALES]
    with np.errstate(invalid="ignore", divide="ignore"):
        log_ps = [np.log(function(values.astype(current.dtype))) for values in drawn]
    if log_ps[0].shape[-1] == shape[-1]:
        return current if all(map(_is_softmax, log_ps, drawn)) else None
    if log_ps[0].shape[-1] == shape[-1] + 1:
        for place in range(shape[-1] + 1):
            if all(map(_is_softmax, log_ps, (np.insert(values, place, 0.0, axis=-1) for values in drawn))):
                zero = pt.zeros_like(current[..., :1])
                return pt.concatenate([current[..., :place], zero, current[..., place:]], axis=-1)
    return None


def _is_softmax(log_p: np.ndarray, values: np.ndarray) -> bool:
    expected = log_softmax(values, axis=-1)
    return bool(np.allclose(log_p, expected, rtol=0.0, atol=_ROUNDING * max(1.0, np.abs(values).max())))
