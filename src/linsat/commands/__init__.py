"""The sub-commands of ``linsat``."""
