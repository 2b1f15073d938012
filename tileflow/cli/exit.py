"""Exit codes of the command."""
OK, USER_ERROR, INTERRUPTED = 0, 2, 130
