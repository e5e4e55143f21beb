"""Rivals' own benchmarks with linsat beside them: `make arena` runs them, docs/arena.md says what came out."""
