"""The `Response` of common likelihoods: mean and variance of an observation given its predictor."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import Response

__all__ = ["counts", "located", "positive", "successes"]

_PROBABILITIES: dict[str, Callable[[Any], Any]] = {
    "logit": expit,
    "probit": ndtr,
    "cloglog": lambda eta: -np.expm1(-np.exp(eta)),
}


def counts(rate: Callable[[Any], Any]) -> Response:
    """Return the response of Poisson counts: mean and variance are both ``rate(eta)``."""
    return Response(rate, rate)


def successes(link: str) -> Response:
    """Return the response of the number of successes in one trial, or in n; `link` is logit, probit or cloglog."""
    probability = _PROBABILITIES[link]

    def variance(eta: Array, n: Array = 1.0) -> Array:
        p = probability(eta)
        return n * p * (1 - p)

    return Response(lambda eta, n=1.0: n * probability(eta), variance)


def positive(shape: Callable[..., Any]) -> Response:
    """Return the response of mean m = exp(eta) and variance m^2 / shape(m, *parameters)."""

    def variance(eta: Array, *parameters: Array) -> Array:
        mean = np.exp(eta)
        return mean**2 / shape(mean, *parameters)

    return Response(lambda eta, *_: np.exp(eta), variance)


def located(variance: Callable[..., Any]) -> Response:
    """Return the response of mean eta, and of a variance that depends on the parameters alone."""
    return Response(lambda eta, *_: eta, lambda eta, *parameters: variance(*parameters) + 0.0 * eta)
