"""Case studies built on linsat's public interface: each subpackage is one study, from data to report."""

__version__ = "0.1.0"
