"""The non-centred twin of a model, for NUTS: effects with learned scales as scale times standard normals."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable

__all__ = ["noncentred_twin"]

REPLACED = ("Normal", "MvNormal")


def noncentred_twin(build: Callable[[], pm.Model]) -> pm.Model:
    """Build a model while `pymc.Normal` and `pymc.MvNormal` make a Deterministic of each effect with a learned scale.

    The variables keep their names, so that draws of both models compare.
    """
    with _replaced():
        return build()


@contextmanager
def _replaced() -> Iterator[None]:
    originals = {name: getattr(pm, name) for name in REPLACED}
    pm.Normal, pm.MvNormal = _Twin(originals["Normal"], _normal), _Twin(originals["MvNormal"], _mv_normal)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(pm, name, original)


class _Twin:
    """A distribution whose calls in a model block go through `rewrite` first; `dist` is left as it is."""

    def __init__(self, original: Any, rewrite: Callable[..., Any]):
        self.original, self.rewrite, self.dist = original, rewrite, original.dist

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.keys() & {"observed", "transform", "initval", "tau", "cov"}:
            return self.original(name, *args, **kwargs)
        found = self.rewrite(self.original, name, *args, **kwargs)
        return self.original(name, *args, **kwargs) if found is None else found


def _learned(scale: Any) -> bool:
    return isinstance(scale, Variable) and any(
        v.owner is not None
        and isinstance(v.owner.op, RandomVariable | pm.distributions.distribution.SymbolicRandomVariable)
        for v in ancestors([scale])
    )


def _normal(original: Any, name: str, mu: Any = 0, sigma: Any = 1, shape: Any = None, dims: Any = None) -> Any:
    if not _learned(sigma):
        return None
    if shape is None and dims is None:
        (shape,) = constant_fold([pt.broadcast_arrays(pt.as_tensor(mu), sigma)[0].shape])
        shape = tuple(int(n) for n in shape)
    standard = original(f"{name}_standard", 0, 1, shape=shape, dims=dims)
    return pm.Deterministic(name, mu + sigma * standard, dims=dims)


def _mv_normal(original: Any, name: str, mu: Any = 0, chol: Any = None, shape: Any = None, dims: Any = None) -> Any:
    if not _learned(chol):
        return None
    standard = pm.Normal.original(f"{name}_standard", 0, 1, shape=shape, dims=dims)
    return pm.Deterministic(name, mu + standard @ pt.as_tensor(chol).T, dims=dims)
