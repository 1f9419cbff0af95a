"""Linear maps on arrays: the base class of all operators, their adjoints, compositions and stacks."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from math import prod
from operator import index
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from pymc_ep.exceptions import InvalidDataError

__all__ = ["MATRIX_LIMIT", "Adjoint", "Composition", "LinearMap", "Stack", "checked_shape", "stack"]

MATRIX_LIMIT = 2**24
"""Largest number of non-zeros of a matrix that `LinearMap.matrix` forms: 200 MB."""

RANK_LIMIT = 2**20
"""Largest number of entries of a matrix whose rank is computed from its singular values, in less than a second."""


class LinearMap:
    """A linear map A from arrays x of one shape to arrays A x of another shape, with its adjoint A'.

    Subclasses pass both shapes to ``__init__``, and define `_forward` and `_adjoint`. These methods get a C-contiguous
    float64 array of exactly the input shape, or the output shape, and return a new array. Subclasses override `matrix`
    and `_rank` if there is a faster way.

    Parameters
    ----------
    input_shape, output_shape : sequence of int
        See the attributes, also for `groups` and `orthonormal`.
    groups : ndarray of int, optional
    orthonormal : bool

    Attributes
    ----------
    input_shape, output_shape : tuple of int
        Shapes of x, with N elements, and of A x, with J elements.
    groups : ndarray of int, (J,), or None
        Group of each output element in C order, counted from 0; None if there is only one group.
    orthonormal : bool
        True if the rows of A, as a matrix (J, N), are orthonormal: A A' = I.
    few_entries : bool
        True if the result of `matrix`, where it is not None, is cheap and has few non-zeros.
    picks : bool
        True if each output element is a single element of the input.
    """

    few_entries = False
    picks = False

    period: int | None = None
    """Number of pixels after which translates of the map repeat, along each axis; None for maps without translates."""

    # Otherwise an ndarray to the left of `@` would treat the map as a scalar object.
    __array_ufunc__ = None

    def __init__(
        self,
        input_shape: Sequence[int],
        output_shape: Sequence[int],
        *,
        groups: np.ndarray | None = None,
        orthonormal: bool = False,
    ) -> None:
        self.input_shape: tuple[int, ...] = tuple(input_shape)
        self.output_shape: tuple[int, ...] = tuple(output_shape)
        self.groups = groups
        self.orthonormal = orthonormal

    def forward(self, x: ArrayLike) -> np.ndarray:
        """Return A x, of `output_shape`, for x of `input_shape`; raise InvalidDataError for any other shape."""
        return np.ascontiguousarray(self._forward(self._checked(x)))

    def adjoint(self, y: ArrayLike) -> np.ndarray:
        """Return A' y, of `input_shape`, for y of `output_shape`; raise InvalidDataError for any other shape."""
        return np.ascontiguousarray(self._adjoint(self.T._checked(y)))

    def translated(self, shift: Sequence[int]) -> "LinearMap":
        """Return the map on a grid moved by `shift`, (rows, columns); the map itself if its `period` is None."""
        return self

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise an InvalidDataError unless `shape` is the input shape."""
        if shape != self.input_shape:
            raise InvalidDataError(f"{self} takes arrays of shape {self.input_shape}, not {shape}.")

    def matrix(self) -> sp.csr_array | None:
        """Return A as a matrix, (J, N), for x and A x ravelled in C order; None if it would have too many non-zeros.

        This default returns None.
        """
        return None

    def squared_adjoint(self, y: ArrayLike) -> np.ndarray | None:
        """Return sum_j A_ji^2 y_j for each element i of x, in `input_shape`; None if the map has no fast method.

        With y, of `output_shape`, the variances of independent variables e_j, these are the variances of A' e.
        """
        return None

    def normal(self, weights: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
        """Return a function ``add(x, out)`` that adds A' diag(weights) A x to `out` in place, both of `input_shape`.

        Parameters
        ----------
        weights : ndarray, `output_shape`
        """

        def add(x: np.ndarray, out: np.ndarray) -> None:
            out += self.adjoint(weights * self.forward(x))

        return add

    def function_of_normal(
        self, weights: np.ndarray, function: Callable[[Any], Any]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the function x -> f(A' diag(weights) A) x, for preconditioners; None without a fast method.

        The result may be approximate.

        Parameters
        ----------
        weights : ndarray, `output_shape`
        function : callable
            f, applied to eigenvalues elementwise.
        """
        if not self.orthonormal:
            return None
        # With S = diag(weights) and A A^T = I, f(A^T S A) = f(0) I + A^T (f(S) - f(0) I) A.
        nothing = function(0.0)
        change = function(weights) - nothing
        return lambda x: nothing * x + self.adjoint(change * self.forward(x))

    @cached_property
    def rank(self) -> int | None:
        """Numerical rank, as `numpy.linalg.matrix_rank` counts it; None if the map is too large to compute it."""
        return self._rank()

    @cached_property
    def T(self) -> "LinearMap":
        """The adjoint as a map; its own `T` is this map again."""
        return Adjoint(self)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _rank(self) -> int | None:
        if prod(self.input_shape) * prod(self.output_shape) > RANK_LIMIT:
            return None
        matrix = self.matrix()
        return None if matrix is None else int(np.linalg.matrix_rank(matrix.toarray()))

    def _checked(self, x: ArrayLike) -> np.ndarray:
        self.check_shape(np.shape(x))
        return np.ascontiguousarray(x, dtype=np.float64)

    def __matmul__(self, other: object) -> "LinearMap":
        return Composition(self, other) if isinstance(other, LinearMap) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.input_shape} -> {self.output_shape})"


