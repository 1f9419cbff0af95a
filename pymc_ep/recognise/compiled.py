"""From a model to compiled functions, once for as long as the model's variables stay the same."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytensor
from pymc import Model

from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.recognise.registry import recognise

__all__ = ["compiled_form"]

_COMPILED: WeakKeyDictionary = WeakKeyDictionary()


def compiled_form(
    model: Model,
    latent: Sequence[str] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    wanted: Sequence[str] = (),
) -> CompiledLatentGaussian:
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
    CompiledLatentGaussian
        The same one for equal arguments until a variable is added to the model. New data in shared variables
        need no new one.
    """
    known = _COMPILED.setdefault(model, {})
    names = None if latent is None else tuple([latent] if isinstance(latent, str) else latent)
    mode = str((compile_kwargs or {}).get("mode"))
    variables = (*model.basic_RVs, *model.deterministics, *model.potentials)
    # JAX compiles for fixed lengths of dims; the other backends take any.
    lengths = tuple(int(n.eval()) for n in model.dim_lengths.values()) if "JAX" in mode.upper() else ()
    key = (names, tuple(wanted), mode, variables, lengths)
    if key not in known:
        # Small graphs, evaluated once: not worth a C compiler.
        with pytensor.config.change_flags(cxx=""):
            form = recognise(model, names, wanted)
            point = model.initial_point()
        known[key] = CompiledLatentGaussian(form, [point[v.name] for v in form.hyper_values], compile_kwargs)
    return known[key]
