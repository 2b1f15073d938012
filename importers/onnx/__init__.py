"""ONNX: reading and checking files, import into graphs, export of trained weights, inspection."""
from .export import export_model
from .importer import Imported, import_graph
from .inspect import Report, inspect_model
from .load import OnnxModel, Port, load_model, wrap_model

__all__ = ["Imported", "OnnxModel", "Port", "Report", "export_model", "import_graph", "inspect_model", "load_model", "wrap_model"]
