"""linsat-tools: the command line, the explorer, files of scores, and Ray, for linsat."""

__version__ = "0.1.0"
