"""Modes of PyTensor for functions that NumPy runs, and the implementation of kernels that belongs to a mode."""

import warnings
from collections.abc import Sequence
from functools import cache, reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import scipy.special
from pytensor.compile.mode import Mode, get_mode, optdb
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery
from pytensor.link.basic import JITLinker
from pytensor.link.c.basic import CLinker
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import Add, Cast, Clip, Composite, Mul, Second, second
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor import constant, exp, expm1, log, log1p, maximum, minimum, switch
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedSubtensor

__all__ = ["KeptMode", "bodies_of", "mode_of", "numpy_mode", "quick_mode", "rewritten", "with_compiler"]

_MODES = "give 'NUMBA', 'JAX', or 'CVM' for C."


class KeptMode(Mode):
    """A mode that lives as long as the process, and whose compiled functions are shared by graphs of one structure.

    It queries PyTensor's database for its rewrites once, and again after further rewrites have been registered: a query
    takes milliseconds, as long as a small function takes to compile.
    """

    _queried: tuple[int, Any] = (-1, None)

    @property
    def optimizer(self) -> Any:
        """The rewrites of the mode."""
        registered = _registered(self.optdb)
        if self._queried[0] != registered:
            self._queried = registered, super().optimizer
        return self._queried[1]


_QUERIED: dict[tuple[str, ...], tuple[int, Any]] = {}
"""Results of queries for rewrites, by the tags queried; each after the number of all rewrites at the time."""


def rewritten(graph: Any, *including: str, clone: bool = False) -> Any:
    """Return a graph after rewrites of PyTensor with tags `including`, in place or on a clone; see `rewrite_graph`."""
    registered = _registered(optdb)
    if including not in _QUERIED or _QUERIED[including][0] != registered:
        _QUERIED[including] = registered, optdb.query(RewriteDatabaseQuery(include=including))
    fgraph = FunctionGraph(outputs=[graph], clone=clone)
    _QUERIED[including][1].rewrite(fgraph)
    return fgraph.outputs[0]


def _registered(database: RewriteDatabase) -> int:
    """Return the number of rewrites of a database and of the databases in it."""
    count = len(database._names)
    return count + sum(map(_registered, _databases_in(database, count)))


@cache
def _databases_in(database: RewriteDatabase, count: int) -> tuple[RewriteDatabase, ...]:
    """Return the databases in a database; its number of entries, `count`, is part of the cache's key."""
    entries = {id(entry): entry for tagged in database.__db__.values() for entry in tagged}
    return tuple(entry for entry in entries.values() if isinstance(entry, RewriteDatabase))


@cache
def numpy_mode(*excluding: str) -> Mode:
    """Return a mode that rewrites as PyTensor's default does but runs each op by NumPy, compiling nothing.

    A model's own functions are called some dozens of times on large arrays: NumPy runs them about as fast
    as compiled code would, and the tens of seconds of a first compilation are saved. Elementwise ops must
    then not be fused, since a fused op would be run element by element in Python. Rewrites may be left out by name.
    """
    linker = VMLinker(use_cloop=False, c_thunks=False)
    # PyTensor 3.3 takes columns of a sum of zeros and of a broadcast row for arrays of one value that must be of many.
    left_out = ("fusion", "inplace", "local_subtensor_of_alloc", *excluding)
    mode = KeptMode(linker=linker, optimizer="fast_run").excluding(*left_out)
    rewrites = ((_one_index, 48.8), (_as_ufuncs, 48.9), (_as_calls, 99))
    return mode.register(*((dfs_rewriter(rewrite), position) for rewrite, position in rewrites))


@cache
def quick_mode(*including: str) -> Mode:
    """Return a mode for functions that are called a few times: hardly rewritten, and run as in `numpy_mode`.

    Rewrites may be added by name.
    """
    quick = get_mode("FAST_COMPILE")
    mode = KeptMode(linker=quick.provided_linker, optimizer=quick.provided_optimizer).including(*including)
    return mode.register((dfs_rewriter(_as_ufuncs), 48.9))


def mode_of(compile_kwargs: dict[str, Any] | None) -> Any:
    """Return the entry ``"mode"`` of keywords of `pytensor.function`; None without one.

    Raises
    ------
    TypeError
        If the keywords are no dict.
    """
    if compile_kwargs is None:
        return None
    if not isinstance(compile_kwargs, dict):
        raise TypeError(f"compile_kwargs= is {compile_kwargs!r}, which is no dict; for a mode give {{'mode': 'JAX'}}.")
    return compile_kwargs.get("mode")


