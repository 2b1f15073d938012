"""Recurrent layers: all steps of a sequence in one leaf, forward and backward; what a cell computes are scalar expressions that it is given."""
