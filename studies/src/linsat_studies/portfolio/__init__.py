"""Portfolio allocation with preferences: from the last 120 trading days, weights held for the next 120, of which
preferred assets hold at least a given share."""
