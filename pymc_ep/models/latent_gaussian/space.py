"""Table of solvers, which represent the prior of n predictors in one of three spaces.

Observation space has the predictors' covariance K, (n, n). Coefficient space has the map R, (p, n), from p standard
normals to the predictors. The third space has the unknowns, with a sparse precision. A solver computes the posterior of
its coordinates; any variable that is jointly Gaussian with them is updated through its covariance with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.latent_gaussian import prior_moments as moments
from pymc_ep.models.latent_gaussian.form import AffineVariable, LatentGaussian
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.observation_space import DensePrior
from pymc_ep.numerics.gaussian.sparse_precision import SparsePrecisionPrior

__all__ = ["MOST_COEFFICIENTS", "SOLVERS", "Solver", "choose_solver"]

_MAX_RATIO = 0.5
"""Ratio p / n of coefficients to observations below which coefficient space is used.

A sweep costs 3 n p^2 operations in coefficient space and 2 n^3 / 3 in observation space: equal at p / n = 0.47."""
MOST_COEFFICIENTS = 2.0
"""Ratio p / n up to which effects of groups are factored in blocks, if the blocks save enough work."""
_FEW = 64
"""Number of independent coefficients up to which coefficient space is used up to a ratio of `MOST_COEFFICIENTS`:
products of so small matrices take less time than calls, and the covariance of the predictors need not be compiled."""


@dataclass(frozen=True)
class Solver:
    """Representation of the prior of n predictors.

    Attributes
    ----------
    name, sentence : str
        Name in options, and description in the text of `pymc_ep.explain`.
    prior : type
        Type of the prior, `DensePrior` or another with its methods.
    array : callable
        Takes the form, returns the graph of the prior's array.
    constants : callable
        Takes the form, returns the graphs of the other arguments of `prior`, which are free of hyperparameters.
    improper : bool
        Whether flat priors are allowed.
    exact : str
        Name of another solver that keeps its digits under wide priors, where this one loses them; else empty.
    cross : callable
        Takes form and affine variable, returns the covariance with the solver's coordinates, (size of x, c).
    variance : callable
        Takes form and affine variable, returns the prior variances, (size of x,).
    """

    name: str
    sentence: str
    prior: type
    array: Callable[[LatentGaussian], TensorVariable]
    constants: Callable[[LatentGaussian], tuple[TensorVariable, ...]]
    improper: bool
    exact: str
    cross: Callable[[LatentGaussian, AffineVariable], TensorVariable]
    variance: Callable[[LatentGaussian, AffineVariable], TensorVariable]


def _no_dense_array(form: LatentGaussian, variable: AffineVariable | None = None) -> TensorVariable:
    """Raise UnsupportedModelError: a sparse precision takes constant maps, which need no array of the form."""
    named = "" if variable is None else f" of {variable.name!r}"
    raise UnsupportedModelError(
        f"The map{named} from latent variables depends on hyperparameters, which solver='precision' has no algebra "
        f"for; leave it out, or name its parts as variables of their own."
    )


SOLVERS = {
    solver.name: solver
    for solver in (
        Solver(
            "observations",
            "dense, in the space of the observations",
            DensePrior,
            moments.predictor_covariance,
            lambda form: (),
            False,
            "coefficients",
            moments.cross_covariance,
            moments.prior_variance,
        ),
        Solver(
            "coefficients",
            "dense, in the space of the coefficients",
            FactorPrior,
            moments.predictor_rows,
            lambda form: (moments.coefficient_precision(form),),
            True,
            "",
            moments.coefficient_map,
            moments.coefficient_variance,
        ),
        Solver(
            "precision",
            "sparse, in the space of the unknowns",
            SparsePrecisionPrior,
            _no_dense_array,
            lambda form: (),
            True,
            "",
            _no_dense_array,
            _no_dense_array,
        ),
    )
}


def choose_solver(
    name: str, observations: int, coefficients: int, flat: Sequence[str] = (), *, independent: bool = False
) -> Solver:
    """Return the solver of that name, for ``"auto"`` the cheaper one.

    Parameters
    ----------
    name : str
    observations, coefficients : int
        Their numbers, n and p.
    flat : sequence of str
        Names of variables with flat priors.
    independent : bool
        Whether all coefficients are independent a priori, so that their priors need no factor.

    Raises
    ------
    ValueError
        For an unknown name, and for a solver that allows no flat priors; lists those that fit.
    """
    able = {key: solver for key, solver in SOLVERS.items() if solver.improper or not flat}
    if name == "auto":
        few = independent and coefficients <= _FEW and coefficients <= MOST_COEFFICIENTS * observations
        cheaper = few or coefficients < _MAX_RATIO * observations
        name = "coefficients" if flat or cheaper else "observations"
    if name not in able:
        priors = f" for the flat prior of {flat[0]!r}" if flat else ""
        raise ValueError(f"solver={name!r} must be 'auto' or one of {', '.join(map(repr, able))}{priors}.")
    return able[name]
