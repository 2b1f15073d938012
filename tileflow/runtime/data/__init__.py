"""Data: named arrays of equal length out of files or memory, fitted to a model, read in batches by a background thread."""
from .dataset import Dataset, Field
from .images import WantedImages, wanted_by
from .loader import AsynchronousDataAccessor, DataLoader
from .scaling import Scaling, Statistics
from .sources import Data, Roles, check_given, open_data, open_more, roles_of

__all__ = ["AsynchronousDataAccessor", "Data", "DataLoader", "Dataset", "Field", "Roles", "Scaling", "Statistics",
           "WantedImages", "check_given",
           "open_data", "open_more", "roles_of", "wanted_by"]
