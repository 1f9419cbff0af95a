"""Algorithms, one a file, and the one loop that drives them."""

from pymc_ep.engines import bilinear_vbmf as bilinear_vbmf
from pymc_ep.engines import bilinear_vg as bilinear_vg
from pymc_ep.engines import latent_ep as latent_ep
from pymc_ep.engines import sparse_solutions as sparse_solutions
from pymc_ep.engines.base import EngineEntry, able_engines, engines, get_engine, register_engine
from pymc_ep.engines.checkpoint import Checkpoint

__all__ = ["Checkpoint", "EngineEntry", "able_engines", "engines", "get_engine", "register_engine"]
