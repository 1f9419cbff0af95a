"""Sparse precision matrices of PyMC's Gaussian distributions.

The pattern of a precision, the places of its entries, follows from the distribution, its shape and its data. The values
of the entries are a graph of the parameters. Dense matrices are formed only for the vectors of a stack. Log
determinants follow from structure where a factor would lose digits: the precision of a walk or an autoregression is
Q = L^T D^-1 L with L unit triangular and D diagonal, so that log |Q| = -sum_i log D_i.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
import scipy.sparse
from pymc.distributions.continuous import FlatRV
from pymc.distributions.multivariate import CARRV, ICARRV, MvNormal
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.gaussian_markov import GaussianMarkovRV
from pymc_ep.graphs.adjacency import laplacian_of, log_pseudo_determinant, sparse_value
from pymc_ep.graphs.random_nodes import parameters_of

__all__ = ["SparsePrecision", "sparse_precision_of"]

_LARGEST_BLOCK = 64
"""Largest length of the vectors of a stack whose dense precisions are blocks of a sparse one."""

Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SparsePrecision:
    """Precision Q, (d, d), of a Gaussian random variable x, ravelled to d values.

    Attributes
    ----------
    rows, columns : ndarray of int, (e,)
        Places of the entries in the lower triangle, row >= column, each once; the whole diagonal is included.
    values : TensorVariable, (e,)
        Q at these places.
    log_det : TensorVariable, (), optional
        log |Q|, zero for a flat prior. None where it has to be computed from a factor of Q.
    log_excess : TensorVariable, ()
        log of the factor by which PyMC's density of the variable exceeds the normalised one.
    sum_sd : TensorVariable, (), optional
        Standard deviation s of a soft constraint on the sum of x. The precision of the prior is then Q + e e^T / s^2,
        with e of ones, and `log_det` is its log determinant.
    null_space : ndarray, (d, k), optional
        Orthonormal columns N with Q N = 0 and N^T x = 0; `log_det` is taken on the vectors orthogonal to N.
    inverted : bool
        Whether the variable's dense covariance, if needed, is computed as the inverse of a dense precision.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: TensorVariable
    log_det: TensorVariable | None
    log_excess: TensorVariable
    sum_sd: TensorVariable | None = None
    null_space: np.ndarray | None = None
    inverted: bool = False

    @property
    def constraints(self) -> np.ndarray:
        """Weights e, (d, k), of constrained sums e^T x: `null_space`, or ones where `sum_sd` is given; else k = 0."""
        d = int(self.rows.max()) + 1
        if self.null_space is not None:
            return self.null_space
        return np.ones((d, 0 if self.sum_sd is None else 1))

    def graphs(self) -> dict[str, TensorVariable | None]:
        """Return the fields that are graphs of the parameters, by name."""
        return {name: getattr(self, name) for name in ("values", "log_det", "log_excess", "sum_sd")}

    def scaled(self, s: TensorVariable) -> "SparsePrecision | None":
        """Return the precision of s x, for s () or (d,), whose values are ``Q_ij / (s_i s_j)``.

        None where s has an element for each value and sums of x are constrained.
        """
        if s.ndim and self.constraints.size:
            return None
        d = int(self.rows.max()) + 1 - (0 if self.null_space is None else self.null_space.shape[1])
        by_row, by_column = (s[self.rows], s[self.columns]) if s.ndim else (s, s)
        # log |Q| - 2 sum_i log |s_i|; one s counts for all d values, less the constraints N.
        log_scales = pt.log(pt.abs(s)).sum() * (1 if s.ndim else d)
        return replace(
            self,
            values=self.values / (by_row * by_column),
            log_det=None if self.log_det is None else self.log_det - 2.0 * log_scales,
            sum_sd=None if self.sum_sd is None else self.sum_sd * pt.abs(s),
        )

    def mixed(self, matrix: TensorVariable, shape: Sizes, *, of_columns: bool) -> "SparsePrecision | None":
        """Return the precision of w = v M, (g, k), with v the rows, or the columns, of a variable.

        With N = M^-1 and q_ic the precision of v_ic, row i of w has the precision ``P_ab = sum_c N_ac q_ic N_bc``. None
        where values of the variable are correlated a priori, or where k is too large for a dense precision.

        Parameters
        ----------
        matrix : TensorVariable, (k, k)
            M.
        shape : tuple of int
            Shape of the variable: (g, k), or (k, g) where v are its columns.
        of_columns : bool
            Whether v are the columns of the variable.
        """
        k = shape[0] if of_columns else shape[1]
        if k > _LARGEST_BLOCK or not np.array_equal(self.rows, self.columns):
            return None
        row, column = np.tril_indices(k)
        inverse, precisions = pt.linalg.inv(matrix), self.values.reshape(shape)
        values = (precisions.T if of_columns else precisions) @ (inverse[row] * inverse[column]).T
        count = int(np.prod(shape)) // k
        # |M^-1 diag(q_i) M^-T| = |diag(q_i)| / |M|^2 for each of g rows or columns.
        log_det = None if self.log_det is None else self.log_det - 2.0 * count * pt.linalg.slogdet(matrix)[1]
        rows, columns = _block_places(count, row, column)
        return replace(self, rows=rows, columns=columns, values=values.ravel(), log_det=log_det)