class Adjoint(LinearMap):
    """The adjoint of a map, as `LinearMap.T` gives it.

    Parameters
    ----------
    of : LinearMap
    """

    def __init__(self, of: LinearMap) -> None:
        # W W^T = I gives W^T W = I only where W is square.
        square = prod(of.input_shape) == prod(of.output_shape)
        super().__init__(of.output_shape, of.input_shape, orthonormal=of.orthonormal and square)
        self.of = of
        self.few_entries = of.few_entries

    def matrix(self) -> sp.csr_array | None:
        """Return the transposed matrix of the map; None if the map has none."""
        matrix = self.of.matrix()
        return None if matrix is None else matrix.T.tocsr()

    @property
    def T(self) -> LinearMap:
        """The map whose adjoint this is."""
        return self.of

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self.of.adjoint(x)

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return self.of.forward(y)

    def _rank(self) -> int | None:
        return self.of.rank

    def __repr__(self) -> str:
        return f"{self.of}.T"


class Composition(LinearMap):
    """The map ``outer @ inner``, which applies `inner` first, then `outer`; its groups are the groups of `outer`.

    Parameters
    ----------
    outer, inner : LinearMap
        The output shape of `inner` must be the input shape of `outer`.
    """

    def __init__(self, outer: LinearMap, inner: LinearMap) -> None:
        if outer.input_shape != inner.output_shape:
            raise InvalidDataError(
                f"{outer} @ {inner}: the left map takes arrays of shape {outer.input_shape}, the right one gives "
                f"{inner.output_shape}; compose them with a map in between, or make them of matching shapes."
            )
        both = outer.orthonormal and inner.orthonormal
        super().__init__(inner.input_shape, outer.output_shape, groups=outer.groups, orthonormal=both)
        self.outer, self.inner = outer, inner
        self.few_entries = outer.few_entries and inner.few_entries
        self.period = inner.period

    def translated(self, shift: Sequence[int]) -> LinearMap:
        """Return the composition with the inner map on the moved grid."""
        return Composition(self.outer, self.inner.translated(shift))

    def matrix(self) -> sp.csr_array | None:
        """Return the product of the two matrices; None unless both maps have one."""
        outer, inner = self.outer.matrix(), self.inner.matrix()
        return None if outer is None or inner is None else sp.csr_array(outer @ inner)

    def squared_adjoint(self, y: ArrayLike) -> np.ndarray | None:
        """Return sum_j A_ji^2 y_j by the inner map's fast method; None unless it has one and the outer map `picks`."""
        # Outer O picks from inner P: sum_j (O P)_ji^2 y_j = sum_k P_ki^2 (O^T y)_k, as rows of O P are rows of P.
        picked = self.outer.squared_adjoint(y) if self.outer.picks else None
        return None if picked is None else self.inner.squared_adjoint(picked)

    @cached_property
    def T(self) -> LinearMap:
        """The composition of the adjoints, in reverse order."""
        transposed = Composition(self.inner.T, self.outer.T)
        transposed.__dict__["T"] = self
        return transposed

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self.outer.forward(self.inner.forward(x))

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return self.inner.adjoint(self.outer.adjoint(y))

    def _rank(self) -> int | None:
        # Outer O, inner P: rank(O P) = rank(O) where P is onto, and rank(P) where O is one-to-one.
        if self.inner.rank == prod(self.inner.output_shape):
            return self.outer.rank
        if self.outer.rank == prod(self.outer.input_shape):
            return self.inner.rank
        return super()._rank()

    def __repr__(self) -> str:
        return f"{self.outer} @ {self.inner}"


