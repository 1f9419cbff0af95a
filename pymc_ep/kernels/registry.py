"""The registry of kernels, which the contract test walks, and the loading of their backends on demand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

__all__ = ["Kernel", "kernels", "load_backend", "register_bodies", "register_kernel"]

BACKENDS = ("jax", "numba")


@dataclass(frozen=True)
class Kernel:
    """A symbolic function with its own bodies in Python, C, Numba and JAX.

    Attributes
    ----------
    name : str
        Name in the registry.
    package : str
        Importable package of the kernel; its modules ``jax`` and ``numba`` register the bodies for those backends.
    function : callable
        ``function(*arguments, **options)`` returns the outputs as a list of PyTensor graphs.
    arguments : tuple of str
        Names of the arguments: columns of the table.
    tolerances : mapping of str to float
        Names of the outputs, also columns of the table, in order, each with the largest error that the contract
        allows. Errors are relative to the column ``<output>_scale`` of the table if it has one, else to the value.
    table : str
        File name of the 50-digit reference among the tests' reference tables.
    derivatives : mapping of (str, str) to str
        Derivatives that the table holds: ``{(output, argument): column}``.
    options : tuple of str
        Static keywords of the function that are columns of the table, as 0 and 1.
    """

    name: str
    package: str
    function: Callable[..., list[Any]]
    arguments: tuple[str, ...]
    tolerances: Mapping[str, float]
    table: str
    derivatives: Mapping[tuple[str, str], str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


_REGISTRY: dict[str, Kernel] = {}
_OTHERS: dict[str, list[str]] = {backend: [] for backend in BACKENDS}


def register_kernel(kernel: Kernel) -> Kernel:
    """Add a kernel to the registry, under its own name, and return it.

    Raises
    ------
    ValueError
        When another kernel has that name.
    """
    if kernel.name in _REGISTRY:
        raise ValueError(f"A kernel named {kernel.name!r} is registered already; choose another name.")
    _REGISTRY[kernel.name] = kernel
    return kernel


def kernels() -> dict[str, Kernel]:
    """Return all registered kernels by name."""
    return dict(_REGISTRY)


def register_bodies(backend: str, module: str) -> None:
    """Name a module that registers, when imported, the bodies of Ops other than kernels with a backend."""
    _OTHERS[backend].append(module)


def load_backend(backend: str) -> None:
    """Register the bodies of all kernels and other Ops with a backend, ``"jax"`` or ``"numba"``.

    PyTensor's compilation does this by itself; call it only before handing a graph to ``jax_funcify`` directly.
    """
    for module in [*(f"{kernel.package}.{backend}" for kernel in _REGISTRY.values()), *_OTHERS[backend]]:
        import_module(module)


class _LoadBackend(GraphRewriter):
    """A rewrite that leaves graphs unchanged and loads a backend's bodies when PyTensor first compiles for it."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def apply(self, fgraph: FunctionGraph) -> None:
        load_backend(self.backend)


# PyTensor's linkers run all rewrites that are tagged with their backend's name. Loading through such a rewrite keeps
# jax, and numba where it is not the default, out of `import pymc_ep`.
for _backend in BACKENDS:
    optdb.register(f"pymc_ep_load_{_backend}", _LoadBackend(_backend), _backend, position=0.01)
