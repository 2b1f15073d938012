"""The simulated machine: chips, the partition planner, mapping, memory and cycles. Imports neither lowering nor runtime."""
