"""Exit codes of the command."""
OK, USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 0, 2, 70, 130
