"""Where a problem is solved: one module a back end."""
