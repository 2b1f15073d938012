"""Exit codes of the command."""
OK, NO_UPDATE, USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 0, 1, 2, 70, 130
