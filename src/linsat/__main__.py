"""``python -m linsat``."""

from linsat.cli.app import main

raise SystemExit(main())
