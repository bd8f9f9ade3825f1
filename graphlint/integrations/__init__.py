"""Ways into graphlint from inside a user's own code; here, as in the command line, capture and lint meet."""
