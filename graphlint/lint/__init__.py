"""What a rule, a finding and a report are; may import `analysis`, `record` and `errors`."""
