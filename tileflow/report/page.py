"""page.html: a report, or two side by side, as one page that stands alone: its style, its script and its data are in it, and it may load nothing.

The page's security policy allows the script and the style with these digests and nothing else; names out of models only ever become texts.
"""
from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from typing import Any

from . import format as f
from .compare import Comparison
from .json import Report
from .pagedata import data
from .palette import SERIES, patterns

FILE, COMPARISON = "page.html", "compare.html"
WEB = Path(__file__).with_name("web")
SCRIPTS = ("base", "table", "plot", "summary", "insights", "arena", "addresses", "tiles", "memory", "liveness",
           "variables", "program", "groups", "operators", "balance", "traffic", "roofline", "graph", "execution",
           "compare", "main")
"""Parts of the script, in the order in which they build on each other."""

_DRAWN = {"series": SERIES, "patterns": patterns()}
NO_SCRIPT = "This page draws itself by a script, which this browser does not run; tileflow report prints the same as text."
ESTIMATES = "Cycles and bytes are a model's estimates; what is documented about the chip and what is estimated stands under Summary."


def render(report: Report) -> str:
    """The page of a report."""
    return _page(f.title(report), {"reports": [data(report)], "comparison": None, **_DRAWN}, report)


def render_both(a: Report, b: Report, comparison: Comparison) -> str:
    """The page of two reports and what differs between them (`compare.compare`)."""
    return _page(comparison["title"], {"reports": [data(a), data(b)], "comparison": comparison, **_DRAWN}, b)


def _page(title: str, content: dict[str, Any], report: Report) -> str:
    style = "\n" + (WEB / "page.css").read_text(encoding="utf-8")
    script = "\n(() => {\n\"use strict\";\n" + "\n".join((WEB / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS) + "})();\n"
    policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">'
            f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>\n<header id=\"head\"><h1>{escape(title)}</h1></header>\n"
            f'<noscript><p class="note">{NO_SCRIPT}</p></noscript><div id="said"></div><div id="views"></div>\n'
            f"<footer>{escape(report['made_by'])}. {ESTIMATES}</footer>\n</main>\n"
            f'<script type="application/json" id="data">{_json(content)}</script><script>{script}</script></body></html>\n')


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(content: Any) -> str:
    """JSON in which nothing ends the element that it is in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
