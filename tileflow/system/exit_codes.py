"""Exit codes of the command."""
OK, NO_UPDATE, USER_ERROR, INTERNAL_ERROR, INTERRUPTED = 0, 1, 2, 70, 130
"""All went well; training made no update; a sentence told the user what to mend; an error of tileflow's own; Ctrl-C or
SIGTERM."""