class Stack(LinearMap):
    """Several maps of the same input, with outputs ravelled and joined; made by `stack`.

    The groups of the members are numbered consecutively. If any member has groups, each member without groups counts as
    one group.

    Parameters
    ----------
    members : sequence of LinearMap
        At least one; their input shapes must be equal.
    """

    def __init__(self, members: Sequence[LinearMap]) -> None:
        if not members:
            raise InvalidDataError("stack: no maps are given; give at least one.")
        for position, member in enumerate(members):
            if not isinstance(member, LinearMap):
                raise InvalidDataError(
                    f"stack: argument {position} is a {type(member).__name__}, not a linear map of this package; "
                    "adapt matrices and operators with as_linear_map(A, input_shape)."
                )
            if member.input_shape != members[0].input_shape:
                raise InvalidDataError(
                    f"stack: argument {position} takes arrays of shape {member.input_shape}, the first map "
                    f"{members[0].input_shape}; stacked maps act on the same array."
                )
        sizes = [prod(member.output_shape) for member in members]
        super().__init__(members[0].input_shape, (sum(sizes),), groups=_joined_groups(members, sizes))
        self.members = tuple(members)
        self.few_entries = all(member.few_entries for member in members)
        self.starts = [0, *np.cumsum(sizes).tolist()]

    def split(self, y: Any) -> list[Any]:
        """Return the members' outputs, each in its own shape, cut from `y`, (J,), a NumPy, JAX or symbolic array."""
        bounds = zip(self.starts[:-1], self.starts[1:])
        return [y[a:b].reshape(m.output_shape) for (a, b), m in zip(bounds, self.members)]

    def matrix(self) -> sp.csr_array | None:
        """Return the members' matrices, one above the other; None unless all members have one."""
        matrices = [member.matrix() for member in self.members]
        return None if any(m is None for m in matrices) else sp.csr_array(sp.vstack(matrices, format="csr"))

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([member.forward(x).ravel() for member in self.members])

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        # A = [A_1; ...; A_k] has A^T y = sum_j A_j^T y_j.
        first, *rest = (member.adjoint(output) for member, output in zip(self.members, self.split(y)))
        for other in rest:
            first += other
        return first

    def _rank(self) -> int | None:
        # The null space is the intersection of the members' null spaces.
        full = prod(self.input_shape)
        return full if any(member.rank == full for member in self.members) else super()._rank()

    def __repr__(self) -> str:
        return f"stack({', '.join(map(repr, self.members))})"


def stack(*maps: LinearMap) -> LinearMap:
    """Return the map that gives the outputs of several maps of the same input, ravelled and joined.

    Parameters
    ----------
    *maps : LinearMap
        At least one, of equal input shapes.

    Returns
    -------
    LinearMap
        With a flat output. The groups of the maps are numbered consecutively. If any map has groups, each map without
        groups counts as one group.
    """
    return Stack(maps)


def _joined_groups(members: Sequence[LinearMap], sizes: Sequence[int]) -> np.ndarray | None:
    if all(member.groups is None for member in members):
        return None
    joined: list[np.ndarray] = []
    start = 0
    for member, size in zip(members, sizes):
        groups = np.zeros(size, dtype=np.intp) if member.groups is None else member.groups
        joined.append(groups + start)
        start += int(groups.max(initial=-1)) + 1
    return np.concatenate(joined)


def checked_shape(shape: Iterable[int], name: str, *, sides: int | None = None) -> tuple[int, ...]:
    """Return a shape as a tuple of positive integers; raise InvalidDataError for anything else.

    Parameters
    ----------
    shape : sequence of int
    name : str
        Name of the map, with which the message begins.
    sides : int, optional
        Required length of the shape; by default any length but zero.
    """
    try:
        checked = tuple(index(side) for side in shape)
    except TypeError:
        checked = ()
    if not checked or min(checked) < 1 or (sides is not None and len(checked) != sides):
        wanted = "sides" if sides is None else f"{sides} sides"
        raise InvalidDataError(f"{name}: shape must be a tuple of {wanted}, each a positive integer; not {shape!r}.")
    return checked
