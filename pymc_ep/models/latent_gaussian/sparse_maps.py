"""Sparse linear maps from noise to predictors and variables, determined by few products with the model's graph.

The values of a block are divided into classes. Probes, vectors that are zero outside of one class, are mapped. An
output that depends on one value of the class alone shows this: a probe of ones gives the entry of the map, a probe of
1, 2, ... its place, and random probes verify that there is no other entry. Classes are the places along a short last
axis, as effects of groups have it, or the single values of a small block. Else they are drawn at random, and outputs
with two entries in one class are probed again with new classes. The outputs that remain, such as sums over a whole
block, are computed by the transposed map.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.sparse
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import CompiledFunction
from pymc_ep.graphs.jacobian_products import batch, pullback
from pymc_ep.models.latent_gaussian.form import LatentGaussian
from pymc_ep.models.latent_gaussian.prior_moments import push

__all__ = ["SparseMaps", "decoded", "masked", "parts_of", "probes_of"]

_MOST_PARTS = 8
"""Longest last axis of a block whose places are classes, such as the effects of a group."""
_SAME = 1e-12
"""Largest relative difference of two products that counts as rounding."""
_CLASSES, _ROUNDS = 16, 6
"""Number of random classes of a block, and number of times that they are drawn. In four of five draws, three entries of
a row are in three different classes, so that one row in ten thousand is left."""
_SMALL = 32
"""Largest block whose values are each a class of their own."""
_ROWS = 64
"""Largest number of rows of a map that are computed by the transposed map."""
_DENSE = 2**28
"""Largest number of entries, zeros included, of a map that is evaluated for each value of a block: some seconds."""

Target = tuple[str, TensorVariable]
"""Name and graph of a target that noise is mapped to."""


def probes_of(d: int) -> np.ndarray:
    """Return four probes, (4, d): ones, the numbers 1 to d, and two rows of random numbers."""
    rng = np.random.default_rng(0)
    return np.array([np.ones(d), np.arange(1.0, d + 1.0), rng.standard_normal(d), rng.standard_normal(d)])


def parts_of(shape: Sequence[int]) -> np.ndarray:
    """Return the class, (d,), of each of a block's d values: its place along a last axis of a few places, else 0.

    The class is 0 as well for a block of one axis.
    """
    count = shape[-1] if len(shape) > 1 and shape[-1] <= _MOST_PARTS else 1
    return np.arange(math.prod(shape)) % max(count, 1)


def masked(probes: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return the probes of each class, (4 classes, d), zero at the values of other classes.

    `probes` is (4, d), and `member`, (d,), has the class of each value.
    """
    classes = np.arange(member.max(initial=0) + 1)
    return (probes * (member == classes[:, None])[:, None]).reshape(4 * len(classes), len(member))


def decoded(rows: np.ndarray, probes: np.ndarray) -> tuple[np.ndarray, scipy.sparse.csr_array]:
    """Return a mask, (n,), of the outputs with at most one entry in each class, and the map, (d, n), to these outputs.

    Parameters
    ----------
    rows : ndarray, (classes, 4, n)
        Products of the map with the probes of each class.
    probes : ndarray, (4, d)
        Result of `probes_of`.
    """
    good = np.ones(rows.shape[2], dtype=bool)
    triples = []
    for entry, numbered, *drawn in rows:
        column = np.flatnonzero(entry)
        with np.errstate(invalid="ignore", over="ignore"):
            # A single entry a at place k gives a for ones, a (k + 1) for numbers and a g_k for random numbers g.
            place = np.rint(numbered[column] / entry[column]) - 1.0
        inside = (place >= 0) & (place < probes.shape[1])
        good[column[~inside]] = False
        column, place = column[inside], place[inside].astype(np.int64)
        for values, normal in zip(drawn, probes[2:]):
            expected = np.zeros_like(values)
            expected[column] = entry[column] * normal[place]
            good &= np.abs(values - expected) <= _SAME * np.abs(expected)
        triples.append((entry[column], place, column))
    values, places, columns = (np.concatenate(arrays) for arrays in zip(*triples))
    kept = good[columns]
    shape = probes.shape[1], len(good)
    return good, scipy.sparse.csr_array((values[kept], (places[kept], columns[kept])), shape=shape)


