"""Linear maps from noise that are free of hyperparameters, cached as long as the data stay the same.

A_j, (d_j, n), maps block j to the predictors; other maps lead to affine variables. With A_j constant, the standard
normals of block j enter the predictors through R_j = root_j A_j, and only root_j, often a diagonal, is evaluated and
differentiated at each value of the hyperparameters. Where each predictor depends on few coefficients (groups, crossed
effects), A is stored as a sparse matrix.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.sparse
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import CompiledFunction, compiled_property
from pymc_ep.models.latent_gaussian.form import LatentGaussian
from pymc_ep.models.latent_gaussian.precision_design import PrecisionDesign, precision_graphs
from pymc_ep.models.latent_gaussian.prior_moments import deviations_of, push
from pymc_ep.models.latent_gaussian.sparse_maps import SparseMaps, decoded, masked, parts_of, probes_of
from pymc_ep.models.latent_gaussian.values import AffineMoments
from pymc_ep.numerics.gaussian.block_elimination import Blocks
from pymc_ep.numerics.gaussian.coefficient_space import FactorPrior
from pymc_ep.numerics.gaussian.sparse_coefficient_space import EntryPattern, SparseFactorPrior
from pymc_ep.numerics.memory import CHUNK
from pymc_ep.numerics.sparse.row_pairs import count_row_pairs

__all__ = ["Design", "DesignMatrix", "VaryingPattern"]

_MAX_DENSITY = 0.1
"""Largest fraction of nonzero entries of R, (p, n), for sparse algebra.

With one thread a sparse posterior took 1.5 times the time of a dense one at fractions of 0.17 to 0.2 (p = 61 to 241,
n = 1000 and 2000), and 0.1 to 0.8 of it below 0.05."""
_MIN_PRODUCTS = 5e5
"""p^2 n below which algebra is dense whatever the fraction of nonzeros.

With one thread a dense posterior took 0.07 ms at 3e5, a sparse one 0.09; at 8e5 they took 0.13 and 0.10 ms."""
_MAX_STORED, _MAX_ENTRIES = 2**22, 2**25
"""Largest number of doubles in a cached dense design, 32 MiB, and of nonzeros in a sparse one, 400 MiB.

They trade memory for time: larger maps are not cached, but evaluated at each value of the hyperparameters, zeros
included."""
_MOST_PAIRS = 2**27
"""Largest number of pairs of unknowns that share a predictor, summed over predictors, for a sparse precision: 5 GB."""


class VariableMap:
    """The constant map from the noise of all blocks to one affine variable.

    Parameters
    ----------
    entries : csr_array, (size, d)
        The map, with d the number of values of all blocks.
    """

    def __init__(self, entries: scipy.sparse.csr_array):
        self._values, self._pattern = entries.data, EntryPattern(entries)

    def moments(self, mean: np.ndarray, roots: Sequence[np.ndarray]) -> AffineMoments:
        """Return the variable's prior moments, from its mean and the roots, diagonals (d_j,) or matrices (k_j, d_j)."""
        # With x = E[x] + X w and w = R^T z, Cov(x, z) = X R^T and Var(x_i) = sum_k (X R^T)_ik^2.
        size = self._pattern.predictors
        if all(root.ndim == 1 for root in roots):
            values = self._values * np.concatenate(roots)[self._pattern.column]
            variance = np.bincount(self._pattern.row, values**2, minlength=size)
            return AffineMoments(mean, self._pattern.filled(values), variance)
        entries = self._pattern.filled(self._values).toarray()
        ends = np.cumsum([root.shape[-1] for root in roots])
        blocks = [
            block * root if root.ndim == 1 else block @ root.T
            for block, root in zip(np.split(entries, ends[:-1], axis=1), roots)
        ]
        cross = np.concatenate(blocks, axis=1)
        return AffineMoments(mean, cross, (cross**2).sum(axis=1))