def _block_places(count: int, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the entries of `count` diagonal blocks, each with entries at places (row, column)."""
    first = (row.max() + 1) * np.arange(count)[:, None]
    return (first + row).ravel(), (first + column).ravel()


def sparse_precision_of(rv: TensorVariable, shape: Sizes) -> SparsePrecision | None:
    """Return the sparse precision of a random variable, or None where it has none.

    Parameters
    ----------
    rv : TensorVariable
        Random variable. Its data, such as an adjacency matrix, are read at their present values.
    shape : tuple of int
        Shape of the variable.
    """
    op = rv.owner.op
    reader = next((read for op_type, read in _READERS.items() if isinstance(op, op_type)), None)
    return None if reader is None else reader(rv, shape)


def _diagonal(values: TensorVariable, log_det: TensorVariable, log_excess: TensorVariable, d: int) -> SparsePrecision:
    place = np.arange(d)
    return SparsePrecision(place, place, values, log_det, log_excess)


def _normal(rv: TensorVariable, shape: Sizes) -> SparsePrecision:
    _, sigma = parameters_of(rv)
    precision = pt.broadcast_to(sigma**-2.0, shape).ravel()
    return _diagonal(precision, pt.log(precision).sum(), pt.constant(0.0), int(np.prod(shape)))


def _flat(rv: TensorVariable, shape: Sizes) -> SparsePrecision:
    d = int(np.prod(shape))
    # Density 1, against (2 pi)^{-d/2} by a log |Q| that counts as zero.
    return _diagonal(pt.zeros(d), pt.constant(0.0), pt.constant(0.5 * d * np.log(2 * np.pi)), d)


def _mv_normal(rv: TensorVariable, shape: Sizes) -> SparsePrecision | None:
    """Return the precision of a stack of vectors, with a dense block for each; None where the vectors are too long."""
    _, covariance = parameters_of(rv)
    k = shape[-1]
    if k > _LARGEST_BLOCK:
        return None
    count = int(np.prod(shape[:-1]))
    inverse = pt.linalg.inv(covariance)
    row, column = np.tril_indices(k)
    values = pt.broadcast_to(inverse[..., row, column], (*shape[:-1], len(row))).ravel()
    # log |Q| = -2 sum_i log L_ii over all vectors, with L L^T their covariances.
    # The factor of the model's graph is that of its own parameter, where there is one.
    pivots = pt.log(pt.diagonal(pt.linalg.cholesky(covariance), axis1=-2, axis2=-1)).sum(axis=-1)
    log_det = -2.0 * pt.broadcast_to(pivots, shape[:-1]).sum()
    return SparsePrecision(*_block_places(count, row, column), values, log_det, pt.constant(0.0))


def _random_walk(rv: TensorVariable, shape: Sizes) -> SparsePrecision | None:
    """Return the precision of a random walk x_t = x_{t-1} + innovation; None where it is not made of scalar normals."""
    first, innovation, _ = rv.owner.inputs
    if not all(isinstance(v.owner.op, NormalRV) for v in (first, innovation)):
        return None
    *batch, time = shape
    (_, s0), (_, s1) = map(parameters_of, (first, innovation))
    # Residuals x_0 and x_t - x_{t-1}, of the precisions 1 / s0^2 and 1 / s1^2.
    # Time is the first axis of both parts: (1, *batch) and (time - 1, *batch).
    deviations = [pt.broadcast_to(s0, (1, *batch)), pt.broadcast_to(s1, (time - 1, *batch))]
    precision = pt.moveaxis(pt.concatenate(deviations) ** -2.0, 0, -1)
    return _banded(precision, [pt.constant(1.0), pt.constant(-1.0)], shape)


def _autoregression(rv: TensorVariable, shape: Sizes) -> SparsePrecision | None:
    """Return the precision of an autoregression x_t = sum_k rho_k x_{t-k} + innovation.

    None where rho is no vector, or the first values are not normal.
    """
    rho, sigma, first, *_ = parameters_of(rv)
    if rho.ndim != 1 or not isinstance(first.owner.op, NormalRV):
        return None
    op, (*batch, time) = rv.owner.op, shape
    _, s0 = parameters_of(first)
    weights = rho[1:] if op.constant_term else rho
    starts = pt.broadcast_to(s0, (*batch, op.ar_order))
    steps = pt.broadcast_to(sigma[..., None], (*batch, time - op.ar_order))
    precision = pt.concatenate([starts, steps], axis=-1) ** -2.0
    return _banded(precision, [pt.constant(1.0), *(-weights[k] for k in range(op.ar_order))], shape)


def _banded(precision: TensorVariable, residual: list[TensorVariable], shape: Sizes) -> SparsePrecision:
    """Return the precision of series along the last axis whose residuals are independent.

    The residual at time t is x_t for t < p, and ``sum_k a_k x_{t-k}``, k = 0 to p, from t = p on. It has the precision
    w_t. Hence ``Q_{t,t-j} = sum_k a_k a_{k+j} w_{t+k}``, over the k with t + k >= p; for t < p the diagonal has w_t in
    addition.

    Parameters
    ----------
    precision : TensorVariable, `shape`
        Precisions w_t of the residuals.
    residual : list of TensorVariable, ()
        Weights a_0 = 1 to a_p in the residuals.
    shape : tuple of int
        Shape of the variable.
    """
    time, order = shape[-1], len(residual) - 1
    place, rows, columns, values = np.arange(int(np.prod(shape))).reshape(shape), [], [], []
    later = pt.set_subtensor(precision[..., :order], 0.0)
    for lag in range(min(order, time - 1) + 1):
        band = pt.zeros((*shape[:-1], time - lag))
        for k in range(min(order - lag, time - lag - 1) + 1):
            # The residual at time t + k holds x_t with a_k and x_{t-lag} with a_{k+lag}; t runs from lag.
            term = residual[k] * residual[k + lag] * later[..., lag + k :]
            band = pt.inc_subtensor(band[..., : time - lag - k], term)
        if lag == 0:
            band = pt.inc_subtensor(band[..., :order], precision[..., :order])
        rows.append(place[..., lag:].ravel())
        columns.append(place[..., : time - lag].ravel())
        values.append(band.ravel())
    # Residuals are a unit triangular map of x, so that |Q| = prod_t w_t.
    log_det = pt.log(precision).sum()
    return SparsePrecision(
        np.concatenate(rows), np.concatenate(columns), pt.concatenate(values), log_det, pt.constant(0.0)
    )


def _may_change(weights: TensorVariable) -> bool:
    """Whether an adjacency matrix has data that `pymc.set_data` may change, so that no pattern is read from it."""
    return any(isinstance(v, SharedVariable) for v in ancestors([weights]))


def _conditional_autoregression(rv: TensorVariable, shape: Sizes) -> SparsePrecision | None:
    """Return the precision tau (D - alpha W) of a CAR prior, with D the diagonal of the sums of the weights W.

    PyMC's density lacks the constants -d log(2 pi) / 2 + log|D| / 2. None for a stack of vectors, and where W may
    change.
    """
    _, weights, alpha, tau, _ = parameters_of(rv)
    w = None if _may_change(weights) else sparse_value(weights)
    if w is None or len(shape) > 1:
        return None
    d, neighbours = shape[0], w.sum(axis=0)
    below = scipy.sparse.tril(w, -1).tocoo()
    rows, columns = np.concatenate([np.arange(d), below.row]), np.concatenate([np.arange(d), below.col])
    alpha, tau = alpha.reshape(()), tau.reshape(())
    # tau (D - alpha W): its diagonal, then the entries below.
    diagonal = pt.constant(neighbours) - alpha * pt.constant(w.diagonal())
    values = tau * pt.concatenate([diagonal, -alpha * pt.constant(below.data)])
    excess = 0.5 * d * np.log(2 * np.pi) - 0.5 * np.log(neighbours).sum()
    places = rows.astype(np.int64), columns.astype(np.int64)
    return SparsePrecision(*places, values, None, pt.constant(excess), inverted=True)


def _intrinsic_autoregression(rv: TensorVariable, shape: Sizes) -> SparsePrecision | None:
    """Return the precision R / sigma^2 of an ICAR prior, with R the graph Laplacian, and its constraint on the sum.

    With s the standard deviation of the sum, e of ones, and |R|+ the product of the nonzero eigenvalues of R,

        |R / sigma^2 + e e^T / s^2| = |R|+ sigma^{-2 (d - 1)} d / s^2.

    PyMC's density normalises the constraint alone. None for a stack of vectors, and where the weights may change.
    """
    weights, sigma, zero_sum_sd = parameters_of(rv)
    w = None if _may_change(weights) else sparse_value(weights)
    if w is None or len(shape) > 1:
        return None
    d, laplacian = shape[0], laplacian_of(w)
    lower = scipy.sparse.tril(laplacian).tocoo()
    sigma, sd = sigma.reshape(()), zero_sum_sd.reshape(()) * d
    log_det = log_pseudo_determinant(laplacian) - 2.0 * (d - 1) * pt.log(sigma) + np.log(d) - 2.0 * pt.log(sd)
    # PyMC's constant (2 pi)^{-1/2} / s over the normalised density's, (2 pi)^{-d/2} |R / sigma^2 + e e^T / s^2|^{1/2}.
    excess = 0.5 * (d - 1) * np.log(2 * np.pi) - pt.log(sd) - 0.5 * log_det
    values = pt.constant(lower.data) * sigma**-2.0
    places = lower.row.astype(np.int64), lower.col.astype(np.int64)
    return SparsePrecision(*places, values, log_det, excess, sd, inverted=True)


def _gaussian_markov(rv: TensorVariable, shape: Sizes) -> SparsePrecision:
    coefficients, log_det = parameters_of(rv)
    matrices = rv.owner.op.matrices
    # Q = sum_k c_k M_k.
    values = pt.constant(matrices.basis) @ coefficients
    nulls = matrices.null_space if len(matrices.pins) else None
    places, no_excess = (matrices.rows, matrices.columns), pt.constant(0.0)
    return SparsePrecision(*places, values, log_det, no_excess, null_space=nulls, inverted=True)


_READERS: dict[type, Callable[[TensorVariable, Sizes], SparsePrecision | None]] = {
    NormalRV: _normal,
    FlatRV: _flat,
    MvNormal.rv_type: _mv_normal,
    RandomWalkRV: _random_walk,
    AutoRegressiveRV: _autoregression,
    CARRV: _conditional_autoregression,
    ICARRV: _intrinsic_autoregression,
    GaussianMarkovRV: _gaussian_markov,
}
"""Function from a random variable and its shape to its precision, by type of its Op; the first that matches is used."""
