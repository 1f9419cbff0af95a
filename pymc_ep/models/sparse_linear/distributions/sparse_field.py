"""Improper prior of an array with sparse linear coefficients: total variation, wavelet shrinkage."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import Continuous
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Constant
from pytensor.tensor.random.op import RandomVariable

from pymc_ep.compat import random_draw
from pymc_ep.distributions.potentials import Potential, length_of, read_potential, require_positive, static_shape
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.operators import LinearMap, apply_operator, as_linear_map

__all__ = ["SparseField", "SparseFieldRV"]

_RANK_UNKNOWNS = 2048
"""Largest number of unknowns at which the rank of an operator, where not known, is computed by a dense
decomposition."""


class SparseFieldRV(RandomVariable):
    """Op of `SparseField`; its parameters are the potential's without the location.

    Parameters
    ----------
    linear_map : LinearMap
        Linear map B from the array to its coefficients.
    potential : Potential
    rank : int
        Rank of B.
    """

    name = "sparse_field"
    _print_name = ("SparseField", "\\operatorname{SparseField}")
    __props__ = ("linear_map", "potential", "rank", "dtype", "inplace")

    def __init__(
        self,
        linear_map: LinearMap,
        potential: Potential,
        rank: int,
        dtype: str = "float64",
        inplace: bool = False,
    ):
        self.linear_map, self.potential, self.rank = linear_map, potential, rank
        inputs = ",".join(potential.signature)
        output = ",".join(f"d{axis}" for axis in range(len(linear_map.input_shape)))
        super().__init__(name=self.name, signature=f"{inputs}->({output})", dtype=dtype, inplace=inplace)
        self.ndims_params = potential.ndims

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> tuple[Any, ...]:
        return tuple(pt.constant(n, dtype="int64") for n in self.linear_map.input_shape)

    @classmethod
    def rng_fn(cls, *args: object, **kwargs: object) -> NoReturn:
        """Raise NotImplementedError: an improper prior has no draws."""
        raise NotImplementedError(
            "A SparseField is an improper prior (what its operator maps to zero is left free), so it cannot be drawn "
            "from; draw from the posterior of a fit instead."
        )

    @property
    def coefficients(self) -> int:
        """Number J of coefficients."""
        return int(np.prod(self.linear_map.output_shape))

    def potential_of(self, parameters: Sequence[Any]) -> Any:
        """Return a random variable with the distribution of all coefficients, (), or of each, (J,)."""
        return self.potential.random(self.potential.each(parameters, self.linear_map.groups))[1]

    def log_excess(self, parameters: Sequence[Any]) -> Any:
        """Return the log ratio, (), of the density to the product of all normalised potentials.

        The product of J potentials of scale b has the factor b^-J. The density on the range of B, which has `rank`
        dimensions, has b^-rank instead.
        """
        scale = self.potential.scale(parameters)
        surplus = self.coefficients - self.rank
        return surplus * pt.log(scale.astype("float64")) if surplus and not scale.ndim else pt.zeros(())


@_logprob.register(SparseFieldRV)
def _sparse_field_logp(op: SparseFieldRV, values: Any, *inputs: Any, **kwargs: Any) -> Any:
    (value,) = values
    parameters = inputs[2:]
    coefficients = apply_operator(op.linear_map, value).ravel()
    # For a shared b: sum_j log[t((B x)_j / b) / b] + (J - rank) log b.
    return pm.logp(op.potential_of(parameters), coefficients).sum() + op.log_excess(parameters)


class SparseField(Continuous):
    r"""Improper prior under which the coefficients B x of an array x are sparse.

    .. math:: p(x) \propto b^{-\operatorname{rank}(B)} \prod_j t\bigl((B x)_j / b\bigr)

    with a super-Gaussian potential t of scale one. The prior is flat on the null space of B (the mean of an image,
    under total variation). The power of b is the dimension of the range of B, so that a shared scale can be learned
    [1]_. In a product of normalised potentials the power would be the number of coefficients, linearly dependent or
    not.

    Parameters
    ----------
    operator : operator of `pymc_ep.operators`, array, SciPy sparse matrix, SciPy or PyLops linear operator
        B. Matrices and linear operators act on x ravelled in C order.
    potential : pymc distribution
        ``pm.Laplace.dist(0, b)``, ``pm.StudentT.dist(nu=2.1, sigma=b)`` or ``pm.Normal.dist(0, b)``, located at zero.
        Parameters may be random variables: one value, or one for each group of coefficients (levels of
        `Wavelet2D`, finest first). Values for each group, and degrees of freedom, can be learned only where the rows
        of B are linearly independent, as for wavelets.
    shape : tuple of int, optional
        Shape of x; by default from the operator's input, or from `dims`.
    rank : int, optional
        Rank of B, needed if the operator has no known rank and is too large for its rank to be computed.

    Raises
    ------
    UnsupportedModelError
        For an operator or potential of another kind; the message names the accepted ones.
    InvalidDataError
        For a scale that is not positive.

    References
    ----------
    .. [1] M. Seeger and H. Nickisch (2011), Large scale Bayesian inference and experimental design for sparse linear
       models, SIAM J. Imaging Sciences 4.

    Examples
    --------
    >>> with pm.Model():
    ...     b = pm.HalfNormal("b", 1)
    ...     u = SparseField("u", operator=Gradient2D((32, 32)), potential=pm.Laplace.dist(0, b), shape=(32, 32))
    """

    rv_type = SparseFieldRV

    @classmethod
    def rv_op(cls, *parameters: Any, op: SparseFieldRV, size: Any = None, rng: Any = None) -> Any:
        """Return the random variable."""
        return random_draw(op, *parameters, size=size, rng=rng)[1]

    @classmethod
    def dist(cls, *, operator: Any, potential: Any, shape: Any = None, rank: int | None = None, **kwargs: Any) -> Any:
        """Return a variable of this distribution outside of any model."""
        own_shape = isinstance(operator, LinearMap) or shape is None
        linear_map = as_linear_map(operator, None if own_shape else static_shape(shape))
        _check_shape(linear_map, shape)
        kind, parameters = read_potential(potential, "SparseField")
        rank = _rank(linear_map) if rank is None else _checked_rank(linear_map, rank)
        op = SparseFieldRV(linear_map, kind, rank)
        _check_parameters(op, parameters)
        return super().dist(parameters, op=op, **kwargs)

    def support_point(rv: Any, size: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value: zeros."""
        return pt.zeros(rv.owner.op.linear_map.input_shape)