class DesignMatrix:
    """The constant maps A_j, (d_j, n), of all blocks to the predictors, and maps to affine variables.

    Parameters
    ----------
    maps : sequence of csr_array, (d_j, n)
    flat : sequence of bool
        Whether the prior of each block is flat.
    sparse : bool
        Whether to store A as a sparse matrix; all roots must then be diagonal.
    variables : dict of str to VariableMap
        Constant maps to affine variables, by name.
    """

    def __init__(
        self,
        maps: Sequence[scipy.sparse.csr_array],
        flat: Sequence[bool],
        *,
        sparse: bool,
        variables: dict[str, VariableMap],
    ):
        self.sparse = sparse
        self.variables = variables
        self._flat = flat
        self._splits = np.cumsum([map_.shape[0] for map_ in maps])[:-1]
        entries = scipy.sparse.vstack(maps, format="csr").T.tocsr() if sparse else None
        self._sparse = None if entries is None else (entries.data, EntryPattern(entries))
        self._dense = [] if sparse else [map_.toarray() for map_ in maps]

    @property
    def blocks(self) -> Blocks | None:
        """The division of the coefficients into blocks by which their precision is factored; None where it is dense."""
        return None if self._sparse is None else self._sparse[1].blocks

    def prior(self, roots: Sequence[np.ndarray]) -> FactorPrior | SparseFactorPrior:
        """Return the prior of the predictors from the roots, diagonals (d_j,) or matrices (k_j, d_j)."""
        precision = np.concatenate([np.full(len(root), 0.0 if f else 1.0) for root, f in zip(roots, self._flat)])
        if self._sparse is not None:
            values, pattern = self._sparse
            return SparseFactorPrior(values * np.concatenate(roots)[pattern.column], pattern, precision)
        rows = [root[:, None] * a if root.ndim == 1 else root @ a for root, a in zip(roots, self._dense)]
        return FactorPrior(rows[0] if len(rows) == 1 else np.concatenate(rows), precision)

    def root_cotangents(self, cotangent: np.ndarray, roots: Sequence[TensorVariable]) -> list[np.ndarray]:
        """Return the gradient in each root from the gradient in R, or in its entries for sparse algebra."""
        # d f / d root = (d f / d R) A^T, and its diagonal sum_i (d f / d R_ki) A_ki for a diagonal root.
        if self._sparse is not None:
            values, pattern = self._sparse
            total = np.bincount(pattern.column, cotangent * values, minlength=pattern.coefficients)
            return np.split(total, self._splits)
        ends = np.cumsum([len(a) for a in self._dense])
        out = []
        for a, rows, root in zip(self._dense, np.split(cotangent, ends[:-1]), roots):
            out.append(np.einsum("ij,ij->i", rows, a) if root.ndim == 1 else rows @ a.T)
        return out


class VaryingPattern:
    """Sparsity pattern of R, (p, n), which maps coefficients to predictors, where it depends on hyperparameters.

    Parameters
    ----------
    rows : ndarray, (p, n)
        R at hyperparameters at which only structural zeros are zero.
    """

    def __init__(self, rows: np.ndarray):
        self.shape = rows.shape
        self._pattern = EntryPattern(scipy.sparse.csr_array(rows.T))

    def prior(self, rows: np.ndarray, precision: np.ndarray) -> FactorPrior | SparseFactorPrior:
        """Return the prior for R at any hyperparameters; dense where R has entries outside of the pattern."""
        values = rows[self._pattern.column, self._pattern.row]
        few = is_sparse(len(values), *self.shape) and np.count_nonzero(rows) == np.count_nonzero(values)
        return SparseFactorPrior(values, self._pattern, precision) if few else FactorPrior(rows, precision)

    def cotangent(self, cotangent: np.ndarray) -> np.ndarray:
        """Return the gradient in R, (p, n), from the gradient in its entries, the values of a sparse prior."""
        rows = np.zeros(self.shape)
        rows[self._pattern.column, self._pattern.row] = cotangent
        return rows


def is_sparse(entries: int, p: int, n: int) -> bool:
    """Whether sparse algebra is used for a matrix R, (p, n), with this number of nonzero entries."""
    return entries < _MAX_DENSITY * p * n and p * p * n > _MIN_PRODUCTS


