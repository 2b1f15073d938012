"""Tile-exact execution: a planned program run part by part, each tile seeing only what was brought to it."""
from ..system.errors import TileMemoryError
from .arena import Arena
from .check import Difference, Report, check, compare
from .program import Result, alone, execute
from .tiles import Tiles, Traffic, work_of

__all__ = ["Arena", "Difference", "Report", "Result", "TileMemoryError", "Tiles", "Traffic", "alone", "check", "compare", "execute", "work_of"]
