"""Precision: the element types of a run, and which operators compute in which."""
