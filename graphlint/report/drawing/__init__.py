"""Pictures of backward graphs, from the record to SVG in stages of one file each.

`subjects` says which backwards to draw, `structure` groups a graph's nodes by module call and folds
repeats, `collapse` decides what is shown, `compose` words it as a `Diagram`, `layout` places it with a dot
program, `paint` writes the SVG. `full` is the uncollapsed view by torchviz. May import `lint`, `analysis`,
`record`; graphviz and torchviz are imported inside functions.
"""
