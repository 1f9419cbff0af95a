"""From a model to compiled functions, once for as long as the model's variables stay the same."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytensor
from pymc import Model
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from pymc_ep.compat import restore_observed
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.registry import entry_of, recognise
from pymc_ep.graphs.random_nodes import is_random

__all__ = ["compiled_form", "require_readable"]

_COMPILED: WeakKeyDictionary = WeakKeyDictionary()


def compiled_form(
    model: Model,
    latent: Sequence[str] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    wanted: Sequence[str] = (),
) -> Any:
    """Recognise and compile a model.

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
        The same one for equal arguments until a variable is added to the model. New data in shared variables
        need no new one.

    Raises
    ------
    UnsupportedModelError
        As the recognisers, and `require_readable`.
    """
    restore_observed(model)
    require_readable(model)
    known = _COMPILED.setdefault(model, {})
    names = None if latent is None else tuple([latent] if isinstance(latent, str) else latent)
    variables = (*model.basic_RVs, *model.deterministics, *model.potentials)
    key = (names, tuple(wanted), repr(compile_kwargs), variables)
    # Lengths of dims decide the shapes of hyperparameters, and initial values where they start; functions stay.
    # Small graphs, evaluated once: not worth a C compiler.
    with pytensor.config.change_flags(cxx=""):
        # A dim that data were given has a length that is read off these: neither constant nor shared.
        lengths = tuple(int(length.eval()) for length in model.dim_lengths.values())
    start = (lengths, repr(list(model.rvs_to_initial_values.values())))
    if key in known and known[key][1] == start:
        return known[key][0]
    with pytensor.config.change_flags(cxx=""):
        point = model.initial_point()
        form = known[key][0].form if key in known else recognise(model, names, wanted)
    entry = entry_of(form)
    values = [point[v.name] for v in form.hyper_values]
    if key in known:
        compiled = known[key][0]
        compiled.restart(values)
    else:
        compiled = entry.compiled(form, values, compile_kwargs)
    known[key] = (compiled, start)
    return compiled


def require_readable(model: Model) -> None:
    """Raise for variables in single precision or with named axes, and for observations in batches."""
    for rv in model.basic_RVs:
        if not isinstance(rv.type, TensorType):
            raise UnsupportedModelError(
                f"{rv.name!r} is a variable of pymc.dims, whose axes have names within the graph; write it as "
                f"pm.Normal({rv.name!r}, ..., dims=(...)), and the rest of the model in the same way."
            )
    if single := [rv.name for rv in model.free_RVs if rv.dtype == "float32"]:
        raise UnsupportedModelError(
            f"{single[0]!r} is in single precision, and what is fitted here needs double: build the model under "
            f"pytensor.config.floatX = 'float64'."
        )
    for rv in model.observed_RVs:
        drawn = any(is_random(v) for v in ancestors([model.rvs_to_values[rv]]))
        if drawn or isinstance(rv.owner.op, MinibatchRandomVariable):
            raise UnsupportedModelError(
                f"{rv.name!r} is observed in batches (pm.Minibatch, total_size=), and a fit takes all observations at "
                f"once: give it the whole data, and no total_size."
            )
