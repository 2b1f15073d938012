"""Several processes that train together: what connects them, and which of them this one is (docs/distributed.md)."""
from .communicator import Communicator
from .group import alone, current, init, use
from .turns import in_turns

__all__ = ["Communicator", "alone", "current", "in_turns", "init", "use"]
