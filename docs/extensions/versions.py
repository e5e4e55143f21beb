"""The selector of versions, on sites that `mike deploy` builds; elsewhere it would ask for a list that is not there."""

from __future__ import annotations

import os
from typing import Any


def on_config(config: Any) -> Any:
    """Switch the selector on where mike runs the build."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike", "default": "latest"}
    return config
