"""All orders of machines, and what has come of them."""

from __future__ import annotations

from console.tui.widgets.list_pane import ListPane


class OrdersPane(ListPane):
    NAME = "orders"
    KIND = "orders"
