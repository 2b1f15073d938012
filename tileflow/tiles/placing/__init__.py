"""The plans of a whole program together: which each operator gets, where every tensor lies, what is moved and held."""
