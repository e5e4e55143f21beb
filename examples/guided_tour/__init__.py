"""The parts of the demo, `examples/demo.py`."""
