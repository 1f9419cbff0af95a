"""Which space a latent Gaussian model is solved in, by look-up: of the observations, or of the coefficients.

A solver says which array of the form its algebra takes, and in which coordinates it hands out posteriors. Anything
jointly Gaussian with those coordinates is updated through its covariance with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytensor.tensor.variable import TensorVariable

from pymc_ep.forms.latent_gaussian import prior_moments as moments
from pymc_ep.forms.latent_gaussian.form import AffineVariable, LatentGaussian
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.observation_space import DensePrior

__all__ = ["SOLVERS", "Solver", "choose_solver"]

_FEWER = 0.5
"""Coefficients for each observation below which their space is the cheaper one: a sweep costs 3 n p^2 operations there,
2 n^3 / 3 in that of the observations."""


@dataclass(frozen=True)
class Solver:
    """One way to hold the prior of n predictors.

    Attributes
    ----------
    name, sentence : str
        In options, and in what `explain` prints.
    prior : type
        Wraps these: `DensePrior` or another with its methods.
    array : callable
        Takes the form, returns the graph of the prior's array.
    constants : callable
        Takes the form, returns the graphs of what else the prior is made of, in which no hyperparameter takes part.
    improper : bool
        Whether flat priors are among what it takes.
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
    cross: Callable[[LatentGaussian, AffineVariable], TensorVariable]
    variance: Callable[[LatentGaussian, AffineVariable], TensorVariable]


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
            moments.coefficient_map,
            moments.coefficient_variance,
        ),
    )
}


def choose_solver(name: str, observations: int, coefficients: int, flat: Sequence[str] = ()) -> Solver:
    """Return the solver of that name, or for ``"auto"`` the cheaper one; `flat` names variables with flat priors.

    Raises
    ------
    ValueError
        For a name that is none, and for a solver that takes no flat priors; lists those there are.
    """
    able = {key: solver for key, solver in SOLVERS.items() if solver.improper or not flat}
    if name == "auto":
        name = "coefficients" if flat or coefficients < _FEWER * observations else "observations"
    if name not in able:
        priors = f" for the flat prior of {flat[0]!r}" if flat else ""
        raise ValueError(f"solver={name!r} must be 'auto' or one of {', '.join(map(repr, able))}{priors}.")
    return able[name]
