"""Every difference between PyMC 5 with ArviZ 0.x and PyMC 6 with ArviZ 1, and nothing else.

The switch is the installed version of PyMC, never of Python: a user on a new Python who pins ArviZ below 1 gets PyMC 5.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.progress_bar import CustomProgress, default_progress_theme
from pytensor.graph.basic import Apply
from pytensor.graph.replace import clone_replace
from pytensor.tensor import random
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
    "MatrixInverse",
    "c_mode",
    "density_of_draws",
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
    "pareto_shape",
    "progress",
    "random_draw",
    "restore_observed",
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
    """Return the name of PyTensor's mode that compiles to C, which is the default with PyMC 5 only."""
    return "CVM" if PYMC_6 else "FAST_RUN"


def indexed_first(node: Apply) -> list | None:
    """Return the index arrays of the leading axes, one per axis; None if another kind of index is among them."""
    indices = indices_of(node)
    plain = all(not isinstance(index, slice) and isinstance(index.type, TensorType) for index in indices)
    return indices if plain else None


def indices_of(node: Apply) -> list:
    """Return the indices of an advanced index as variables and slices.

    The newer PyTensor keeps slices and the order of indices in the Op, the older one among the node's inputs.
    """
    indices = node.inputs[1:]
    if PYMC_6:
        return list(indices_from_subtensor(indices, node.op.idx_list))
    return [_as_slice(index) if isinstance(index.type, SliceType) else index for index in indices]


def _as_slice(index: Any) -> slice:
    if index.owner is None:
        return index.data
    return slice(*(None if isinstance(bound.type, NoneTypeT) else bound for bound in index.owner.inputs))


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
        Cut `dims` to the dims that an array has, for log-likelihoods of multivariate observations.
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
            named = ((i, dim, n) for i, (dim, n) in enumerate(zip(given, event)) if dim is not None and dim in coords)
            wrong = (i for i, dim, n in named if len(coords[dim]) != n)
            given = given[: next(wrong, len(event))]
        all_dims = (*sample_dims, *dim_names(name, len(event), given))
        arrays[name] = all_dims, values
        for dim, n in zip(all_dims, values.shape):
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

_BARS, _COUNTS = (8, 40), 21
"""Least and largest width of the bar, and the width of counts up to 9999 with the time, in columns of a terminal."""
_REST = 100
"""Largest number of columns of phase, counts and values together: the bar takes the other columns of the terminal."""


@contextmanager
def progress(description: str, elapsed: float = 0.0) -> Iterator[Callable[..., None]]:
    """Show a progress bar in PyMC's style: the task, its progress, elapsed time, objective and change.

    Parameters
    ----------
    description : str
        Name of the task.
    elapsed : float
        Seconds since the task began.

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
    columns[1].bar_width = int(np.clip(console.width - _REST, *_BARS))
    room = console.width - columns[1].bar_width - _COUNTS
    with CustomProgress(*columns, console=console) as bar:
        task = bar.add_task(description, total=None, values="")
        bar.tasks[0].start_time -= elapsed

        def show(
            phase: str, done: int, total: int | None, objective: float | None = None, change: float | None = None
        ) -> None:
            texts = [
                *([] if objective is None else [f"objective {objective:.6g}"]),
                *([] if change is None else [f"change {change:.2g}"]),
            ]
            name, values = _fitting(description, phase, texts, room)
            bar.update(task, description=name, completed=done, total=total, values=values)

        yield show


def _fitting(description: str, phase: str, values: Sequence[str], room: int) -> tuple[str, str]:
    """Return the name of the task and its values, shortened or left out to fit into `room` columns.

    Rich itself would shrink the bar first, to nothing, and end a shortened text with a character that is not in ASCII.
    """
    name, short = f"{description}, {phase}" if phase else description, phase or description
    candidates = [
        (name, values),
        (short, values),
        (short, values[:1]),
        (name, ()),
        (short, ()),
        (short[:room].rstrip(), ()),
    ]
    first, shown = next((text, kept) for text, kept in candidates if len(" ".join([text, *kept])) <= room)
    return first, " ".join(shown)


# Statistics


def largest_rhat(draws: np.ndarray) -> float:
    """Return the largest rank-normalised split R-hat (Vehtari et al. 2021) of an array's elements.

    Parameters
    ----------
    draws : ndarray, (chain, draw, ...)
        At least two chains. Elements with one value in all chains are skipped. R-hat is infinite for an element that is
        constant within one chain, or has NaN.
    """
    from arviz import rhat

    elements = np.moveaxis(draws.reshape(*draws.shape[:2], -1), 2, 0)
    varied = elements[~(np.ptp(elements, axis=(1, 2)) == 0)]
    stuck = ~(np.ptp(varied, axis=2) > 0).all(axis=1)
    return max((np.inf if still else float(rhat(element)) for element, still in zip(varied, stuck)), default=0.0)


def density_of_draws(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points and the kernel estimate of a density at these, (512,) each, as ArviZ's own plots draw it.

    Parameters
    ----------
    draws : ndarray, (s,)
        Draws that are not all equal. The estimate ends at the least and the largest draw.
    """
    if PYMC_6:
        from arviz_stats.base import array_stats

        grid, density, _ = array_stats.kde(draws)
    else:
        from arviz import kde

        grid, density = kde(draws)
    return grid, density


def pareto_shape(log_weights: np.ndarray) -> float:
    """Return the shape k of the generalised Pareto tail of importance weights (Vehtari et al. 2024).

    Parameters
    ----------
    log_weights : ndarray, (s,)
        At least 25 log weights, not all equal.
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
        Number of draws from which `p` is computed.
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
