"""Random systems with a known truth, and faults on purpose; what is checked is checked from outside of linsat."""
