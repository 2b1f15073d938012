"""What a run tells its user, for tests."""
from __future__ import annotations

from tileflow.callbacks import Callback


class Said(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def on_message(self, sentence: str) -> None:
        self.sentences.append(sentence)
