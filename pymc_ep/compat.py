"""Every difference between PyMC 5 with ArviZ 0.x and PyMC 6 with ArviZ 1, and nothing else.

The switch is the installed version of PyMC, never that of Python: a user on a new Python who pins
ArviZ below 1 gets PyMC 5.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, reduce
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.progress_bar import CustomProgress, default_progress_theme
from pytensor.compile.mode import Mode, get_mode, optdb
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import Add, Cast, Clip, Mul, Second, second
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor import constant, exp, expm1, log, log1p, maximum, minimum, random, switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import indices_from_subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

__all__ = [
    "PYMC_6",
    "Cholesky",
    "Container",
    "ElpdData",
    "KeptMode",
    "MatrixInverse",
    "c_mode",
    "dim_names",
    "elpd_data",
    "group",
    "group_names",
    "has_group",
    "indexed_first",
    "indices_of",
    "inlined",
    "largest_rhat",
    "make_container",
    "numpy_mode",
    "pareto_shape",
    "progress",
    "quick_mode",
    "random_draw",
    "restore_observed",
    "rewritten",
    "solve_triangular",
    "to_dataset",
]

Container = Any
"""Container of a result: `arviz.InferenceData` with PyMC 5, `xarray.DataTree` with PyMC 6."""
ElpdData = Any
"""Result of ArviZ's `loo`: a Series with PyMC 5, a dataclass with PyMC 6."""

PYMC_6: bool = int(pm.__version__.split(".")[0]) >= 6
"""True with PyMC 6, PyTensor 3 and ArviZ 1; False with PyMC 5, PyTensor 2 and ArviZ 0.x."""

if PYMC_6:
    from pytensor.compile.rewriting import inline_ofg_node
    from pytensor.tensor.linalg import Cholesky, MatrixInverse, solve_triangular
else:
    from pytensor.tensor.nlinalg import MatrixInverse
    from pytensor.tensor.slinalg import Cholesky, solve_triangular


# PyMC


def restore_observed(model: pm.Model) -> None:
    """Remove repeats from a model's list of observed variables.

    `pymc.sample_posterior_predictive` of PyMC 5.28 extends that list, in place, by the variables in the result's group
    ``observed_data``: the model's density counts them twice from then on.
    """
    unique = list(dict.fromkeys(model.observed_RVs))
    if len(unique) < len(model.observed_RVs):
        list.__setitem__(model.observed_RVs, slice(None), unique)  # PyMC's own `__setitem__` raises


# PyTensor


def c_mode() -> str:
    """Return the name of PyTensor's mode that compiles to C (the default of the older stack only)."""
    return "CVM" if PYMC_6 else "FAST_RUN"


class KeptMode(Mode):
    """A mode that lives as long as the process, whose functions graphs of one structure share.

    It asks PyTensor's database for its rewrites once, and again where some have been registered: the query takes
    milliseconds, as long as a small function takes to compile.
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
"""Rewrites by their names, with the number of all when they were asked for."""


def rewritten(graph: Any, *including: str, clone: bool = False) -> Any:
    """Return a graph after some of PyTensor's rewrites, in place or on a copy, as `rewrite_graph` does."""
    registered = _registered(optdb)
    if including not in _QUERIED or _QUERIED[including][0] != registered:
        _QUERIED[including] = registered, optdb.query(RewriteDatabaseQuery(include=including))
    fgraph = FunctionGraph(outputs=[graph], clone=clone)
    _QUERIED[including][1].rewrite(fgraph)
    return fgraph.outputs[0]


def _registered(database: RewriteDatabase) -> int:
    """Return the number of rewrites of a database and of those in it."""
    count = len(database._names)
    return count + sum(map(_registered, _databases_in(database, count)))


@cache
def _databases_in(database: RewriteDatabase, count: int) -> tuple[RewriteDatabase, ...]:
    """Return the databases among the `count` entries of another."""
    entries = {id(entry): entry for found in database.__db__.values() for entry in found}
    return tuple(entry for entry in entries.values() if isinstance(entry, RewriteDatabase))


@cache
def numpy_mode(*excluding: str) -> Mode:
    """Return a mode that rewrites as PyTensor's default does but runs each op by NumPy, compiling nothing.

    A model's own functions are called some dozens of times on large arrays: NumPy runs them about as fast
    as compiled code would, and the tens of seconds of a first compilation are saved. Elementwise ops must
    then not be fused, since a fused op would be run element by element in Python. Rewrites may be left out by name.
    """
    linker = VMLinker(use_cloop=False, c_thunks=False)
    mode = KeptMode(linker=linker, optimizer="fast_run").excluding("fusion", "inplace", *excluding)
    return mode.register((dfs_rewriter(_as_ufuncs), 48.9))


@cache
def quick_mode(*including: str) -> Mode:
    """Return a mode for functions that are called a few times: hardly rewritten, and run as in `numpy_mode`.

    Rewrites may be added by name.
    """
    quick = get_mode("FAST_COMPILE")
    mode = KeptMode(linker=quick.provided_linker, optimizer=quick.provided_optimizer).including(*including)
    return mode.register((dfs_rewriter(_as_ufuncs), 48.9))


