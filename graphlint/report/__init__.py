"""Reports as values rendered to a stream, one file per format; may import `lint`, `analysis`, `record`."""
