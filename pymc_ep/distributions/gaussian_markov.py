"""Gaussian Markov random fields: Gaussian vectors with a sparse precision matrix."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.linalg
import scipy.sparse
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Continuous
from pymc.distributions.transforms import Transform, _default_transform
from pymc.logprob.abstract import _logprob
from pymc.model import modelcontext
from pytensor.graph.basic import Constant
from pytensor.tensor.random.op import RandomVariable
from scipy.sparse.csgraph import connected_components

from pymc_ep.compat import random_draw
from pymc_ep.distributions.log_determinant import LogDeterminant
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.numerics.sparse.matrix_sum import MatrixSum

__all__ = ["GaussianMarkov", "GaussianMarkovRV", "NullSpaceTransform", "require_between"]

_ASYMMETRY = 1e-8
"""Largest difference of opposite entries, relative to the largest entry, that counts as rounding."""
_NULL = 1e-8
"""Largest entry of Q N, relative to |Q| |N|, and of N^T x, relative to |x|, that counts as rounding."""


class GaussianMarkovRV(RandomVariable):
    """Op of `GaussianMarkov`, with two parameters: the coefficients, (K,), and the log determinant log |Q|_+.

    |Q|_+ is the product of the non-zero eigenvalues of Q.

    Parameters
    ----------
    matrices : MatrixSum
        The matrices M_k of Q = sum_k c_k M_k, and its null space.
    check : callable, optional
        ``check(name, coefficients)``, called with the coefficients at the start of a fit, may raise or warn.
    """

    name = "gaussian_markov"
    _print_name = ("GaussianMarkov", "\\operatorname{GaussianMarkov}")
    __props__ = ("matrices", "dtype", "inplace")

    def __init__(
        self,
        matrices: MatrixSum,
        dtype: str = "float64",
        inplace: bool = False,
        check: Callable[[str, np.ndarray], None] | None = None,
    ):
        self.matrices, self.check = matrices, check
        super().__init__(name=self.name, signature="(k),()->(n)", dtype=dtype, inplace=inplace)

    def _supp_shape_from_params(self, dist_params: Any, param_shapes: Any = None) -> tuple[Any, ...]:
        return (pt.constant(self.matrices.n, dtype="int64"),)

    def rng_fn(self, rng: np.random.Generator, coefficients: Any, log_det: Any, size: Any) -> np.ndarray:
        """Draw fields, (*size, n)."""
        batch = np.broadcast_shapes(coefficients.shape[:-1], np.shape(log_det)) if size is None else tuple(size)
        if coefficients.ndim == 1:
            return self.matrices.draw(coefficients, int(np.prod(batch)), rng).reshape(*batch, self.matrices.n)
        rows = np.broadcast_to(coefficients, (*batch, coefficients.shape[-1])).reshape(-1, coefficients.shape[-1])
        return np.concatenate([self.matrices.draw(row, 1, rng) for row in rows]).reshape(*batch, self.matrices.n)


@_logprob.register(GaussianMarkovRV)
def _gaussian_markov_logp(op: GaussianMarkovRV, values: Any, *inputs: Any, **kwargs: Any) -> Any:
    (value,), (coefficients, log_det), of = values, inputs[2:], op.matrices
    # -((n - k) log(2 pi) - log |Q|_+ + x^T Q x) / 2; x^T Q x has entries below the diagonal twice.
    entries = pt.constant(of.basis) @ coefficients * of.twice
    # As variables: PyTensor would look at plain indices one by one, in Python.
    square = (entries * value[..., pt.constant(of.rows)] * value[..., pt.constant(of.columns)]).sum(axis=-1)
    density = -0.5 * (of.rank * np.log(2.0 * np.pi) - log_det + square)
    if not len(of.pins):
        return density
    outside = pt.abs(value @ pt.constant(of.null_space)).max(axis=-1)
    within = pt.le(outside, _NULL * np.sqrt(of.n) * (1.0 + pt.abs(value).max(axis=-1)))
    return check_parameters(density, within, msg="x is orthogonal to null_space")


class NullSpaceTransform(Transform):
    """Isometric coordinates, (n - k,), of vectors that are orthogonal to N, (n, k): x = H_1 ... H_k [0; z].

    H_1 to H_k are the Householder reflections of the QR factorisation of N. Their product is ``I - V T V^T`` (Schreiber
    and Van Loan 1989).
    """

    name = "null_space"

    def __init__(self, null_space: np.ndarray):
        (packed, tau), _ = scipy.linalg.qr(null_space, mode="raw")
        k = null_space.shape[1]
        v = np.tril(packed[:, :k], -1)
        v[np.arange(k), np.arange(k)] = 1.0
        t = np.zeros((k, k))
        # H_1 ... H_{j+1} = I - V T V^T by a new column of T: -tau_j T V^T v_j above tau_j.
        for j in range(k):
            t[:j, j] = -tau[j] * (t[:j, :j] @ (v[:, :j].T @ v[:, j]))
            t[j, j] = tau[j]
        self._v, self._t = v, t

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return z, (..., n - k), of x, (..., n)."""
        v, t = pt.constant(self._v), pt.constant(self._t)
        # The last entries of (I - V T V^T)^T x, as rows.
        return (value - ((value @ v) @ t) @ v.T)[..., self._t.shape[0] :]

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return x, (..., n), of z, (..., n - k)."""
        v, t = pt.constant(self._v), pt.constant(self._t)
        zeros = pt.zeros((*(value.shape[axis] for axis in range(value.ndim - 1)), self._t.shape[0]))
        padded = pt.concatenate([zeros, value], axis=-1)
        # (I - V T V^T) [0; z], as rows.
        return padded - ((padded @ v) @ t.T) @ v.T

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return zero: the map is an isometry."""
        return value.sum(axis=-1).zeros_like()