def indexed_first(node: Apply) -> list | None:
    """Return the index arrays of the leading axes, one per axis; None if another kind of index is among them."""
    indices = indices_of(node)
    plain = all(not isinstance(index, slice) and isinstance(index.type, TensorType) for index in indices)
    return indices if plain else None


def indices_of(node: Apply) -> list:
    """Return the indices of an advanced index as variables and slices.

    The newer PyTensor keeps slices and the order of indices beside the node's inputs, the older one among them.
    """
    indices = node.inputs[1:]
    if PYMC_6:
        return list(indices_from_subtensor(indices, node.op.idx_list))
    return [_as_slice(index) if isinstance(index.type, SliceType) else index for index in indices]


def _as_slice(index: Any) -> slice:
    if index.owner is None:
        return index.data
    return slice(*(None if isinstance(part.type, NoneTypeT) else part for part in index.owner.inputs))


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
    """The second of two arrays, in the shape of both, by NumPy."""

    __props__ = ()

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [Elemwise(second)(x, y).type()])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Sequence[list[np.ndarray]]) -> None:
        output_storage[0][0] = np.array(np.broadcast_arrays(*inputs)[1], dtype=node.outputs[0].dtype)


@node_rewriter([Elemwise])
def _as_ufuncs(fgraph: FunctionGraph, node: Apply) -> list | None:
    """Rewrite elementwise ops that have no NumPy ufunc: PyTensor would run them element by element in Python."""
    scalar_op = node.op.scalar_op
    target = node.outputs[0].dtype
    if isinstance(scalar_op, Cast):
        return [_AsType(target)(node.inputs[0])]
    if isinstance(scalar_op, Second):
        return [_Fill()(*node.inputs)]
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


def inlined(node: Apply) -> list:
    """Return the outputs of a node whose Op is itself a graph, with that graph written out."""
    if PYMC_6:
        return inline_ofg_node(node)
    return clone_replace(node.op.inner_outputs, dict(zip(node.op.inner_inputs, node.inputs)))


def random_draw(rv_op: Callable[..., Any], *parameters: Any, size: Any, rng: Any) -> tuple[Any, Any]:
    """Return ``(next_rng, draws)`` of a RandomVariable Op, such as `pytensor.tensor.random.poisson`.

    With `rng` None a new shared generator is made, which PyTensor 3 no longer does by default.
    """
    if PYMC_6:
        rng = random.shared_rng(seed=None) if rng is None else rng
        next_rng, draws = rv_op(*parameters, size=size, rng=rng, return_next_rng=True)
    else:
        next_rng, draws = rv_op(*parameters, size=size, rng=rng).owner.outputs
    return next_rng, draws


# Containers


def to_dataset(
    variables: Mapping[str, np.ndarray],
    *,
    coords: Mapping[str, Any],
    dims: Mapping[str, Sequence[str | None]],
    sample_dims: Sequence[str] = (),
    skip_event_dims: bool = False,
    attrs: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """Return arrays as one Dataset, labelled as ArviZ does for `pymc.sample`.

    One call for all variables: ArviZ would first make a DataArray of each.

    Parameters
    ----------
    variables : mapping of str to ndarray
        Arrays of shape ``(*sample_dims, *shape)``; scalars stay scalars.
    coords, dims : mapping
        As in `arviz.dict_to_dataset`; `dims` without `sample_dims`. Dims that are not given are called
        ``<name>_dim_<i>``, and those without coordinates are numbered.
    sample_dims : sequence of str
        Leading dims that all variables share.
    skip_event_dims : bool
        Cut `dims` to those that an array has, for log-likelihoods of multivariate observations.
    attrs : mapping, optional
        Attributes in addition to ArviZ's own.
    """
    if PYMC_6:
        # ArviZ 1 imports JAX where it is installed, half a second that only a result should cost.
        from arviz_base import rcParams
        from arviz_base.base import make_attrs

        every = make_attrs(attrs=attrs, sample_dims=list(sample_dims))
    else:
        from arviz import rcParams
        from arviz.data.base import make_attrs

        every = make_attrs(attrs=attrs)
    first = rcParams["data.index_origin"]
    arrays, index = {}, {}
    for name, array in variables.items():
        values = np.asarray(array)
        event = values.shape[len(sample_dims) :]
        given = list(dims.get(name, ()))
        if skip_event_dims:
            known = ((i, dim, n) for i, (dim, n) in enumerate(zip(given, event)) if dim is not None and dim in coords)
            wrong = (i for i, dim, n in known if len(coords[dim]) != n)
            given = given[: next(wrong, len(event))]
        own = (*sample_dims, *dim_names(name, len(event), given))
        arrays[name] = own, values
        for dim, n in zip(own, values.shape):
            if dim not in index:
                index[dim] = dim, np.asarray(coords[dim]) if dim in coords else np.arange(first, first + n)
    return xr.Dataset(arrays, coords=index, attrs=every)


def dim_names(name: str, ndim: int, dims: Sequence[str | None]) -> tuple[str, ...]:
    """Return the dims of a variable; those not given have ArviZ's names, ``<name>_dim_<i>``.

    In ArviZ 0.x i counts all axes, in ArviZ 1 only those without a name.
    """
    given = [*dims, *[None] * (ndim - len(dims))]
    count = [given[:i].count(None) if PYMC_6 else i for i in range(len(given))]
    return tuple(str(dim) if dim is not None else f"{name}_dim_{i}" for dim, i in zip(given, count))


def make_container(groups: Mapping[str, xr.Dataset]) -> Container:
    """Return the groups as one container, of the type that `pymc.sample` returns: see `Container`."""
    if PYMC_6:
        return xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in groups.items()})
    from arviz import InferenceData

    return InferenceData(**groups)


