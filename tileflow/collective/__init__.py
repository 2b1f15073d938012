"""Several processes that train together: what connects them, and which of them this one is (docs/distributed.md)."""
from .communicator import Communicator
from .group import current, init, use

__all__ = ["Communicator", "current", "init", "use"]
