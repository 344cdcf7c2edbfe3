"""Nodes that are kept for later."""

from __future__ import annotations

from console.tui.widgets.list_pane import ListPane


class ReservationsPane(ListPane):
    NAME = "reservations"
    KIND = "reservations"