class SparseMaps:
    """Maps from the noise of all blocks to some targets, at any hyperparameters.

    Parameters
    ----------
    form : LatentGaussian
    compile_function : callable
        Takes inputs and outputs, returns the compiled function.
    targets : sequence of (str, TensorVariable)
        Name and graph of each target.
    """

    def __init__(
        self, form: LatentGaussian, compile_function: Callable[..., CompiledFunction], targets: Sequence[Target]
    ):
        self._form, self._compile = form, compile_function
        self._targets = list(targets)
        self._functions: dict[Any, CompiledFunction] = {}

    def at(self, theta: Sequence[np.ndarray], shapes: Sequence[Sequence[int]]) -> dict[str, scipy.sparse.csr_array]:
        """Return, by target, the sparse map, (width, p), from the p values of all blocks, for targets that have one.

        Parameters
        ----------
        theta : sequence of ndarray
            Unconstrained hyperparameters.
        shapes : sequence of shapes
            Shape of each block's noise.
        """
        widths = dict(zip(self._behind, map(int, self._widths(*theta))))
        by_block: dict[str, list[scipy.sparse.csr_array | None]] = {name: [] for name in widths}
        for j, shape in enumerate(shapes):
            d, names = math.prod(shape), [name for name, blocks in self._behind.items() if j in blocks]
            of_block = self._of_block(j, theta, shape, {name: widths[name] for name in names}) if names else {}
            for name, width in widths.items():
                nothing = scipy.sparse.csr_array((d, width))
                by_block[name].append(of_block[name] if name in names else nothing)
        return {
            name: scipy.sparse.csr_array(scipy.sparse.vstack(maps, format="csr").T.tocsr())
            for name, maps in by_block.items()
            if all(map_ is not None for map_ in maps)
        }

    @cached_property
    def _behind(self) -> dict[str, list[int]]:
        """Positions, in the form's blocks, of the blocks that each target depends on, by target."""
        behind = {name: set(ancestors([graph])) for name, graph in self._targets}
        return {name: [j for j, b in enumerate(self._form.blocks) if b.noise in behind[name]] for name in behind}

    @cached_property
    def _widths(self) -> CompiledFunction:
        sizes = [self._form.at_zero_noise(pt.as_tensor(graph).size) for _, graph in self._targets]
        return self._compile(self._form.hyper_values, sizes)

    def _of_block(
        self, j: int, theta: Sequence[np.ndarray], shape: Sequence[int], widths: dict[str, int]
    ) -> dict[str, scipy.sparse.csr_array | None]:
        """Return, by target, the map from block j, (d, width); None for a map that is not sparse."""
        d = math.prod(shape)
        probes = probes_of(d)
        out = {name: scipy.sparse.csr_array((d, width)) for name, width in widths.items()}
        left = {name: np.arange(width) for name, width in widths.items()}
        for member in _classes(shape):
            for name, rows in zip(widths, self._forward(j)(*theta, masked(probes, member))):
                if left[name].size:
                    rows = np.asarray(rows).reshape(-1, 4, widths[name])
                    good, decoded_map = decoded(rows[:, :, left[name]], probes)
                    out[name] = out[name] + _spread(decoded_map, left[name], widths[name])
                    left[name] = left[name][~good]
            if not any(rest.size for rest in left.values()):
                return dict(out)
        return {name: self._completed(j, theta, name, out[name], rest) for name, rest in left.items()}

    def _completed(
        self,
        j: int,
        theta: Sequence[np.ndarray],
        name: str,
        partial_map: scipy.sparse.csr_array,
        rest: np.ndarray,
    ) -> scipy.sparse.csr_array | None:
        """Return `partial_map`, (d, width), with columns `rest`, which probes left open; None if too large."""
        d, width = partial_map.shape
        if not rest.size:
            return partial_map
        if len(rest) <= _ROWS:
            # The columns of the map (d, width) that are left are A^T e_i of the targets A w, for i in `rest`.
            units = np.zeros((len(rest), width))
            units[np.arange(len(rest)), rest] = 1.0
            rows = self._backward(j, name)(*theta, units)
            return partial_map + _spread(scipy.sparse.csr_array(np.asarray(rows).reshape(-1, d).T), rest, width)
        if d * width > _DENSE:
            return None
        place = list(self._names(j)).index(name)
        columns = np.asarray(self._forward(j)(*theta, np.eye(d))[place])[:, rest]
        return partial_map + _spread(scipy.sparse.csr_array(columns), rest, width)

    def _names(self, j: int) -> Iterator[str]:
        return (name for name, blocks in self._behind.items() if j in blocks)

    def _forward(self, j: int) -> CompiledFunction:
        """Return the compiled function from rows of noise of one block to rows of the targets that depend on it."""
        if j not in self._functions:
            block, graphs = self._form.blocks[j], dict(self._targets)
            units = pt.matrix(f"{block.name}_units", dtype=block.noise.dtype)
            outputs = [self._form.at_zero_noise(push(units, graphs[name], block)) for name in self._names(j)]
            self._functions[j] = self._compile([*self._form.hyper_values, units], outputs)
        return self._functions[j]

    def _backward(self, j: int, name: str) -> CompiledFunction:
        """Return the compiled function from rows of cotangents of a target to rows of noise of one block."""
        if (j, name) not in self._functions:
            block, flat = self._form.blocks[j], pt.as_tensor(dict(self._targets)[name]).ravel()
            cotangent, rows = flat.type("cotangent"), pt.matrix("cotangents", dtype=flat.dtype)
            pulled = pullback(flat, block.noise, cotangent).ravel()
            output = self._form.at_zero_noise(batch(pulled, {cotangent: rows}))
            self._functions[j, name] = self._compile([*self._form.hyper_values, rows], output)
        return self._functions[j, name]


def _classes(shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield divisions of a block's values into classes, (d,) each, in the order in which they are tried."""
    yield parts_of(shape)
    d = math.prod(shape)
    if d <= _SMALL:
        yield np.arange(d)
        return
    rng = np.random.default_rng(0)
    for _ in range(_ROUNDS):
        yield rng.integers(_CLASSES, size=d)


def _spread(selected: scipy.sparse.csr_array, columns: np.ndarray, width: int) -> scipy.sparse.csr_array:
    """Return a map, (d, width), with the columns of `selected` at the places `columns`, and zeros elsewhere."""
    entries = selected.tocoo()
    return scipy.sparse.csr_array((entries.data, (entries.row, columns[entries.col])), shape=(selected.shape[0], width))
