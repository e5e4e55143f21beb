"""linsat inside tools that other people run; each module needs the extra of its name."""
