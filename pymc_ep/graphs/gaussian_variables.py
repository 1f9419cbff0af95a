"""Mean, covariance and root of PyMC's Gaussian distributions.

A root of a covariance C is a matrix R with R^T R = C. C and R are formed from the distribution's own parameters: from a
covariance where there is one, else from a precision matrix, or from the linear map of independent normals that defines
the distribution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV
from pymc.distributions.multivariate import CARRV, ICARRV, MatrixNormal, MvNormal, ZeroSumNormalRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.sparse import dense_from_sparse, sp_sum
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.gaussian_markov import GaussianMarkovRV
from pymc_ep.graphs.adjacency import require_car, require_connected
from pymc_ep.graphs.matrix_parameters import (
    InitialValue,
    Labels,
    constant_value,
    require_definite,
    require_definite_sum,
    require_symmetric,
    require_symmetric_factored,
)
from pymc_ep.graphs.random_nodes import parameters_of

__all__ = ["Gaussian", "PriorOf", "Shape", "block_diagonal", "flat_prior", "gaussian_of", "register_gaussian"]

Shape = Sequence
"""Shape of a random variable, as scalar graphs."""


@dataclass(frozen=True)
class Gaussian:
    """Distribution of a Gaussian random variable, ravelled to d values, given all other variables of its model.

    `mean`, `covariance`, `root` and `log_excess` take the variable's shape, scalar graphs, and return graphs.

    Attributes
    ----------
    mean : callable
        Mean, of a shape that broadcasts to the variable's; None where the distribution has mean zero by definition.
    covariance : callable
        Covariance, (d, d).
    root : callable
        R, (k, d), with covariance R^T R.
    covariance_inputs : tuple of TensorVariable
        Parameters of the covariance; they must not depend on latent variables.
    log_excess : callable, optional
        log of the factor by which PyMC's density of the variable exceeds the normalised one; None where they are equal.
    check : callable, optional
        ``check(name, value, labels)`` raises where the parameters make no Gaussian distribution. It takes the
        variable's name, an `InitialValue` for its parameters, and the labels of its first dim.
    flat : bool
        Whether the prior is flat, the limit of infinite variance; covariance and root then are identities.
    degenerate : bool
        Whether the covariance is singular, so that the variable has no density as a vector.
    """

    mean: Callable[[Shape], TensorVariable] | None
    covariance: Callable[[Shape], TensorVariable]
    root: Callable[[Shape], TensorVariable]
    covariance_inputs: tuple[TensorVariable, ...]
    log_excess: Callable[[Shape], TensorVariable] | None = None
    check: Callable[..., None] | None = None
    flat: bool = False
    degenerate: bool = False


PriorOf = Callable[[TensorVariable], Gaussian | None]
"""Function from a random variable to its `Gaussian`, such as `gaussian_of`; returns None where it cannot be latent."""


def gaussian_of(rv: TensorVariable) -> Gaussian | None:
    """Return mean, covariance and root of a random variable, or None where it is not Gaussian."""
    op = rv.owner.op
    reader = next((read for op_type, read in _READERS.items() if isinstance(op, op_type)), None)
    return None if reader is None else reader(rv)


def register_gaussian(op_type: type, read: Callable[[TensorVariable], Gaussian | None]) -> None:
    """Register `read`, which returns the `Gaussian` of a random variable or None, for variables of a type of Op."""
    _READERS[op_type] = read


def _normal(rv: TensorVariable) -> Gaussian:
    mean, sigma = parameters_of(rv)

    def diagonal(scale: TensorVariable) -> Callable[[Shape], TensorVariable]:
        return lambda shape: pt.diag(pt.broadcast_to(scale, shape).ravel().astype(rv.dtype))

    return Gaussian(lambda shape: mean, diagonal(sigma**2), diagonal(sigma), (sigma,))


def flat_prior(rv: TensorVariable) -> Gaussian:
    """Return the flat prior of a variable of d values.

    Its density is 1 in PyMC. In coefficient space it is a Gaussian with Q = 0, whose log |Q| counts as 0, so that its
    density is (2 pi)^{-d/2}; `log_excess` is the log of the ratio.
    """

    def identity(shape: Shape) -> TensorVariable:
        return pt.diag(pt.ones(pt.prod(pt.stack([*shape, 1]))))

    return Gaussian(None, identity, identity, (), _flat_excess, flat=True)


def _flat_excess(shape: Shape) -> TensorVariable:
    return 0.5 * np.log(2 * np.pi) * pt.prod(pt.stack([*shape, 1]))


def _mv_normal(rv: TensorVariable) -> Gaussian:
    mean, covariance = parameters_of(rv)
    symmetric = _symmetric(covariance)
    if rv.ndim == 1:
        return Gaussian(
            lambda shape: mean,
            lambda shape: covariance,
            lambda shape: pt.linalg.cholesky(covariance).T,
            (covariance,),
            check=symmetric,
        )

    def check(name: str, value: InitialValue = constant_value, labels: Labels = None) -> None:
        symmetric(name, value)
        require_definite(name, covariance, labels)

    def stacked(matrix: TensorVariable) -> Callable[[Shape], TensorVariable]:
        def blocks(shape: Shape) -> TensorVariable:
            stack = pt.broadcast_to(matrix, (*shape, shape[-1]))
            return block_diagonal(stack.reshape((-1, shape[-1], shape[-1])))

        return blocks

    # R = L^T, block by block, with each covariance L L^T.
    factor = pt.linalg.cholesky(covariance)
    root = stacked(pt.swapaxes(factor, -1, -2))
    return Gaussian(lambda shape: mean, stacked(covariance), root, (covariance,), check=check)


def _symmetric(*covariances: TensorVariable) -> Callable[..., None]:
    """Return a check, for `Gaussian.check`, that raises where one of the covariances is not symmetric."""

    def check(name: str, value: InitialValue = constant_value, labels: Labels = None) -> None:
        for covariance in covariances:
            require_symmetric(name, covariance, value)

    return check


def _matrix_normal(rv: TensorVariable) -> Gaussian | None:
    mean, rows, columns = parameters_of(rv)
    if rows.ndim != 2 or columns.ndim != 2:
        return None
    # (A A^T) kron (B B^T) = (A kron B) (A kron B)^T, of the Cholesky factors A and B.
    covariance = pt.linalg.kron(rows @ rows.T, columns @ columns.T)
    root = pt.linalg.kron(rows, columns).T

    def check(name: str, value: InitialValue = constant_value, labels: Labels = None) -> None:
        for factor in (rows, columns):
            require_symmetric_factored(name, factor, value)

    return Gaussian(lambda shape: mean, lambda shape: covariance, lambda shape: root, (rows, columns), check=check)


def _random_walk(rv: TensorVariable) -> Gaussian | None:
    """Return the `Gaussian` of a random walk, cumulative sums along time of a first value and innovations.

    First value and innovations are independent. None where they are neither all scalar normals nor all normal vectors.
    """
    first, innovation, _ = rv.owner.inputs
    if all(isinstance(v.owner.op, MvNormal.rv_type) for v in (first, innovation)):
        return _walk_of_vectors(first, innovation)
    if not all(isinstance(v.owner.op, NormalRV) for v in (first, innovation)):
        return None
    (m0, s0), (m1, s1) = map(parameters_of, (first, innovation))

    def along_time(start: TensorVariable, step: TensorVariable, shape: Shape) -> TensorVariable:
        # Time is the first axis of both parts: (1, *batch) and (time - 1, *batch).
        *batch, time = shape
        joined = pt.concatenate([pt.broadcast_to(start, (1, *batch)), pt.broadcast_to(step, (time - 1, *batch))])
        return pt.moveaxis(joined, 0, -1)

    def covariance(shape: Shape) -> TensorVariable:
        # C diag(s^2) C^T, where C takes cumulative sums along time.
        independent = pt.diag(along_time(s0**2, s1**2, shape).ravel()).reshape((*shape, *shape))
        summed = pt.cumsum(pt.cumsum(independent, axis=len(shape) - 1), axis=-1)
        return summed.reshape((pt.prod(shape), -1))

    def root(shape: Shape) -> TensorVariable:
        # diag(s) C^T.
        independent = pt.diag(along_time(s0, s1, shape).ravel()).reshape((-1, *shape))
        return pt.cumsum(independent, axis=-1).reshape((pt.prod(shape), -1))

    return Gaussian(lambda shape: pt.cumsum(along_time(m0, m1, shape), axis=-1), covariance, root, (s0, s1))


def _walk_of_vectors(first: TensorVariable, innovation: TensorVariable) -> Gaussian:
    """Return the `Gaussian` of a walk of vectors: sums of independent vectors along time, the last axis but one."""
    (m0, c0), (m1, c1) = map(parameters_of, (first, innovation))

    def along_time(start: TensorVariable, step: TensorVariable, shape: Shape, ndim: int) -> TensorVariable:
        # Time is the first axis of both parts; their elements are vectors or square matrices of `length`.
        *batch, time, length = shape
        slice_shape = (*batch, *[length] * ndim)
        joined = pt.concatenate(
            [pt.broadcast_to(start, (1, *slice_shape)), pt.broadcast_to(step, (time - 1, *slice_shape))]
        )
        return pt.moveaxis(joined, 0, len(batch))

    def independent(start: TensorVariable, step: TensorVariable, shape: Shape) -> TensorVariable:
        return block_diagonal(along_time(start, step, shape, 2).reshape((-1, shape[-1], shape[-1])))

    def mean(shape: Shape) -> TensorVariable:
        return pt.cumsum(along_time(m0, m1, shape, 1), axis=len(shape) - 2)

    def covariance(shape: Shape) -> TensorVariable:
        # C blocks(c) C^T, where C takes cumulative sums along time.
        each = independent(c0, c1, shape).reshape((*shape, *shape))
        summed = pt.cumsum(pt.cumsum(each, axis=len(shape) - 2), axis=2 * len(shape) - 2)
        return summed.reshape((pt.prod(shape), -1))

    def root(shape: Shape) -> TensorVariable:
        # blocks(L^T) C^T, with c = L L^T.
        first_root, step_root = (pt.swapaxes(pt.linalg.cholesky(c), -1, -2) for c in (c0, c1))
        rows = independent(first_root, step_root, shape).reshape((-1, *shape))
        return pt.cumsum(rows, axis=len(shape) - 1).reshape((pt.prod(shape), -1))

    return Gaussian(mean, covariance, root, (c0, c1), check=_symmetric(c0, c1))


def _autoregression(rv: TensorVariable) -> Gaussian | None:
    """Return the `Gaussian` of an autoregression x; None where rho is no vector, or first values are not normal.

    With a unit lower triangular and banded R, the elements of R x are independent: first values, then innovations plus
    the constant term.
    """
    rho, sigma, first, *_ = parameters_of(rv)
    if rho.ndim != 1 or not isinstance(first.owner.op, NormalRV):
        return None
    op = rv.owner.op
    m0, s0 = parameters_of(first)
    constant, weights = (rho[0], rho[1:]) if op.constant_term else (pt.constant(0.0), rho)

    def residuals(time: TensorVariable) -> TensorVariable:
        # R_{t,t} = 1 and R_{t,t-i} = -rho_i, the latter for t >= p.
        follows = (pt.arange(time) >= op.ar_order)[:, None]
        lags = pt.add(*(weights[i] * pt.eye(time, k=-(i + 1)) for i in range(op.ar_order)), pt.zeros((time, time)))
        return pt.eye(time) - follows * lags

    def along_time(start: TensorVariable, step: TensorVariable, shape: Shape) -> TensorVariable:
        *batch, time = shape
        starts = pt.broadcast_to(start, (*batch, op.ar_order))
        return pt.concatenate([starts, pt.broadcast_to(step, (*batch, time - op.ar_order))], axis=-1)

    def solve_residuals(rows: TensorVariable, time: TensorVariable) -> TensorVariable:
        """Return `rows`, (k, d), with ``residuals(time)`` inverted on each series of length `time` in a row."""
        flat = rows.reshape((-1, time))
        return pt.linalg.solve_triangular(residuals(time), flat.T, lower=True, unit_diagonal=True).T.reshape(rows.shape)

    def mean(shape: Shape) -> TensorVariable:
        return solve_residuals(along_time(m0, constant, shape).reshape((1, -1)), shape[-1]).reshape(tuple(shape))

    def root(shape: Shape) -> TensorVariable:
        # diag(s) R^-T, of the covariance R^-1 diag(s^2) R^-T.
        return solve_residuals(pt.diag(along_time(s0, sigma[..., None], shape).ravel()), shape[-1])

    def covariance(shape: Shape) -> TensorVariable:
        half = root(shape)
        return half.T @ half

    # Without a level the mean is zero, and takes no matrix.
    zero = all(get_underlying_scalar_constant_value(v, raise_not_constant=False) == 0 for v in (m0, constant))
    return Gaussian(None if zero else mean, covariance, root, (rho, sigma, s0))


def _from_precision(
    precision: Callable[[Shape], TensorVariable],
    mean: Callable[[Shape], TensorVariable] | None,
    covariance_inputs: tuple[TensorVariable, ...],
    log_excess: Callable[[Shape], TensorVariable],
    check: Callable[..., None],
) -> Gaussian:
    def root(shape: Shape) -> TensorVariable:
        # Q = L L^T has the inverse L^-T L^-1, whose root is L^-1.
        factor = pt.linalg.cholesky(precision(shape))
        return pt.linalg.solve_triangular(factor, pt.eye(shape[-1]), lower=True)

    def covariance(shape: Shape) -> TensorVariable:
        return pt.linalg.inv(precision(shape))

    return Gaussian(mean, covariance, root, covariance_inputs, log_excess, check)


def _conditional_autoregression(rv: TensorVariable) -> Gaussian:
    """Return the `Gaussian` of a CAR prior of precision tau (D - alpha W), with D the diagonal of the sums of W.

    PyMC's density lacks the constants -d log(2 pi) / 2 + log|D| / 2.
    """
    mean, weights, alpha, tau, _ = parameters_of(rv)

    def precision(shape: Shape) -> TensorVariable:
        w = _dense(weights)
        return _scalar(tau) * (pt.diag(w.sum(axis=0)) - _scalar(alpha) * w)

    def log_excess(shape: Shape) -> TensorVariable:
        sparse = isinstance(weights.type, SparseTensorType)
        neighbours = sp_sum(weights, axis=0) if sparse else _dense(weights).sum(axis=0)
        return 0.5 * shape[-1] * np.log(2 * np.pi) - 0.5 * pt.log(neighbours).sum()

    def check(name: str, value: InitialValue = constant_value, labels: Labels = None) -> None:
        require_car(name, weights, alpha, tau, value, labels)

    return _from_precision(precision, lambda shape: mean, (weights, alpha, tau), log_excess, check)


def _intrinsic_autoregression(rv: TensorVariable) -> Gaussian:
    """Return the `Gaussian` of an ICAR prior: differences of neighbours, and a soft constraint of the sum to zero.

    PyMC's density normalises the constraint alone.
    """
    weights, sigma, zero_sum_sd = parameters_of(rv)

    def sum_sd(shape: Shape) -> TensorVariable:
        return _scalar(zero_sum_sd) * shape[-1]

    def precision(shape: Shape) -> TensorVariable:
        # Q = (D - W) / sigma^2 + e e^T / s^2, with e of ones and s the standard deviation of the sum.
        below = pt.eq(pt.tril(_dense(weights)), 1).astype("float64")
        w, n = below + below.T, shape[-1]
        return (pt.diag(w.sum(axis=0)) - w) / _scalar(sigma) ** 2 + pt.ones((n, n)) / sum_sd(shape) ** 2

    def log_excess(shape: Shape) -> TensorVariable:
        # PyMC's constant (2 pi)^{-1/2} / s over the normalised density's, (2 pi)^{-d/2} |Q|^{1/2}.
        log_det = 2.0 * pt.log(pt.diagonal(pt.linalg.cholesky(precision(shape)))).sum()
        return 0.5 * (shape[-1] - 1) * np.log(2 * np.pi) - pt.log(sum_sd(shape)) - 0.5 * log_det

    def check(name: str, value: InitialValue = constant_value, labels: Labels = None) -> None:
        require_connected(name, weights, value, labels)

    return _from_precision(precision, None, (weights, sigma, zero_sum_sd), log_excess, check)


def _gaussian_markov(rv: TensorVariable) -> Gaussian:
    """Return the `Gaussian` of a field of sparse precision Q, whose covariance is the pseudoinverse Q^+.

    With the null space N of Q, in orthonormal columns, Q^+ = P (Q + q N N^T)^{-1} P, where P = I - N N^T, for any
    q > 0.
    """
    coefficients, log_det = parameters_of(rv)
    matrices = rv.owner.op.matrices
    nulls = pt.constant(matrices.null_space)

    def whole() -> TensorVariable:
        # Each place once: the gradient of an assignment counts all of its values.
        lower = pt.zeros((matrices.n, matrices.n))[pt.constant(matrices.rows), pt.constant(matrices.columns)]
        half = pt.set_subtensor(lower, pt.constant(matrices.basis) @ coefficients * (0.5 * matrices.twice))
        # Q + q N N^T, with q the mean of the diagonal of Q.
        dense = half + half.T
        return dense + pt.diagonal(dense).mean() * (nulls @ nulls.T) if len(matrices.pins) else dense

    def projected(rows: TensorVariable) -> TensorVariable:
        return rows - (rows @ nulls) @ nulls.T if len(matrices.pins) else rows

    def root(shape: Shape) -> TensorVariable:
        # L^-1 P, of the covariance P (L L^T)^-1 P.
        factor = pt.linalg.cholesky(whole())
        return projected(pt.linalg.solve_triangular(factor, pt.eye(matrices.n), lower=True))

    def covariance(shape: Shape) -> TensorVariable:
        return projected(projected(pt.linalg.inv(whole())).T)

    def check(name: str, value: InitialValue = constant_value, labels: Labels = None) -> None:
        coefficient_values = value(coefficients, False)
        require_definite_sum(name, matrices, coefficient_values, value(log_det, False), labels)
        if rv.owner.op.check is not None and coefficient_values is not None:
            rv.owner.op.check(name, coefficient_values)

    inputs = coefficients, log_det
    return Gaussian(None, covariance, root, inputs, check=check, degenerate=bool(len(matrices.pins)))


def _zero_sum_normal(rv: TensorVariable) -> Gaussian:
    """Return the `Gaussian` of independent normals minus their means along the last axes.

    The scale is constant along these axes.
    """
    sigma, _ = parameters_of(rv)

    def centred(scale: TensorVariable) -> Callable[[Shape], TensorVariable]:
        def graph(shape: Shape) -> TensorVariable:
            rows = pt.diag(pt.broadcast_to(scale, shape).ravel()).reshape((-1, *shape))
            for axis in range(rv.owner.op.ndim_supp):
                rows = rows - rows.mean(axis=-axis - 1, keepdims=True)
            return rows.reshape((pt.prod(shape), -1))

        return graph

    # sigma^2 P has the root sigma P, as the projection P = I - e e^T / n along each axis is its own square.
    return Gaussian(None, centred(sigma**2), centred(sigma), (sigma,), degenerate=True)


def block_diagonal(stack: TensorVariable) -> TensorVariable:
    """Return the block-diagonal matrix, (b k, b k), of matrices (b, k, k)."""
    b, k, _ = stack.shape
    place = pt.arange(b)
    return pt.set_subtensor(pt.zeros((b, b, k, k))[place, place], stack).swapaxes(1, 2).reshape((b * k, b * k))


def _dense(weights: TensorVariable) -> TensorVariable:
    """Return the adjacency matrix of areas as a dense one, without leading axes of length one."""
    if isinstance(weights.type, SparseTensorType):
        weights = dense_from_sparse(weights)
    return weights.reshape(weights.shape[-2:]).astype("float64")


def _scalar(parameter: TensorVariable) -> TensorVariable:
    return parameter.reshape(())


_READERS: dict[type, Callable[[TensorVariable], Gaussian | None]] = {
    NormalRV: _normal,
    FlatRV: flat_prior,
    MvNormal.rv_type: _mv_normal,
    MatrixNormal.rv_type: _matrix_normal,
    RandomWalkRV: _random_walk,
    AutoRegressiveRV: _autoregression,
    CARRV: _conditional_autoregression,
    ICARRV: _intrinsic_autoregression,
    GaussianMarkovRV: _gaussian_markov,
    ZeroSumNormalRV: _zero_sum_normal,
}
"""Function from a random variable to its `Gaussian`, by type of its Op; the first that matches is used."""
