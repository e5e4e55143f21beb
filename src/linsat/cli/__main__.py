"""``python -m linsat.cli``."""

from linsat.cli.app import main

raise SystemExit(main())
