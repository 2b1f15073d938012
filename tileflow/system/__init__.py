"""What everything stands on: errors, text and terminals, files, the surroundings of the process."""
