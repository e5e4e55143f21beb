"""The process that solves: one JSON question per line in, one JSON answer per line out."""

from __future__ import annotations

import json
import sys

from linsat_tools.explorer.answer import answer


def main() -> None:
    """Answer until the input ends."""
    answer({"text": "a + b = 1\na <= 0.9", "scores": {"a": 1.0}})  # compile the kernel before the time counts
    answer({"text": "a + b = 1\na + b >= 2"})  # and load what is needed to find conflicts
    _say("ready")
    for line in sys.stdin.buffer:
        try:
            question = json.loads(line)
        except (ValueError, RecursionError):
            _say(json.dumps({"state": "error", "message": "the question is not JSON; expected an object."}))
            continue
        _say(json.dumps(answer(question), allow_nan=False))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