class Design:
    """Cache of the constant maps of a form, for as long as its data stay the same.

    Parameters
    ----------
    form : LatentGaussian
    compile_function : callable
        Takes inputs and outputs, returns the compiled function.
    """

    def __init__(self, form: LatentGaussian, compile_function: Callable[..., CompiledFunction]):
        self._form = form
        self._compile = compile_function
        self._data: list[Any] | None = None
        self._matrix: DesignMatrix | None = None
        self._sparse_data: list[Any] | None = None
        self._sparse_design: PrecisionDesign | None = None
        self._pattern: VaryingPattern | None = None

    @compiled_property
    def roots(self) -> list[TensorVariable]:
        """Root of each block: standard deviations, (d,), of independent noise, else the matrix, (k, d)."""
        pairs = [(deviations_of(block), block.root) for block in self._form.blocks]
        return [self._form.at_zero_noise(root if sd is None else sd) for sd, root in pairs]

    @compiled_property
    def precisions(self) -> list[TensorVariable]:
        """Arrays of a sparse precision, as `precision_graphs` gives them."""
        return precision_graphs(self._form)

    @cached_property
    def _units(self) -> list[TensorVariable]:
        return [pt.matrix(f"{block.name}_units", dtype=block.noise.dtype) for block in self._form.blocks]

    @cached_property
    def _targets(self) -> list[tuple[str, TensorVariable]]:
        """Names and graphs to which noise is mapped: the predictors, whose name is empty, and affine variables."""
        return [("", self._form.predictor), *((v.name, v.numerator) for v in self._form.affine if v.block is None)]

    @cached_property
    def _places(self) -> list[tuple[str, int]]:
        """For each of `_graphs`, the name of its target and the number of a block on which the target depends."""
        behind = {name: set(ancestors([graph])) for name, graph in self._targets}
        blocks = list(enumerate(self._form.blocks))
        # The predictors are mapped from every block, which may be zero.
        return [(name, j) for name, _ in self._targets for j, b in blocks if not name or b.noise in behind[name]]

    @compiled_property
    def _graphs(self) -> list[TensorVariable]:
        graphs = dict(self._targets)
        return [
            self._form.at_zero_noise(push(self._units[j], graphs[name], self._form.blocks[j]))
            for name, j in self._places
        ]

    @compiled_property
    def _evaluate(self) -> CompiledFunction:
        """Compiled function from rows of noise, one matrix a block, to `_graphs`."""
        return self._compile([*self._form.hyper_values, *self._units], self._graphs)

    @cached_property
    def _varying(self) -> set[str]:
        """Names of the targets whose maps depend on hyperparameters."""
        graph = self._evaluate.graph
        hyper = set(graph.inputs[: len(self._form.hyper_values)])
        return {name for (name, _), out in zip(self._places, graph.outputs) if not hyper.isdisjoint(ancestors([out]))}

    @property
    def constant(self) -> bool:
        """Whether the map to the predictors depends on no hyperparameter."""
        return "" not in self._varying

    @cached_property
    def _shared(self) -> list[SharedVariable]:
        """Shared data on which the maps depend, and data that set the lengths of blocks.

        The identity map of a block to itself depends on no data, but its size does.
        """
        lengths = [pt.as_tensor(n) for block in self._form.blocks for n in block.shape]
        return [v for v in ancestors([*self._graphs, *lengths]) if isinstance(v, SharedVariable)]

    def present(
        self,
        theta: Callable[[], Sequence[np.ndarray]],
        shapes: Callable[[], Sequence[Sequence[int]]],
    ) -> DesignMatrix | None:
        """Return the maps for the current data; None where they are not constant, or too large to cache.

        Parameters
        ----------
        theta, shapes : callable
            Functions without arguments: the first returns any values of the hyperparameters, the second the shape of
            each block's noise.
        """
        if not self.constant:
            return None
        data = [v.get_value(borrow=True) for v in self._shared]
        if self._data is None or any(new is not old for new, old in zip(data, self._data)):
            self._matrix = self._evaluate_maps(theta(), shapes())
            self._data = data
        return self._matrix

    def sparse(
        self, theta: Callable[[], Sequence[np.ndarray]], shapes: Sequence[Sequence[int]]
    ) -> PrecisionDesign | None:
        """Return the maps from unknowns of sparse precision for the current data; None if not constant, or not sparse.

        `theta` is a function as in `present`; `shapes` are the shapes of the blocks' noise themselves.
        """
        if not self.constant:
            return None
        data = [v.get_value(borrow=True) for v in self._shared]
        if self._sparse_data is None or any(new is not old for new, old in zip(data, self._sparse_data)):
            maps = self._sparse_maps.at(theta(), shapes)
            constant = {name: map_ for name, map_ in maps.items() if name not in self._varying}
            feasible = "" in constant and count_row_pairs(constant[""].indptr) <= _MOST_PAIRS
            self._sparse_design = PrecisionDesign(self._form, shapes, constant) if feasible else None
            self._sparse_data = data
        return self._sparse_design

    @cached_property
    def _sparse_maps(self) -> SparseMaps:
        return SparseMaps(self._form, self._compile, self._targets)

    def varying_prior(
        self, rows: np.ndarray, precision: np.ndarray, perturbed_rows: Callable[[], np.ndarray]
    ) -> FactorPrior | SparseFactorPrior:
        """Return the prior for R, (p, n), from maps that are not constant or not cached.

        Parameters
        ----------
        rows : ndarray, (p, n)
        precision : ndarray, (p,)
            Prior precision of the coefficients: 1, or 0 where the prior is flat.
        perturbed_rows : callable
            Returns R at other hyperparameters; an entry that is zero there is taken for a structural zero.
        """
        if not is_sparse(int(np.count_nonzero(rows)), *rows.shape):
            return FactorPrior(rows, precision)
        if self._pattern is None or self._pattern.shape != rows.shape:
            self._pattern = VaryingPattern(perturbed_rows())
        return self._pattern.prior(rows, precision)

    def varying_cotangent(self, cotangent: np.ndarray) -> np.ndarray:
        """Return the gradient in R, (p, n), from the gradient in the array of a prior that `varying_prior` returned."""
        return cotangent if self._pattern is None or cotangent.ndim == 2 else self._pattern.cotangent(cotangent)

    def _evaluate_maps(self, theta: Sequence[np.ndarray], shapes: Sequence[Sequence[int]]) -> DesignMatrix | None:
        probed, widths = self._probed(theta, shapes)
        sizes = [math.prod(shape) for shape in shapes]
        # A block whose rows are all known, or all evaluated, is given a row of zeros.
        left: dict[tuple[str, int], list[scipy.sparse.csr_array]] = {
            place: [] for place in self._places if place not in probed
        }
        wanted = {j for _, j in left}
        ends = [d if j in wanted else 0 for j, d in enumerate(sizes)]
        start, step = 0, max(1, CHUNK // max(1, len(sizes) * sum(widths.values())))
        entries = sum(matrix.nnz for matrix in probed.values())
        while start < max(ends) and entries <= _MAX_ENTRIES:
            units = [
                np.eye(max(1, min(start + step, end) - start), d, k=start if start < end else d)
                for d, end in zip(sizes, ends)
            ]
            for (name, j), rows in zip(self._places, self._evaluate(*theta, *units)):
                if start < ends[j] and (name, j) in left:
                    left[name, j].append(scipy.sparse.csr_array(rows))
                    entries += left[name, j][-1].nnz
            start += step
        if entries > _MAX_ENTRIES:
            return None
        all_maps = probed | {place: scipy.sparse.vstack(rows, format="csr") for place, rows in left.items()}
        n = widths[""]
        maps = [all_maps["", j] for j in range(len(sizes))]
        filled = sum(map_.nnz for map_ in maps)
        sparse = is_sparse(filled, sum(sizes), n) and all(root.ndim == 1 for root in self.roots)
        if not sparse and sum(sizes) * n > _MAX_STORED:
            return None
        variables = {}
        for name, width in widths.items():
            if name and name not in self._varying:
                rows = [
                    all_maps[name, j] if (name, j) in all_maps else scipy.sparse.csr_array((d, width))
                    for j, d in enumerate(sizes)
                ]
                variables[name] = VariableMap(scipy.sparse.vstack(rows, format="csr").T.tocsr())
        return DesignMatrix(maps, [block.flat for block in self._form.blocks], sparse=sparse, variables=variables)

    def _probed(
        self, theta: Sequence[np.ndarray], shapes: Sequence[Sequence[int]]
    ) -> tuple[dict[tuple[str, int], scipy.sparse.csr_array], dict[str, int]]:
        """Return maps, (d, width), by target and block, and the width of each target by name.

        A map is returned only if each value of the target depends on one value at most in each part of the block.
        """
        probes = [probes_of(math.prod(shape)) for shape in shapes]
        inputs = [masked(kinds, parts_of(shape)) for kinds, shape in zip(probes, shapes)]
        maps, widths = {}, {}
        for (name, j), rows in zip(self._places, self._evaluate(*theta, *inputs)):
            rows = np.asarray(rows).reshape(-1, 4, rows.shape[1])
            widths[name] = rows.shape[2]
            good, map_ = decoded(rows, probes[j])
            if good.all():
                maps[name, j] = map_
        return maps, widths
