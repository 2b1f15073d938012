"""Options: every setting of a run as a declaration, read from arguments, files, command lines and lines of the
reference's scripts."""