def bodies_of(mode: Mode | str | None) -> str:
    """Return the implementation ("bodies") of kernels for a mode: "c", "jax", "numba" or "numpy"; "auto" without one.

    Raises
    ------
    ValueError
        For a value that is no mode of PyTensor, and for modes in which kernels have no bodies, such as PyTorch's.
    """
    if mode is None:
        return "auto"
    try:
        linker = get_mode(mode).linker
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"compile_kwargs= asks for {mode!r}, which is no mode of PyTensor; {_MODES}") from error
    if isinstance(linker, JAXLinker):
        return "jax"
    if isinstance(linker, NumbaLinker):
        return "numba"
    if isinstance(linker, CLinker | JITLinker):
        raise ValueError(f"compile_kwargs= asks for the mode {mode!r}, in which fits have no bodies; {_MODES}")
    return "c" if getattr(linker, "c_thunks", False) and pytensor.config.cxx else "numpy"


def with_compiler(compile_kwargs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return keywords of compilation that ask for Numba in place of C where PyTensor has no compiler.

    Warns
    -----
    UserWarning
        In that case.
    """
    mode = mode_of(compile_kwargs)
    without = bodies_of(mode) == "numpy" and getattr(get_mode(mode).linker, "c_thunks", False)
    if not without:
        return compile_kwargs
    warnings.warn(
        f"compile_kwargs= asks for the mode {mode!r}, and PyTensor has no C compiler: Numba compiles instead. Install "
        f"one, such as g++, or ask for 'NUMBA'.",
        stacklevel=2,
    )
    return {**(compile_kwargs or {}), "mode": "NUMBA"}


class _AsType(Op):
    """A cast by NumPy."""

    __props__ = ("dtype",)

    def __init__(self, dtype: str):
        self.dtype = dtype

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type.clone(dtype=self.dtype)()])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Sequence[list[np.ndarray]]) -> None:
        output_storage[0][0] = inputs[0].astype(self.dtype)


class _Fill(Op):
    """The second of two arrays, broadcast to the common shape of both, by NumPy."""

    __props__ = ()

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [Elemwise(second)(x, y).type()])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Sequence[list[np.ndarray]]) -> None:
        output_storage[0][0] = np.array(np.broadcast_arrays(*inputs)[1], dtype=node.outputs[0].dtype)


def _unfused(fused: Composite, inputs: Sequence[Any]) -> list:
    """Return the outputs of a fused op as single elementwise ops: PyTensor builds whole powers as fused ops."""
    replacements = dict(zip(fused.fgraph.inputs, inputs))
    for inner in fused.fgraph.toposort():
        arguments = [constant(v.data) if isinstance(v, Constant) else replacements[v] for v in inner.inputs]
        replacements |= dict(zip(inner.outputs, Elemwise(inner.op)(*arguments, return_list=True)))
    return [replacements[v] for v in fused.fgraph.outputs]


@node_rewriter([Elemwise])
def _as_ufuncs(fgraph: FunctionGraph, node: Apply) -> list | None:
    """Replace elementwise ops without a NumPy ufunc, which PyTensor would run element by element in Python."""
    scalar_op = node.op.scalar_op
    target = node.outputs[0].dtype
    if isinstance(scalar_op, Cast):
        return [_AsType(target)(node.inputs[0])]
    if isinstance(scalar_op, Second):
        return [_Fill()(*node.inputs)]
    if isinstance(scalar_op, Composite):
        return _unfused(scalar_op, node.inputs)
    if isinstance(scalar_op, Softplus):
        x = node.inputs[0]
        return [(maximum(x, 0.0) + log1p(exp(-abs(x)))).astype(target)]
    if isinstance(scalar_op, Log1mexp):
        (x,) = node.inputs
        half = constant(np.log(0.5), dtype=target)
        # The arguments are clipped so that the branch not taken stays finite.
        low, high = log1p(-exp(minimum(x, half))), log(-expm1(maximum(x, half)))
        return [switch(x < half, low, high).astype(target)]
    if isinstance(scalar_op, Clip):
        x, low, high = node.inputs
        return [minimum(maximum(x, low), high).astype(node.outputs[0].dtype)]
    if isinstance(scalar_op, Add | Mul) and len(node.inputs) > 2:
        return [reduce(node.op, node.inputs).astype(node.outputs[0].dtype)]
    return None


class _Ufunc(Op):
    """An elementwise operation by one call of a NumPy ufunc.

    `Elemwise` looks for the function, switches off warnings and converts results at each call, which takes six times as
    long as a ufunc does at a hundred numbers. `_LockedFunction` switches off warnings once for all operations.

    Parameters
    ----------
    elemwise : Elemwise
    """

    __props__ = ("elemwise",)

    def __init__(self, elemwise: Elemwise):
        self.elemwise = elemwise

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, list(inputs), [v.type() for v in self.elemwise.make_node(*inputs).outputs])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Sequence[list[np.ndarray]]) -> None:
        self.elemwise.perform(node, inputs, output_storage)

    def make_thunk(
        self, node: Apply, storage_map: Any, compute_map: Any, no_recycling: Any, impl: str | None = None
    ) -> Any:
        """Return a function of no arguments that computes the output from the inputs' storage."""
        function, dtype = _function(self.elemwise), np.dtype(node.outputs[0].dtype)
        inputs, output = [storage_map[v] for v in node.inputs], storage_map[node.outputs[0]]
        computed, require_shapes = compute_map[node.outputs[0]], self.elemwise._check_runtime_broadcast
        patterns = [v.type.broadcastable for v in node.inputs]
        lengths = [[i for i, pattern in enumerate(patterns) if not pattern[axis]] for axis in range(len(patterns[0]))]
        pairs = [(axis, *pair) for axis, indices in enumerate(lengths) for pair in pairwise(indices)]

        def thunk() -> None:
            values = [storage[0] for storage in inputs]
            for axis, left, right in pairs:
                if values[left].shape[axis] != values[right].shape[axis]:
                    require_shapes(node, values)
            result = function(*values)
            # Of scalars it is a NumPy scalar, and of some types a wider one.
            same = result.__class__ is np.ndarray and result.dtype == dtype
            output[0] = result if same else np.asarray(result, dtype=dtype)
            computed[0] = True

        thunk.inputs, thunk.outputs, thunk.lazy = inputs, [output], False  # type: ignore[attr-defined]
        return thunk


def _function(elemwise: Elemwise) -> Any:
    """Return the function of NumPy or SciPy for an elementwise operation; None where it has none."""
    if elemwise.nfunc_spec is None:
        return None
    name = elemwise.nfunc_spec[0].rpartition("scipy.special.")[2]
    return getattr(scipy.special if "." in elemwise.nfunc_spec[0] else np, name, None)


@node_rewriter([Elemwise])
def _as_calls(fgraph: FunctionGraph, node: Apply) -> list | None:
    """Rewrite elementwise operations that are one call of a ufunc, or of `numpy.where`, into these calls.

    Operations on integers are left as they are, as PyTensor's types of results may differ from NumPy's.
    """
    function = _function(node.op)
    if not (isinstance(function, np.ufunc) or function is np.where) or node.op.inplace_pattern:
        return None
    values = node.inputs[1:] if function is np.where else node.inputs
    whole = any(not v.dtype.startswith("float") for v in values)
    if whole or node.op.nfunc_spec[1:] != (len(node.inputs), 1):
        return None
    return _Ufunc(node.op)(*node.inputs, return_list=True)


@node_rewriter([Blockwise])
def _one_index(fgraph: FunctionGraph, node: Apply) -> list | None:
    """Rewrite an index that is the same for all rows, which `Blockwise` takes row by row, into one index of all."""
    if not isinstance(node.op.core_op, AdvancedSubtensor) or len(node.inputs) != 2:
        return None
    rows, index = node.inputs
    dims = rows.type.ndim - 1
    same = index.type.ndim == dims + 1 and all(index.type.broadcastable[:dims])
    of_vectors = node.op.batch_ndim(node) == dims and not any(rows.type.broadcastable[:dims])
    if not (same and of_vectors and index.dtype.startswith("int")):
        return None
    # x[b, i_j] for all rows b, where i has no axis of rows.
    return [rows[(slice(None),) * dims + (index[(0,) * dims],)]]
