"""Registry of kernels, and loading of their bodies for JAX and for Numba on demand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

__all__ = ["ArrayKernel", "Kernel", "array_kernels", "kernels", "load_backend", "register_bodies", "register_kernel"]

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
        Names of the arguments; the reference table has columns of these names.
    tolerances : mapping of str to float
        Largest allowed error of each output, by name, in the order of the outputs; the reference table has columns of
        these names. Errors are relative to the column ``<output>_scale`` if the table has it, else to the reference
        value.
    table : str
        File name of the reference table, which holds values of 50 digits for the tests.
    derivatives : mapping of (str, str) to str
        Columns of the derivatives in the reference table: ``{(output, argument): column}``.
    options : tuple of str
        Static boolean keywords of the function; the reference table has columns of these names, of zeros and ones.
    """

    name: str
    package: str
    function: Callable[..., list[Any]]
    arguments: tuple[str, ...]
    tolerances: Mapping[str, float]
    table: str
    derivatives: Mapping[tuple[str, str], str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayKernel:
    """A set of functions of whole arrays, with a body in NumPy and bodies for other backends that agree with it.

    Attributes
    ----------
    name : str
        Name in the registry.
    package : str
        Importable package of the kernel; its modules ``jax`` and ``numba`` hold the bodies for those backends.
    bodies : tuple of str
        The other bodies that the kernel has, some of "c", "jax" and "numba".
    """

    name: str
    package: str
    bodies: tuple[str, ...]


_REGISTRY: dict[str, Kernel | ArrayKernel] = {}
_OTHER_BODIES: dict[str, list[str]] = {backend: [] for backend in BACKENDS}
"""Modules with the bodies of Ops other than kernels, by backend."""


def register_kernel(kernel: Kernel | ArrayKernel) -> None:
    """Add a kernel to the registry, under its own name.

    Raises
    ------
    ValueError
        If another kernel has that name.
    """
    if kernel.name in _REGISTRY:
        raise ValueError(f"A kernel named {kernel.name!r} is registered already; choose another name.")
    _REGISTRY[kernel.name] = kernel


def kernels() -> dict[str, Kernel]:
    """Return all registered kernels of type `Kernel`, functions of scalars, by name."""
    return {name: kernel for name, kernel in _REGISTRY.items() if isinstance(kernel, Kernel)}


def array_kernels() -> dict[str, ArrayKernel]:
    """Return all registered kernels of type `ArrayKernel`, functions of whole arrays, by name."""
    return {name: kernel for name, kernel in _REGISTRY.items() if isinstance(kernel, ArrayKernel)}


def register_bodies(backend: str, module: str) -> None:
    """Add a module with the bodies of Ops other than kernels, for `load_backend`.

    Parameters
    ----------
    backend : {"jax", "numba"}
    module : str
        Importable name; the import registers the bodies with PyTensor.
    """
    _OTHER_BODIES[backend].append(module)


def load_backend(backend: str) -> None:
    """Register the bodies of all kernels and other Ops with PyTensor, for one backend.

    Compilation does this by itself. A call is needed only before ``jax_funcify`` is called directly.

    Parameters
    ----------
    backend : {"jax", "numba"}
    """
    with_body = [kernel for kernel in _REGISTRY.values() if isinstance(kernel, Kernel) or backend in kernel.bodies]
    for module in [*(f"{kernel.package}.{backend}" for kernel in with_body), *_OTHER_BODIES[backend]]:
        import_module(module)


class _LoadBackend(GraphRewriter):
    """Rewrite that leaves graphs unchanged and loads the bodies of a backend when PyTensor compiles for it."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def apply(self, fgraph: FunctionGraph) -> None:
        load_backend(self.backend)


# A linker of PyTensor runs the rewrites tagged with the name of its backend. With the imports in such a rewrite,
# `import pymc_ep` imports neither jax nor, where it is not the default, numba.
for _backend in BACKENDS:
    optdb.register(f"pymc_ep_load_{_backend}", _LoadBackend(_backend), _backend, position=0.01)
