"""ai.onnx.ml: what scikit-learn's, LightGBM's and XGBoost's exporters write."""
from . import encoders, linear, texts, trees

__all__ = ["encoders", "linear", "texts", "trees"]
