"""The bodies of kernels that a mode of PyTensor asks for."""

import pytensor
from pytensor.compile.mode import get_mode
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker

__all__ = ["bodies_of"]


def bodies_of(compile_kwargs: dict | None) -> str:
    """Return the bodies that a mode asks for; without one they are chosen by size."""
    mode = (compile_kwargs or {}).get("mode")
    if mode is None:
        return "auto"
    linker = get_mode(mode).linker
    if isinstance(linker, JAXLinker):
        return "jax"
    if isinstance(linker, NumbaLinker):
        return "numba"
    return "c" if getattr(linker, "c_thunks", False) and pytensor.config.cxx else "numpy"
