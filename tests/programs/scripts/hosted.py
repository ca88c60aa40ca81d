"""Whether glnn's host computed something in a session's last run."""

from __future__ import annotations

from typing import Any


def check_hosted(*sessions: Any) -> None:
    """Raise RuntimeError where glnn's host computed an operator in the last run of a session."""
    for session in sessions:
        options = session.get_provider_options().get("GlnnExecutionProvider", {})
        if options.get("hosted"):
            raise RuntimeError(f"the host computed {options['hosted']}")
