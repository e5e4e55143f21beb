"""`linsat explore`: a local page where rows, scores and temperature are changed by hand and x follows at once."""

from linsat_tools.explorer.server import serve

__all__ = ["serve"]
