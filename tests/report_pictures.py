"""The pictures of the report in docs/, taken in a headless browser.

    python tests/report_pictures.py            # writes docs/report*.png anew; needs Chromium, and Pillow to make them small
"""
from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent / "models"))

from browser import Browser, Page

import tileflow
from tileflow import report

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = 200


def memory(page: Page) -> None:
    """What is on a tile."""
    page("document.querySelector('#tab-memory').click()")
    page.click("#panel-memory svg[role=slider]", at=(0.35, 0.6))


def addresses(page: Page) -> None:
    """Where everything lies on the fullest tile: the last card of the view, which is alone in the picture."""
    page("document.querySelector('#tab-memory').click()")
    page("(panel => panel.replaceChildren(panel.lastElementChild))(document.querySelector('#panel-memory'))")


def liveness(page: Page) -> None:
    page("document.querySelector('#tab-liveness').click()")


def operators(page: Page) -> None:
    """The slowest operator, and why it has its plan."""
    page("document.querySelector('#tab-operators').click()")
    page("document.querySelector('#panel-operators .big').style.maxHeight = '330px'")
    page.click("#panel-operators tr[data-row]")


def balance(page: Page) -> None:
    page("document.querySelector('#tab-balance').click()")


def traffic(page: Page) -> None:
    page("document.querySelector('#tab-exchange').click()")


def roofline(page: Page) -> None:
    """The third of the longest operators is picked."""
    page("document.querySelector('#tab-roofline').click()")
    page("document.querySelector('#panel-roofline svg').focus()")
    page.key("Home", "ArrowRight", "ArrowRight")


def graph(page: Page) -> None:
    """What follows the first operators, and which of these are of one type."""
    page("document.querySelector('#tab-graph').click()")
    page.click("#panel-graph input[type=search]")
    page.type("relu forward")
    page.key("Enter")


def execution(page: Page) -> None:
    page("document.querySelector('#tab-execution').click()")
    page("document.querySelector('.trace').focus()")
    page.key("+", "+", "ArrowLeft")


def comparison(page: Page) -> None:
    page("document.querySelector('#tab-comparison').click()")


PICTURES: dict[str, tuple[int, bool, Callable[[Page], None]]] = {
    "report": (0, False, memory), "report-addresses": (0, False, addresses), "report-liveness": (0, False, liveness),
    "report-operators": (0, False, operators), "report-balance": (0, False, balance),
    "report-exchange": (0, False, traffic), "report-roofline": (0, False, roofline), "report-graph": (0, True, graph),
    "report-execution": (1, True, execution), "report-comparison": (2, False, comparison)}
"""By name: the page (of a program on one IPU, on several, of two programs), whether in the dark, and what is done there."""


def take(pages: list[Path], folder: Path, height: int = 860) -> list[Path]:
    """The pictures of three pages."""
    taken = []
    with Browser() as browser:
        for name, (which, dark, act) in PICTURES.items():
            page = browser.open(pages[which], width=1320, height=height, dark=dark)
            act(page)
            page("(scrollTo(0, 0), document.activeElement.blur())")
            page.mouse(2, 2, "move")
            taken.append(folder / f"{name}.png")
            page.picture(taken[-1])
    return taken


def write(reports: list[report.Report], folder: Path) -> list[Path]:
    """The pages of a program on one IPU, of one on several, and of the first beside a third."""
    one, several, other = reports
    both = report.page.render_both(one, other, report.compare.compare(one, other, ("float32", "16-mixed")))
    pages = [folder / f"{i}.html" for i in range(3)]
    for file, text in zip(pages, (report.page.render(one), report.page.render(several), both), strict=True):
        file.write_text(text, encoding="utf-8")
    return pages


def resnet() -> list[report.Report]:
    """ResNet-50's training step on a GC200, in a pipeline of four, and in mixed precision."""
    from tile_models import Residual

    def made(**options: object) -> report.Report:
        return tileflow.compile(Residual(), inputs=[(4, 3, 224, 224)], training=True, loss="cross_entropy", optimizer="sgd", machine="gc200",
                                micro_batch_size=4, gradient_accumulation=16, allow_out_of_memory=True, **options).report
    reports = [made(available_memory_proportion=0.12), made(strategy="pipelined", auto_pipeline=4),
               made(available_memory_proportion=0.12, precision="16-mixed")]
    for found in reports:
        found["model"] = "ResNet-50"
    return reports


def small(file: Path) -> None:
    """A picture in few colours, which is all that a page has."""
    from PIL import Image
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for taken in take(write(resnet(), Path(scratch)), DOCS):
            small(taken)
            print(f"{taken}: {taken.stat().st_size:,} bytes")