def group_names(container: Container) -> tuple[str, ...]:
    """Return the names of the groups of a container, without the root."""
    return tuple(container.children) if PYMC_6 else tuple(container.groups())


def has_group(container: Container, name: str) -> bool:
    """Return True if the container has a group of that name."""
    return name in group_names(container)


def group(container: Container, name: str) -> xr.Dataset:
    """Return one group of a container; a KeyError if there is none of that name."""
    return container[name].to_dataset() if PYMC_6 else container[name]


# Progress


@contextmanager
def progress(description: str, elapsed: float = 0.0) -> Iterator[Callable[..., None]]:
    """Show a progress bar in PyMC's style: what runs, how far it is, elapsed time, objective and change.

    Parameters
    ----------
    description : str
        Name of what runs.
    elapsed : float
        Seconds that it has run already.

    Yields
    ------
    callable
        ``show(phase, done, total, objective, change)``. Without a phase its name is empty; `total` is None where it is
        unknown, `objective` and `change` are None before they are known.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[values]}"),
    )
    console = Console(theme=default_progress_theme, stderr=True)
    with CustomProgress(*columns, console=console) as bar:
        task = bar.add_task(description, total=None, values="")
        bar.tasks[0].start_time -= elapsed

        def show(
            phase: str, done: int, total: int | None, objective: float | None = None, change: float | None = None
        ) -> None:
            known = [
                *([] if objective is None else [f"objective {objective:.6g}"]),
                *([] if change is None else [f"change {change:.2g}"]),
            ]
            name = f"{description}, {phase}" if phase else description
            bar.update(task, description=name, completed=done, total=total, values=" ".join(known))

        yield show


# Statistics


def largest_rhat(draws: np.ndarray) -> float:
    """Return the largest rank-normalised split R-hat (Vehtari et al. 2021) of an array's elements.

    Parameters
    ----------
    draws : ndarray, (chain, draw, ...)
        At least two chains. Elements with one value in all chains are skipped. R-hat is infinite for an element that is
        constant within a chain, or NaN.
    """
    from arviz import rhat

    elements = np.moveaxis(draws.reshape(*draws.shape[:2], -1), 2, 0)
    varied = elements[~(np.ptp(elements, axis=(1, 2)) == 0)]
    stuck = ~(np.ptp(varied, axis=2) > 0).all(axis=1)
    return max((np.inf if still else float(rhat(element)) for element, still in zip(varied, stuck)), default=0.0)


def pareto_shape(log_weights: np.ndarray) -> float:
    """Return the shape k of the generalised Pareto tail of importance weights (Vehtari et al. 2024).

    Parameters
    ----------
    log_weights : ndarray, (s,)
        At least 25, not all equal.
    """
    if PYMC_6:
        from arviz_stats.base import array_stats

        # `psislw` takes log likelihoods; the leave-one-out weights are their inverses.
        return float(array_stats.psislw(-log_weights)[1])
    from arviz import psislw

    # A candidate value of the shape whose weight is zero overflows there.
    with np.errstate(over="ignore"):
        return float(psislw(log_weights)[1])


def elpd_data(pointwise: xr.DataArray, p: float, n_samples: int, *, warning: bool) -> ElpdData:
    """Return leave-one-out log predictive densities as ArviZ's own `loo` returns them, for `arviz.compare`.

    Parameters
    ----------
    pointwise : xarray.DataArray
        One value for each observation; their sum is the expected log predictive density.
    p : float
        Effective number of parameters.
    n_samples : int
        Draws behind `p`.
    warning : bool
        True if the values may be wrong.
    """
    n = pointwise.size
    common: dict[str, float | str] = {
        "se": float(np.sqrt(n * pointwise.var())),
        "n_samples": n_samples,
        "n_data_points": n,
    }
    common |= {"scale": "log", "warning": warning}
    elpd = float(pointwise.sum())
    if PYMC_6:
        from arviz_stats.utils import ELPDDataLOO

        return ELPDDataLOO(elpd=elpd, p=p, good_k=None, elpd_i=pointwise, **common)
    from arviz.stats.stats_utils import ELPDData

    # ELPDData prints its first entries, in this order.
    values = {"elpd_loo": elpd, "se": common.pop("se"), "p_loo": p, **common, "loo_i": pointwise.rename("loo_i")}
    return ELPDData(list(values.values()), index=list(values))