@_default_transform.register(GaussianMarkovRV)
def _null_space_transform(op: GaussianMarkovRV, rv: Any) -> NullSpaceTransform | None:
    return NullSpaceTransform(op.matrices.null_space) if len(op.matrices.pins) else None


class GaussianMarkov(Continuous):
    r"""Gaussian vector with a sparse precision matrix: a Gaussian Markov random field [1]_.

    .. math:: x \sim N(0, Q^{-1}), \qquad Q = \sum_k c_k(\theta) M_k

    Values whose entry of Q is zero are independent given all others. A field whose Q has vectors N with Q N = 0 is
    intrinsic: it has density on the vectors orthogonal to N alone, with the pseudo-inverse of Q as its covariance.

    Parameters
    ----------
    name : str
    precision : sparse matrix, or sequence of (tensor_like, sparse matrix)
        Q, (n, n), symmetric, as SciPy's sparse matrix or an array, or the pairs (c_k, M_k). Coefficients are scalars
        that may depend on hyperparameters, such as ``[(tau, D), (-tau * alpha, W)]``.
    null_space : array_like, (n, k), optional
        Columns N, independent, which all M_k map to zero: ones for a field of differences.
    log_det : tensor_like, optional
        log |Q|, or the log product of the eigenvalues except the zeros of N, where a formula is known. By default it is
        computed by a Cholesky factor, in each evaluation if there are several terms.
    check : callable, optional
        ``check(name, c)``, called with the coefficients c, (K,), at the start of a fit, may raise or warn.
    **kwargs
        Keywords of the variable, such as ``dims="node"``.

    Raises
    ------
    InvalidDataError
        For matrices that are not square, of different sizes, not symmetric or not finite, for Q that is singular
        without `null_space`, and where Q N is not zero; the message names the entry.

    References
    ----------
    .. [1] H. Rue and L. Held (2005), Gaussian Markov random fields.

    Examples
    --------
    >>> with pm.Model(coords={"area": areas}):
    ...     tau, alpha = pm.Gamma("tau", 2, 1), pm.Beta("alpha", 4, 1)
    ...     phi = pmep.GaussianMarkov("phi", precision=[(tau, D), (-tau * alpha, W)], dims="area")
    """

    rv_type = GaussianMarkovRV

    def __new__(cls, name: str, precision: Any, **kwargs: Any) -> Any:
        """Add the field to the model."""
        _, first = _pairs(precision)[0]
        _require_length(name, first.shape[0], **kwargs)
        try:
            return super().__new__(cls, name, precision, **kwargs)
        except InvalidDataError as error:
            raise InvalidDataError(f"{name!r}: {error}") from None

    @classmethod
    def rv_op(cls, *parameters: Any, op: GaussianMarkovRV, size: Any = None, rng: Any = None) -> Any:
        """Return the random variable."""
        return random_draw(op, *parameters, size=size, rng=rng)[1]

    @classmethod
    def dist(
        cls, precision: Any, *, null_space: Any = None, log_det: Any = None, check: Any = None, **kwargs: Any
    ) -> Any:
        """Return a variable of this distribution outside of any model."""
        pairs = _pairs(precision)
        coefficients = pt.stack([_coefficient(k, c) for k, (c, _) in enumerate(pairs)])
        terms = [_checked(k, matrix) for k, (_, matrix) in enumerate(pairs)]
        sizes = [matrix.shape[0] for matrix in terms]
        if len(set(sizes)) > 1:
            raise InvalidDataError(f"the matrices of precision= have {sizes} rows; give all the same number.")
        matrices = MatrixSum(terms, None if null_space is None else _checked_null_space(null_space, sizes[0]))
        _require_null_space(matrices)
        if log_det is None and len(terms) == 1:
            # log |c M|_+ = (n - k) log c + log |M|_+.
            log_det = matrices.rank * pt.log(coefficients[0]) + _constant_log_det(matrices)
        elif log_det is None:
            log_det = LogDeterminant(matrices)(coefficients)[0]
        parameters = coefficients, pt.as_tensor_variable(log_det).astype("float64")
        variable = super().dist(parameters, op=GaussianMarkovRV(matrices, check=check), **kwargs)
        if variable.ndim > 1:
            raise InvalidDataError("shape= and dims= of a field have one axis; write each field as its own variable.")
        return variable

    def support_point(rv: Any, size: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value: zeros."""
        return pt.zeros(rv.owner.op.matrices.n)


def require_between(name: str, what: str, parameter: Any, most: float, cure: str) -> None:
    """Raise InvalidDataError for a parameter that is not scalar, and for a constant not between zero and `most`."""
    if parameter.ndim:
        raise InvalidDataError(f"{what}= of {name!r} has {parameter.ndim} axes, and is one number.")
    if isinstance(parameter, Constant) and not 0.0 < parameter.data < most:
        high = "" if most == np.inf else f" and below {most:g}"
        raise InvalidDataError(f"{name!r} has {what} = {parameter.data:.6g}, which must be above 0{high}. {cure}")


def _pairs(precision: Any) -> Sequence[tuple[Any, Any]]:
    return precision if isinstance(precision, Sequence) else [(1.0, precision)]


def _require_length(name: str, n: int, *, dims: Any = None, shape: Any = None, **kwargs: Any) -> None:
    """Raise InvalidDataError where dims or a shape do not have the length n."""
    given, what = shape, "shape="
    if dims is not None:
        last = dims if isinstance(dims, str) else dims[-1]
        coords, what = modelcontext(None).coords.get(last), f"the dim {last!r}"
        given = None if coords is None else len(coords)
    length = given[-1] if isinstance(given, Sequence) and given else given
    if isinstance(length, int | np.integer) and length != n:
        raise InvalidDataError(f"{name!r} has {n} values, but {what} has the length {length}; give both the same.")


def _coefficient(k: int, coefficient: Any) -> Any:
    c = pt.as_tensor_variable(coefficient).astype("float64")
    if c.ndim:
        raise InvalidDataError(
            f"coefficient {k} of precision= has {c.ndim} axes and is one number; write values of each node into "
            f"matrices of their own."
        )
    return c


def _checked(k: int, matrix: Any) -> scipy.sparse.csr_array:
    """Return a matrix of the precision; raise unless it is square, finite and symmetric."""
    m = scipy.sparse.csr_array(matrix, dtype=float)
    if m.ndim != 2 or m.shape[0] != m.shape[1]:
        raise InvalidDataError(f"matrix {k} of precision= has the shape {m.shape}, and a precision is square.")
    for entries, wrong, what in (
        (coo := m.tocoo(), ~np.isfinite(coo.data), "is not finite"),
        (unequal := abs(m - m.T).tocoo(), unequal.data > _ASYMMETRY * abs(m).max(), "is not that of its transpose"),
    ):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            i, j = int(entries.row[first]), int(entries.col[first])
            raise InvalidDataError(
                f"matrix {k} of precision= is {m[i, j]:.6g} at index ({i}, {j}), which {what}. Give a finite and "
                f"symmetric matrix, whole, such as (M + M.T) / 2."
            )
    return m


def _checked_null_space(null_space: Any, n: int) -> np.ndarray:
    vectors = np.asarray(null_space, dtype=float)
    vectors = vectors[:, None] if vectors.ndim == 1 else vectors
    if vectors.ndim != 2 or len(vectors) != n or np.linalg.matrix_rank(vectors) < vectors.shape[1]:
        raise InvalidDataError(
            f"null_space= has the shape {vectors.shape}, and needs independent columns of {n} values each."
        )
    return vectors


def _require_null_space(matrices: MatrixSum) -> None:
    """Raise unless all M_k N = 0, and the span of N has the indicator e of each group with M_k e = 0 for all k.

    A group is a set of nodes that entries of the M_k connect.
    """
    n, nulls = matrices.n, matrices.null_space
    largest = np.abs(matrices.basis).max()
    residual = np.abs(matrices.times(nulls)).max(axis=(1, 2), initial=0.0)
    if residual.max() > _NULL * largest:
        node = int(residual.argmax())
        raise InvalidDataError(
            f"null_space= is none of precision=: their product is {residual[node]:.3g} at node {node}, and must be "
            f"zero."
        )
    edges = scipy.sparse.csr_array((np.ones(len(matrices.rows)), (matrices.rows, matrices.columns)), shape=(n, n))
    count, component = connected_components(edges, directed=False)
    sums = np.abs(matrices.times(np.ones((n, 1)))).max(axis=(1, 2))
    free = np.bincount(component, sums, minlength=count) <= _NULL * largest
    # The part of a component's level that the null space does not have.
    # |e|^2 - |N^T e|^2 for the indicator e of each component.
    member = scipy.sparse.csr_array((np.ones(n), (component, np.arange(n))), shape=(count, n))
    remainder = np.bincount(component, minlength=count) - ((member @ nulls) ** 2).sum(axis=1)
    if (wrong := free & (remainder > _NULL * n)).any():
        node = int(np.flatnonzero(component == np.flatnonzero(wrong)[0])[0])
        raise InvalidDataError(
            f"the rows of precision= at node {node}, and at those connected with it, sum to zero: it leaves their "
            f"level free. Give null_space=, such as np.ones(n), or one column a connected group, or a larger diagonal."
        )


def _constant_log_det(matrices: MatrixSum) -> float:
    log_det, _ = matrices.log_determinant(np.ones(1))
    if not np.isfinite(log_det):
        node = matrices.failed_node(np.ones(1))
        raise InvalidDataError(
            f"precision= is not positive definite: its factor fails at node {node}. Correct it, or where it is zero "
            f"along some vectors, give these as null_space=."
        )
    return log_det
