"""Strategies: programs cut into stages along the marks on their nodes, and the schedules that run them over several IPUs."""
