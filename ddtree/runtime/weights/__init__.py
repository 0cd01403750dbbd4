"""Checkpoints: validated headers, mapped tensors, INT4, and each rank's part of every weight."""

from ddtree.runtime.weights.checkpoint import Checkpoint
from ddtree.runtime.weights.config import check_config
from ddtree.runtime.weights.int4 import Int4
from ddtree.runtime.weights.loader import load

__all__ = ["Checkpoint", "Int4", "check_config", "load"]
