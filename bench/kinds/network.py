"""Whole networks."""


class Network:
    """x"""