def _check_shape(linear_map: LinearMap, shape: Any) -> None:
    if shape is not None and static_shape(shape) != tuple(linear_map.input_shape):
        raise UnsupportedModelError(
            f"A SparseField has shape={static_shape(shape)}, but its operator takes arrays of shape "
            f"{tuple(linear_map.input_shape)}; give both the same."
        )


def _rank(linear_map: LinearMap) -> int:
    if linear_map.rank is not None:
        return linear_map.rank
    unknowns, matrix = int(np.prod(linear_map.input_shape)), linear_map.matrix()
    if matrix is None or unknowns > _RANK_UNKNOWNS:
        raise UnsupportedModelError(
            f"The rank of the operator of a SparseField on {unknowns} unknowns is not known, and the density's power "
            f"of the scale depends on it; give it as rank=."
        )
    return int(np.linalg.matrix_rank(matrix.toarray()))


def _checked_rank(linear_map: LinearMap, rank: int) -> int:
    most = min(int(np.prod(linear_map.input_shape)), int(np.prod(linear_map.output_shape)))
    if not (isinstance(rank, int | np.integer) and 1 <= rank <= most):
        raise InvalidDataError(
            f"A SparseField has rank={rank}, which is no whole number between 1 and {most}, the most that its operator "
            f"of {int(np.prod(linear_map.output_shape))} coefficients can have."
        )
    return int(rank)


def _check_parameters(op: SparseFieldRV, parameters: Sequence[Any]) -> None:
    require_positive(op.potential, parameters, "SparseField")
    groups = op.linear_map.groups
    allowed = op.coefficients if groups is None else int(np.max(groups)) + 1
    scale = op.potential.scale(parameters)
    for parameter in parameters:
        length = length_of(parameter)
        if length not in (None, allowed):
            raise UnsupportedModelError(
                f"A parameter of the potential of a SparseField has {length} values, but its operator has {allowed} "
                f"{'coefficients' if groups is None else 'groups of coefficients'}; give as many, or one."
            )
        shared = parameter is scale and not parameter.type.ndim
        if not isinstance(parameter, Constant) and not shared and op.rank < op.coefficients:
            what = "one scale for each group of coefficients" if parameter is scale else "the degrees of freedom"
            raise UnsupportedModelError(
                f"A SparseField cannot learn {what} under an operator of {op.coefficients} coefficients and rank "
                f"{op.rank}, whose density has no known normaliser. Share one scale, hold these values fixed, or use "
                f"an operator with independent rows, such as Wavelet2D."
            )
