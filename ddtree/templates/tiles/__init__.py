"""Launch choices: one file per op, apart from its meaning and its kernel."""
