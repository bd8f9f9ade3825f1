"""The command line: one module per sub-command; here and in integrations capture and lint meet."""
