"""The three kinds of rows, as numbers."""

LESS, EQUAL, GREATER = -1, 0, 1
