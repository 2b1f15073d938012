"""Searches over simulated machines: one model with many settings, for the fastest proportions (tune), for what makes it
fit, faster or smaller (levers), or for all of them compared in a table and a picture (explore)"""
from .found import Exploration, ExplorationInterrupted
from .point import Point, front

__all__ = ["Exploration", "ExplorationInterrupted", "Point", "front"]
