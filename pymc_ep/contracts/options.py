"""Options of methods, `pymc_ep.fit(**options)`, as type checkers and completion see them."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

__all__ = ["MethodOptions"]


class MethodOptions(TypedDict, total=False):
    """Options of the methods of `pymc_ep.fit`, with their defaults; each method takes only its own.

    "ep", expectation propagation
        ``power="auto"`` or in (0, 1], ``damping="auto"`` or in (0, 1], ``tol=1e-8``, ``max_iter=200``,
        ``schedule="parallel"`` or ``"sequential"``, ``solver="auto"``, ``"observations"``, ``"coefficients"`` or
        ``"precision"``; of wavelet coefficients ``translations=1`` grids to average over.
    "laplace", "vg", the variational Gaussian, and "dsb", local bounds, of latent Gaussian models
        ``tol``, ``max_iter`` and ``solver`` as in "ep".
    "ep", "laplace" and "jaakkola", for comparisons of items
        ``learn="evidence"`` or ``"em"``, ``held_out=0``, a share of comparisons, ``max_pairs=None``, a largest number
        of comparisons of a user, ``partitions``, a number of parts of the users, ``client``, a `distributed.Client`
        whose workers hold these, ``evidence_tol=1e-5`` nats a comparison, ``tol=1e-8``, ``max_iter=200``, ``seed=0``.
    "dsb", the double loop, of images
        ``variance="auto"``, ``"exact"``, ``"perturb-and-map"`` or ``"lanczos"``, ``n_samples=30``,
        ``lanczos_steps=100``, ``outer=50`` loops at most, ``tol``, by default 1e-4 with exact variances and 1e-3 with
        others, ``inner="irls"``, ``"lbfgs"`` or ``"newton-cg"``, ``inner_max_iter=50``, ``cg_tol=1e-4``,
        ``cg_max_iter=1000``, ``translations=1``, ``seed=0``.
    "map", the mode of the density
        ``outer``, ``inner``, ``cg_tol`` and ``cg_max_iter`` as of the double loop; ``tol=1e-4``,
        ``inner_max_iter=1000``, ``smoothing=1e-8``.
    "vg", the variational Gaussian, of matrices
        ``covariance="diagonal"`` or ``"full"``, ``estimate=()``, names of matrices and biases that are points without a
        posterior, ``tol=1e-6`` nats a cell and step, ``max_iter=200``, ``seed=0``.
    "vbmf", shrinkage of singular values
        ``rank``, by default all columns, ``shrinkage="vb"`` or ``"map"``, ``ard=False``, ``init="modes"`` or
        ``"zeros"``, ``tol=1e-6``, ``max_iter=1000``, ``seed=0``.
    "paired_vb", pairs
        ``estimate=()``, ``constant_messages=False``, ``calibrate=True``, by pairs left out one at a time,
        ``partitions``, Parquet files of pairs such as ``"pairs/*.parquet"``, ``client``, a `distributed.Client` whose
        workers hold these, ``update="bulk"`` or ``"sequential"``, ``dtype="float64"`` or ``"float32"``, ``tol=1e-6``
        nats a pair and sweep, ``max_iter=200``, ``seed=0``. Where both sides are the same symbols, without `calibrate`,
        `partitions` and `client`.
    "ml", a recurrent network
        ``epochs=25``, ``batch=128``, the length of the windows that gradients go back through, ``users_per_batch=32``,
        ``patience=3`` epochs, ``held_out=0.05``, a share of each user's events at their end, ``optimizer="yogi"``,
        ``"rmsprop"`` or ``"adam"``, ``learning_rate=0.01``, ``clip=1.0``, ``ridge=1.0``, ``sampled=None`` for all items
        in a softmax, ``dropout=0.0``, ``dtype="float64"`` or ``"float32"``, ``seed=0``.
    """

    power: float | Literal["auto"]
    damping: float | Literal["auto"]
    tol: float | None
    max_iter: int
    schedule: Literal["parallel", "sequential"]
    solver: Literal["auto", "observations", "coefficients", "precision"]
    translations: int
    learn: Literal["evidence", "em"]
    held_out: float
    max_pairs: int | None
    partitions: int | str | Sequence[str] | None
    client: Any
    evidence_tol: float
    seed: int
    variance: Literal["auto", "exact", "perturb-and-map", "lanczos"]
    n_samples: int
    lanczos_steps: int
    outer: int
    inner: Literal["irls", "lbfgs", "newton-cg"]
    inner_max_iter: int
    cg_tol: float
    cg_max_iter: int
    smoothing: float
    covariance: Literal["diagonal", "full"]
    estimate: Sequence[str]
    rank: int | None
    shrinkage: Literal["vb", "map"]
    ard: bool
    init: Literal["modes", "zeros"]
    constant_messages: bool
    calibrate: bool
    update: Literal["bulk", "sequential"]
    dtype: Literal["float64", "float32"]
    epochs: int
    batch: int
    users_per_batch: int
    patience: int
    optimizer: Literal["yogi", "rmsprop", "adam"]
    learning_rate: float
    clip: float
    ridge: float
    sampled: int | None
    dropout: float
