"""Operators that Python runs on the host, between compiled pieces: sizes that follow from data, sequences, optionals, texts, images."""
from . import constants as _constants  # noqa: F401  (registers its operators)
from . import images as _images  # noqa: F401
from . import loops as _loops  # noqa: F401
from . import select as _select  # noqa: F401
from . import sequences as _sequences  # noqa: F401
from . import strings as _strings  # noqa: F401
from . import text as _text  # noqa: F401
from .registry import Attributes, Datum, PythonHandler, hosted, hosted_form, is_hosted, is_plain

__all__ = ["Attributes", "Datum", "PythonHandler", "hosted", "hosted_form", "is_hosted", "is_plain"]
