"""Checkpoints: files from which a fit that was ended goes on, exactly as if it had not been ended."""

from pymc_ep.engines.checkpoint.checkpoint import UNRECORDED, Checkpoint, Record
from pymc_ep.engines.checkpoint.file_format import digest

__all__ = ["UNRECORDED", "Checkpoint", "Record", "digest"]
