"""What a run tells its user, for tests."""
from __future__ import annotations

from tileflow.runtime.trainer import Silent


class Said(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)
