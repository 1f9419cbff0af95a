"""The posterior of the hyperparameters as an integration leaves it: draws, fits and weights, or the mode alone."""

from typing import Generic, NamedTuple

import numpy as np

from pymc_ep.contracts.evidence import DesignPoint, OwnFit
from pymc_ep.evidence.integration.corrections import Corrected
from pymc_ep.evidence.integration.explore import Explorer
from pymc_ep.evidence.mode import Hyper

__all__ = ["Integral", "not_integrated"]


class Integral(NamedTuple, Generic[OwnFit]):
    """The posterior of the hyperparameters as draws, and the fits between which sites are interpolated.

    Attributes
    ----------
    mode : Hyper
    thetas : ndarray, (m, p)
    theta_weights : ndarray, (m,)
        Weighted hyperparameters, from which their moments are computed.
    draws : ndarray, (s, p)
        Equally weighted draws of the hyperparameters.
    components : ndarray, (c, p)
        Draws at which the posterior of the latent variables is computed, with sites interpolated between `points`;
        empty where `points` are themselves fits at draws.
    points : list of DesignPoint
        The k fits; empty where nothing was integrated.
    weights : ndarray, (k,)
        Share of the draws to which each fit is the nearest; where `points` are fits at draws, their weights as draws.
    log_evidence : float
        Log of the integral of Z(theta) p(theta).
    corrected : Corrected, optional
        Correction for EP's own error in log Z, where there is one.
    effective : float
        Relative effective sample size of the weights exact / emulated at the fits that tested the emulator last.
    spread : float
        Standard deviation of the logarithms of these weights, in nats.
    evaluations : int
        Number of fits, the search for the mode included.
    converged : bool
    sentence : str
    doubt : float
        Share of the posterior that the fits leave in doubt; zero if the integral is accurate by the fits that test it.
        `converged` may be false all the same, where the method's own error is large.
    """

    mode: Hyper[OwnFit]
    thetas: np.ndarray
    theta_weights: np.ndarray
    draws: np.ndarray
    components: np.ndarray
    points: list[DesignPoint]
    weights: np.ndarray
    log_evidence: float
    corrected: Corrected | None
    effective: float
    spread: float
    evaluations: int
    converged: bool
    sentence: str
    doubt: float = 1.0


def not_integrated(mode: Hyper[OwnFit], explorer: Explorer[OwnFit], sentence: str) -> Integral[OwnFit]:
    """Return an integral that has the mode alone, without draws, for the reason in `sentence`."""
    mode = mode._replace(converged=False, sentence=sentence)
    none, empty = np.zeros((0, mode.at.theta.size)), np.zeros(0)
    return Integral(
        mode, none, empty, none, none, [], empty, np.nan, None, 0.0, np.inf, explorer.evaluations, False, sentence
    )
