"""ONNX: reading and checking files, import into graphs, export of trained weights, inspection."""
from .bind import fixed_batch, open_sizes
from .export import export_model
from .folded import folded_norms
from .graph_file import FileForm, graph_model
from .head import with_classes
from .importer import Imported, import_graph, input_types
from .inspect import Report, inspect_model, unsupported_nodes
from .load import OLDEST_OPSET, load_model, wrap_model
from .model import OnnxModel, Port
from .parameters import resolved
from .refused import UnsupportedNodesError
from .site import DynamicOperandError

__all__ = [
    "OLDEST_OPSET", "DynamicOperandError", "FileForm", "Imported", "OnnxModel", "Port", "Report",
    "UnsupportedNodesError", "export_model",
    "fixed_batch", "folded_norms", "graph_model", "import_graph", "input_types", "inspect_model", "load_model", "open_sizes", "resolved",
    "unsupported_nodes", "with_classes", "wrap_model",
]
