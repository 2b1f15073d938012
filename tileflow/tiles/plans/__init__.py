"""How one operator is cut over tiles: what a plan is and says, which are looked at, what they cost."""
