"""The marginal model: a model's hyperparameters, with the evidence in place of latent and observed variables."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc import Model, Potential
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import compiled_function
from pymc_ep.contracts.form import Form
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.queries import depends_on
from pymc_ep.modes import numpy_mode

__all__ = ["latents_missing_from", "marginal_model", "unconstrained"]


def marginal_model(
    model: Model, form: Form, name: str, log_evidence: Callable[[TensorVariable], TensorVariable]
) -> Model:
    """Return the model of the hyperparameters alone.

    It shares variables, transforms, dims and data with `model`: data set in one are set in both. The evidence is a
    potential of the value variables, not of the random variables, since a transform and its inverse would lose digits
    in the tails.

    Parameters
    ----------
    model : pymc.Model
    form : Form
        Form of the model.
    name : str
        Name of the potential.
    log_evidence : callable
        Maps the vector of unconstrained hyperparameters, (p,), to a scalar.
    """
    if not form.hyper_values:
        raise UnsupportedModelError(
            "The model has no hyperparameters, so nothing is left to sample once the latent variables are integrated "
            "out; use fit()."
        )
    if name in model.named_vars:
        raise UnsupportedModelError(
            f"The marginal model needs the name {name!r} for its evidence; rename that variable."
        )
    gone = [model[n] for n in (*form.latent_names, *(rv.name for rv in model.observed_RVs))]
    gone += [rv for rv in model.free_RVs if rv not in gone and depends_on([rv], gone)]
    marginal = Model(model=None)
    marginal._coords = dict(model._coords)
    marginal._dim_lengths = dict(model._dim_lengths)
    for kind in ("data_vars", "free_RVs", "deterministics", "potentials"):
        for variable in getattr(model, kind):
            if depends_on([variable], gone):
                continue
            getattr(marginal, kind).append(variable)
            if kind == "free_RVs":
                value, transform = model.rvs_to_values[variable], model.rvs_to_transforms[variable]
                marginal.create_value_var(variable, transform=transform, default_transform=None, value_var=value)
                marginal.set_initval(variable, model.rvs_to_initial_values[variable])
            marginal.add_named_variable(variable, dims=model.named_vars_to_dims.get(variable.name))
    theta = pt.concatenate([v.ravel().astype("float64") for v in form.hyper_values])
    with marginal:
        Potential(name, log_evidence(theta))
    return marginal


def latents_missing_from(model: Model, names: set[str]) -> list[str]:
    """Return the names of free variables that observations or potentials depend on and that `names` lacks."""
    roots = [*model.observed_RVs, *model.potentials]
    return [rv.name for rv in model.free_RVs if rv.name not in names and depends_on(roots, [rv])]


def unconstrained(model: Model, form: Form, draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return draws of the hyperparameters, by name, (s, *shape) each, on PyMC's unconstrained scale, (s, p).

    Raises
    ------
    ValueError
        Where a hyperparameter is missing.
    """
    missing = [name for name in form.hyper_names if name not in draws]
    if missing:
        raise ValueError(
            f"The posterior has no draws of the hyperparameter {missing[0]!r}; it holds {', '.join(sorted(draws))}."
        )
    rvs = [model[name] for name in form.hyper_names]
    constrained = {rv: rv.type() for rv in rvs}
    values: list[Any] = []
    for rv in rvs:
        transform = model.rvs_to_transforms.get(rv)
        values.append(constrained[rv] if transform is None else transform.forward(constrained[rv], *rv.owner.inputs))
    values = graph_replace(values, constrained, strict=False)
    flat = pt.concatenate([v.ravel().astype("float64") for v in values])
    function = compiled_function(constrained.values(), flat, mode=numpy_mode(), on_unused_input="ignore")
    columns = [np.asarray(draws[name], dtype=rv.dtype) for name, rv in zip(form.hyper_names, rvs)]
    return np.array([function(*row) for row in zip(*columns)])
