"""Sites of potentials that are sums of log densities of one predictor value each, such as weighted observations."""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import infer_shape
from pytensor.gradient import NullTypeGradError
from pytensor.scalar.basic import Mul, Neg, TrueDiv
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.predictor import AffineTest, Found, NotAffineError, at_zero_noise
from pymc_ep.graphs.queries import depends_on, value_dependent
from pymc_ep.models.latent_gaussian.recognise.any_density import affine_dominator, interpreted_site, verify
from pymc_ep.models.latent_gaussian.recognise.conditions import within_conditions
from pymc_ep.models.latent_gaussian.recognise.rebuilder import Rebuilder

__all__ = ["find_potential", "terms_of"]


def terms_of(potential: TensorVariable, latents: Sequence[TensorVariable]) -> TensorVariable:
    """Return the array of terms whose sum is a potential; PyMC itself sums a potential of several values.

    A factor of the sum, such as 1 / n of a mean, is applied to each term.
    """
    node = potential.owner
    if node is None:
        return potential
    if isinstance(node.op, Sum) or (isinstance(node.op, DimShuffle) and not potential.ndim):
        return terms_of(node.inputs[0], latents)
    if potential.ndim or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Mul | Neg | TrueDiv):
        return potential
    carriers = [v for v in node.inputs if depends_on([v], latents)]
    if len(carriers) != 1 or (isinstance(node.op.scalar_op, TrueDiv) and carriers[0] is node.inputs[1]):
        return potential
    return node.op(*(terms_of(v, latents) if v is carriers[0] else v for v in node.inputs))


def find_potential(name: str, terms: TensorVariable, affine: AffineTest) -> tuple[Found, TensorVariable]:
    """Return predictor and site of the terms of a potential, and zeros that stand for its missing observations.

    Parameters
    ----------
    name : str
    terms : TensorVariable
        Result of `terms_of`, as a graph of hyperparameters and noise.
    affine : AffineTest

    Raises
    ------
    NotAffineError
        Where the terms do not depend on one affine predictor alone.
    UnsupportedModelError
        Where a term depends on several values of the predictor, or an operation has no gradient.
    """
    # Of the inputs' shapes, not of the values: these depend on hyperparameters.
    (shape,) = infer_shape([at_zero_noise(terms, affine)], (), ())
    zeros = pt.zeros(tuple(shape))
    eta = affine_dominator(name, [terms], affine)
    rebuilder = Rebuilder(name, eta, value_dependent([terms], affine.noise), affine)

    def unbounded(y: Any, eta: Any, *values: Any) -> Any:
        return rebuilder.density(terms, eta, values, y) + pt.zeros_like(y)

    def logp(y: Any, eta: Any, *values: Any) -> Any:
        return within_conditions(unbounded(y, eta, *values), eta)

    try:
        rebuilder.density(terms, pt.dscalar(), None, pt.dscalar())
        match = interpreted_site(
            "potential",
            rebuilder,
            affine,
            lambda y, *_: pt.zeros_like(y),
            domain="real",
            log_concave=False,
            logp=logp,
            holds_observations=True,
        )
        verify(name, terms, zeros, match, unbounded, affine)
    except NotAffineError:
        raise
    except (UnsupportedModelError, NotImplementedError, NullTypeGradError, TypeError, ValueError) as error:
        reason, _, _ = str(error).partition(". ")
        raise UnsupportedModelError(
            f"The potential {name!r} depends on a latent variable, and is no sum of log densities of one value of a "
            f"predictor each ({reason}). Weighted observations are (weights * pm.logp(...)).sum(), differences of "
            f"neighbours pm.ICAR. Or name all but that variable in latent=[...]."
        ) from error
    return match, zeros
