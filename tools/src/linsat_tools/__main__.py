"""``python -m linsat_tools``: the ``linsat`` command."""

from linsat_tools.cli import main

raise SystemExit(main())
