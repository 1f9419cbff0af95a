"""From a model to compiled functions, once for as long as the model's variables stay the same."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytensor
from pymc import Model

from pymc_ep.compat import restore_observed
from pymc_ep.forms.registry import entry_of, recognise
from pymc_ep.graphs.readable import require_readable

__all__ = ["compiled_form"]

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
