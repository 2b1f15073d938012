"""PopTorch's names: the one table from its options to tileflow's, and the lines of its configuration files, parsed and
never executed."""
