"""Models whose sizes, branches or turns follow from data, cut into pieces: what of a model can be compiled now, and what must be known first."""
from .cut import Cutter, Piece, decides
from .host import run_hosted
from .steps import Frame, Step, frame_of

__all__ = ["Cutter", "Frame", "Piece", "Step", "decides", "frame_of", "run_hosted"]
