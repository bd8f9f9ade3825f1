"""Facts derived from a trace, each computed once; may import `record` and `errors`, never torch."""
