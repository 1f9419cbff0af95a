"""Functions with their own bodies in Python, C, Numba and JAX, where graphs of PyTensor's Ops are unstable or slow."""

from pymc_ep.kernels.rectified_poisson.op import rectified_poisson
from pymc_ep.kernels.registry import (
    ArrayKernel,
    Kernel,
    array_kernels,
    kernels,
    load_backend,
    register_bodies,
    register_kernel,
)
from pymc_ep.kernels.truncated_normal.op import truncated_normal

__all__ = [
    "ArrayKernel",
    "Kernel",
    "array_kernels",
    "kernels",
    "load_backend",
    "rectified_poisson",
    "register_bodies",
    "register_kernel",
    "truncated_normal",
]

register_kernel(
    Kernel(
        name="truncated_normal",
        package="pymc_ep.kernels.truncated_normal",
        function=truncated_normal,
        arguments=("k",),
        tolerances={"log_mass": 1e-14, "hazard": 1e-14, "truncated_mean": 1e-14, "truncated_variance": 1e-14},
        table="truncated_normal.csv",
        derivatives={
            ("log_mass", "k"): "d_log_mass",
            ("hazard", "k"): "d_hazard",
            ("truncated_mean", "k"): "d_truncated_mean",
            ("truncated_variance", "k"): "d_truncated_variance",
        },
    )
)
register_kernel(
    Kernel(
        name="rectified_poisson",
        package="pymc_ep.kernels.rectified_poisson",
        function=rectified_poisson,
        arguments=("y", "mean", "variance", "power"),
        tolerances={
            "log_z": 1e-10,
            "tilted_mean": 1e-10,
            "tilted_variance": 1e-8,
            "gradient": 1e-8,
            "precision": 1e-8,
        },
        table="rectified_poisson.csv",
        derivatives={("log_z", "mean"): "gradient", ("log_z", "variance"): "d_log_z_d_variance"},
        options=("zero_mass",),
    )
)
