"""Data: named arrays of equal length out of files or memory, fitted to a model, read in batches by a background thread."""
from .dataset import Dataset, Field
from .loader import DataLoader
from .sources import Data, open_data

__all__ = ["Data", "DataLoader", "Dataset", "Field", "open_data"]
