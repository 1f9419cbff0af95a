"""Draws of the free variables that no observation depends on, as `pymc.sample` has them: imputed observations."""

from collections.abc import Mapping

import numpy as np
import pymc as pm
from pymc.pytensorf import compile as compile_with_seed
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_ep.compat import numpy_mode

__all__ = ["drawn_forward"]


def drawn_forward(model: pm.Model, draws: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return draws, (s, *shape), of what the fit knows nothing of, given its own draws of all else.

    Multivariate variables, such as new values of a process, are left to `predict`: each draw of them would be a
    factorisation. So is what follows from them.

    Parameters
    ----------
    model : pymc.Model
    draws : mapping of str to ndarray, (s, *shape)
        Of the free variables and Deterministics that observations depend on.
    rng : numpy.random.Generator
    """
    missing = {rv for rv in model.free_RVs if rv.name not in draws}
    wide = {rv for rv in missing if rv.owner.op.ndim_supp}
    behind = {v: set(ancestors([v])) for v in (*model.free_RVs, *model.deterministics)}
    drawn = [rv for rv in model.free_RVs if rv in missing and not behind[rv] & wide]
    if not drawn or not draws:
        return {}
    follow = [d for d in model.deterministics if behind[d] & set(drawn) and not behind[d] & wide]
    wanted = [*drawn, *follow]
    given = [v for v in model.free_RVs if v.name in draws]
    data = {rv: model.rvs_to_values[rv].astype(rv.dtype) for rv in model.observed_RVs}
    outputs = graph_replace(wanted, data, strict=False)
    seed = int(rng.integers(2**31))
    function = compile_with_seed(given, outputs, random_seed=seed, mode=numpy_mode(), on_unused_input="ignore")
    rows = [function(*row) for row in zip(*(draws[v.name] for v in given))]
    return {v.name: np.array([row[i] for row in rows]) for i, v in enumerate(wanted)}
