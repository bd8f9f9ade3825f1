"""The rule catalogue: one file per rule and nothing else; `lint.discovery` finds them."""
