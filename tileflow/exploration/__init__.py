"""Explorations: one model on several machines with several settings, as points of throughput and memory, compared in a table and a picture"""
from .found import Exploration, ExplorationInterrupted
from .point import Point, front

__all__ = ["Exploration", "ExplorationInterrupted", "Point", "front"]
