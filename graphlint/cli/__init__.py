"""The command line: one module per sub-command; the only place besides integrations where capture and lint meet."""
