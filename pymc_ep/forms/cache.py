"""Compilation of models, cached for as long as a model's variables stay the same."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pymc import Model
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_ep.compat import restore_observed
from pymc_ep.concurrency import compiling
from pymc_ep.contracts.form import CompiledForm
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.forms.registry import entry_of, recognise
from pymc_ep.graphs.hyperparameters import initial_values
from pymc_ep.graphs.random_nodes import is_random
from pymc_ep.modes import bodies_of, mode_of, with_compiler
from pymc_ep.numerics.backend.namespace import require_jax

__all__ = ["compiled_form", "require_readable"]

_COMPILED: WeakKeyDictionary = WeakKeyDictionary()
"""By model: a dict from the arguments of `compiled_form` to the compiled form and the initial values it starts from.

Keys are weak, so that a model that is deleted takes its compiled functions with it."""


def compiled_form(
    model: Model,
    latent: Sequence[str] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    wanted: Sequence[str] = (),
) -> CompiledForm:
    """Return the compiled functions of a model, whose form is recognised first.

    Parameters
    ----------
    model : pymc.Model
    latent : sequence of str, optional
        Variables to integrate out; see `pymc_ep.fit`.
    compile_kwargs : dict, optional
        For `pytensor.function`.
    wanted : sequence of str, optional
        Variables to predict.

    Returns
    -------
    pymc_ep.contracts.CompiledForm
        Cached: equal arguments give the same object until a variable is added to the model. New data in shared
        variables leave it valid.

    Raises
    ------
    UnsupportedModelError
        Raised by the recognisers and by `require_readable`.
    ValueError, ImportError, RuntimeError
        For a mode of PyTensor in which this package's Ops do not run, and for JAX's mode where JAX is not installed or
        computes in single precision.
    InvalidDataError
        Where arrays of the model itself exceed the memory.
    """
    compile_kwargs = with_compiler(compile_kwargs)
    if bodies_of(mode_of(compile_kwargs)) == "jax":
        require_jax("compile_kwargs=")
    restore_observed(model)
    require_readable(model)
    cached = _COMPILED.setdefault(model, {})
    names = None if latent is None else tuple([latent] if isinstance(latent, str) else latent)
    variables = (*model.basic_RVs, *model.deterministics, *model.potentials)
    key = (names, tuple(wanted), repr(compile_kwargs), variables)
    # The compiled functions hold for any lengths of dims and any initial values; only `restart` depends on these.
    # The graphs are small and evaluated once, so that compiling them to C would cost more than it saves.
    with compiling(cxx=""):
        # The length of a dim that is set by data is a graph of these, neither a constant nor a shared variable.
        lengths = tuple(int(length.eval()) for length in model.dim_lengths.values())
    start = (lengths, repr(list(model.rvs_to_initial_values.values())))
    if key in cached and cached[key][1] == start and _is_current(cached[key][0]):
        return cached[key][0]
    try:
        compiled = _restarted(model, cached[key][0]) if key in cached else None
        if compiled is None:
            with compiling(cxx=""):
                form = recognise(model, names, wanted)
                entry = entry_of(form)
                values = initial_values(model, form.hyper_values)
            compiled = entry.compiled(form, values, compile_kwargs)
    except MemoryError as error:
        raise InvalidDataError(f"Arrays of the model exceed the memory: {error}. Take fewer observations.") from error
    cached[key] = (compiled, start)
    return compiled


def _is_current(compiled: CompiledForm) -> bool:
    return entry_of(compiled.form).current(compiled)


def _restarted(model: Model, compiled: CompiledForm) -> CompiledForm | None:
    """Return the form restarted at the model's present initial values; None if data have lengths it does not fit."""
    with compiling(cxx=""):
        values = initial_values(model, compiled.form.hyper_values)
    compiled.restart(values)
    return compiled if _is_current(compiled) else None


def require_readable(model: Model) -> None:
    """Raise for free variables in single precision, variables of `pymc.dims`, and observations in minibatches.

    Raise also for complex parameters or values, and for a variable named "chain" or "draw": axes of the results have
    these names.
    """
    for rv in model.basic_RVs:
        if rv.name in ("chain", "draw"):
            raise UnsupportedModelError(
                f"{rv.name!r} is the name of an axis of draws in results, which cannot hold a variable of that name: "
                f"call it by another."
            )
        if not isinstance(rv.type, TensorType):
            raise UnsupportedModelError(
                f"{rv.name!r} is a variable of pymc.dims, whose axes have names within the graph; write it as "
                f"pm.Normal({rv.name!r}, ..., dims=(...)), and the rest of the model in the same way."
            )
        arrays = (*rv.owner.inputs, model.rvs_to_values[rv])
        if any(getattr(v.type, "dtype", "").startswith("complex") for v in arrays):
            raise UnsupportedModelError(
                f"{rv.name!r} has complex parameters or values, and fits need real ones: take real and imaginary parts "
                f"of data, or their absolute values."
            )
    if single := [rv.name for rv in model.free_RVs if rv.dtype == "float32"]:
        raise UnsupportedModelError(
            f"{single[0]!r} is in single precision, and fits need double precision: build the model under "
            f"pytensor.config.floatX = 'float64'."
        )
    for rv in model.observed_RVs:
        drawn = any(is_random(v) for v in ancestors([model.rvs_to_values[rv]]))
        if drawn or isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModelError(
                f"{rv.name!r} is observed in batches (pm.Minibatch, total_size=), and a fit takes all observations at "
                f"once: give it the whole data, and no total_size."
            )
